"""SaslHandshake (key 17): choose a mechanism.

Serves versions 0-1. After version 0 the mechanism's bytes come without headers. ILLEGAL_SASL_STATE where nobody logs
in, and after the login, unless its time is bounded (`connections.max.reauth.ms`): then it begins anew.
"""

from __future__ import annotations

from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import NOTHING
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


@handles(ApiKey.SASL_HANDSHAKE, versions=(0, 1), requires=NOTHING)
def sasl_handshake(request: SaslHandshakeRequest, context: RequestContext) -> SaslHandshakeResponse:
    login = context.connection.login
    if login is not None:
        return login.handshake(context, request)
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
