"""DescribeTopicPartitions (key 75): partitions of topics, page by page, in order of their names.

Serves version 0. A page has at most `max.request.partition.size.limit` partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_topics
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    versions=(0, 0),
    requires=(on_topics(Operation.DESCRIBE, "topics.name"),),
    each_once=True,
)
def describe_topic_partitions(
    broker: Broker, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    return broker.answers.describe_topic_partitions(
        request, context.listener, broker.config.get_int("max.request.partition.size.limit")
    )
