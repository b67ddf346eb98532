"""BrokerHeartbeat (key 63): a broker tells the controller how far it is, and whether it wants to stop.

Serves versions 0-1, for brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.metadata import controller_requests
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(
    ApiKey.BROKER_HEARTBEAT,
    versions=(0, 1),
    requires=(on_cluster(Operation.CLUSTER_ACTION),),
    between_brokers=True,
)
async def broker_heartbeat(
    broker: Broker, context: RequestContext, request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    return await controller_requests.heartbeat(broker, request)
