"""ExpireDelegationToken (key 40): let a token end, now or after a period. From version 2 on flexible."""

from headrace.protocol.schema import BYTES, INT16, INT32, INT64, f, request, response


@request(40, "1-2", flexible=2)
class ExpireDelegationTokenRequest:
    hmac: bytes = f(BYTES)
    expiry_time_period_ms: int = f(INT64)


@response(40, "1-2", flexible=2)
class ExpireDelegationTokenResponse:
    error_code: int = f(INT16)
    expiry_timestamp_ms: int = f(INT64)
    throttle_time_ms: int = f(INT32)
