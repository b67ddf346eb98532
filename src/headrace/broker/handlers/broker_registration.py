"""BrokerRegistration (key 62): a broker tells the controller of itself, and is given its epoch.

Serves versions 0-4, for brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.metadata import controller_requests
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(
    ApiKey.BROKER_REGISTRATION,
    versions=(0, 4),
    requires=(on_cluster(Operation.CLUSTER_ACTION),),
    between_brokers=True,
)
async def broker_registration(
    broker: Broker, context: RequestContext, request: BrokerRegistrationRequest
) -> BrokerRegistrationResponse:
    return await controller_requests.register(broker, request)
