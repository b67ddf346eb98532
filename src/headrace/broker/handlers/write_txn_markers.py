"""WriteTxnMarkers (key 27): end a transaction in these partitions. For coordinators, and for ending hanging ones by
hand.

Serves versions 1-2. 2 tells the protocol of the transaction, from which follows what epoch the marker must have.
"""

from __future__ import annotations

import asyncio

from headrace.broker.coordinators.transaction_service import TransactionService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, any_of, on_cluster
from headrace.broker.view import ClusterView
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace.topics import TopicPartition


@handles(
    ApiKey.WRITE_TXN_MARKERS,
    versions=(1, 2),
    requires=(any_of(on_cluster(Operation.CLUSTER_ACTION), on_cluster(Operation.ALTER)),),
)
async def write_txn_markers(
    request: WriteTxnMarkersRequest,
    context: RequestContext,
    transactions: TransactionService,
    cluster: ClusterView,
) -> WriteTxnMarkersResponse:
    # Markers of the same producer are answered together, and those of no partition not at all.
    answers: dict[int, dict[TopicPartition, ErrorCode]] = {}
    # All at once: each waits until its replicas have it.
    written = await asyncio.gather(*(_write(transactions, cluster, marker) for marker in request.markers))
    for marker, errors in zip(request.markers, written, strict=True):
        if not context.is_from_broker:
            # As Kafka tells them. Coordinators take what is unknown for deleted, and are told the truth.
            errors = {key: _as_kafka_tells(cluster, key, error) for key, error in errors.items()}
        if errors:
            answers.setdefault(marker.producer_id, {}).update(errors)
    return WriteTxnMarkersResponse(markers=[_result(producer_id, errors) for producer_id, errors in answers.items()])


async def _write(
    transactions: TransactionService, cluster: ClusterView, marker: WritableTxnMarker
) -> dict[TopicPartition, ErrorCode]:
    partitions = [TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes]
    refused = _refusal(marker)
    if refused is not None:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return {key: refused if cluster.image.partition(*key) is not None else unknown for key in partitions}
    return await transactions.write_markers(
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        marker.transaction_result,
        partitions,
        marker.transaction_version,
    )


def _as_kafka_tells(cluster: ClusterView, key: TopicPartition, error: ErrorCode) -> ErrorCode:
    state = cluster.image.partition(*key)
    is_elsewhere = state is not None and cluster.node_id not in state.replicas
    is_refused = error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_refused and is_elsewhere else error


def _refusal(marker: WritableTxnMarker) -> ErrorCode | None:
    """What is wrong with a marker, whatever partition it is for."""
    if marker.producer_id < 0:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if marker.producer_epoch < 0:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return ErrorCode.INVALID_REQUEST if marker.transaction_version < 0 else None


def _result(producer_id: int, errors: dict[TopicPartition, ErrorCode]) -> WritableTxnMarkerResult:
    topics: dict[str, WritableTxnMarkerTopicResult] = {}
    for (name, index), error in errors.items():
        topic = topics.setdefault(name, WritableTxnMarkerTopicResult(name=name))
        topic.partitions.append(WritableTxnMarkerPartitionResult(partition_index=index, error_code=error))
    return WritableTxnMarkerResult(producer_id=producer_id, topics=list(topics.values()))
