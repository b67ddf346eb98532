"""AddPartitionsToTxn (key 24): partitions become part of a transaction before anything is written to them.

Serves versions 0-5. 4 and 5 are spoken between brokers, several transactions at a time.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.transaction_service import TransactionService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_cluster, on_topics, on_transactional_ids, when
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest

BETWEEN_BROKERS_SINCE_VERSION = 4


def _comes_from_a_client(request: AddPartitionsToTxnRequest, version: int) -> bool:
    return version < BETWEEN_BROKERS_SINCE_VERSION


def _comes_from_a_broker(request: AddPartitionsToTxnRequest, version: int) -> bool:
    return version >= BETWEEN_BROKERS_SINCE_VERSION


@handles(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    versions=(0, 5),
    requires=(
        when(_comes_from_a_client, on_transactional_ids(Operation.WRITE, "v3_and_below_transactional_id")),
        when(_comes_from_a_client, on_topics(Operation.WRITE, "v3_and_below_topics.name")),
        when(_comes_from_a_broker, on_cluster(Operation.CLUSTER_ACTION)),
    ),
)
def add_partitions_to_txn(
    request: AddPartitionsToTxnRequest, context: RequestContext, transactions: TransactionService
) -> Any:
    return transactions.call(transactions.coordinator.add_partitions_to_txn, context, request)
