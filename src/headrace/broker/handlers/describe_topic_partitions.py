"""DescribeTopicPartitions (key 75): partitions of topics, page by page, in order of their names.

Serves version 0. A page has at most `max.request.partition.size.limit` partitions.
"""

from __future__ import annotations

from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_topics
from headrace.broker.view import ClusterView
from headrace.cluster.answers import Answers
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)


@handles(
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    versions=(0, 0),
    requires=(on_topics(Operation.DESCRIBE, "topics.name"),),
    each_once=True,
)
def describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, context: RequestContext, answers: Answers, cluster: ClusterView
) -> DescribeTopicPartitionsResponse:
    return answers.describe_topic_partitions(
        request, context.listener, cluster.config.get_int("max.request.partition.size.limit")
    )
