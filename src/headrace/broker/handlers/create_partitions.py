"""CreatePartitions (key 37): give topics more partitions.

Serves versions 0-3. Who gives it no time gets REQUEST_TIMED_OUT, and nothing is done.
"""

from __future__ import annotations

from collections import Counter

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_topics
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)


@handles(ApiKey.CREATE_PARTITIONS, versions=(0, 3), requires=(on_topics(Operation.ALTER, "topics.name"),))
async def create_partitions(
    request: CreatePartitionsRequest, context: RequestContext, metadata: MetadataService
) -> CreatePartitionsResponse:
    # What comes twice is refused whatever the time.
    if request.timeout_ms <= 0 and 1 in Counter(topic.name for topic in request.topics).values():
        return _timed_out(request)
    return await metadata.decide(metadata.controller.create_partitions, request, context=context)


def _timed_out(request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    code = ErrorCode.REQUEST_TIMED_OUT
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=None)
            for topic in request.topics
        ]
    )
