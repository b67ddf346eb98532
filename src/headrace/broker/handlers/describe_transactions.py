"""DescribeTransactions (key 65): the state of transactional ids.

Serves version 0.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.transaction_service import TransactionService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_topics, on_transactional_ids
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest


@handles(
    ApiKey.DESCRIBE_TRANSACTIONS,
    versions=(0, 0),
    requires=(
        on_transactional_ids(Operation.DESCRIBE, "transactional_ids"),
        on_topics(Operation.DESCRIBE, conditional=True),
    ),
    each_once=True,
)
def describe_transactions(
    request: DescribeTransactionsRequest, context: RequestContext, transactions: TransactionService
) -> Any:
    return transactions.call(transactions.coordinator.describe_transactions, context, request)
