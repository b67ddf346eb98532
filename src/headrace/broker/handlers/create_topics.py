"""CreateTopics (key 19): make topics, each by itself made or refused.

Serves versions 2-7. 4 knows -1 as "the default" for partitions and replicas; 5 answers with the configs; 7 with the
ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.dispatch import RequestContext, handles
from headrace.broker.rights import Operation, any_of, on_cluster, on_topics
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(
    ApiKey.CREATE_TOPICS,
    versions=(2, 7),
    requires=(
        any_of(on_cluster(Operation.CREATE), on_topics(Operation.CREATE, "topics.name")),
        on_topics(Operation.DESCRIBE_CONFIGS, "topics.name", conditional=True),
    ),
)
async def create_topics(broker: Broker, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    return await broker.decide(broker.controller.create_topics, request)
