"""Transactions as this broker serves them: the coordinator over `__transaction_state`, its markers, and the check of
writes.

A leader writes a transaction's first batch to a partition only once the coordinator has said that the partition is part
of the open transaction (or, in the newer protocol, has added it), so that a late batch never becomes part of a later
one. The coordinator of a transaction and the leaders of its partitions may be different brokers: then they ask each
other (`verification_queues`, `marker_queues`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable

from headrace.broker.coordinators.driver import CoordinatorDriver, RequestT
from headrace.broker.coordinators.group_service import GroupService, MarkerAppend
from headrace.broker.coordinators.marker_queues import MarkerQueues
from headrace.broker.coordinators.producer_ids import ProducerIds
from headrace.broker.coordinators.surroundings import CoordinatorSurroundings
from headrace.broker.coordinators.verification_queues import VerificationQueues
from headrace.broker.coordinators.write_order import Append, begin_append
from headrace.broker.requests.dispatch import Pending, RequestContext
from headrace.cluster.image import TopicImage
from headrace.cluster.records import NO_LEADER
from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.coordination import Caller, Now
from headrace.coordination.patterns import Pattern
from headrace.errors import ErrorCode, KafkaError
from headrace.log import Verification
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from headrace.protocol.messages.end_txn import EndTxnResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
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

log = logging.getLogger("headrace.broker.coordinator")

#: How long another broker may take to answer, and the replicas of a partition to have a record.
REQUEST_TIMEOUT_MS = 30_000
# How many markers are begun before others have their turn.
MARKERS_PER_TURN = 100


class TransactionService(CoordinatorDriver[Outcome, Shard]):
    """The transactional ids whose partition of `__transaction_state` is led here."""

    coordinator: TransactionCoordinator

    def __init__(
        self,
        around: CoordinatorSurroundings,
        coordinator: TransactionCoordinator,
        producer_ids: ProducerIds,
        groups: GroupService,
    ) -> None:
        super().__init__(around, TRANSACTION_STATE, coordinator, REQUEST_TIMEOUT_MS)
        self._producer_ids = producer_ids
        self._groups = groups
        self._peers = around.make_peers("transactions", REQUEST_TIMEOUT_MS)
        self._matching = asyncio.Lock()
        self._questions = VerificationQueues(around.cluster.image, self._peers, self.keep)
        self._markers = MarkerQueues(
            around.cluster.image,
            self._peers,
            is_current=self._is_current,
            tell=self._markers_written,
            keep=self.keep,
        )

    def look_again(self) -> None:
        """Brokers have come or gone."""
        self._peers.look_again()

    def follow(self, topic: TopicImage | None) -> None:
        super().follow(topic)
        self._questions.retry_now()
        self._markers.retry_now()

    async def close(self) -> None:
        await super().close()
        await self._peers.close()

    # --- requests

    def call(
        self,
        method: Callable[[Caller, RequestT, Now], Outcome],
        context: RequestContext,
        request: RequestT,
        verification: Verification | None = None,
    ) -> object:
        """As the driver's; a call that found no producer id left is made again when there are some."""
        if self._producer_ids.is_empty:
            return Pending(self._call_with_ids(method, context, request))
        return super().call(method, context, request)

    async def _call_with_ids(
        self, method: Callable[[Caller, RequestT, Now], Outcome], context: RequestContext, request: RequestT
    ) -> object:
        """Most calls need no id: the controller, which may be away, is asked only for one that does."""
        token = object()
        caller = Caller(token, context.client_id, f"/{context.client_host}", context.api_version)
        outcome = method(caller, request, self.now())
        while outcome.needs_producer_id:
            try:
                await self._producer_ids.fill()
            except KafkaError as error:
                log.warning("no producer id can be given for now: %s", error)
                return _without_ids(request)
            outcome = method(caller, request, self.now())
        answer = self.wait_for(token)
        self.apply(outcome)
        return await answer

    def apply(self, outcome: Outcome, verification: Verification | None = None) -> None:
        if outcome.needs_producer_id:
            # Only timers get here: requests see to it that there are ids. The timer comes again.
            self.keep(self._producer_ids.fill())
        super().apply(outcome, verification)

    def settled(self, outcome: Outcome) -> None:
        for request in outcome.markers:
            self._end_in_partitions(request)
        super().settled(outcome)

    async def ids_matching(self, pattern: Pattern) -> set[str]:
        """The transactional ids that match, of those that are known here: for one request at a time, in many steps."""
        found = set()
        async with self._matching:
            for transactional_id in pattern.matching(self.coordinator.transactional_ids()):
                if transactional_id is None:
                    await asyncio.sleep(0)  # others have their turn
                else:
                    found.add(transactional_id)
        return found

    # --- writes of transactions

    async def join(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition], *, adds: bool
    ) -> dict[TopicPartition, ErrorCode]:
        """Ask the coordinator whether these partitions are part of the open transaction, or to add them to it."""
        asked = list(partitions)
        index = self.coordinator.partition_of(transactional_id)
        node_id = self._questions.coordinator_of(index)
        is_here = node_id is None or self.around.identity.is_this(node_id)
        if is_here and not adds:
            if self.around.out_of_touch() is not None:
                return dict.fromkeys(asked, ErrorCode.NOT_COORDINATOR)
            return self.coordinator.verify(transactional_id, producer_id, epoch, asked)
        if node_id == NO_LEADER:
            return dict.fromkeys(asked, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        request = between_brokers(transactional_id, producer_id, epoch, asked, verify_only=not adds)
        if node_id is not None and not is_here:
            return await self._questions.ask(node_id, index, request.transactions[0])
        token = object()
        answer = self.wait_for(token)
        self.apply(self.coordinator.add_partitions_to_txn(Caller(token, None, "", ADD_VERSION), request, self.now()))
        response = await answer
        assert isinstance(response, AddPartitionsToTxnResponse)
        return errors_of(response, transactional_id)

    # --- markers

    def _end_in_partitions(self, request: MarkerRequest) -> None:
        """Let each partition of a transaction know its outcome, wherever it is led."""
        elsewhere: list[TopicPartition] = []
        here: list[TopicPartition] = []
        for partition in request.partitions:
            leader = self._markers.leader_of(partition)
            # One that does not exist is refused in the words of this broker.
            (here if leader is None or self.around.identity.is_this(leader) else elsewhere).append(partition)
        if elsewhere:
            self._markers.send(request, elsewhere)
        if here or not elsewhere:
            self.keep(self._end_here(request, here))

    async def _end_here(self, request: MarkerRequest, partitions: list[TopicPartition]) -> None:
        errors = dict.fromkeys(partitions, ErrorCode.UNKNOWN_SERVER_ERROR)
        try:
            errors = await self.write_markers(
                request.producer_id,
                request.producer_epoch,
                request.coordinator_epoch,
                request.commit,
                partitions,
                request.transaction_version,
            )
        finally:
            # Whatever went wrong: else the id would be busy until a restart.
            self._markers_written(request, errors)

    def _markers_written(self, request: MarkerRequest, errors: dict[TopicPartition, ErrorCode]) -> None:
        if not self._closed:
            self.apply(self.coordinator.markers_written(request, errors, self.now()))

    def _is_current(self, request: MarkerRequest) -> bool:
        """Whether the coordinator that wants these markers still is one."""
        led = self._led.get(request.state_partition)
        return led is not None and led.leader_epoch == request.coordinator_epoch

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
            if len(answers) % MARKERS_PER_TURN == MARKERS_PER_TURN - 1:
                await asyncio.sleep(0)  # others have their turn
            answers[key] = asyncio.get_running_loop().create_future()
            build = functools.partial(
                control_batch,
                ControlType.COMMIT if commit else ControlType.ABORT,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                timestamp=self.around.runtime.clock.now_ms(),
            )
            tell = functools.partial(_tell, answers[key])
            if key.topic == CONSUMER_OFFSETS:
                # The offsets that were committed in the transaction count from then on, or are gone.
                end = MarkerAppend(producer_id, commit, build, transaction_version)
                self._groups.end_transaction(key.partition, end, tell)
                continue
            append = begin_append(
                self.around,
                *key,
                build,
                transaction_version=transaction_version,
                timeout_ms=REQUEST_TIMEOUT_MS,
            )
            if append.is_done:
                tell(append)
            else:
                append.when_done(functools.partial(tell, append))
        return {key: await answer for key, answer in answers.items()}


def _tell(answer: asyncio.Future[ErrorCode], append: Append) -> None:
    if not answer.done():  # who asked may be gone
        answer.set_result(append.error)


def _without_ids(request: object) -> object:
    """The answer to a request that needs a producer id while there are none: ask again."""
    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if isinstance(request, InitProducerIdRequest):
        return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)
    return EndTxnResponse(error_code=error, producer_id=-1, producer_epoch=-1)
