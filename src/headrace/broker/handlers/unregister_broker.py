"""UnregisterBroker (key 64): forget a broker that will not come back.

Serves version 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.UNREGISTER_BROKER, versions=(0, 0), requires=(on_cluster(Operation.ALTER),))
async def unregister_broker(
    broker: Broker, context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    return await broker.decide(broker.controller.unregister_broker, request, context=context)
