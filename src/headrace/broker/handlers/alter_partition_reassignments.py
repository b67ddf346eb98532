"""AlterPartitionReassignments (key 45): move replicas to other brokers, or call a move off.

Serves versions 0-1.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from headrace.broker.dispatch import RequestContext, handles
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 1))
def alter_partition_reassignments(
    broker: Broker, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> Coroutine[Any, Any, AlterPartitionReassignmentsResponse]:
    return broker.decide(broker.controller.alter_partition_reassignments, request)
