"""AlterPartitionReassignments (key 45): move replicas to other brokers, or call a move off.

Serves versions 0-1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.dispatch import RequestContext, handles
from headrace.broker.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 1), requires=(on_cluster(Operation.ALTER),))
async def alter_partition_reassignments(
    broker: Broker, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    return await broker.decide(broker.controller.alter_partition_reassignments, request)
