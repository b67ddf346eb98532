"""BrokerRegistration (key 62): a broker tells the controller of itself, and is given its epoch.

Serves versions 0-4, for brokers.
"""

from __future__ import annotations

from headrace.broker.metadata.controller_requests import ControllerRequests
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse


@handles(
    ApiKey.BROKER_REGISTRATION,
    versions=(0, 4),
    requires=(on_cluster(Operation.CLUSTER_ACTION),),
    between_brokers=True,
)
async def broker_registration(
    request: BrokerRegistrationRequest, context: RequestContext, requests: ControllerRequests
) -> BrokerRegistrationResponse:
    return await requests.register(request)
