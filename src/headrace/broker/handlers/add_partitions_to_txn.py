"""AddPartitionsToTxn (key 24): partitions become part of a transaction before anything is written to them.

Serves versions 0-5. 4 and 5 are spoken between brokers, several transactions at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.dispatch import RequestContext, handles
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.ADD_PARTITIONS_TO_TXN, versions=(0, 5))
def add_partitions_to_txn(broker: Broker, context: RequestContext, request: AddPartitionsToTxnRequest) -> Any:
    return broker.transactions.call(broker.transactions.coordinator.add_partitions_to_txn, context, request)
