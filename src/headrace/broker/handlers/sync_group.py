"""SyncGroup (key 14): hand the leader's assignment in, and get one's own part of it.

Serves versions 0-5. From 5 on the protocol has to be named. A leader for whose assignment there is no memory is told
COORDINATOR_NOT_AVAILABLE, upon which clients ask again.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

PROTOCOL_SINCE_VERSION = 5


@handles(ApiKey.SYNC_GROUP, versions=(0, 5), requires=(on_groups(Operation.READ, "group_id"),), only_waits=True)
def sync_group(request: SyncGroupRequest, context: RequestContext, groups: GroupService) -> Any:
    if lacks_protocol(request, context.api_version):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not groups.member_memory.has_room_to_assign(request):
        return SyncGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return groups.call(groups.coordinator.sync_group, context, request)


def lacks_protocol(request: SyncGroupRequest, version: int) -> bool:
    """Whether it does not say what its version has to; Kafka looks at that before it looks at rights."""
    return version >= PROTOCOL_SINCE_VERSION and (request.protocol_type is None or request.protocol_name is None)
