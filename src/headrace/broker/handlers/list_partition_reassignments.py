"""ListPartitionReassignments (key 46): partitions whose replicas are being moved.

Serves version 0.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=(0, 0), requires=(on_cluster(Operation.DESCRIBE),))
def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, context: RequestContext, metadata: MetadataService
) -> ListPartitionReassignmentsResponse:
    return metadata.controller.list_partition_reassignments(metadata.image, request)
