"""ExpireDelegationToken (key 40): let a token end; its owner and its renewers may.

Serves versions 1-2.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import NOTHING
from headrace.broker.security.tokens import DelegationTokens
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)


@handles(ApiKey.EXPIRE_DELEGATION_TOKEN, versions=(1, 2), requires=NOTHING)
async def expire_delegation_token(
    request: ExpireDelegationTokenRequest, context: RequestContext, tokens: DelegationTokens, metadata: MetadataService
) -> ExpireDelegationTokenResponse:
    return await tokens.expire(context, request, metadata)
