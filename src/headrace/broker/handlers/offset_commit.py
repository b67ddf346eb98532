"""OffsetCommit (key 8): remember how far a group has read.

Serves versions 2-10. 10 names topics by id.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups, on_topics
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.offset_commit import OffsetCommitRequest


@handles(
    ApiKey.OFFSET_COMMIT,
    versions=(2, 10),
    requires=(on_groups(Operation.READ, "group_id"), on_topics(Operation.READ, "topics.name", "topics.topic_id")),
)
def offset_commit(request: OffsetCommitRequest, context: RequestContext, groups: GroupService) -> Any:
    return groups.call(groups.coordinator.offset_commit, context, request)
