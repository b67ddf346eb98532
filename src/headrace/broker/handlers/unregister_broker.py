"""UnregisterBroker (key 64): forget a broker that will not come back.

Serves version 0.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


@handles(ApiKey.UNREGISTER_BROKER, versions=(0, 0), requires=(on_cluster(Operation.ALTER),))
async def unregister_broker(
    request: UnregisterBrokerRequest, context: RequestContext, metadata: MetadataService
) -> UnregisterBrokerResponse:
    return await metadata.decide(metadata.controller.unregister_broker, request, context=context)
