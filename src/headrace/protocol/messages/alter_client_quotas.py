"""AlterClientQuotas (key 49): set or remove quotas of users, client ids and addresses.

Versions 0-1. 1 is flexible.
"""

from headrace.protocol.schema import BOOL, FLOAT64, INT16, INT32, STRING, Array, f, request, response, struct


@struct
class EntityData:
    entity_type: str = f(STRING)
    entity_name: str | None = f(STRING, nullable="0+")


@struct
class OpData:
    key: str = f(STRING)
    value: float = f(FLOAT64)
    remove: bool = f(BOOL)


@struct
class AlterClientQuotasRequestEntryData:
    entity: list[EntityData] = f(Array(EntityData))
    ops: list[OpData] = f(Array(OpData))


@request(49, "0-1", flexible=1)
class AlterClientQuotasRequest:
    entries: list[AlterClientQuotasRequestEntryData] = f(Array(AlterClientQuotasRequestEntryData))
    validate_only: bool = f(BOOL)


@struct
class AlterClientQuotasResponseEntryData:
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")
    entity: list[EntityData] = f(Array(EntityData))


@response(49, "0-1", flexible=1)
class AlterClientQuotasResponse:
    throttle_time_ms: int = f(INT32)
    entries: list[AlterClientQuotasResponseEntryData] = f(Array(AlterClientQuotasResponseEntryData))
