"""SaslHandshake (key 17): choose a SASL mechanism.

Versions 0-1, never flexible. After 0 the tokens follow as bare frames; after 1 they travel in SaslAuthenticate.
"""

from headrace.protocol.schema import INT16, STRING, Array, f, request, response


@request(17, "0-1")
class SaslHandshakeRequest:
    mechanism: str = f(STRING)


@response(17, "0-1")
class SaslHandshakeResponse:
    error_code: int = f(INT16)
    mechanisms: list[str] = f(Array(STRING))
