"""CreatePartitions (key 37): give topics more partitions.

Serves versions 0-3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.dispatch import RequestContext, handles
from headrace.broker.rights import Operation, on_topics
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.CREATE_PARTITIONS, versions=(0, 3), requires=(on_topics(Operation.ALTER, "topics.name"),))
async def create_partitions(
    broker: Broker, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    return await broker.decide(broker.controller.create_partitions, request)
