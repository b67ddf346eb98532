"""EndTxn (key 26): commit or abort a transaction.

Serves versions 0-5. 5 ends it in the newer protocol, which answers with the epoch to go on with.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.transaction_service import TransactionService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_transactional_ids
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.end_txn import EndTxnRequest


@handles(ApiKey.END_TXN, versions=(0, 5), requires=(on_transactional_ids(Operation.WRITE, "transactional_id"),))
def end_txn(request: EndTxnRequest, context: RequestContext, transactions: TransactionService) -> Any:
    return transactions.call(transactions.coordinator.end_txn, context, request)
