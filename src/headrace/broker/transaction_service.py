"""Transactions as this broker serves them: the coordinator over `__transaction_state`, its markers, and the check of
writes.

A leader writes a transaction's first batch to a partition only once the coordinator has said that the partition is part
of the open transaction (or, in the newer protocol, has added it), so that a late batch never becomes part of a later
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinator_driver import CoordinatorDriver, StoredRecord
from headrace.broker.dispatch import RequestContext
from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.coordination import Caller
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.log import Appended, Origin
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from headrace.records import ControlType, control_batch
from headrace.topics import TopicPartition
from headrace.transactions import ADD_VERSION, MarkerRequest, TransactionCoordinator, between_brokers, errors_of

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


class TransactionService(CoordinatorDriver):
    """The transactional ids whose partition of `__transaction_state` is led here."""

    def __init__(self, broker: Broker, coordinator: TransactionCoordinator) -> None:
        super().__init__(broker, TRANSACTION_STATE, coordinator)
        self.coordinator = coordinator

    # --- requests

    def call(self, method: Callable[[Caller, Any, int], Any], context: RequestContext, request: Any) -> Any:
        """As the driver's; a call that found no producer id left is made again when there are some."""
        if self.broker.producer_ids.is_empty:
            return self._call_with_ids(method, context, request)
        return super().call(method, context, request)

    async def _call_with_ids(
        self, method: Callable[[Caller, Any, int], Any], context: RequestContext, request: Any
    ) -> Any:
        await self.broker.producer_ids.fill()
        result = super().call(method, context, request)
        return await result if hasattr(result, "__await__") else result

    def apply(self, outcome: Any) -> None:
        if outcome.needs_producer_id:
            # Only timers get here: requests see to it that there are ids. The timer comes again.
            self.keep(self.broker.producer_ids.fill())
        super().apply(outcome)

    def settled(self, outcome: Any) -> None:
        for request in outcome.markers:
            self.keep(self._end_in_partitions(request))
        super().settled(outcome)

    # --- writes of transactions

    async def join(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition], *, adds: bool
    ) -> dict[TopicPartition, ErrorCode]:
        """Ask the coordinator whether these partitions are part of the open transaction, or to add them to it."""
        asked = list(partitions)
        if not adds:
            return self.coordinator.verify(transactional_id, producer_id, epoch, asked)
        request = between_brokers(transactional_id, producer_id, epoch, asked, verify_only=False)
        future: asyncio.Future[AddPartitionsToTxnResponse] = asyncio.get_running_loop().create_future()
        token = object()
        self._waiting[token] = future
        future.add_done_callback(lambda _: self._waiting.pop(token, None))
        self.apply(self.coordinator.add_partitions_to_txn(Caller(token, None, "", ADD_VERSION), request, self.now_ms()))
        return errors_of(await future, transactional_id)

    # --- markers

    async def _end_in_partitions(self, request: MarkerRequest) -> None:
        errors = await self.write_markers(
            request.producer_id,
            request.producer_epoch,
            request.coordinator_epoch,
            request.commit,
            request.partitions,
            request.transaction_version,
        )
        self.apply(self.coordinator.markers_written(request, errors, self.now_ms()))

    async def write_markers(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        partitions: Iterable[TopicPartition],
        transaction_version: int = 0,
    ) -> dict[TopicPartition, ErrorCode]:
        """Append the marker that ends a transaction to each of these partitions; what became of each.

        `transaction_version` is the protocol of the transaction: from 2 on its end has an epoch of its own.
        """
        errors: dict[TopicPartition, ErrorCode] = {}
        waits: list[tuple[TopicPartition, Awaitable[Appended]]] = []
        for key in partitions:
            if key.topic == CONSUMER_OFFSETS and not self.broker.groups.coordinator.is_loaded(key.partition):
                # The marker would overtake the offsets that it ends, which are still being read: to be asked again.
                errors[key] = ErrorCode.NOT_LEADER_OR_FOLLOWER
                continue
            batch = control_batch(
                ControlType.COMMIT if commit else ControlType.ABORT,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                timestamp=self.now_ms(),
            )
            try:
                partition = self.broker.partition(*key)
                appended = partition.append(batch, origin=Origin.COORDINATOR, transaction_version=transaction_version)
            except HeadraceError as error:
                errors[key] = _code(error)
                continue
            if isinstance(appended, Appended):
                errors[key] = self._ended(key, producer_id, commit)
            else:
                waits.append((key, appended))
        for key, wait in waits:
            try:
                await wait
                errors[key] = self._ended(key, producer_id, commit)
            except HeadraceError as error:
                errors[key] = _code(error)
        return errors

    def _ended(self, key: TopicPartition, producer_id: int, commit: bool) -> ErrorCode:
        """The marker is in the log: offsets that were committed in the transaction count now, or are gone."""
        if key.topic == CONSUMER_OFFSETS:
            self.broker.groups.coordinator.complete_transaction(key.partition, producer_id, commit)
        return ErrorCode.NONE

    # --- loading

    def load(self, index: int, leader_epoch: int) -> None:
        """Take over a partition of the transactions' topic; markers that were not written are asked for again."""
        self.apply(self.coordinator.begin_load(index, leader_epoch))
        self.keep(self.load_partition(index, self._load))

    def _load(self, index: int, record: StoredRecord) -> None:
        if record.committed is None:
            self.coordinator.load(index, record.key, record.value)


def _code(error: HeadraceError) -> ErrorCode:
    return ErrorCode(error.code) if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
