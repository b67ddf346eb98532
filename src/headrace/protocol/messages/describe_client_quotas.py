"""DescribeClientQuotas (key 48): quotas of users, client ids and addresses that match a filter.

Versions 0-1. 1 is flexible. Match types: 0 exactly this name, 1 the default, 2 any name.
"""

from headrace.protocol.schema import BOOL, FLOAT64, INT8, INT16, INT32, STRING, Array, f, request, response, struct


@struct
class ComponentData:
    entity_type: str = f(STRING)
    match_type: int = f(INT8)
    match: str | None = f(STRING, nullable="0+")


@request(48, "0-1", flexible=1)
class DescribeClientQuotasRequest:
    components: list[ComponentData] = f(Array(ComponentData))
    strict: bool = f(BOOL)


@struct
class EntityData:
    entity_type: str = f(STRING)
    entity_name: str | None = f(STRING, nullable="0+")


@struct
class ValueData:
    key: str = f(STRING)
    value: float = f(FLOAT64)


@struct
class EntryData:
    entity: list[EntityData] = f(Array(EntityData))
    values: list[ValueData] = f(Array(ValueData))


@response(48, "0-1", flexible=1)
class DescribeClientQuotasResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")
    entries: list[EntryData] | None = f(Array(EntryData), nullable="0+")
