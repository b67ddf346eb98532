"""JoinGroup (key 11): become a member of a group, and wait for the others.

Versions 0-9. 1 adds the rebalance time-out; 2 the throttle time; 3 answers before it throttles; from 4 on a member
without id is given one with MEMBER_ID_REQUIRED and asks again; 5 adds the static member's instance id; 6 is flexible;
7 answers the protocol type, and its name may be null; 8 adds the reason; 9 tells the leader whether it may skip the
assignment.
"""

from headrace.protocol.schema import BOOL, BYTES, INT16, INT32, STRING, Array, f, request, response, struct


@struct
class JoinGroupRequestProtocol:
    name: str = f(STRING)
    metadata: bytes = f(BYTES)


@request(11, "0-9", flexible=6)
class JoinGroupRequest:
    group_id: str = f(STRING)
    session_timeout_ms: int = f(INT32)
    rebalance_timeout_ms: int = f(INT32, "1+", default=-1)
    member_id: str = f(STRING)
    group_instance_id: str | None = f(STRING, "5+", nullable="5+", default=None)
    protocol_type: str = f(STRING)
    protocols: list[JoinGroupRequestProtocol] = f(Array(JoinGroupRequestProtocol))
    reason: str | None = f(STRING, "8+", nullable="8+", default=None)


@struct
class JoinGroupResponseMember:
    member_id: str = f(STRING)
    group_instance_id: str | None = f(STRING, "5+", nullable="5+", default=None)
    metadata: bytes = f(BYTES)


@response(11, "0-9", flexible=6)
class JoinGroupResponse:
    throttle_time_ms: int = f(INT32, "2+")
    error_code: int = f(INT16)
    generation_id: int = f(INT32, default=-1)
    protocol_type: str | None = f(STRING, "7+", nullable="7+", default=None)
    protocol_name: str | None = f(STRING, nullable="7+")
    leader: str = f(STRING)
    skip_assignment: bool = f(BOOL, "9+")
    member_id: str = f(STRING)
    members: list[JoinGroupResponseMember] = f(Array(JoinGroupResponseMember))
