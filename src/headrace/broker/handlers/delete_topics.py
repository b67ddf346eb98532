"""DeleteTopics (key 20): remove topics with all they hold.

Serves versions 1-6. From 6 on topics may be named by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.dispatch import RequestContext, handles
from headrace.broker.rights import Operation, on_topics
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(
    ApiKey.DELETE_TOPICS,
    versions=(1, 6),
    requires=(
        on_topics(Operation.DESCRIBE, "topics.name", "topics.topic_id", "topic_names"),
        on_topics(Operation.DELETE, "topics.name", "topics.topic_id", "topic_names"),
    ),
)
async def delete_topics(broker: Broker, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    return await broker.decide(broker.controller.delete_topics, request, context.api_version)
