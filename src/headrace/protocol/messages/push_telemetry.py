"""PushTelemetry (key 72): a client pushes its metrics, in OpenTelemetry's format.

Version 0.
"""

from headrace.protocol.schema import BOOL, BYTES, INT8, INT16, INT32, UUID, f, request, response


@request(72, "0", flexible=0)
class PushTelemetryRequest:
    client_instance_id: bytes = f(UUID)
    subscription_id: int = f(INT32)
    terminating: bool = f(BOOL)
    compression_type: int = f(INT8)
    metrics: bytes = f(BYTES)


@response(72, "0", flexible=0)
class PushTelemetryResponse:
    throttle_time_ms: int = f(INT32)
    error_code: int = f(INT16)
