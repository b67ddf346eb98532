"""ListTransactions (key 66): the transactional ids that this broker coordinates.

Serves versions 0-2. 1 filters by duration, 2 by pattern.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.dispatch import RequestContext, handles
from headrace.broker.rights import Operation, on_transactional_ids
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.list_transactions import ListTransactionsRequest

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(
    ApiKey.LIST_TRANSACTIONS, versions=(0, 2), requires=(on_transactional_ids(Operation.DESCRIBE, conditional=True),)
)
def list_transactions(broker: Broker, context: RequestContext, request: ListTransactionsRequest) -> Any:
    return broker.transactions.call(broker.transactions.coordinator.list_transactions, context, request)
