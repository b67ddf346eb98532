"""SaslAuthenticate (key 36): exchange the bytes of a mechanism. No listener here asks for SASL, so it is always out of
place.

Serves versions 0-2, with ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import NOTHING
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


@handles(ApiKey.SASL_AUTHENTICATE, versions=(0, 2), requires=NOTHING)
def sasl_authenticate(request: SaslAuthenticateRequest, context: RequestContext) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="This listener does not use SASL."
    )
