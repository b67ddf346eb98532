"""ListGroups (key 16): the groups that this broker coordinates.

Serves versions 0-5. 4 filters by state, 5 by type.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, any_of, on_cluster, on_groups
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.list_groups import ListGroupsRequest


@handles(
    ApiKey.LIST_GROUPS,
    versions=(0, 5),
    requires=(
        any_of(on_cluster(Operation.DESCRIBE, conditional=True), on_groups(Operation.DESCRIBE, conditional=True)),
    ),
)
def list_groups(request: ListGroupsRequest, context: RequestContext, groups: GroupService) -> Any:
    return groups.call(groups.coordinator.list_groups, context, request)
