"""CreateTopics (key 19): make topics, each by itself made or refused.

Serves versions 2-7. 4 knows -1 as "the default" for partitions and replicas; 5 answers with the configs; 7 with the
ids. Who gives it no time gets REQUEST_TIMED_OUT, and nothing is done.
"""

from __future__ import annotations

from collections import Counter

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, any_of, on_cluster, on_topics
from headrace.cluster.records import METADATA_TOPIC
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)


@handles(
    ApiKey.CREATE_TOPICS,
    versions=(2, 7),
    requires=(
        any_of(on_cluster(Operation.CREATE), on_topics(Operation.CREATE, "topics.name")),
        on_topics(Operation.DESCRIBE_CONFIGS, "topics.name", conditional=True),
    ),
)
async def create_topics(
    request: CreateTopicsRequest, context: RequestContext, metadata: MetadataService
) -> CreateTopicsResponse:
    times = Counter(topic.name for topic in request.topics)
    if request.timeout_ms <= 0 and any(count == 1 and name != METADATA_TOPIC for name, count in times.items()):
        return _timed_out(request)
    return await metadata.decide(metadata.controller.create_topics, request, context=context)


def _timed_out(request: CreateTopicsRequest) -> CreateTopicsResponse:
    code = ErrorCode.REQUEST_TIMED_OUT
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(name=topic.name, error_code=code, error_message=None, configs=[])
            for topic in request.topics
        ]
    )
