"""Heartbeat (key 12): a member is alive, and hears of a rebalance.

Serves versions 0-4.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.heartbeat import HeartbeatRequest


@handles(ApiKey.HEARTBEAT, versions=(0, 4), requires=(on_groups(Operation.READ, "group_id"),))
def heartbeat(request: HeartbeatRequest, context: RequestContext, groups: GroupService) -> Any:
    return groups.call(groups.coordinator.heartbeat, context, request)
