"""Rights to transactional ids: Write for whoever uses one, Describe for whoever looks."""

from __future__ import annotations

from typing import Any

from headrace.broker.authorization.checks import (
    CLUSTER_LACK,
    GROUP_LACK,
    TOPIC_LACK,
    TRANSACTIONAL_ID_LACK,
    Afterwards,
    checks,
    on_cluster,
    on_group,
    on_topic,
    on_transactional_id,
    refused_whole,
)
from headrace.broker.authorization.records import appended, cut
from headrace.broker.requests.dispatch import RequestContext
from headrace.broker.requests.rights import CLUSTER_NAME, Operation, Resource
from headrace.broker.view import ClusterView
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from headrace.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

BROKERS_SINCE_VERSION = 4


@checks(ApiKey.INIT_PRODUCER_ID)
def check_init_producer_id(cluster: ClusterView, context: RequestContext, request: InitProducerIdRequest) -> Any:
    if request.transactional_id is not None:
        if on_transactional_id(context, Operation.WRITE, request.transactional_id):
            return None
        return refused_whole(context, TRANSACTIONAL_ID_LACK)
    # Whoever may write anywhere may write idempotently.
    if context.may_on_any(Operation.WRITE, Resource.TOPIC) or on_cluster(context, Operation.IDEMPOTENT_WRITE):
        return None
    return refused_whole(context, CLUSTER_LACK)


@checks(ApiKey.ADD_PARTITIONS_TO_TXN)
def check_add_partitions(cluster: ClusterView, context: RequestContext, request: AddPartitionsToTxnRequest) -> Any:
    if context.api_version >= BROKERS_SINCE_VERSION:
        return None if on_cluster(context, Operation.CLUSTER_ACTION) else refused_whole(context, CLUSTER_LACK)
    topics = request.v3_and_below_topics
    if not on_transactional_id(context, Operation.WRITE, request.v3_and_below_transactional_id):
        return _added(topics, {}, TRANSACTIONAL_ID_LACK)
    errors = {topic.name: TOPIC_LACK for topic in topics if not on_topic(context, Operation.WRITE, topic.name)}
    # All or nothing: where one is refused the others are not tried.
    return _added(topics, errors, ErrorCode.OPERATION_NOT_ATTEMPTED) if errors else None


def _added(
    topics: list[AddPartitionsToTxnTopic], errors: dict[str, ErrorCode], of_others: ErrorCode
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=errors.get(topic.name, of_others)
                    )
                    for index in topic.partitions
                ],
            )
            for topic in topics
        ]
    )


@checks(ApiKey.WRITE_TXN_MARKERS)
def check_write_txn_markers(cluster: ClusterView, context: RequestContext, request: WriteTxnMarkersRequest) -> Any:
    if context.may(Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME) or on_cluster(context, Operation.CLUSTER_ACTION):
        return None
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=CLUSTER_LACK)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


@checks(ApiKey.TXN_OFFSET_COMMIT)
def check_txn_offset_commit(cluster: ClusterView, context: RequestContext, request: TxnOffsetCommitRequest) -> Any:
    error = None
    if not on_transactional_id(context, Operation.WRITE, request.transactional_id):
        error = TRANSACTIONAL_ID_LACK
    elif not on_group(context, Operation.READ, request.group_id):
        error = GROUP_LACK
    if error is not None:
        return TxnOffsetCommitResponse(topics=[_refuse_commit(topic, error) for topic in request.topics])
    allowed, forbidden = cut(request.topics, lambda topic: on_topic(context, Operation.READ, topic.name))
    if not forbidden:
        return None
    refused = [_refuse_commit(topic, TOPIC_LACK) for topic in forbidden]
    if not allowed:
        return TxnOffsetCommitResponse(topics=refused)
    request.topics = allowed
    return appended("topics", refused)


def _refuse_commit(topic: TxnOffsetCommitRequestTopic, error: ErrorCode) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=topic.name,
        partitions=[
            TxnOffsetCommitResponsePartition(partition_index=part.partition_index, error_code=error)
            for part in topic.partitions
        ],
    )


@checks(ApiKey.DESCRIBE_TRANSACTIONS)
def check_describe_transactions(
    cluster: ClusterView, context: RequestContext, request: DescribeTransactionsRequest
) -> Any:
    request.transactional_ids, forbidden = cut(
        request.transactional_ids, lambda one: on_transactional_id(context, Operation.DESCRIBE, one)
    )
    refused = [TransactionState(error_code=TRANSACTIONAL_ID_LACK, transactional_id=one) for one in forbidden]

    def amend(response: DescribeTransactionsResponse) -> DescribeTransactionsResponse:
        for state in response.transaction_states:
            state.topics = [
                topic for topic in state.topics if context.may(Operation.DESCRIBE, Resource.TOPIC, topic.topic)
            ]
        response.transaction_states += refused
        return response

    return Afterwards(amend)


@checks(ApiKey.LIST_TRANSACTIONS)
def check_list_transactions(cluster: ClusterView, context: RequestContext, request: ListTransactionsRequest) -> Any:
    def amend(response: ListTransactionsResponse) -> ListTransactionsResponse:
        response.transaction_states = [
            state
            for state in response.transaction_states
            if context.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, state.transactional_id)
        ]
        return response

    return Afterwards(amend)
