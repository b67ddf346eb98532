"""ListGroups (key 16): the groups that this broker coordinates.

Versions 0-5. 1 adds the throttle time; 2 answers before it throttles; 3 is flexible; 4 adds states, and a filter by
them; 5 types, and a filter by them.
"""

from headrace.protocol.schema import INT16, INT32, STRING, Array, f, request, response, struct


@request(16, "0-5", flexible=3)
class ListGroupsRequest:
    states_filter: list[str] = f(Array(STRING), "4+")
    types_filter: list[str] = f(Array(STRING), "5+")


@struct
class ListedGroup:
    group_id: str = f(STRING)
    protocol_type: str = f(STRING)
    group_state: str = f(STRING, "4+")
    group_type: str = f(STRING, "5+")


@response(16, "0-5", flexible=3)
class ListGroupsResponse:
    throttle_time_ms: int = f(INT32, "1+")
    error_code: int = f(INT16)
    groups: list[ListedGroup] = f(Array(ListedGroup))
