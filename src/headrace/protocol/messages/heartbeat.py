"""Heartbeat (key 12): a member tells its coordinator that it is alive, and learns of a rebalance.

Versions 0-4. 1 adds the throttle time; 3 the static member's instance id; 4 is flexible.
"""

from headrace.protocol.schema import INT16, INT32, STRING, f, request, response


@request(12, "0-4", flexible=4)
class HeartbeatRequest:
    group_id: str = f(STRING)
    generation_id: int = f(INT32)
    member_id: str = f(STRING)
    group_instance_id: str | None = f(STRING, "3+", nullable="3+", default=None)


@response(12, "0-4", flexible=4)
class HeartbeatResponse:
    throttle_time_ms: int = f(INT32, "1+")
    error_code: int = f(INT16)
