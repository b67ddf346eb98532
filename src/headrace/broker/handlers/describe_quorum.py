"""DescribeQuorum (key 55): who decides about the cluster's metadata, and how far the other brokers follow it.

Serves versions 0-2. The controller answers, also for whoever was asked instead.
"""

from __future__ import annotations

from headrace.broker.metadata.quorum import Quorum
from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.errors import KafkaError, NotControllerError
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse


@handles(ApiKey.DESCRIBE_QUORUM, versions=(0, 2), requires=(on_cluster(Operation.DESCRIBE),))
async def describe_quorum(
    request: DescribeQuorumRequest,
    context: RequestContext,
    metadata: MetadataService,
    quorum: Quorum,
) -> DescribeQuorumResponse:
    async def here() -> DescribeQuorumResponse:
        if not metadata.active.is_active:
            raise NotControllerError("This broker is not the controller.")
        return quorum.describe(request)

    try:
        if metadata.ask_controller is None or context.is_from_broker:
            return await here()
        answer: DescribeQuorumResponse = await metadata.ask_controller(request, version=context.api_version, here=here)
        return answer
    except KafkaError as error:
        return DescribeQuorumResponse(error_code=error.code, error_message=error.message)
