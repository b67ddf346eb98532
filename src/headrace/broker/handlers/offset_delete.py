"""OffsetDelete (key 47): forget committed offsets of topics that a group does not subscribe to.

Serves version 0.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups, on_topics
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest


@handles(
    ApiKey.OFFSET_DELETE,
    versions=(0, 0),
    requires=(on_groups(Operation.DELETE, "group_id"), on_topics(Operation.READ, "topics.name")),
)
def offset_delete(request: OffsetDeleteRequest, context: RequestContext, groups: GroupService) -> Any:
    return groups.call(groups.coordinator.offset_delete, context, request)
