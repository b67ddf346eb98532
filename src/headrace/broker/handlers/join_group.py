"""JoinGroup (key 11): become a member of a group, and wait for the others.

Serves versions 0-9. From 4 on a new member first gets its id; 5 knows static members; 9 may skip the assignment.
A member for which there is no memory is told COORDINATOR_NOT_AVAILABLE, which clients wait for and ask again.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse


@handles(ApiKey.JOIN_GROUP, versions=(0, 9), requires=(on_groups(Operation.READ, "group_id"),), only_waits=True)
def join_group(request: JoinGroupRequest, context: RequestContext, groups: GroupService) -> Any:
    if not groups.member_memory.has_room(request, context.client_id):
        # One that clients ask again after: there is room when others have left.
        return JoinGroupResponse(
            error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id=request.member_id, protocol_name=""
        )
    return groups.call(groups.coordinator.join_group, context, request)
