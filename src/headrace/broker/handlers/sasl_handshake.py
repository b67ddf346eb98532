"""SaslHandshake (key 17): choose a mechanism. No listener here asks for SASL, so it is always out of place.

Serves versions 0-1, with ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import NOTHING
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


@handles(ApiKey.SASL_HANDSHAKE, versions=(0, 1), requires=NOTHING)
def sasl_handshake(request: SaslHandshakeRequest, context: RequestContext) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
