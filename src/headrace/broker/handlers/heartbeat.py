"""Heartbeat (key 12): a member is alive, and hears of a rebalance.

Serves versions 0-4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.heartbeat import HeartbeatRequest

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.HEARTBEAT, versions=(0, 4), requires=(on_groups(Operation.READ, "group_id"),))
def heartbeat(broker: Broker, context: RequestContext, request: HeartbeatRequest) -> Any:
    return broker.groups.call(broker.groups.coordinator.heartbeat, context, request)
