"""StreamsGroupDescribe (key 89): the state, epochs, topology, members and tasks of streams groups.

Serves version 0.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups
from headrace.broker.view import ClusterView
from headrace.cluster.features import serves_streams_groups
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)


@handles(
    ApiKey.STREAMS_GROUP_DESCRIBE,
    versions=(0, 0),
    requires=(on_groups(Operation.DESCRIBE, "group_ids"),),
    each_once=True,
)
def streams_group_describe(
    request: StreamsGroupDescribeRequest, context: RequestContext, groups: GroupService, cluster: ClusterView
) -> Any:
    if not serves_streams_groups(cluster.image, cluster.config):
        error = ErrorCode.UNSUPPORTED_VERSION
        refused = [DescribedGroup(group_id=group, error_code=error) for group in request.group_ids]
        return StreamsGroupDescribeResponse(groups=refused)
    return groups.call(groups.coordinator.streams.describe, context, request)
