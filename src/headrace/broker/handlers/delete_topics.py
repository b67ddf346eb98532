"""DeleteTopics (key 20): remove topics with all they hold.

Serves versions 1-6. From 6 on topics may be named by id. Who gives it no time gets REQUEST_TIMED_OUT, and nothing
is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, any_of, on_cluster, on_topics
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from headrace.protocol.schema import ZERO_UUID


@handles(
    ApiKey.DELETE_TOPICS,
    versions=(1, 6),
    requires=(
        any_of(
            on_cluster(Operation.DELETE), on_topics(Operation.DESCRIBE, "topics.name", "topics.topic_id", "topic_names")
        ),
        any_of(
            on_cluster(Operation.DELETE), on_topics(Operation.DELETE, "topics.name", "topics.topic_id", "topic_names")
        ),
    ),
)
async def delete_topics(
    request: DeleteTopicsRequest, context: RequestContext, metadata: MetadataService
) -> DeleteTopicsResponse:
    asked = [*(DeleteTopicState(name=name) for name in request.topic_names), *request.topics]
    times = Counter((topic.name, topic.topic_id) for topic in asked)
    if request.timeout_ms <= 0 and any(
        count == 1 and (name is None) != (topic_id == ZERO_UUID) for (name, topic_id), count in times.items()
    ):
        return _timed_out(asked)
    return await metadata.decide(metadata.controller.delete_topics, request, context.api_version, context=context)


def _timed_out(asked: Sequence[DeleteTopicState]) -> DeleteTopicsResponse:
    code = ErrorCode.REQUEST_TIMED_OUT
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=None)
            for topic in asked
        ]
    )
