"""AlterClientQuotas (key 49): set and remove quotas, which count from then on.

Serves versions 0-1.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse


@handles(ApiKey.ALTER_CLIENT_QUOTAS, versions=(0, 1), requires=(on_cluster(Operation.ALTER_CONFIGS),))
async def alter_client_quotas(
    request: AlterClientQuotasRequest, context: RequestContext, metadata: MetadataService
) -> AlterClientQuotasResponse:
    return await metadata.decide(metadata.controller.alter_client_quotas, request, context=context)
