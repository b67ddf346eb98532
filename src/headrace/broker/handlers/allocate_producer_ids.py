"""AllocateProducerIds (key 67): a broker asks the controller for producer ids.

Serves version 0, for brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.metadata import controller_requests
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(
    ApiKey.ALLOCATE_PRODUCER_IDS,
    versions=(0, 0),
    requires=(on_cluster(Operation.CLUSTER_ACTION),),
    between_brokers=True,
)
async def allocate_producer_ids(
    broker: Broker, context: RequestContext, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    return await controller_requests.allocate_producer_ids(broker, request)
