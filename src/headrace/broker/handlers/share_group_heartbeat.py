"""ShareGroupHeartbeat (key 76): join a share group, stay in it, hear what is assigned; leave.

Serves version 1. While the feature share.version is at 0 it answers UNSUPPORTED_VERSION; a member for which there is no
memory is told COORDINATOR_NOT_AVAILABLE, and asks again.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups, on_topics
from headrace.broker.share_groups.service import ShareGroupService
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse


@handles(
    ApiKey.SHARE_GROUP_HEARTBEAT,
    versions=(1, 1),
    requires=(
        on_groups(Operation.READ, "group_id"),
        on_topics(Operation.DESCRIBE, "subscribed_topic_names", conditional=True),
    ),
)
def share_group_heartbeat(
    request: ShareGroupHeartbeatRequest, context: RequestContext, groups: GroupService, shares: ShareGroupService
) -> Any:
    if not shares.is_enabled:
        return ShareGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return groups.call(groups.coordinator.share.heartbeat, context, request)
