"""RenewDelegationToken (key 39): let a token be good for longer. From version 2 on flexible."""

from headrace.protocol.schema import BYTES, INT16, INT32, INT64, f, request, response


@request(39, "1-2", flexible=2)
class RenewDelegationTokenRequest:
    hmac: bytes = f(BYTES)
    renew_period_ms: int = f(INT64)


@response(39, "1-2", flexible=2)
class RenewDelegationTokenResponse:
    error_code: int = f(INT16)
    expiry_timestamp_ms: int = f(INT64)
    throttle_time_ms: int = f(INT32)
