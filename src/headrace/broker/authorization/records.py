"""Rights to records: Produce, Fetch, and what tells about partitions or cuts them. Each topic for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from headrace.broker.authorization.checks import (
    TOPIC_LACK,
    TOPIC_WORDS,
    TRANSACTIONAL_ID_LACK,
    Afterwards,
    checks,
    on_cluster,
    on_topic,
    on_transactional_id,
)
from headrace.broker.partitions.fetching import TOPIC_IDS_SINCE_VERSION, replica_id
from headrace.broker.partitions.produce_at_once import NO_LEADER
from headrace.broker.requests.dispatch import NO_RESPONSE, CloseConnectionError, RequestContext
from headrace.broker.requests.rights import Operation
from headrace.broker.view import ClusterView
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopicResult,
)
from headrace.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    PartitionResponse,
    TopicResponse,
)
from headrace.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopicResponse,
)
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderTopicResult,
)
from headrace.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from headrace.records.batch import ATTRIBUTES_AT, HEADER_BYTES, TRANSACTIONAL_BIT

T = TypeVar("T")
R = TypeVar("R")
PRODUCE_IDS_SINCE_VERSION = 13


def cut(items: list[T], is_allowed: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Those that are allowed, and those that are not."""
    allowed: list[T] = []
    refused: list[T] = []
    for item in items:
        (allowed if is_allowed(item) else refused).append(item)
    return allowed, refused


def appended(field: str, answers: Iterable[Any]) -> Afterwards:
    """The response gets these besides, in that field."""
    extra = list(answers)

    def amend(response: Any) -> Any:
        setattr(response, field, [*getattr(response, field), *extra])
        return response

    return Afterwards(amend)


# --- Produce ----------------------------------------------------------------------------------------------------------


@checks(ApiKey.PRODUCE)
def check_produce(cluster: ClusterView, context: RequestContext, request: ProduceRequest) -> Any:
    named = request.transactional_id
    if named is not None:
        if not on_transactional_id(context, Operation.WRITE, named):
            return _refused_produce(request, map(_refuse_transaction, request.topic_data))
    elif any(_is_transactional(data.records) for topic in request.topic_data for data in topic.partition_data):
        return None  # the handler refuses all of it

    def is_allowed(topic: TopicProduceData) -> bool:
        by_id = context.api_version >= PRODUCE_IDS_SINCE_VERSION
        name = cluster.topic_name(topic.topic_id) if by_id else topic.name
        return name is None or on_topic(context, Operation.WRITE, name)

    allowed, refused = cut(request.topic_data, is_allowed)
    if not refused:
        return None
    if not allowed:
        return _refused_produce(request, map(_refuse_topic, refused))
    request.topic_data = allowed
    if request.acks == 0:
        return Afterwards(_closed)
    return appended("responses", map(_refuse_topic, refused))


def _is_transactional(records: Any) -> bool:
    if records is None or len(records) < HEADER_BYTES:
        return False
    return bool(records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT)


def _closed(response: Any) -> Any:
    assert response is NO_RESPONSE
    raise CloseConnectionError("a produce with acks=0 was not allowed to all of its topics")


def _refused_produce(request: ProduceRequest, answers: Iterable[TopicProduceResponse]) -> ProduceResponse:
    if request.acks == 0:
        raise CloseConnectionError("a produce with acks=0 was not allowed")
    return ProduceResponse(responses=list(answers))


def _refuse_transaction(topic: TopicProduceData) -> TopicProduceResponse:
    return _refuse_produce(topic, TRANSACTIONAL_ID_LACK)


def _refuse_topic(topic: TopicProduceData) -> TopicProduceResponse:
    return _refuse_produce(topic, TOPIC_LACK)


def _refuse_produce(topic: TopicProduceData, error: ErrorCode) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=[
            PartitionProduceResponse(index=data.index, error_code=error, base_offset=-1, current_leader=NO_LEADER)
            for data in topic.partition_data
        ],
    )


# --- Fetch ------------------------------------------------------------------------------------------------------------


@checks(ApiKey.FETCH)
def check_fetch(cluster: ClusterView, context: RequestContext, request: FetchRequest) -> Any:
    """Followers; what a consumer may read is looked at with each partition, as a session names them only once."""
    if replica_id(request, context.api_version) < 0 or on_cluster(context, Operation.CLUSTER_ACTION):
        return None
    by_id = context.api_version >= TOPIC_IDS_SINCE_VERSION
    answers = []
    for topic in request.topics:
        is_unknown = by_id and cluster.topic_name(topic.topic_id) is None
        error = ErrorCode.UNKNOWN_TOPIC_ID if is_unknown else TOPIC_LACK
        partitions = [
            PartitionData(
                partition_index=part.partition,
                error_code=error,
                high_watermark=-1,
                aborted_transactions=[],
                records=b"",
            )
            for part in topic.partitions
        ]
        answers.append(FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions))
    return FetchResponse(responses=answers)


# --- what tells about partitions, or cuts them ------------------------------------------------------------------------


@checks(ApiKey.LIST_OFFSETS)
def check_list_offsets(cluster: ClusterView, context: RequestContext, request: ListOffsetsRequest) -> Any:
    request.topics, refused = cut(request.topics, lambda topic: on_topic(context, Operation.DESCRIBE, topic.name))
    if not refused:
        return None
    return appended(
        "topics",
        [
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=TOPIC_LACK)
                    for part in topic.partitions
                ],
            )
            for topic in refused
        ],
    )


@checks(ApiKey.OFFSET_FOR_LEADER_EPOCH)
def check_offset_for_leader_epoch(
    cluster: ClusterView, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> Any:
    # Quietly: a consumer is not refused for not being a broker.
    if context.may_on_cluster(Operation.CLUSTER_ACTION):
        return None
    request.topics, refused = cut(request.topics, lambda topic: on_topic(context, Operation.DESCRIBE, topic.topic))
    if not refused:
        return None
    return appended(
        "topics",
        [
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    EpochEndOffset(partition=part.partition, error_code=TOPIC_LACK) for part in topic.partitions
                ],
            )
            for topic in refused
        ],
    )


@checks(ApiKey.DELETE_RECORDS)
def check_delete_records(cluster: ClusterView, context: RequestContext, request: DeleteRecordsRequest) -> Any:
    request.topics, refused = cut(request.topics, lambda topic: on_topic(context, Operation.DELETE, topic.name))
    if not refused:
        return None
    return appended(
        "topics",
        [
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsPartitionResult(
                        partition_index=part.partition_index, low_watermark=-1, error_code=TOPIC_LACK
                    )
                    for part in topic.partitions
                ],
            )
            for topic in refused
        ],
    )


@checks(ApiKey.DESCRIBE_PRODUCERS)
def check_describe_producers(cluster: ClusterView, context: RequestContext, request: DescribeProducersRequest) -> Any:
    request.topics, refused = cut(request.topics, lambda topic: on_topic(context, Operation.READ, topic.name))
    if not refused:
        return None
    return appended(
        "topics",
        [
            TopicResponse(
                name=topic.name,
                partitions=[
                    PartitionResponse(partition_index=index, error_code=TOPIC_LACK, error_message=TOPIC_WORDS)
                    for index in topic.partition_indexes
                ],
            )
            for topic in refused
        ],
    )
