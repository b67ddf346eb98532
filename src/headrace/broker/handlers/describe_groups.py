"""DescribeGroups (key 15): the state, members and assignments of groups.

Serves versions 0-6.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest


@handles(ApiKey.DESCRIBE_GROUPS, versions=(0, 6), requires=(on_groups(Operation.DESCRIBE, "groups"),), each_once=True)
def describe_groups(request: DescribeGroupsRequest, context: RequestContext, groups: GroupService) -> Any:
    return groups.call(groups.coordinator.describe_groups, context, request)
