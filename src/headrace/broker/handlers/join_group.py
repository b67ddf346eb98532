"""JoinGroup (key 11): become a member of a group, and wait for the others.

Serves versions 0-9. From 4 on a new member first gets its id; 5 knows static members; 9 may skip the assignment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.dispatch import RequestContext, handles
from headrace.broker.rights import Operation, on_groups
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.join_group import JoinGroupRequest

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.JOIN_GROUP, versions=(0, 9), requires=(on_groups(Operation.READ, "group_id"),), only_waits=True)
def join_group(broker: Broker, context: RequestContext, request: JoinGroupRequest) -> Any:
    return broker.groups.call(broker.groups.coordinator.join_group, context, request)
