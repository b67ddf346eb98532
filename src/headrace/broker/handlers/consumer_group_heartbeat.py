"""ConsumerGroupHeartbeat (key 68): join a consumer group, stay in it, hear what is assigned; leave.

Serves versions 0-1. In 1 members bring their own ids, and may be subscribed by a regular expression.
While the feature group.version is at 0, or `group.coordinator.rebalance.protocols` has no "consumer", it answers
UNSUPPORTED_VERSION; a member for which there is no memory is told COORDINATOR_NOT_AVAILABLE, and asks again.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups, on_topics
from headrace.broker.view import ClusterView
from headrace.cluster.features import serves_consumer_groups
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


@handles(
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    versions=(0, 1),
    requires=(
        on_groups(Operation.READ, "group_id"),
        on_topics(Operation.DESCRIBE, "subscribed_topic_names", conditional=True),
    ),
)
def consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext, groups: GroupService, cluster: ClusterView
) -> Any:
    if not serves_consumer_groups(cluster.image, cluster.config):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    names = request.subscribed_topic_names
    tells = request.member_epoch == 0 or names is not None or request.subscribed_topic_regex is not None
    if tells and not groups.member_memory.has_room_for(
        request.group_id,
        context.client_id,
        request.member_id,
        request.instance_id,
        request.rack_id,
        request.subscribed_topic_regex,
        *(names or ()),
    ):
        # One that clients ask again after: there is room when others have left.
        return ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message="There is no memory for more members now."
        )
    return groups.call(groups.coordinator.consumer.heartbeat, context, request)
