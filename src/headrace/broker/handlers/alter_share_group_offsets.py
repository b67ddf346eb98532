"""AlterShareGroupOffsets (key 91): set where a share group without members starts in partitions.

Serves version 0. A group that does not exist is made.
"""

from __future__ import annotations

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups, on_topics
from headrace.broker.share_groups.service import ShareGroupService
from headrace.coordination import Caller
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)


@handles(
    ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    versions=(0, 0),
    requires=(
        on_groups(Operation.READ, "group_id"),
        on_topics(Operation.READ, "topics.topic_name", conditional=True),
    ),
)
async def alter_share_group_offsets(
    request: AlterShareGroupOffsetsRequest, context: RequestContext, groups: GroupService, shares: ShareGroupService
) -> AlterShareGroupOffsetsResponse:
    if not shares.is_enabled:
        error = ErrorCode.UNSUPPORTED_VERSION
        return AlterShareGroupOffsetsResponse(error_code=error, error_message=error.message)
    token = object()
    outcome = groups.coordinator.share.changes.alter(Caller(token), request, groups.now())
    # What the share coordinator says is part of the answer here.
    beginnings, outcome.beginnings = outcome.beginnings, []
    response: AlterShareGroupOffsetsResponse = await groups.settled_outcome(token, outcome)
    for beginning in beginnings if not response.error_code else ():
        begun = await groups.begin_states(beginning)
        for topic in response.responses:
            for part in topic.partitions:
                answer = begun.get((topic.topic_id, part.partition_index))
                if answer is not None and not part.error_code and answer.error_code:
                    part.error_code = answer.error_code
                    part.error_message = ErrorCode(answer.error_code).message
    return response
