"""CreateDelegationToken (key 38): make a token for oneself or, with CreateTokens on the user, for another.

Serves versions 1-3.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import NOTHING
from headrace.broker.security.tokens import DelegationTokens
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)


@handles(ApiKey.CREATE_DELEGATION_TOKEN, versions=(1, 3), requires=NOTHING)
async def create_delegation_token(
    request: CreateDelegationTokenRequest, context: RequestContext, tokens: DelegationTokens, metadata: MetadataService
) -> CreateDelegationTokenResponse:
    return await tokens.create(context, request, metadata)
