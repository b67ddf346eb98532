"""GetTelemetrySubscriptions (key 71): which of its metrics a client is to push, how often and how compressed.

Version 0.
"""

from headrace.protocol.schema import BOOL, INT8, INT16, INT32, STRING, UUID, Array, f, request, response


@request(71, "0", flexible=0)
class GetTelemetrySubscriptionsRequest:
    client_instance_id: bytes = f(UUID)


@response(71, "0", flexible=0)
class GetTelemetrySubscriptionsResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
    client_instance_id: bytes = f(UUID)
    subscription_id: int = f(INT32)
    accepted_compression_types: list[int] = f(Array(INT8))
    push_interval_ms: int = f(INT32)
    telemetry_max_bytes: int = f(INT32)
    delta_temporality: bool = f(BOOL)
    requested_metrics: list[str] = f(Array(STRING))
