"""Metadata (key 3): who is in the cluster, and which broker leads what.

Serves versions 0-13. An unknown topic is created when both the client (from version 4 on it has the choice) and
`auto.create.topics.enable` allow it. As in Kafka the request that creates it still says that it is unknown: clients ask
again.
"""

from __future__ import annotations

import logging

from headrace.broker.metadata.service import MetadataService
from headrace.broker.requests.dispatch import Pending, RequestContext, handles
from headrace.broker.requests.rights import Operation, any_of, on_cluster, on_topics
from headrace.broker.view import ClusterView
from headrace.cluster.answers import Answers
from headrace.cluster.topic_names import INTERNAL_TOPICS
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.create_topics import CreatableTopic
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse
from headrace.words import did_you_mean, visible

log = logging.getLogger("headrace.broker.topics")

AUTO_CREATE_CHOICE_SINCE_VERSION = 4
CREATED_PER_REQUEST_MAX = 100
"""A client that names more topics which are unknown asks again, as it does anyway, and has the next ones made."""


@handles(
    ApiKey.METADATA,
    versions=(0, 13),
    requires=(
        on_topics(Operation.DESCRIBE, "topics.name", "topics.topic_id"),
        any_of(
            on_topics(Operation.CREATE, "topics.name", conditional=True), on_cluster(Operation.CREATE, conditional=True)
        ),
    ),
    keeps_answers=True,
)
def metadata(
    request: MetadataRequest, context: RequestContext, metadata: MetadataService, answers: Answers, cluster: ClusterView
) -> MetadataResponse | Pending[MetadataResponse]:
    answer = answers.metadata(request, context.api_version, context.listener)
    may_create = context.api_version < AUTO_CREATE_CHOICE_SINCE_VERSION or request.allow_auto_topic_creation
    if may_create and request.topics and cluster.config.get_bool("auto.create.topics.enable"):
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        new = sorted(topic.name for topic in answer.topics if topic.error_code == unknown and topic.name is not None)
        if new:
            return Pending(_create_then_answer(metadata, context, answer, new[:CREATED_PER_REQUEST_MAX]))
    return answer


async def _create_then_answer(
    metadata: MetadataService, context: RequestContext, answer: MetadataResponse, new: list[str]
) -> MetadataResponse:
    changes = None if context.meter is None else context.meter.changes
    for name in new:
        if context.connection.is_lost:
            break  # nobody is left who wanted them
        if changes is not None:
            if changes.throttle_ms() > 0:
                break  # it asks again
            changes.take(metadata.controller.config.get_int("num.partitions"))
        if name in INTERNAL_TOPICS:
            wanted = metadata.controller.internal_topic(metadata.image, name)
        else:
            wanted = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
        made = await metadata.create(wanted)
        if name not in INTERNAL_TOPICS and not any(topic.error_code for topic in made.topics):
            # A name that somebody mistyped looks just like this.
            hint = did_you_mean(name, metadata.image.topics)
            log.info(
                "made topic %s%s (client %s; auto.create.topics.enable)", name, hint, visible(context.client_id or "")
            )
    return answer
