"""SyncGroup (key 14): the leader hands in the assignment, and every member gets its share.

Versions 0-5. 1 adds the throttle time; 2 answers before it throttles; 3 the static member's instance id; 4 is
flexible; 5 adds protocol type and name, which must match the group's.
"""

from headrace.protocol.schema import BYTES, INT16, INT32, STRING, Array, f, request, response, struct


@struct
class SyncGroupRequestAssignment:
    member_id: str = f(STRING)
    assignment: bytes = f(BYTES)


@request(14, "0-5", flexible=4)
class SyncGroupRequest:
    group_id: str = f(STRING)
    generation_id: int = f(INT32)
    member_id: str = f(STRING)
    group_instance_id: str | None = f(STRING, "3+", nullable="3+", default=None)
    protocol_type: str | None = f(STRING, "5+", nullable="5+", default=None)
    protocol_name: str | None = f(STRING, "5+", nullable="5+", default=None)
    assignments: list[SyncGroupRequestAssignment] = f(Array(SyncGroupRequestAssignment))


@response(14, "0-5", flexible=4)
class SyncGroupResponse:
    throttle_time_ms: int = f(INT32, "1+")
    error_code: int = f(INT16)
    protocol_type: str | None = f(STRING, "5+", nullable="5+", default=None)
    protocol_name: str | None = f(STRING, "5+", nullable="5+", default=None)
    assignment: bytes = f(BYTES)
