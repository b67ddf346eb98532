"""BrokerHeartbeat (key 63): a broker tells the controller how far it is, and whether it wants to stop.

Versions 0-1, between brokers, both flexible. 1 adds the log directories that are offline.
"""

from headrace.protocol.schema import BOOL, INT16, INT32, INT64, UUID, Array, f, request, response


@request(63, "0-1", flexible=0)
class BrokerHeartbeatRequest:
    broker_id: int = f(INT32)
    broker_epoch: int = f(INT64, default=-1)
    current_metadata_offset: int = f(INT64)
    want_fence: bool = f(BOOL)
    want_shut_down: bool = f(BOOL)
    offline_log_dirs: list[bytes] = f(Array(UUID), "1+", tag=0)


@response(63, "0-1", flexible=0)
class BrokerHeartbeatResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    is_caught_up: bool = f(BOOL)
    is_fenced: bool = f(BOOL, default=True)
    should_shut_down: bool = f(BOOL)
