"""BrokerHeartbeat (key 63): a broker tells the controller how far it is, and whether it wants to stop.

Serves versions 0-1, for brokers.
"""

from __future__ import annotations

from headrace.broker.metadata.controller_requests import ControllerRequests
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse


@handles(
    ApiKey.BROKER_HEARTBEAT,
    versions=(0, 1),
    requires=(on_cluster(Operation.CLUSTER_ACTION),),
    between_brokers=True,
)
async def broker_heartbeat(
    request: BrokerHeartbeatRequest, context: RequestContext, requests: ControllerRequests
) -> BrokerHeartbeatResponse:
    return await requests.heartbeat(request)
