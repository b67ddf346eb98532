"""ShareGroupDescribe (key 77): the state, epochs, members and assignments of share groups.

Serves version 1.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups
from headrace.broker.share_groups.service import ShareGroupService
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)


@handles(
    ApiKey.SHARE_GROUP_DESCRIBE,
    versions=(1, 1),
    requires=(on_groups(Operation.DESCRIBE, "group_ids"),),
    each_once=True,
)
def share_group_describe(
    request: ShareGroupDescribeRequest, context: RequestContext, groups: GroupService, shares: ShareGroupService
) -> Any:
    if not shares.is_enabled:
        error = ErrorCode.UNSUPPORTED_VERSION
        return ShareGroupDescribeResponse(
            groups=[DescribedGroup(group_id=group_id, error_code=error) for group_id in request.group_ids]
        )
    return groups.call(groups.coordinator.share.describe, context, request)
