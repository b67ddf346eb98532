"""SaslAuthenticate (key 36): one token of a SASL exchange, there and back.

Versions 0-2. 1 adds the lifetime of the session; 2 is flexible.
"""

from headrace.protocol.schema import BYTES, INT16, INT64, STRING, f, request, response


@request(36, "0-2", flexible=2)
class SaslAuthenticateRequest:
    auth_bytes: bytes = f(BYTES)


@response(36, "0-2", flexible=2)
class SaslAuthenticateResponse:
    error_code: int = f(INT16)
    error_message: str | None = f(STRING, nullable="0+")
    auth_bytes: bytes = f(BYTES)
    session_lifetime_ms: int = f(INT64, "1+")
