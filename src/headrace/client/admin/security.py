"""Who may do how much: ACLs, SCRAM credentials, quotas."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from headrace.client.admin.core import (
    Context,
    Results,
    ask_one,
    change_each,
    forget_controller,
    missing,
    refused,
    retried,
    single,
    to_controller,
)
from headrace.client.admin.types import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    ClientQuotaEntity,
    PatternType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from headrace.client.cluster.core import ANY_NODE
from headrace.client.flows import Flow
from headrace.errors import HeadraceError, UnacceptableCredentialError
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponseEntryData,
    EntityData,
    OpData,
)
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from headrace.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsMatchingAcl, DeleteAclsRequest
from headrace.protocol.messages.describe_acls import DescribeAclsRequest
from headrace.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from headrace.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)

_HASHES = {ScramMechanism.SCRAM_SHA_256: "sha256", ScramMechanism.SCRAM_SHA_512: "sha512"}
_SALT_BYTES = 24
_ITERATIONS_MIN, _ITERATIONS_MAX = 4096, 16_384
_MATCH_EXACT, _MATCH_DEFAULT, _MATCH_ANY = 0, 1, 2

# --- ACLs -------------------------------------------------------------------------------------------------------------


def describe_acls(context: Context, acl_filter: AclBindingFilter | None = None) -> Flow[list[AclBinding]]:
    """The ACLs that a filter matches (None: all)."""
    wanted = acl_filter or AclBindingFilter()

    def attempt() -> Flow[list[AclBinding] | HeadraceError]:
        request = DescribeAclsRequest(
            resource_type_filter=int(wanted.resource_type),
            resource_name_filter=wanted.resource_name,
            pattern_type_filter=int(wanted.pattern_type),
            principal_filter=wanted.principal,
            host_filter=wanted.host,
            operation=int(wanted.operation),
            permission_type=int(wanted.permission_type),
        )
        reply = yield from ask_one(context, ANY_NODE, request)
        if reply.error is not None:
            return reply.error
        return refused(reply.response.error_code, reply.response.error_message) or [
            AclBinding(
                AclResourceType(resource.resource_type),
                resource.resource_name,
                acl.principal,
                AclOperation(acl.operation),
                AclPermissionType(acl.permission_type),
                acl.host,
                PatternType(resource.pattern_type),
            )
            for resource in reply.response.resources
            for acl in resource.acls
        ]

    return (yield from single(context, attempt))


def create_acls(context: Context, acls: Iterable[AclBinding]) -> Flow[Results[AclBinding, None]]:
    """Add ACLs."""

    def attempt(pending: list[AclBinding]) -> Flow[Mapping[AclBinding, HeadraceError | None]]:
        request = CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=int(acl.resource_type),
                    resource_name=acl.resource_name,
                    resource_pattern_type=int(acl.pattern_type),
                    principal=acl.principal,
                    host=acl.host,
                    operation=int(acl.operation),
                    permission_type=int(acl.permission_type),
                )
                for acl in pending
            ]
        )
        reply = yield from to_controller(context, request)
        if reply.error is not None:
            return dict.fromkeys(pending, reply.error)
        # Answers are in the order of the questions, and name nothing.
        outcome: dict[AclBinding, HeadraceError | None] = {}
        for acl, result in zip(pending, reply.response.results):
            forget_controller(context, result.error_code)
            outcome[acl] = refused(result.error_code, result.error_message)
        return missing(pending, outcome, "CreateAcls")

    return (yield from retried(context, acls, attempt))


def delete_acls(
    context: Context, filters: Iterable[AclBindingFilter]
) -> Flow[Results[AclBindingFilter, list[AclBinding]]]:
    """Delete the ACLs that filters match. By filter: what was deleted."""

    def attempt(
        pending: list[AclBindingFilter],
    ) -> Flow[Mapping[AclBindingFilter, list[AclBinding] | HeadraceError]]:
        request = DeleteAclsRequest(
            filters=[
                DeleteAclsFilter(
                    resource_type_filter=int(wanted.resource_type),
                    resource_name_filter=wanted.resource_name,
                    pattern_type_filter=int(wanted.pattern_type),
                    principal_filter=wanted.principal,
                    host_filter=wanted.host,
                    operation=int(wanted.operation),
                    permission_type=int(wanted.permission_type),
                )
                for wanted in pending
            ]
        )
        reply = yield from to_controller(context, request)
        if reply.error is not None:
            return dict.fromkeys(pending, reply.error)
        outcome: dict[AclBindingFilter, list[AclBinding] | HeadraceError] = {}
        for wanted, result in zip(pending, reply.response.filter_results):
            forget_controller(context, result.error_code)
            error = refused(result.error_code, result.error_message)
            for match in result.matching_acls:
                error = error or refused(match.error_code, match.error_message, match.resource_name)
            outcome[wanted] = error or [_deleted(match) for match in result.matching_acls]
        return missing(pending, outcome, "DeleteAcls")

    return (yield from retried(context, filters, attempt))


def _deleted(match: DeleteAclsMatchingAcl) -> AclBinding:
    return AclBinding(
        AclResourceType(match.resource_type),
        match.resource_name,
        match.principal,
        AclOperation(match.operation),
        AclPermissionType(match.permission_type),
        match.host,
        PatternType(match.pattern_type),
    )


# --- SCRAM ------------------------------------------------------------------------------------------------------------


def describe_user_scram_credentials(
    context: Context, users: Iterable[str] | None = None
) -> Flow[Results[str, list[ScramCredentialInfo]]]:
    """Which users (None: all) have which SCRAM credentials."""
    wanted = None if users is None else [UserName(name=name) for name in users]

    def attempt() -> Flow[Results[str, list[ScramCredentialInfo]] | HeadraceError]:
        reply = yield from ask_one(context, ANY_NODE, DescribeUserScramCredentialsRequest(users=wanted))
        error = reply.error or refused(reply.response.error_code, reply.response.error_message)
        if error is not None:
            return error
        ok: dict[str, list[ScramCredentialInfo]] = {}
        errors: dict[str, HeadraceError] = {}
        for result in reply.response.results:
            problem = refused(result.error_code, result.error_message, f"user {result.user}")
            if problem is not None:
                errors[result.user] = problem
            else:
                ok[result.user] = [
                    ScramCredentialInfo(ScramMechanism(info.mechanism), info.iterations)
                    for info in result.credential_infos
                ]
        return Results(ok, errors)

    return (yield from single(context, attempt))


def alter_user_scram_credentials(
    context: Context, alterations: Sequence[UserScramCredentialUpsertion | UserScramCredentialDeletion]
) -> Flow[Results[str, None]]:
    """Set or delete SCRAM credentials. By user."""
    upsertions: dict[str, list[ScramCredentialUpsertion]] = {}
    deletions: dict[str, list[ScramCredentialDeletion]] = {}
    for change in alterations:
        if isinstance(change, UserScramCredentialDeletion):
            deletions.setdefault(change.user, []).append(
                ScramCredentialDeletion(name=change.user, mechanism=int(change.mechanism))
            )
        else:
            upsertions.setdefault(change.user, []).append(_salted(context, change))

    def attempt(users: list[str]) -> Flow[Mapping[str, HeadraceError | None]]:
        request = AlterUserScramCredentialsRequest(
            deletions=[deletion for user in users for deletion in deletions.get(user, ())],
            upsertions=[upsertion for user in users for upsertion in upsertions.get(user, ())],
        )

        def read(result: AlterUserScramCredentialsResult) -> tuple[str, HeadraceError | None]:
            return result.user, refused(result.error_code, result.error_message, f"user {result.user}")

        return (yield from change_each(context, request, users, attrgetter("results"), read))

    return (yield from retried(context, [*upsertions, *deletions], attempt))


def _salted(context: Context, change: UserScramCredentialUpsertion) -> ScramCredentialUpsertion:
    if not _ITERATIONS_MIN <= change.iterations <= _ITERATIONS_MAX:
        # The broker would say so too, after a hash that takes as long as the number is large.
        raise UnacceptableCredentialError(
            f"user {change.user}: {change.iterations} iterations, not {_ITERATIONS_MIN} to {_ITERATIONS_MAX}"
        )
    salt = context.core.rng.randbytes(_SALT_BYTES) if change.salt is None else change.salt
    password = change.password.encode() if isinstance(change.password, str) else change.password
    salted = hashlib.pbkdf2_hmac(_HASHES[change.mechanism], password, salt, change.iterations)
    return ScramCredentialUpsertion(
        name=change.user,
        mechanism=int(change.mechanism),
        iterations=change.iterations,
        salt=salt,
        salted_password=salted,
    )


# --- quotas -----------------------------------------------------------------------------------------------------------


def describe_client_quotas(
    context: Context, components: Mapping[str, str | None] | None = None, *, strict: bool = False
) -> Flow[dict[ClientQuotaEntity, dict[str, float]]]:
    """Quotas by entity. `components` narrows it down: type → name, None for the default, `"*"` for any name.

    `strict` leaves out entities that have other types too.
    """

    def attempt() -> Flow[dict[ClientQuotaEntity, dict[str, float]] | HeadraceError]:
        request = DescribeClientQuotasRequest(
            components=[_component(kind, name) for kind, name in (components or {}).items()], strict=strict
        )
        reply = yield from ask_one(context, ANY_NODE, request)
        if reply.error is not None:
            return reply.error
        return refused(reply.response.error_code, reply.response.error_message) or {
            ClientQuotaEntity.of({e.entity_type: e.entity_name for e in entry.entity}): {
                value.key: value.value for value in entry.values
            }
            for entry in reply.response.entries or ()
        }

    return (yield from single(context, attempt))


def _component(kind: str, name: str | None) -> ComponentData:
    if name is None:
        return ComponentData(entity_type=kind, match_type=_MATCH_DEFAULT, match=None)
    if name == "*":
        return ComponentData(entity_type=kind, match_type=_MATCH_ANY, match=None)
    return ComponentData(entity_type=kind, match_type=_MATCH_EXACT, match=name)


def alter_client_quotas(
    context: Context,
    changes: Mapping[ClientQuotaEntity, Mapping[str, float | None]],
    *,
    validate_only: bool = False,
) -> Flow[Results[ClientQuotaEntity, None]]:
    """Set quotas (`producer_byte_rate` …) of entities; None takes one back."""

    def attempt(pending: list[ClientQuotaEntity]) -> Flow[Mapping[ClientQuotaEntity, HeadraceError | None]]:
        request = AlterClientQuotasRequest(
            entries=[
                AlterClientQuotasRequestEntryData(
                    entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.entries],
                    ops=[
                        OpData(key=key, value=0.0 if value is None else float(value), remove=value is None)
                        for key, value in changes[entity].items()
                    ],
                )
                for entity in pending
            ],
            validate_only=validate_only,
        )

        def read(entry: AlterClientQuotasResponseEntryData) -> tuple[ClientQuotaEntity, HeadraceError | None]:
            entity = ClientQuotaEntity.of({e.entity_type: e.entity_name for e in entry.entity})
            return entity, refused(entry.error_code, entry.error_message)

        return (yield from change_each(context, request, pending, attrgetter("entries"), read))

    return (yield from retried(context, changes, attempt))
