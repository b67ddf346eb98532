"""DescribeQuorum (key 55): who decides about the cluster's metadata, and how far the other brokers follow it.

Serves versions 0-2. The controller answers, also for whoever was asked instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.metadata import quorum
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.errors import KafkaError, NotControllerError
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.DESCRIBE_QUORUM, versions=(0, 2), requires=(on_cluster(Operation.DESCRIBE),))
async def describe_quorum(
    broker: Broker, context: RequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    async def here() -> DescribeQuorumResponse:
        if not broker.metadata.active.is_active:
            raise NotControllerError("This broker is not the controller.")
        return quorum.describe(broker, request)

    try:
        if broker.membership is None or context.is_from_broker:
            return await here()
        answer: DescribeQuorumResponse = await broker.membership.ask_controller(
            request, version=context.api_version, here=here
        )
        return answer
    except KafkaError as error:
        return DescribeQuorumResponse(error_code=error.code, error_message=error.message)
