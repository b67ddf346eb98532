"""DescribeGroups (key 15): state, protocol and members of classic groups.

Versions 0-6. 1 adds the throttle time; 2 answers before it throttles; 3 authorized operations; 4 static members'
instance ids; 5 is flexible; 6 answers GROUP_ID_NOT_FOUND with a message, where older versions describe an unknown
group as Dead.
"""

from headrace.protocol.schema import BOOL, BYTES, INT16, INT32, STRING, Array, f, request, response, struct

AUTHORIZED_OPERATIONS_OMITTED = -2147483648


@request(15, "0-6", flexible=5)
class DescribeGroupsRequest:
    groups: list[str] = f(Array(STRING))
    include_authorized_operations: bool = f(BOOL, "3+")


@struct
class DescribedGroupMember:
    member_id: str = f(STRING)
    group_instance_id: str | None = f(STRING, "4+", nullable="4+", default=None)
    client_id: str = f(STRING)
    client_host: str = f(STRING)
    member_metadata: bytes = f(BYTES)
    member_assignment: bytes = f(BYTES)


@struct
class DescribedGroup:
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, "6+", nullable="6+", default=None)
    group_id: str = f(STRING)
    group_state: str = f(STRING)
    protocol_type: str = f(STRING)
    protocol_data: str = f(STRING)
    members: list[DescribedGroupMember] = f(Array(DescribedGroupMember))
    authorized_operations: int = f(INT32, "3+", default=AUTHORIZED_OPERATIONS_OMITTED)


@response(15, "0-6", flexible=5)
class DescribeGroupsResponse:
    throttle_time_ms: int = f(INT32, "1+")
    groups: list[DescribedGroup] = f(Array(DescribedGroup))
