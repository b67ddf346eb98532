"""DescribeProducers (key 61): the producers of a partition that this replica knows, with their sequences and open
transactions.

Serves version 0. Followers answer too, which helps to find out where replicas differ. A name that no topic can have is
refused as such, where an unknown topic is only unknown.
"""

from __future__ import annotations

from headrace.broker.partitions.leaders import Leaders
from headrace.broker.partitions.leadership import NO_LEADER_EPOCH
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.repeated import REPETITIONS_ANSWERED_MAX
from headrace.broker.requests.rights import Operation, on_topics
from headrace.broker.view import ClusterView
from headrace.cluster.topic_names import name_problem
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


@handles(
    ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0), requires=(on_topics(Operation.READ, "topics.name"),), each_once=True
)
def describe_producers(
    request: DescribeProducersRequest, context: RequestContext, cluster: ClusterView, leaders: Leaders
) -> DescribeProducersResponse:
    wanted = [(topic.name, topic.partition_indexes) for topic in request.topics]
    each: dict[str, dict[int, None]] = {}
    for name, indexes in wanted:
        each.setdefault(name, {}).update(dict.fromkeys(indexes))
    if sum(map(len, each.values())) + REPETITIONS_ANSWERED_MAX < sum(len(indexes) for _, indexes in wanted):
        # A partition may have thousands of producers: it is described once, in whatever company it is named again.
        wanted = [(name, list(indexes)) for name, indexes in each.items()]
    return DescribeProducersResponse(
        topics=[
            TopicResponse(name=name, partitions=[_describe(cluster, leaders, name, index) for index in indexes])
            for name, indexes in wanted
        ]
    )


def _describe(cluster: ClusterView, leaders: Leaders, topic: str, index: int) -> PartitionResponse:
    result = PartitionResponse(partition_index=index)
    problem = name_problem(topic)
    if problem is not None:
        result.error_code, result.error_message = ErrorCode.INVALID_TOPIC_EXCEPTION, problem
        return result
    try:
        partition = leaders.partition_here(topic, index)
        partition.check_epoch(NO_LEADER_EPOCH)
    except KafkaError as error:
        # As Kafka, which has no words for a partition that a known topic has not.
        result.error_code = error.code
        result.error_message = None if topic in cluster.image.topics else error.message
        return result
    for producer in list(partition.log.producers.producers.values()):
        result.active_producers.append(
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp_ms,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.txn_first_offset,
            )
        )
    return result
