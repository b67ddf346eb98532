"""Responses of the transaction APIs: how errors look in the versions of each, and to whom a verification failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.errors import ErrorCode
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from headrace.protocol.messages.init_producer_id import InitProducerIdResponse
from headrace.topics import TopicPartition
from headrace.transactions.records import by_topic
from headrace.transactions.state import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

# The first versions in which PRODUCER_FENCED is understood; before, it is called INVALID_PRODUCER_EPOCH.
INIT_FENCED_VERSION = 4
FENCED_VERSION = 2
# The first versions in which TRANSACTION_ABORTABLE is understood, and in which partitions need not be added before.
PRODUCE_ABORTABLE_VERSION, PRODUCE_ADDS_VERSION = 11, 12
OFFSETS_ABORTABLE_VERSION, OFFSETS_ADD_VERSION = 4, 5
#: How often the coordinator is asked about one write whose guard is worthless when it has answered.
QUESTIONS_MAX = 3
# The first version of AddPartitionsToTxn that is spoken between brokers only, and the one Headrace's brokers speak.
ADD_BETWEEN_BROKERS_VERSION, ADD_VERSION = 4, 5


def fenced(error: ErrorCode, api_version: int, first_version: int = FENCED_VERSION) -> ErrorCode:
    if error == ErrorCode.PRODUCER_FENCED and api_version < first_version:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def init_error(error: ErrorCode, api_version: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=fenced(error, api_version, INIT_FENCED_VERSION),
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
    )


def add_results(errors: Mapping[TopicPartition, ErrorCode]) -> list[AddPartitionsToTxnTopicResult]:
    """In the order of `errors`, which is that of the request."""
    topics: dict[str, AddPartitionsToTxnTopicResult] = {}
    for partition, error in errors.items():
        topic = topics.get(partition.topic)
        if topic is None:
            topic = topics[partition.topic] = AddPartitionsToTxnTopicResult(
                name=partition.topic, results_by_partition=[]
            )
        topic.results_by_partition.append(
            AddPartitionsToTxnPartitionResult(partition_index=partition.partition, partition_error_code=error)
        )
    return list(topics.values())


def added(topics: Iterable[AddPartitionsToTxnTopic]) -> list[AddPartitionsToTxnTopicResult]:
    """Every partition as often as the request has it: so Kafka answers when all go the same way."""
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=ErrorCode.NONE)
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def set_error(result: AddPartitionsToTxnResult, error: ErrorCode) -> None:
    for topic in result.topic_results:
        for partition in topic.results_by_partition:
            partition.partition_error_code = error


def between_brokers(
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Iterable[TopicPartition],
    *,
    verify_only: bool,
) -> AddPartitionsToTxnRequest:
    """What a leader asks the coordinator (in `ADD_VERSION`) before it writes a transaction's first batch."""
    topics = [
        AddPartitionsToTxnTopic(name=topic, partitions=indexes) for topic, indexes in by_topic(partitions).items()
    ]
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        verify_only=verify_only,
        topics=topics,
    )
    return AddPartitionsToTxnRequest(transactions=[transaction])


def errors_of(response: AddPartitionsToTxnResponse, transactional_id: str) -> dict[TopicPartition, ErrorCode]:
    """What the coordinator answered for the partitions of one transaction."""
    return {
        TopicPartition(topic.name, partition.partition_index): ErrorCode(partition.partition_error_code)
        for result in response.results_by_transaction
        if result.transactional_id == transactional_id
        for topic in result.topic_results
        for partition in topic.results_by_partition
    }


_NOT_VERIFIED = frozenset(
    (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)


def produce_error(error: ErrorCode, produce_version: int) -> ErrorCode:
    """How a Produce tells what the coordinator said: in words that producers of its version know how to take."""
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and produce_version < PRODUCE_ABORTABLE_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    if error in _NOT_VERIFIED:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if error == ErrorCode.CONCURRENT_TRANSACTIONS and produce_version < PRODUCE_ADDS_VERSION:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return error


def offset_commit_error(error: ErrorCode, txn_offset_commit_version: int) -> ErrorCode:
    """The same for a TxnOffsetCommit."""
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and txn_offset_commit_version < OFFSETS_ABORTABLE_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error == ErrorCode.NETWORK_EXCEPTION else error
