"""Client quotas: how much users, client ids and addresses may send, read and ask for."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headrace.cluster.decision import NO_ERROR, ApiError, Decision
from headrace.cluster.image import Image, QuotaEntity
from headrace.cluster.records import ClientQuotaRecord, MetadataRecord
from headrace.cluster.records import EntityData as StoredEntity
from headrace.error_codes import ErrorCode
from headrace.protocol.messages import alter_client_quotas, describe_client_quotas

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
_IN_ORDER: Final = (CLIENT_ID, USER, IP)
_ENTITY_KINDS: Final = (frozenset({USER}), frozenset({CLIENT_ID}), frozenset({USER, CLIENT_ID}), frozenset({IP}))

_INT_MAX: Final = 2**31 - 1
# The highest value of a quota that has to be a whole number; None where it may be any number.
_CLIENT_KEYS: Final[Mapping[str, int | None]] = {
    "producer_byte_rate": 2**63 - 1,
    "consumer_byte_rate": 2**63 - 1,
    "request_percentage": None,
    "controller_mutation_rate": None,
}
_IP_KEYS: Final[Mapping[str, int | None]] = {"connection_creation_rate": _INT_MAX}
_FRACTION_MAX: Final = 1e-6

_EXACT: Final = 0
_DEFAULT: Final = 1
_ANY: Final = 2


def alter(
    image: Image, request: alter_client_quotas.AlterClientQuotasRequest
) -> Decision[alter_client_quotas.AlterClientQuotasResponse]:
    """Each entity is answered once. One that comes twice is refused, but as in Kafka its first changes were made."""
    decision = Decision(alter_client_quotas.AlterClientQuotasResponse())
    errors: dict[QuotaEntity, ApiError] = {}
    for entry in request.entries:
        # An entity type that comes twice counts as the last one says.
        named = {part.entity_type: part.entity_name for part in entry.entity}
        entity: QuotaEntity = tuple(sorted(named.items(), key=lambda pair: pair[0]))
        if entity in errors:
            errors[entity] = ApiError(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {_shown(entity)}")
            continue
        errors[entity], records = _alter_one(image, entity, entry.ops)
        if not request.validate_only:
            decision.records += records
    for entity, error in errors.items():
        decision.response.entries.append(
            alter_client_quotas.AlterClientQuotasResponseEntryData(
                error_code=error.code,
                error_message=error.message,
                entity=[
                    alter_client_quotas.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in sorted(entity, key=_place)
                ],
            )
        )
    return decision


def _place(part: tuple[str, str | None]) -> int:
    """Where Kafka tells of a part of an entity in its answer."""
    kind = part[0]
    return _IN_ORDER.index(kind) if kind in _IN_ORDER else len(_IN_ORDER)


def _alter_one(
    image: Image, entity: QuotaEntity, ops: Sequence[alter_client_quotas.OpData]
) -> tuple[ApiError, list[MetadataRecord]]:
    problem = _entity_problem(entity)
    if len({op.key for op in ops}) != len(ops):
        problem = f"Ignoring duplicate entity {_shown(entity)}"
    if problem is not None:
        return ApiError(ErrorCode.INVALID_REQUEST, problem), []
    limits = _IP_KEYS if entity[0][0] == IP else _CLIENT_KEYS
    now = image.quotas.get(entity, {})
    records: list[MetadataRecord] = []
    for op in ops:
        if not op.remove:
            problem = _value_problem(limits, op)
            if problem is not None:
                return ApiError(ErrorCode.INVALID_REQUEST, problem), []
        if (op.key in now) if op.remove else (now.get(op.key) != op.value):
            stored = [StoredEntity(entity_type=kind, entity_name=name) for kind, name in entity]
            value = 0.0 if op.remove else op.value
            records.append(ClientQuotaRecord(entity=stored, key=op.key, value=value, remove=op.remove))
    return NO_ERROR, records


def _value_problem(limits: Mapping[str, int | None], op: alter_client_quotas.OpData) -> str | None:
    """Why a quota cannot have this value. What is only removed needs not even be a quota."""
    if op.key not in limits:
        return f"Invalid configuration key {op.key}"
    highest = limits[op.key]
    if not (math.isfinite(op.value) and op.value > 0):
        return f"Quota {op.key} must be greater than 0"
    if highest is not None and op.value > highest:
        return f"Proposed value for {op.key} is too large for {'a LONG' if highest > _INT_MAX else 'an INT'}."
    if highest is not None and math.fmod(op.value, 1.0) > _FRACTION_MAX:
        return f"{op.key} cannot be a fractional value."
    return None


def _entity_problem(pairs: Sequence[tuple[str, str | None]]) -> str | None:
    if not pairs:
        return "Invalid empty client quota entity"
    kinds = [kind for kind, _ in pairs]
    for kind, name in pairs:
        if kind not in (USER, CLIENT_ID, IP):
            return f"Unhandled client quota entity type: {kind}"
        if name == "":
            return f"Empty {kind} not supported"
    if frozenset(kinds) not in _ENTITY_KINDS:
        return f"A client quota cannot be for {' and '.join(kinds)} together."
    if kinds == [IP] and pairs[0][1] is not None:
        try:
            ipaddress.ip_address(pairs[0][1])
        except ValueError:
            return f"{pairs[0][1]} is not a valid IP or resolvable host."
    return None


def _shown(entity: Iterable[tuple[str, str | None]]) -> str:
    entries = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{entries}}})"


def describe(
    image: Image, request: describe_client_quotas.DescribeClientQuotasRequest
) -> describe_client_quotas.DescribeClientQuotasResponse:
    """The quotas whose entities match every component, and with `strict` have no others."""
    problem = _filter_problem(request.components)
    if problem is not None:
        return describe_client_quotas.DescribeClientQuotasResponse(
            error_code=problem.code, error_message=problem.message, entries=None
        )
    entries = [
        describe_client_quotas.EntryData(
            entity=[describe_client_quotas.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
            values=[describe_client_quotas.ValueData(key=key, value=value) for key, value in values.items()],
        )
        for entity, values in image.quotas.items()
        if _matches(dict(entity), request)
    ]
    return describe_client_quotas.DescribeClientQuotasResponse(error_message="", entries=entries)


def _filter_problem(components: Sequence[describe_client_quotas.ComponentData]) -> ApiError | None:
    kinds = [component.entity_type for component in components]
    for component in components:
        if component.entity_type == "":
            return ApiError(ErrorCode.INVALID_REQUEST, "The type of an entity is empty.")
        if component.entity_type not in (USER, CLIENT_ID, IP):
            return ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unknown type of entity: {component.entity_type}")
        if component.match_type not in (_EXACT, _DEFAULT, _ANY):
            return ApiError(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}.")
        if (component.match_type == _EXACT) != (component.match is not None):
            return ApiError(ErrorCode.INVALID_REQUEST, "A name goes with match type 0 (exactly this one) only.")
    if len(set(kinds)) != len(kinds):
        return ApiError(ErrorCode.INVALID_REQUEST, "A type of entity comes twice in the filter.")
    if IP in kinds and len(kinds) > 1:
        return ApiError(ErrorCode.INVALID_REQUEST, "ip cannot be combined with user or client-id.")
    return None


def _matches(entity: dict[str, str | None], request: describe_client_quotas.DescribeClientQuotasRequest) -> bool:
    if request.strict and len(entity) != len(request.components):
        return False
    for component in request.components:
        if component.entity_type not in entity:
            return False
        name = entity[component.entity_type]
        if component.match_type == _EXACT and name != component.match:
            return False
        if component.match_type == _DEFAULT and name is not None:
            return False
    return True
