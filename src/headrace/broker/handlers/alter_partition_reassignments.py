"""AlterPartitionReassignments (key 45): move replicas to other brokers, or call a move off.

Serves versions 0-1. Who gives it no time gets REQUEST_TIMED_OUT, and nothing is done.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 1), requires=(on_cluster(Operation.ALTER),))
async def alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, context: RequestContext, metadata: MetadataService
) -> AlterPartitionReassignmentsResponse:
    if request.timeout_ms <= 0 and request.topics:
        return _timed_out(request)
    return await metadata.decide(metadata.controller.alter_partition_reassignments, request, context=context)


def _timed_out(request: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse:
    code = ErrorCode.REQUEST_TIMED_OUT
    return AlterPartitionReassignmentsResponse(
        error_code=code,
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=part.partition_index, error_code=code, error_message=None
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
