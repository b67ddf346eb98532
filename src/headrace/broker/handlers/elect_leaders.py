"""ElectLeaders (key 43): make the preferred replica the leader, or (unclean) any that lives.

Serves versions 0-2. Who gives it no time gets REQUEST_TIMED_OUT, and nothing is done.
"""

from __future__ import annotations

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


@handles(ApiKey.ELECT_LEADERS, versions=(0, 2), requires=(on_cluster(Operation.ALTER),))
async def elect_leaders(
    request: ElectLeadersRequest, context: RequestContext, metadata: MetadataService
) -> ElectLeadersResponse:
    if request.topic_partitions is not None and not request.topic_partitions:
        return ElectLeadersResponse()
    if request.timeout_ms <= 0:
        return _timed_out(request)
    return await metadata.decide(metadata.controller.elect_leaders, request, context=context)


def _timed_out(request: ElectLeadersRequest) -> ElectLeadersResponse:
    code = ErrorCode.REQUEST_TIMED_OUT
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(partition_id=index, error_code=code, error_message=None)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )
