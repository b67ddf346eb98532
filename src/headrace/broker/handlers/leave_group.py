"""LeaveGroup (key 13): members leave at once instead of being missed later.

Serves versions 0-5. From 3 on several at a time, static ones by their instance id.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.leave_group import LeaveGroupRequest


@handles(ApiKey.LEAVE_GROUP, versions=(0, 5), requires=(on_groups(Operation.READ, "group_id"),))
def leave_group(request: LeaveGroupRequest, context: RequestContext, groups: GroupService) -> Any:
    return groups.call(groups.coordinator.leave_group, context, request)
