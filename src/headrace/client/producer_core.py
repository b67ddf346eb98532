"""The producer's sender, without I/O: what goes out next, what is sent again, what has failed.

`turn()` is called whenever something may have changed: it drains what was sent, gives up what is too old, and hands
requests to the common core, whose answers come back to it. All of it runs on one thread (the sender's, or the event
loop).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from headrace.client.accumulator import Accumulator, PartitionQueue
from headrace.client.client_core import ANY_NODE, ClientCore
from headrace.client.cluster_view import Node
from headrace.client.connection_core import Call
from headrace.client.errors import ClientClosed, DeliveryTimeout
from headrace.client.partitioners import Partitioner
from headrace.client.producer_batch import NO_SEQUENCE, ProducerBatch
from headrace.client.producer_config import ProducerSettings
from headrace.client.producer_metrics import ProducerMetrics
from headrace.client.producer_transactions import TransactionDriver
from headrace.client.sequences import Identity
from headrace.client.transaction_core import TransactionCore, TransactionState
from headrace.errors import ErrorCode, HeadraceError, KafkaError, RetriableError, error_for
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace.protocol.schema import ZERO_UUID
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.client.producer")

_FOREVER = float("inf")
VERSION_BY_NAME_MAX = 12
_STALE_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


@dataclass(slots=True, eq=False)
class FlushWait:
    """A flush that waits for the batches there were when it began."""

    left: int = 0
    is_done: bool = False
    waiters: list[Any] = field(default_factory=list)


class ProducerCore:
    """See the module. `producer` is what deliveries point to until they are in a batch."""

    def __init__(
        self, core: ClientCore, settings: ProducerSettings, partitioner: Partitioner | None, producer: Any
    ) -> None:
        self.core = core
        self.settings = settings
        self.producer = producer
        self.accumulator = Accumulator(settings, core.view, core.rng, partitioner, producer)
        self.accumulator.wants_topic = core.add_topic
        self.accumulator.wants_metadata = core.refresh_metadata
        self.identity = Identity()
        self.transactions: TransactionDriver | None = None
        if settings.transactional_id is not None:
            self.transactions = TransactionDriver(core, settings, self.identity, self._restart_numbers)
            self.accumulator.on_failed_rows = self._rows_failed
        self.metrics = ProducerMetrics()
        self.fatal: HeadraceError | None = None
        self.memory_is_short = False
        """Somebody waits for room: do not linger."""
        self._flushes: list[FlushWait] = []
        self._identity_call: Call | None = None
        self._identity_retry_at = 0.0
        self._identity_failures = 0
        self._bump_wanted: set[tuple[str, int]] = set()
        self._start = 0
        self._next_expiry = 0.0
        self._next_idle_check = 0.0
        self.last_call: Call | None = None

    # --- one turn -----------------------------------------------------------------------------------------------------

    def turn(self, created: float | None = None) -> float:
        """Do everything that can be done now; seconds until something is due by itself."""
        now = self.core.clock.monotonic()
        now_ms = self.core.clock.now_ms()
        accumulator = self.accumulator
        accumulator.drain(now, now_ms, now if created is None else created)
        due = accumulator.release(now, now_ms) if accumulator.held else _FOREVER
        due = min(due, self._expire(now))
        if self.fatal is not None:
            self._fail_all(self.fatal)
        if self.transactions is not None:
            due = min(due, self._keep_transaction(now, self.transactions))
        elif self.settings.idempotent:
            due = min(due, self._keep_identity(now))
        if accumulator.active:
            due = min(due, self._send_ready(now))
            if self.transactions is not None:
                # Partitions that are to be sent to may have to be added first.
                due = min(due, self.transactions.take_steps(now, self._has_undelivered))
        if now >= self._next_idle_check:
            self._next_idle_check = now + self.settings.metadata_idle_s / 10
            self._forget_idle_topics(now)
        return max(0.0, min(due - now, 60.0))

    def _forget_idle_topics(self, now: float) -> None:
        for topic in self.accumulator.forget_idle_topics(now):
            if self.core.topics is not None:
                self.core.topics.discard(topic)

    def flush(self) -> FlushWait:
        """Begin to wait for everything sent before; the caller has seen to it that it is in `pending`."""
        now = self.core.clock.monotonic()
        self.accumulator.drain(now, self.core.clock.now_ms(), now)
        wait = FlushWait()
        for batch in self.accumulator.incomplete:
            batch.flushes.append(wait)
            wait.left += 1
        wait.left += sum(map(len, self.accumulator.held.values()))
        if wait.left == 0:
            wait.is_done = True
        else:
            self._flushes.append(wait)
        return wait

    def settle_flushes(self) -> None:
        """Flushes end with the last of their batches; rows held for an unknown topic count until they are gone."""
        if not self._flushes:
            return
        if not self.accumulator.incomplete and not self.accumulator.held:
            for wait in self._flushes:
                wait.left = 0
        finished = [wait for wait in self._flushes if wait.left <= 0]
        self._flushes = [wait for wait in self._flushes if wait.left > 0]
        for wait in finished:
            wait.is_done = True
            for waiter in wait.waiters:
                waiter()

    @property
    def has_work(self) -> bool:
        """Whether anything that was drained is waiting, held or in flight."""
        return bool(self.accumulator.incomplete or self.accumulator.held)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is waiting, held or in flight, nor to be drained."""
        return not self.has_work and not self.accumulator.pending

    @property
    def can_send_one(self) -> bool:
        """Whether a record could be sent at once, with nothing before it and nothing to find out first."""
        is_known = not self.settings.idempotent or (self.identity.producer_id >= 0 and not self._bump_wanted)
        return is_known and self.fatal is None and not self.has_work and self.settings.acks != 0

    # --- who we are ---------------------------------------------------------------------------------------------------

    def _keep_identity(self, now: float) -> float:
        """Bump the epoch where numbers were lost; get a producer id when there is none and something is to be sent."""
        for key in list(self._bump_wanted):
            queue = self.accumulator.queues[key]
            if queue.sequences.unresolved and queue.in_flight:
                continue
            self._bump_wanted.discard(key)
            if self.identity.is_known and (self.identity.producer_id, self.identity.epoch) == (
                queue.sequences.producer_id,
                queue.sequences.epoch,
            ):
                self.identity.bump()
                log.info(
                    "sequence numbers of %s-%d were lost: the producer's epoch is now %d", *key, self.identity.epoch
                )
            if self.identity.is_known:
                queue.sequences.restart(self.identity)
            else:
                self._bump_wanted.add(key)
                break
        if self.identity.is_known or self._identity_call is not None or not self.accumulator.incomplete:
            return _FOREVER
        if self._identity_retry_at > now:
            return self._identity_retry_at
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2_147_483_647)
        self._identity_call = self.core.submit(ANY_NODE, request, self._identity_done)
        if self._identity_call.done:
            self._identity_call = None
        return _FOREVER

    def _identity_done(self, call: Call) -> None:
        self._identity_call = None
        error = call.error
        if error is None and call.response.error_code:
            error = error_for(
                call.response.error_code, f"no producer id: {ErrorCode(call.response.error_code).message}"
            )
        if error is None:
            self.identity.producer_id, self.identity.epoch = call.response.producer_id, call.response.producer_epoch
            self._identity_failures = 0
            log.debug("producer id %d, epoch %d", self.identity.producer_id, self.identity.epoch)
            return
        if not isinstance(error, RetriableError):
            self.fatal = error
        wait_ms = self.settings.retry_backoff.wait_ms(self._identity_failures, self.core.rng)
        self._identity_failures += 1
        self._identity_retry_at = self.core.clock.monotonic() + wait_ms / 1000

    # --- transactions -------------------------------------------------------------------------------------------------

    @property
    def transaction(self) -> TransactionCore | None:
        return None if self.transactions is None else self.transactions.transaction

    def _keep_transaction(self, now: float, driver: TransactionDriver) -> float:
        """Take the transaction a step on; records that it will not have any more have failed."""
        transaction = driver.transaction
        if not transaction.takes_records and (self.accumulator.incomplete or self.accumulator.held):
            self._drop_unsent(transaction)
        due = driver.take_steps(now, self._has_undelivered)
        if transaction.state is TransactionState.FATAL_ERROR and self.fatal is None:
            assert transaction.error is not None
            self.fatal = transaction.error
            self._fail_all(self.fatal)
        return due

    def _has_undelivered(self) -> bool:
        return bool(self.accumulator.incomplete or self.accumulator.held)

    def _drop_unsent(self, transaction: TransactionCore) -> None:
        """Fail what is not in flight; what is has to come home before the transaction can end."""
        error = transaction.why_not()
        for queue in list(self.accumulator.active.values()):
            while queue.batches:
                batch = queue.batches.popleft()
                self._give_up(batch, error, is_settled=batch.attempts == 0)
            self.accumulator.active.pop((queue.topic, queue.partition), None)
        self._fail_held(error)
        self.settle_flushes()

    def _rows_failed(self, error: HeadraceError) -> None:
        assert self.transactions is not None
        self.transactions.transaction.record_failed(error, was_numbered=False)

    def _restart_numbers(self) -> None:
        """A new epoch: every partition begins at 0. Between transactions nothing is under way."""
        for queue in self.accumulator.queues.values():
            queue.sequences.restart(self.identity)

    def _lost_numbers(self, queue: PartitionQueue, *, unresolved: bool) -> None:
        queue.sequences.unresolved = queue.sequences.unresolved or unresolved
        self._bump_wanted.add((queue.topic, queue.partition))

    # --- sending ------------------------------------------------------------------------------------------------------

    def _send_ready(self, now: float) -> float:
        """Send as long as requests may be in flight; when the next batch is due."""
        due = _FOREVER
        for _ in range(self.settings.in_flight_max):
            if not self.accumulator.active:
                return _FOREVER
            sent, due = self.send_pass(now)
            if not sent:
                break
        return due

    def send_pass(self, now: float, *, may_connect: bool = True) -> tuple[bool, float]:
        """Hand the first batch of every partition whose time has come to its leader, as many per request as fit."""
        due = _FOREVER
        active = list(self.accumulator.active.values())
        transaction = self.transaction
        # Start elsewhere every time, so that no partition always comes last when requests are full.
        self._start = (self._start + 1) % len(active)
        by_node: dict[int, list[tuple[PartitionQueue, ProducerBatch]]] = {}
        sizes: dict[int, int] = {}
        for queue in active[self._start :] + active[: self._start]:
            batch = queue.batches[0]
            if transaction is not None and not transaction.may_produce(TopicPartition(queue.topic, queue.partition)):
                continue
            at = self._ready_at(queue, batch)
            if at > now:
                due = min(due, at)
                continue
            if not self._may_send(queue, batch):
                continue
            leader = self.core.view.leader_of(queue.topic, queue.partition)
            if leader is None:
                self.core.refresh_metadata()
                due = min(due, now + self.settings.retry_backoff.first_ms / 1000)
                continue
            if not (self.core.ensure_connected if may_connect else self.core.connection)(leader.id):
                retry_at = self.core.retry_at(leader.id)
                due = min(due, retry_at) if retry_at > now else due
                continue
            if self.core.in_flight(leader.id) >= self.settings.in_flight_max or self.core.is_sending(leader.id):
                # What the socket has no room for is not encoded before its time: it would take memory of its own, where
                # that of the requests before it can be used again.
                continue
            size = sizes.get(leader.id, 0)
            if size and size + batch.size > self.settings.max_request_size:
                # The next pass takes it, in a request of its own.
                continue
            sizes[leader.id] = size + batch.size
            by_node.setdefault(leader.id, []).append((queue, batch))
        for node_id, picked in by_node.items():
            self._send(node_id, picked, now)
        return bool(by_node), due

    def _ready_at(self, queue: PartitionQueue, batch: ProducerBatch) -> float:
        """When a queue's first batch may go: at once when it is full or nobody may wait; else when it has lingered."""
        if batch.attempts:
            return batch.retry_at
        if batch.is_closed or len(queue.batches) > 1 or self._flushes or self.memory_is_short:
            return 0.0
        return batch.created + self.settings.linger_s

    def _may_send(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        if self.settings.idempotent:
            return queue.sequences.may_send(batch, self.identity)
        # Without sequence numbers only one request at a time keeps the order.
        return self.settings.in_flight_max > 1 or not queue.in_flight

    def _send(self, node_id: int, picked: list[tuple[PartitionQueue, ProducerBatch]], now: float) -> None:
        topics: dict[str, TopicProduceData] = {}
        by_id = True
        for queue, batch in picked:
            queue.batches.popleft()
            if not queue.batches:
                self.accumulator.active.pop((queue.topic, queue.partition), None)
            self.accumulator.close_batch(batch)
            if self.settings.idempotent and batch.sequence == NO_SEQUENCE:
                queue.sequences.assign(batch, self.identity)
            records = batch.encode(self.settings.codec, self.settings.level)
            queue.in_flight.append(batch)
            batch.in_flight = True
            data = topics.get(queue.topic)
            if data is None:
                topic_id = self.core.view.topics[queue.topic].topic_id
                by_id = by_id and topic_id != ZERO_UUID
                data = topics[queue.topic] = TopicProduceData(name=queue.topic, topic_id=topic_id)
            data.partition_data.append(PartitionProduceData(index=queue.partition, records=memoryview(records)))
            self.metrics.batch_sent(batch, len(records), now)
        request = ProduceRequest(
            transactional_id=self.settings.transactional_id,
            acks=self.settings.acks,
            timeout_ms=self.settings.request_timeout_ms,
            topic_data=list(topics.values()),
        )
        version_max = None if by_id else VERSION_BY_NAME_MAX
        if self.transactions is not None:
            version_max = self.transactions.produce_version_max or version_max
        self.metrics.request_sent()
        batches = [batch for _, batch in picked]
        self.last_call = self.core.submit(
            node_id,
            request,
            lambda call: self.answered(call, batches),
            expects_response=self.settings.acks != 0,
            version_max=version_max,
        )

    # --- answers ------------------------------------------------------------------------------------------------------

    def answered(self, call: Call, batches: list[ProducerBatch]) -> None:
        now = self.core.clock.monotonic()
        for batch in batches:
            self._landed(batch)
        if call.error is not None:
            for batch in batches:
                if not batch.is_done:
                    self._failed_attempt(batch, call.error, None, now)
        elif call.response is None:
            for batch in batches:
                self._acked(batch, -1, -1)
        else:
            self.metrics.answered(now - (call.sent_at or now))
            self._read_answer(call.response, batches, now)
        self.settle_flushes()

    def _landed(self, batch: ProducerBatch) -> None:
        batch.in_flight = False
        queue = self.accumulator.queue(batch.topic, batch.partition)
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)

    def _read_answer(self, response: ProduceResponse, batches: list[ProducerBatch], now: float) -> None:
        answers: dict[tuple[str | None, int], PartitionProduceResponse] = {}
        for topic in response.responses:
            name = topic.name or self.core.view.topic_names.get(topic.topic_id)
            for answer in topic.partition_responses:
                answers[(name, answer.index)] = answer
        endpoints = {
            node.node_id: Node(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints
        }
        for batch in batches:
            if batch.is_done:
                continue
            found = answers.get((batch.topic, batch.partition))
            if found is None:
                error = error_for(ErrorCode.UNKNOWN_TOPIC_ID, "the broker's answer leaves the partition out")
                self._failed_attempt(batch, error, None, now)
            elif found.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._acked(batch, found.base_offset, found.log_append_time_ms)
            else:
                leader = found.current_leader
                if leader.leader_epoch >= 0:
                    where = TopicPartition(batch.topic, batch.partition)
                    self.core.view.learn_leader(
                        where, leader.leader_id, leader.leader_epoch, endpoints.get(leader.leader_id)
                    )
                batch.record_errors = {e.batch_index: e.batch_index_error_message for e in found.record_errors}
                self._failed_attempt(batch, error_for(found.error_code, found.error_message), found, now)

    def _acked(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int) -> None:
        self.accumulator.queue(batch.topic, batch.partition).sequences.acked(batch)
        self._finish(batch, base_offset, log_append_time_ms, None)

    def _finish(
        self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int, error: HeadraceError | None
    ) -> None:
        self.accumulator.done(batch)
        self.metrics.finished(batch, error)
        for wait in batch.flushes:
            wait.left -= 1
        batch.finish(base_offset, log_append_time_ms, error)

    def _failed_attempt(
        self, batch: ProducerBatch, error: HeadraceError, answer: PartitionProduceResponse | None, now: float
    ) -> None:
        """An attempt did not work: split, send again, or give up."""
        code = getattr(error, "code", None)
        if code == ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1:
            self._split(batch)
            return
        if code in _STALE_METADATA or answer is None:
            self.core.refresh_metadata()
        batch.attempts += 1
        expired = batch.created + self.settings.delivery_timeout_s <= now
        if not expired and batch.attempts <= self.settings.retries and self._is_worth_retrying(batch, error, answer):
            log.debug("sending %r again: %s", batch, error)
            batch.record_errors = {}
            wait_ms = self.settings.retry_backoff.wait_ms(batch.attempts - 1, self.core.rng)
            batch.retry_at = now + wait_ms / 1000
            self.metrics.retried(batch)
            self.accumulator.requeue([batch])
            return
        self._give_up(batch, self._final(batch, error, expired), is_settled=answer is not None and not expired)

    def _is_worth_retrying(
        self, batch: ProducerBatch, error: HeadraceError, answer: PartitionProduceResponse | None
    ) -> bool:
        code = getattr(error, "code", None)
        transaction = self.transaction
        if transaction is not None and not transaction.takes_records:
            return False
        if not self.settings.idempotent:
            return isinstance(error, RetriableError)
        queue = self.accumulator.queue(batch.topic, batch.partition)
        if code == ErrorCode.UNKNOWN_PRODUCER_ID and transaction is None:
            # The broker has forgotten us (its records of us were deleted): start anew, unless it is a stale answer.
            if answer is not None and answer.log_start_offset >= 0:
                self._lost_numbers(queue, unresolved=False)
            return True
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # Expected behind a batch that is being sent again; otherwise numbers are missing for good.
            if queue.sequences.is_next(batch) and queue.sequences.assigned[:1] == [batch]:
                if transaction is not None:
                    return False
                self._lost_numbers(queue, unresolved=False)
            return True
        return isinstance(error, RetriableError)

    def _final(self, batch: ProducerBatch, error: HeadraceError, expired: bool) -> HeadraceError:
        what = f"{batch.count} record(s) for {batch.topic}-{batch.partition} not delivered"
        if expired:
            return DeliveryTimeout(
                f"{what} within {self.settings.delivery_timeout_ms} ms (delivery.timeout.ms), after {batch.attempts} "
                f"attempt(s); last: {error}"
            )
        tried = f" after {batch.attempts} attempts" if batch.attempts > 1 else ""
        message = f"{what}{tried}: {error}"
        return type(error)(message) if isinstance(error, KafkaError) else error

    def _give_up(self, batch: ProducerBatch, error: HeadraceError, *, is_settled: bool) -> None:
        """A batch has failed. `is_settled`: the broker said that it did not write it."""
        queue = self.accumulator.queue(batch.topic, batch.partition)
        had_number = batch.sequence != NO_SEQUENCE
        queue.sequences.forget(batch)
        if self.transactions is not None:
            self.transactions.transaction.record_failed(error, was_numbered=had_number)
        elif had_number:
            self._lost_numbers(queue, unresolved=not is_settled)
        self._finish(batch, -1, -1, error)

    def _split(self, batch: ProducerBatch) -> None:
        """Too large for the broker: send it as two, in its place."""
        log.info("%r is too large for the broker: splitting it", batch)
        queue = self.accumulator.queue(batch.topic, batch.partition)
        parts = batch.split()
        queue.sequences.replace(batch, parts)
        self.accumulator.done(batch)
        for part in parts:
            part.attempts = max(1, batch.attempts)
            part.flushes = list(batch.flushes)
            self.accumulator.incomplete.add(part)
            self.accumulator.buffered_bytes += part.size
        for wait in batch.flushes:
            wait.left += 1
        self.metrics.splits += 1
        self.accumulator.requeue(parts if batch.sequence != NO_SEQUENCE else reversed(parts))

    # --- giving up ----------------------------------------------------------------------------------------------------

    def _expire(self, now: float) -> float:
        """Give up what is older than `delivery.timeout.ms`, waiting or in flight; when the next of it will be."""
        limit = self.settings.delivery_timeout_s
        if now < self._next_expiry:
            return self._next_expiry if self.accumulator.incomplete else _FOREVER
        # Batches made from now on are younger, so nothing has to be looked at before this.
        due = now + limit
        late: list[tuple[PartitionQueue, ProducerBatch]] = []
        for queue in self.accumulator.queues.values():
            # Oldest first: where the first is not late, none is.
            for batches in (queue.in_flight, queue.batches):
                for batch in batches:
                    if batch.created + limit > now:
                        due = min(due, batch.created + limit)
                        break
                    late.append((queue, batch))
        for queue, batch in late:
            if batch in queue.batches:
                queue.batches.remove(batch)
                if not queue.batches:
                    self.accumulator.active.pop((queue.topic, queue.partition), None)
            else:
                queue.in_flight.remove(batch)
            sent = batch.attempts > 0 or batch.in_flight
            self._give_up(batch, self._too_late(batch, now), is_settled=not sent)
        self._next_expiry = due
        if late:
            self.settle_flushes()
        return due

    def _too_late(self, batch: ProducerBatch, now: float) -> HeadraceError:
        leader = self.core.view.leader_of(batch.topic, batch.partition)
        where = "its partition has no leader" if leader is None else f"its leader is {leader}"
        if self.settings.idempotent and not self.identity.is_known:
            where = "the producer has no producer id yet"
        return DeliveryTimeout(
            f"{batch.count} record(s) for {batch.topic}-{batch.partition} not delivered within "
            f"{self.settings.delivery_timeout_ms} ms (delivery.timeout.ms) in {batch.attempts} attempt(s); {where}; "
            f"last trouble: {self.core.metadata_error or 'none'}"
        )

    def _fail_all(self, error: HeadraceError) -> None:
        """Fail everything that is not done: the producer is closing, or cannot go on."""
        for queue in self.accumulator.queues.values():
            for batch in [*queue.in_flight, *queue.batches]:
                queue.sequences.forget(batch)
                self._finish(batch, -1, -1, error)
            queue.in_flight.clear()
            queue.batches.clear()
        self.accumulator.active.clear()
        self._fail_held(error)
        self.settle_flushes()

    def _fail_held(self, error: HeadraceError) -> None:
        for topic, waiting in list(self.accumulator.held.items()):
            del self.accumulator.held[topic]
            for entry in waiting:
                self.accumulator.buffered_bytes -= entry.size
                self.accumulator.fail_rows(entry.rows, error)

    def abort(self, reason: str) -> None:
        """The end: whatever is not delivered has failed."""
        now = self.core.clock.monotonic()
        self.accumulator.drain(now, self.core.clock.now_ms(), now)
        self._fail_all(ClientClosed(f"the record was not delivered: {reason}"))
