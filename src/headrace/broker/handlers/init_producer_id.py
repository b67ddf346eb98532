"""InitProducerId (key 22): an id and epoch for an idempotent or transactional producer.

Serves versions 0-5. Without a transactional id every call gives a new id with epoch 0; with one it
fences whoever used that id before.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.coordinators.transaction_service import TransactionService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, any_of, on_cluster, on_topics, on_transactional_ids, when
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest


def _is_idempotent_only(request: InitProducerIdRequest, version: int) -> bool:
    return request.transactional_id is None


@handles(
    ApiKey.INIT_PRODUCER_ID,
    versions=(0, 5),
    requires=(
        on_transactional_ids(Operation.WRITE, "transactional_id"),
        any_of(
            when(_is_idempotent_only, on_cluster(Operation.IDEMPOTENT_WRITE)),
            on_topics(Operation.WRITE, conditional=True),
        ),
    ),
)
def init_producer_id(request: InitProducerIdRequest, context: RequestContext, transactions: TransactionService) -> Any:
    return transactions.call(transactions.coordinator.init_producer_id, context, request)
