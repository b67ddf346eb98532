"""Whether partitions belong to a transaction whose coordinator is another broker: AddPartitionsToTxn between brokers.

A broker that is not reached, or no longer the coordinator when its answer is waited for, is NETWORK_EXCEPTION: clients
are told to send their batch again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from headrace.broker.peer_queues import PeerQueues
from headrace.broker.peers import PeerConnection, Peers
from headrace.cluster.image import Image
from headrace.cluster.topic_names import TRANSACTION_STATE
from headrace.errors import ErrorCode
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTransaction,
)
from headrace.topics import TopicPartition
from headrace.transactions import ADD_VERSION, errors_of

Errors = dict[TopicPartition, ErrorCode]


@dataclass(slots=True, eq=False)
class _Question:
    transaction: AddPartitionsToTxnTransaction
    state_partition: int
    answer: asyncio.Future[Errors]

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(topic.name, index) for topic in self.transaction.topics for index in topic.partitions]

    def tell(self, errors: Errors) -> None:
        if not self.answer.done():  # who asked may be gone
            self.answer.set_result(errors)


class VerificationQueues(PeerQueues[_Question]):
    def __init__(self, image: Image, peers: Peers, keep: Callable[[Coroutine[object, object, None]], object]) -> None:
        super().__init__(keep)
        self._image = image
        self._peers = peers

    def coordinator_of(self, state_partition: int) -> int | None:
        """Who leads a partition of `__transaction_state`, `NO_LEADER`, or None when there is none such yet."""
        state = self._image.partition(TRANSACTION_STATE, state_partition)
        return None if state is None else state.leader

    async def ask(self, node_id: int, state_partition: int, transaction: AddPartitionsToTxnTransaction) -> Errors:
        answer: asyncio.Future[Errors] = asyncio.get_running_loop().create_future()
        self.add(node_id, _Question(transaction, state_partition, answer))
        return await answer

    # --- what the queues ask

    def _keeps_waiting(self, node_id: int, item: _Question) -> bool:
        if self.coordinator_of(item.state_partition) != node_id:
            self._give_up(item)
        return not item.answer.done()

    def _key(self, item: _Question) -> object:
        return item.transaction.transactional_id

    def _elements(self, item: _Question) -> int:
        topics = item.transaction.topics
        return 1 + len(topics) + sum(len(topic.partitions) for topic in topics)

    def _give_up(self, item: _Question) -> None:
        item.tell(dict.fromkeys(item.partitions, ErrorCode.NETWORK_EXCEPTION))

    async def _ask(self, node_id: int, items: list[_Question]) -> None:
        request = AddPartitionsToTxnRequest(transactions=[item.transaction for item in items])
        response: AddPartitionsToTxnResponse = await self._peers.request(
            node_id, PeerConnection.VERIFICATION, request, version_max=ADD_VERSION
        )
        for item in items:
            found = errors_of(response, item.transaction.transactional_id)
            missing = ErrorCode(response.error_code) or ErrorCode.UNKNOWN_SERVER_ERROR
            item.tell({partition: found.get(partition, missing) for partition in item.partitions})
