"""OffsetFetch (key 9): how far a group has read.

Serves versions 1-10. 8 asks for several groups at once; 10 names topics by id.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups, on_topics
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest


@handles(
    ApiKey.OFFSET_FETCH,
    versions=(1, 10),
    requires=(
        on_groups(Operation.DESCRIBE, "group_id", "groups.group_id"),
        on_topics(Operation.DESCRIBE, "topics.name", "groups.topics.name", "groups.topics.topic_id"),
    ),
    each_once=True,
)
def offset_fetch(request: OffsetFetchRequest, context: RequestContext, groups: GroupService) -> Any:
    return groups.call(groups.coordinator.offset_fetch, context, request)
