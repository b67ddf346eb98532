"""AllocateProducerIds (key 67): a broker asks the controller for producer ids.

Serves version 0, for brokers.
"""

from __future__ import annotations

from headrace.broker.metadata.controller_requests import ControllerRequests
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse


@handles(
    ApiKey.ALLOCATE_PRODUCER_IDS,
    versions=(0, 0),
    requires=(on_cluster(Operation.CLUSTER_ACTION),),
    between_brokers=True,
)
async def allocate_producer_ids(
    request: AllocateProducerIdsRequest, context: RequestContext, requests: ControllerRequests
) -> AllocateProducerIdsResponse:
    return await requests.allocate_producer_ids(request)
