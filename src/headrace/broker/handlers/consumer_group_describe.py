"""ConsumerGroupDescribe (key 69): the state, epochs, members and assignments of consumer groups.

Serves versions 0-1. 1 tells which members speak the classic protocol.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups
from headrace.broker.view import ClusterView
from headrace.cluster.features import serves_consumer_groups
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)


@handles(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    versions=(0, 1),
    requires=(on_groups(Operation.DESCRIBE, "group_ids"),),
)
def consumer_group_describe(
    request: ConsumerGroupDescribeRequest, context: RequestContext, groups: GroupService, cluster: ClusterView
) -> Any:
    if not serves_consumer_groups(cluster.image, cluster.config):
        error = ErrorCode.UNSUPPORTED_VERSION
        refused = [DescribedConsumerGroup(group_id=group, error_code=error) for group in request.group_ids]
        return ConsumerGroupDescribeResponse(groups=refused)
    return groups.call(groups.coordinator.consumer.describe, context, request)
