"""DeleteShareGroupOffsets (key 92): forget where a share group without members has got to in topics.

Serves version 0.
"""

from __future__ import annotations

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups, on_topics
from headrace.broker.share_groups.service import ShareGroupService
from headrace.broker.view import ClusterView
from headrace.coordination import Caller
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)


@handles(
    ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    versions=(0, 0),
    requires=(
        on_groups(Operation.DELETE, "group_id"),
        on_topics(Operation.READ, "topics.topic_name", conditional=True),
    ),
)
async def delete_share_group_offsets(
    request: DeleteShareGroupOffsetsRequest,
    context: RequestContext,
    groups: GroupService,
    shares: ShareGroupService,
    cluster: ClusterView,
) -> DeleteShareGroupOffsetsResponse:
    if not shares.is_enabled:
        error = ErrorCode.UNSUPPORTED_VERSION
        return DeleteShareGroupOffsetsResponse(error_code=error, error_message=error.message)
    token = object()
    outcome = groups.coordinator.share.changes.delete(Caller(token), request, groups.now())
    response: DeleteShareGroupOffsetsResponse = await groups.settled_outcome(token, outcome)
    wanted = [topic for topic in response.responses if not topic.error_code]
    partitions = [
        (topic.topic_id, index) for topic in wanted for index in range(cluster.partition_count(topic.topic_name) or 0)
    ]
    if response.error_code or not partitions:
        return response
    answers = await groups.delete_states(request.group_id, partitions)
    for topic in wanted:
        errors = [answer.error_code for (topic_id, _), answer in answers.items() if topic_id == topic.topic_id]
        topic.error_code = next(filter(None, errors), ErrorCode.NONE)
        topic.error_message = ErrorCode(topic.error_code).message if topic.error_code else None
    return response
