"""AddOffsetsToTxn (key 25): a group's offsets become part of a transaction.

Serves versions 0-4.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.transaction_service import TransactionService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups, on_transactional_ids
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest


@handles(
    ApiKey.ADD_OFFSETS_TO_TXN,
    versions=(0, 4),
    requires=(on_transactional_ids(Operation.WRITE, "transactional_id"), on_groups(Operation.READ, "group_id")),
)
def add_offsets_to_txn(
    request: AddOffsetsToTxnRequest, context: RequestContext, transactions: TransactionService
) -> Any:
    return transactions.call(transactions.coordinator.add_offsets_to_txn, context, request)
