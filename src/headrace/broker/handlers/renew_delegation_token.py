"""RenewDelegationToken (key 39): let a token be good for longer; its owner and its renewers may.

Serves versions 1-2.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import NOTHING
from headrace.broker.security.tokens import DelegationTokens
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse


@handles(ApiKey.RENEW_DELEGATION_TOKEN, versions=(1, 2), requires=NOTHING)
async def renew_delegation_token(
    request: RenewDelegationTokenRequest, context: RequestContext, tokens: DelegationTokens, metadata: MetadataService
) -> RenewDelegationTokenResponse:
    return await tokens.renew(context, request, metadata)
