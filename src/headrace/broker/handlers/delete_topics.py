"""DeleteTopics (key 20): remove topics with all they hold.

Serves versions 1-6. From 6 on topics may be named by id.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from headrace.broker.dispatch import RequestContext, handles
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.DELETE_TOPICS, versions=(1, 6))
def delete_topics(
    broker: Broker, context: RequestContext, request: DeleteTopicsRequest
) -> Coroutine[Any, Any, DeleteTopicsResponse]:
    return broker.decide(broker.controller.delete_topics, request, context.api_version)
