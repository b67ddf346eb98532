"""AlterPartition (key 56): a leader asks the controller for other in-sync replicas of its partitions.

Serves versions 2-3, for brokers. 3 tells the broker epoch of every replica, so that none from a former life comes in.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse


@handles(
    ApiKey.ALTER_PARTITION, versions=(2, 3), requires=(on_cluster(Operation.CLUSTER_ACTION),), between_brokers=True
)
async def alter_partition(
    request: AlterPartitionRequest, context: RequestContext, metadata: MetadataService
) -> AlterPartitionResponse:
    followed = request.broker_id == metadata.controller.node_id
    return await metadata.decide(metadata.controller.alter_partition, request, context=context, followed=followed)
