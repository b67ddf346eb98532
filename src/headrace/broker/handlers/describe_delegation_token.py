"""DescribeDelegationToken (key 41): one's own tokens, those that one may renew, and those that rights show.

Serves versions 1-3.
"""

from __future__ import annotations

from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import NOTHING
from headrace.broker.security.tokens import DelegationTokens
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)


@handles(ApiKey.DESCRIBE_DELEGATION_TOKEN, versions=(1, 3), requires=NOTHING)
def describe_delegation_token(
    request: DescribeDelegationTokenRequest, context: RequestContext, tokens: DelegationTokens
) -> DescribeDelegationTokenResponse:
    return tokens.describe(context, request)
