"""InitProducerId (key 22): an id and epoch for an idempotent or transactional producer.

Serves versions 0-5. Without a transactional id every call gives a new id with epoch 0; with one it
fences whoever used that id before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.dispatch import RequestContext, handles
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@handles(ApiKey.INIT_PRODUCER_ID, versions=(0, 5))
def init_producer_id(broker: Broker, context: RequestContext, request: InitProducerIdRequest) -> Any:
    return broker.transactions.call(broker.transactions.coordinator.init_producer_id, context, request)
