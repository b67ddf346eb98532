"""ListPartitionReassignments (key 46): partitions whose replicas are being moved.

Serves version 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=(0, 0), requires=(on_cluster(Operation.DESCRIBE),))
def list_partition_reassignments(
    broker: Broker, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    return broker.controller.list_partition_reassignments(broker.image, request)
