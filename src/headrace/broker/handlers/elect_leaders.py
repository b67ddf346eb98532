"""ElectLeaders (key 43): make the preferred replica the leader, or (unclean) any that lives.

Serves versions 0-2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.dispatch import RequestContext, handles
from headrace.broker.rights import Operation, on_cluster
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.ELECT_LEADERS, versions=(0, 2), requires=(on_cluster(Operation.ALTER),))
async def elect_leaders(broker: Broker, context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    return await broker.decide(broker.controller.elect_leaders, request)
