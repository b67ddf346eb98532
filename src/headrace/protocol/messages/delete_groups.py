"""DeleteGroups (key 42): delete empty groups with their offsets.

Versions 0-2. 1 answers before it throttles; 2 is flexible.
"""

from headrace.protocol.schema import INT16, INT32, STRING, Array, f, request, response, struct


@request(42, "0-2", flexible=2)
class DeleteGroupsRequest:
    groups_names: list[str] = f(Array(STRING))


@struct
class DeletableGroupResult:
    group_id: str = f(STRING)
    error_code: int = f(INT16)


@response(42, "0-2", flexible=2)
class DeleteGroupsResponse:
    throttle_time_ms: int = f(INT32)
    results: list[DeletableGroupResult] = f(Array(DeletableGroupResult))
