"""AssignReplicasToDirs (key 73): a broker tells the controller which of its replicas are in a failed log directory.

Serves version 0, for brokers, as Kafka's controllers do.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)


@handles(
    ApiKey.ASSIGN_REPLICAS_TO_DIRS,
    versions=(0, 0),
    requires=(on_cluster(Operation.CLUSTER_ACTION),),
    between_brokers=True,
)
async def assign_replicas_to_dirs(
    request: AssignReplicasToDirsRequest, context: RequestContext, metadata: MetadataService
) -> AssignReplicasToDirsResponse:
    followed = request.broker_id == metadata.controller.node_id
    return await metadata.decide(
        metadata.controller.assign_replicas_to_dirs, request, context=context, followed=followed
    )
