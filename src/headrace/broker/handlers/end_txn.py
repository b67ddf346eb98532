"""EndTxn (key 26): commit or abort a transaction.

Serves versions 0-5. 5 ends it in the newer protocol, which answers with the epoch to go on with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_transactional_ids
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.end_txn import EndTxnRequest

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.END_TXN, versions=(0, 5), requires=(on_transactional_ids(Operation.WRITE, "transactional_id"),))
def end_txn(broker: Broker, context: RequestContext, request: EndTxnRequest) -> Any:
    return broker.transactions.call(broker.transactions.coordinator.end_txn, context, request)
