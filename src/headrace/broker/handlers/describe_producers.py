"""DescribeProducers (key 61): the producers that a partition's leader knows, with their sequences and open
transactions.

Serves version 0. A name that no topic can have is refused as such, where an unknown topic is only unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.broker.dispatch import Pending, RequestContext, handles
from headrace.broker.rights import Operation, on_topics
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

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

PRODUCERS_PER_STEP = 100


@handles(
    ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0), requires=(on_topics(Operation.READ, "topics.name"),), each_once=True
)
def describe_producers(
    broker: Broker, context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse | Pending[DescribeProducersResponse]:
    # A partition may have thousands of producers: it is described once, however the request mentions it.
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    response = DescribeProducersResponse()
    return broker.slices.answer(response, _steps(broker, response, wanted))


def _steps(broker: Broker, response: DescribeProducersResponse, wanted: dict[str, dict[int, None]]) -> Iterator[None]:
    for name, indexes in wanted.items():
        topic = TopicResponse(name=name)
        response.topics.append(topic)
        for index in indexes:
            result = PartitionResponse(partition_index=index)
            topic.partitions.append(result)
            yield from _describe(broker, name, result)


def _describe(broker: Broker, topic: str, result: PartitionResponse) -> Iterator[None]:
    yield
    if name_problem(topic) is not None:
        result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
        return
    try:
        partition = broker.partition(topic, result.partition_index)
        partition.check_leader()
    except KafkaError as error:
        result.error_code = error.code
        return
    for number, producer in enumerate(list(partition.log.producers.producers.values())):
        if number % PRODUCERS_PER_STEP == 0:
            yield
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
