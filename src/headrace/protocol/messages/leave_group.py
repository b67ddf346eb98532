"""LeaveGroup (key 13): members give up their place in a group.

Versions 0-5. 1 adds the throttle time; 2 answers before it throttles; 3 removes several members at once, each with
its own answer; 4 is flexible; 5 adds the reason.
"""

from headrace.protocol.schema import INT16, INT32, STRING, Array, f, request, response, struct


@struct
class MemberIdentity:
    member_id: str = f(STRING)
    group_instance_id: str | None = f(STRING, nullable="0+", default=None)
    reason: str | None = f(STRING, "5+", nullable="5+", default=None)


@request(13, "0-5", flexible=4)
class LeaveGroupRequest:
    group_id: str = f(STRING)
    member_id: str = f(STRING, "0-2")
    members: list[MemberIdentity] = f(Array(MemberIdentity), "3+")


@struct
class MemberResponse:
    member_id: str = f(STRING)
    group_instance_id: str | None = f(STRING, nullable="0+")
    error_code: int = f(INT16)


@response(13, "0-5", flexible=4)
class LeaveGroupResponse:
    throttle_time_ms: int = f(INT32, "1+")
    error_code: int = f(INT16)
    members: list[MemberResponse] = f(Array(MemberResponse), "3+")
