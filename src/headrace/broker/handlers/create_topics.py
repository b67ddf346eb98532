"""CreateTopics (key 19): make topics, each by itself made or refused.

Serves versions 2-7. 4 knows -1 as "the default" for partitions and replicas; 5 answers with the configs; 7 with the
ids.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from headrace.broker.dispatch import RequestContext, handles
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.CREATE_TOPICS, versions=(2, 7))
def create_topics(
    broker: Broker, context: RequestContext, request: CreateTopicsRequest
) -> Coroutine[Any, Any, CreateTopicsResponse]:
    return broker.decide(broker.controller.create_topics, request)
