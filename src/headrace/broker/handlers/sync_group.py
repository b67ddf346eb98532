"""SyncGroup (key 14): hand the leader's assignment in, and get one's own part of it.

Serves versions 0-5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.dispatch import RequestContext, handles
from headrace.broker.rights import Operation, on_groups
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.sync_group import SyncGroupRequest

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.SYNC_GROUP, versions=(0, 5), requires=(on_groups(Operation.READ, "group_id"),), only_waits=True)
def sync_group(broker: Broker, context: RequestContext, request: SyncGroupRequest) -> Any:
    return broker.groups.call(broker.groups.coordinator.sync_group, context, request)
