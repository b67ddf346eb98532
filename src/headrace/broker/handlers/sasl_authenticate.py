"""SaslAuthenticate (key 36): the bytes of a mechanism, there and back.

Serves versions 0-2. ILLEGAL_SASL_STATE where nobody logs in, and after the login. A refusal is told after a while, and
ends the connection.
"""

from __future__ import annotations

from headrace.broker.requests.dispatch import Pending, RequestContext, handles
from headrace.broker.requests.rights import NOTHING
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


@handles(ApiKey.SASL_AUTHENTICATE, versions=(0, 2), requires=NOTHING)
def sasl_authenticate(
    request: SaslAuthenticateRequest, context: RequestContext
) -> SaslAuthenticateResponse | Pending[SaslAuthenticateResponse]:
    login = context.connection.login
    if login is not None:
        answer: SaslAuthenticateResponse | Pending[SaslAuthenticateResponse] = login.authenticate(context, request)
        return answer
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="This listener does not use SASL."
    )
