"""Transactions as this broker serves them: the coordinator over `__transaction_state`, its markers, and the check of
writes.

A leader writes a transaction's first batch to a partition only once the coordinator has said that the partition is part
of the open transaction (or, in the newer protocol, has added it), so that a late batch never becomes part of a later
one.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.broker.coordinator_driver import CoordinatorDriver, RequestT
from headrace.broker.dispatch import Pending, RequestContext, settled
from headrace.broker.group_service import MarkerAppend
from headrace.broker.write_order import Append, begin_append
from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.coordination import Caller, Now
from headrace.errors import ErrorCode
from headrace.log import Verification
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from headrace.records import ControlType, control_batch
from headrace.topics import TopicPartition
from headrace.transactions import (
    ADD_VERSION,
    MarkerRequest,
    Outcome,
    TransactionCoordinator,
    between_brokers,
    errors_of,
)
from headrace.transactions.shards import Shard

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


class TransactionService(CoordinatorDriver[Outcome, Shard]):
    """The transactional ids whose partition of `__transaction_state` is led here."""

    coordinator: TransactionCoordinator

    def __init__(self, broker: Broker, coordinator: TransactionCoordinator) -> None:
        super().__init__(broker, TRANSACTION_STATE, coordinator)

    # --- requests

    def call(
        self,
        method: Callable[[Caller, RequestT, Now], Outcome],
        context: RequestContext,
        request: RequestT,
        verification: Verification | None = None,
    ) -> object:
        """As the driver's; a call that found no producer id left is made again when there are some."""
        if self.broker.producer_ids.is_empty:
            return Pending(self._call_with_ids(method, context, request))
        return super().call(method, context, request)

    async def _call_with_ids(
        self, method: Callable[[Caller, RequestT, Now], Outcome], context: RequestContext, request: RequestT
    ) -> object:
        await self.broker.producer_ids.fill()
        return await settled(super().call(method, context, request))

    def apply(self, outcome: Outcome, verification: Verification | None = None) -> None:
        if outcome.needs_producer_id:
            # Only timers get here: requests see to it that there are ids. The timer comes again.
            self.keep(self.broker.producer_ids.fill())
        super().apply(outcome, verification)

    def settled(self, outcome: Outcome) -> None:
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
        token = object()
        answer = self.wait_for(token)
        self.apply(self.coordinator.add_partitions_to_txn(Caller(token, None, "", ADD_VERSION), request, self.now()))
        response = await answer
        assert isinstance(response, AddPartitionsToTxnResponse)
        return errors_of(response, transactional_id)

    # --- markers

    async def _end_in_partitions(self, request: MarkerRequest) -> None:
        errors = dict.fromkeys(request.partitions, ErrorCode.UNKNOWN_SERVER_ERROR)
        try:
            errors = await self.write_markers(
                request.producer_id,
                request.producer_epoch,
                request.coordinator_epoch,
                request.commit,
                request.partitions,
                request.transaction_version,
            )
        finally:
            # Whatever went wrong: else the id would be busy until a restart.
            if not self._closed:
                self.apply(self.coordinator.markers_written(request, errors, self.now()))

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
        answers: dict[TopicPartition, asyncio.Future[ErrorCode]] = {}
        for key in dict.fromkeys(partitions):
            answers[key] = asyncio.get_running_loop().create_future()
            build = functools.partial(
                control_batch,
                ControlType.COMMIT if commit else ControlType.ABORT,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                timestamp=self.broker.runtime.clock.now_ms(),
            )
            tell = functools.partial(_tell, answers[key])
            if key.topic == CONSUMER_OFFSETS:
                # The offsets that were committed in the transaction count from then on, or are gone.
                end = MarkerAppend(producer_id, commit, build, transaction_version)
                self.broker.groups.end_transaction(key.partition, end, tell)
                continue
            append = begin_append(self.broker, *key, build, transaction_version=transaction_version)
            if append.is_done:
                tell(append)
            else:
                append.when_done(functools.partial(tell, append))
        return {key: await answer for key, answer in answers.items()}


def _tell(answer: asyncio.Future[ErrorCode], append: Append) -> None:
    if not answer.done():  # who asked may be gone
        answer.set_result(append.error)
