"""The producer's sender, without I/O: what goes out next, what is sent again, what has failed.

`turn()` is called whenever something may have changed: it drains what was sent, gives up what is too old, and hands
requests to the common core, whose answers come back to it. All of it runs on one thread (the sender's, or the event
loop).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from headrace.client.cluster.core import ClientCore
from headrace.client.errors import ClientClosedError
from headrace.client.producer._accumulator import Accumulator
from headrace.client.producer._answers import STALE_METADATA, read_answers
from headrace.client.producer._batch import NO_SEQUENCE, ProducerBatch
from headrace.client.producer._errors import expired_error, last_error, refused_error
from headrace.client.producer._flushes import Flushes, FlushWait, leave
from headrace.client.producer._identity import IdentityKeeper
from headrace.client.producer._metrics import ProducerMetrics
from headrace.client.producer._queues import PartitionQueue
from headrace.client.producer._sequences import NEVER_WRITTEN, CurrentIdentity
from headrace.client.producer._transactions import TransactionDriver
from headrace.client.producer.config import ProducerSettings
from headrace.client.producer.partitioners import Partitioner
from headrace.client.transactions._core import ProducerTransactionState, TransactionCore
from headrace.errors import (
    ErrorCode,
    HeadraceError,
    InvalidRecordError,
    KafkaError,
    NetworkError,
    RetriableError,
    error_for,
)
from headrace.net.connection import Call
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace.protocol.schema import ZERO_UUID
from headrace.records.build import Built
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.client.producer")

_FOREVER = float("inf")
VERSION_BY_NAME_MAX = 12


class ProducerCore:
    """See the module. `producer` is what deliveries point to until they are in a batch."""

    def __init__(
        self, core: ClientCore, settings: ProducerSettings, partitioner: Partitioner | None, sender: Any
    ) -> None:
        self.core = core
        self.settings = settings
        self.sender = sender
        self.accumulator = Accumulator(settings, core.view, core.rng, partitioner, sender)
        self.accumulator.wants_topic = core.add_topic
        self.accumulator.wants_metadata = core.refresh_metadata
        self.accumulator.trouble = lambda: core.trouble
        self.identity = CurrentIdentity()
        self.numbers = IdentityKeeper(core, settings, self.accumulator, self.identity)
        self.transactions: TransactionDriver | None = None
        if settings.transactional_id is not None:
            self.transactions = TransactionDriver(core, settings, self.identity, self._restart_numbers)
            self.accumulator.on_failed_rows = self._rows_failed
        core.refusal_listeners.append(lambda key, error: self._refusals.append((key, error)))
        self._refusals: list[tuple[int, HeadraceError]] = []
        """Brokers that refused the producer's credentials since the last turn, and why."""
        self.metrics = ProducerMetrics()
        self.fatal: HeadraceError | None = None
        self.memory_is_short = False
        """Somebody waits for room: do not linger."""
        self._flushes = Flushes()
        self._start = 0
        self._is_more_ready = False
        self._next_expiry = 0.0
        self._next_idle_check = 0.0
        self.last_call: Call | None = None

    # --- one turn -----------------------------------------------------------------------------------------------------

    def turn(self, created: float | None = None) -> float:
        """Do everything that can be done now; seconds until something is due by itself."""
        now = self.core.clock.monotonic()
        now_ms = self.core.clock.now_ms()
        accumulator = self.accumulator
        if self._refusals:
            # Before the drain: what is sent from now on has to be refused by itself.
            self._fail_refused()
        self._drain(now, now_ms, now if created is None else created)
        due = accumulator.release(now, now_ms) if accumulator.held else _FOREVER
        due = min(due, self._expire(now))
        self.fatal = self.fatal or self.numbers.error
        if self.fatal is not None:
            self._fail_all(self.fatal)
        if self.transactions is not None:
            due = min(due, self._keep_transaction(now, self.transactions))
        elif self.settings.idempotent:
            due = min(due, self.numbers.keep(now))
        if accumulator.active:
            due = min(due, self._send_ready(now))
            if self.transactions is not None:
                # Partitions that are to be sent to may have to be added first.
                due = min(due, self.transactions.take_steps(now, lambda: self.has_work))
        if now >= self._next_idle_check:
            self._next_idle_check = now + self.settings.metadata_idle_s / 10
            for topic in accumulator.forget_idle_topics(now):
                if self.core.topics is not None:
                    self.core.topics.discard(topic)
            self.numbers.forget_unused()
        return max(0.0, min(due - now, 60.0))

    def _drain(self, now: float, now_ms: int, created: float) -> None:
        """Into batches with what was sent. What came after its transaction's end was asked for must not go with it.

        A caller that was about to append while another ended the transaction is told so by the record's delivery.
        """
        accumulator, transaction = self.accumulator, self.transaction
        is_late = transaction is not None and not transaction.accepts_records
        if is_late and transaction is not None and accumulator.pending and accumulator.refusal is None:
            accumulator.refusal = transaction.why_not()
            accumulator.drain(now, now_ms, created)
            accumulator.refusal = None
        else:
            accumulator.drain(now, now_ms, created)

    def flush(self) -> FlushWait:
        """Begin to wait for everything sent before; the caller has seen to it that it is in `pending`."""
        now = self.core.clock.monotonic()
        self._drain(now, self.core.clock.now_ms(), now)
        held = (entry.flushes for waiting in self.accumulator.held.values() for entry in waiting)
        return self._flushes.begin([*(batch.flushes for batch in self.accumulator.incomplete), *held])

    def settle_flushes(self) -> None:
        self._flushes.settle()

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
        is_known = not self.settings.idempotent or self.numbers.is_settled
        return is_known and self.fatal is None and not self.has_work and self.settings.acks != 0

    # --- transactions -------------------------------------------------------------------------------------------------

    @property
    def transaction(self) -> TransactionCore | None:
        return None if self.transactions is None else self.transactions.transaction

    def _keep_transaction(self, now: float, driver: TransactionDriver) -> float:
        """Take the transaction a step on; records that it will not have any more have failed."""
        transaction = driver.transaction
        if not transaction.takes_records and self.has_work:
            self._drop_unsent(transaction)
        due = driver.take_steps(now, lambda: self.has_work)
        if transaction.state is ProducerTransactionState.FATAL_ERROR and self.fatal is None:
            assert transaction.error is not None
            self.fatal = transaction.error
            self._fail_all(self.fatal)
        return due

    def _drop_unsent(self, transaction: TransactionCore) -> None:
        """Fail what is not in flight; what is has to come home before the transaction can end."""
        error = transaction.why_not()
        for queue in list(self.accumulator.active.values()):
            self._give_up_waiting(queue, lambda _: error)
        self._fail_held(error)
        self.settle_flushes()

    def _rows_failed(self, error: HeadraceError) -> None:
        assert self.transactions is not None
        self.transactions.transaction.record_failed(error, was_numbered=False)

    def _restart_numbers(self) -> None:
        """A new epoch: every partition begins at 0. Between transactions nothing is under way."""
        for queue in self.accumulator.queues.values():
            queue.sequences.restart(self.identity)

    # --- sending ------------------------------------------------------------------------------------------------------

    def _send_ready(self, now: float) -> float:
        """Send as long as requests may be in flight; when the next batch is due."""
        due = _FOREVER
        for _ in range(self.settings.in_flight_max):
            if not self.accumulator.active:
                return _FOREVER
            self._is_more_ready = False
            sent, due = self.send_pass(now)
            if not sent:
                break
        return now if self._is_more_ready else due

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
            may_send_at = self.core.throttled_until(leader.id)
            if may_send_at > now:
                due = min(due, may_send_at)
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
        batches: list[ProducerBatch] = []
        for queue, batch in picked:
            queue.batches.popleft()
            if not queue.batches:
                self.accumulator.active.pop((queue.topic, queue.partition), None)
            self.accumulator.close_batch(batch)
            records = self._encoded(queue, batch)
            if records is None:
                continue
            batches.append(batch)
            queue.in_flight.append(batch)
            batch.in_flight = True
            data = topics.get(queue.topic)
            if data is None:
                topic_id = self.core.view.topics[queue.topic].topic_id
                by_id = by_id and topic_id != ZERO_UUID
                data = topics[queue.topic] = TopicProduceData(name=queue.topic, topic_id=topic_id)
            data.partition_data.append(PartitionProduceData(index=queue.partition, records=memoryview(records)))
            self.metrics.batch_sent(batch, len(records), now)
        if not batches:
            return
        request = ProduceRequest(
            transactional_id=self.settings.transactional_id,
            acks=self.settings.acks,
            timeout_ms=self.settings.request_timeout_ms,
            topic_data=list(topics.values()),
        )
        names = {data.topic_id: name for name, data in topics.items()}
        version_max = None if by_id else VERSION_BY_NAME_MAX
        if self.transactions is not None:
            version_max = self.transactions.produce_version_max or version_max
        self.metrics.request_sent()
        self.last_call = self.core.submit(
            node_id,
            request,
            lambda call: self.answered(call, batches, names),
            expects_response=self.settings.acks != 0,
            version_max=version_max,
        )

    def _encoded(self, queue: PartitionQueue, batch: ProducerBatch) -> Built | None:
        """The batch as it travels, with its number taken; None when it cannot be encoded, which is taken care of."""
        is_first_time = self.settings.idempotent and batch.sequence == NO_SEQUENCE
        if is_first_time:
            batch.identify(*queue.sequences.following(self.identity))
        try:
            records = batch.encode(self.settings.codec, self.settings.level)
        except Exception as error:  # noqa: BLE001 - whatever a record is made of: it fails, and nothing else does
            if is_first_time:
                # The number was not taken: the next batch has it.
                batch.identify(-1, -1, NO_SEQUENCE)
            self._cannot_encode(queue, batch, error)
            return None
        if is_first_time:
            queue.sequences.assign(batch)
        return records

    def _cannot_encode(self, queue: PartitionQueue, batch: ProducerBatch, error: Exception) -> None:
        """Only the records at fault are to fail: halves are tried, and halves of those."""
        self._is_more_ready = True
        if batch.count > 1:
            queue.batches.extendleft(reversed(self._halves(queue, batch)))
            self.accumulator.active[queue.topic, queue.partition] = queue
            return
        what = f"a record for {batch.topic}-{batch.partition} cannot be encoded: {error!r}"
        self._give_up(batch, InvalidRecordError(what))
        self.settle_flushes()

    # --- answers ------------------------------------------------------------------------------------------------------

    def answered(self, call: Call, batches: list[ProducerBatch], topic_names: Mapping[bytes, str]) -> None:
        """A request with these batches has ended; `topic_names` are the topics that it named by their ids."""
        try:
            self._take_answer(call, batches, topic_names, self.core.clock.monotonic())
        except Exception as error:
            # No batch may be left that nobody will ever say a word about again.
            log.exception("an answer to %d batches could not be taken in", len(batches))
            for batch in batches:
                if not batch.is_done and not self._is_waiting(batch):
                    self._give_up(batch, KafkaError(f"the answer could not be taken in: {error!r}"))
        self.settle_flushes()

    def _take_answer(
        self, call: Call, batches: list[ProducerBatch], topic_names: Mapping[bytes, str], now: float
    ) -> None:
        for batch in batches:
            self._landed(batch)
        if call.error is not None:
            for batch in batches:
                if not batch.is_done:
                    self._failed_attempt(batch, call.error, None, now, was_sent=call.was_sent)
        elif call.response is None:
            for batch in batches:
                if not batch.is_done:
                    self._acked(batch, -1, -1)
        else:
            self.metrics.answered(now - (call.sent_at or now))
            self._read_answer(call.response, batches, topic_names, now)

    def _is_waiting(self, batch: ProducerBatch) -> bool:
        return batch in self.accumulator.queue(batch.topic, batch.partition).batches

    def _landed(self, batch: ProducerBatch) -> None:
        batch.in_flight = False
        queue = self.accumulator.queue(batch.topic, batch.partition)
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)

    def _read_answer(
        self, response: ProduceResponse, batches: list[ProducerBatch], topic_names: Mapping[bytes, str], now: float
    ) -> None:
        answers = read_answers(response, topic_names, self.core.view)
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
        leave(batch.flushes)
        ended = batch.finish(base_offset, log_append_time_ms, error)
        self.accumulator.interruption = ended or self.accumulator.interruption

    def _failed_attempt(
        self,
        batch: ProducerBatch,
        error: HeadraceError,
        answer: PartitionProduceResponse | None,
        now: float,
        was_sent: bool = True,
    ) -> None:
        """An attempt did not work: split, send again, or give up."""
        code = getattr(error, "code", None)
        if was_sent and (answer is None or code not in NEVER_WRITTEN):
            # What was sent and not answered may lie before the broker yet, for as long as an answer may take.
            batch.doubt_until = now + self.settings.request_timeout_ms / 1000
        if (
            code == ErrorCode.MESSAGE_TOO_LARGE
            and batch.count > 1
            and not (batch.doubt_until and self.settings.idempotent)
        ):
            self._split(batch)
            return
        if code in STALE_METADATA or answer is None:
            self.core.refresh_metadata()
        batch.attempts += 1
        batch.unsent_attempts += not was_sent
        expired = batch.created + self.settings.delivery_timeout_s <= now
        is_left = batch.attempts - batch.unsent_attempts <= self.settings.retries
        is_worth = is_left and self._is_worth_retrying(batch, error, answer, now)
        if not expired and is_worth:
            log.debug("sending %r again: %s", batch, error)
            batch.last_error = error
            batch.record_errors = {}
            wait_ms = self.settings.retry_backoff.wait_ms(batch.attempts - 1, self.core.rng)
            batch.retry_at = now + wait_ms / 1000
            self.metrics.retried(batch)
            self.accumulator.requeue([batch])
            return
        self._give_up(batch, last_error(batch, error, self.settings.delivery_timeout_ms if expired else None))

    def _is_worth_retrying(
        self, batch: ProducerBatch, error: HeadraceError, answer: PartitionProduceResponse | None, now: float
    ) -> bool:
        transaction = self.transaction
        if transaction is not None and not transaction.takes_records:
            return False
        if not self.settings.idempotent:
            return isinstance(error, RetriableError)
        queue = self.accumulator.queue(batch.topic, batch.partition)
        log_start = -1 if answer is None else answer.log_start_offset
        return self.numbers.is_worth_retrying(
            queue, batch, error, log_start, now, in_transaction=transaction is not None
        )

    def _give_up(self, batch: ProducerBatch, error: HeadraceError) -> None:
        """A batch has failed for its user. If it was sent, it may have been written all the same."""
        queue = self.accumulator.queue(batch.topic, batch.partition)
        had_number = batch.sequence != NO_SEQUENCE
        queue.sequences.forget(batch)
        if self.transactions is not None:
            self.transactions.transaction.record_failed(error, was_numbered=had_number)
        elif had_number:
            self.numbers.gave_up(queue)
        self._finish(batch, -1, -1, error)

    def _split(self, batch: ProducerBatch) -> None:
        """Too large for the broker: send it as two, in its place."""
        log.info("%r is too large for the broker: splitting it", batch)
        parts = self._halves(self.accumulator.queue(batch.topic, batch.partition), batch)
        for part in parts:
            part.attempts = max(1, batch.attempts)
        self.metrics.splits += 1
        self.accumulator.requeue(parts)

    def _halves(self, queue: PartitionQueue, batch: ProducerBatch) -> list[ProducerBatch]:
        """Two batches instead of one."""
        parts = batch.split()
        queue.sequences.replace(batch, parts)
        self.accumulator.done(batch)
        for part in parts:
            for wait in batch.flushes:
                wait.join(part.flushes)
            self.accumulator.incomplete.add(part)
            self.accumulator.buffered_bytes += part.size
        leave(batch.flushes)
        return parts

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
            # What is sent again is in flight behind younger ones; of what waits, none is late where the first is not.
            for is_waiting, batches in ((False, queue.in_flight), (True, queue.batches)):
                for batch in batches:
                    if batch.created + limit <= now:
                        late.append((queue, batch))
                        continue
                    due = min(due, batch.created + limit)
                    if is_waiting:
                        break
        for queue, batch in late:
            if batch in queue.batches:
                queue.batches.remove(batch)
                if not queue.batches:
                    self.accumulator.active.pop((queue.topic, queue.partition), None)
            else:
                self._landed(batch)
            has_id = self.identity.is_known or not self.settings.idempotent
            self._give_up(batch, expired_error(batch, self.settings.delivery_timeout_ms, self.core, has_id))
        self._next_expiry = due
        if late:
            self.settle_flushes()
        return due

    def _fail_all(self, error: HeadraceError) -> None:
        """Fail everything that is not done: the producer is closing, or cannot go on."""
        for queue in self.accumulator.queues.values():
            waiting = [*queue.in_flight, *queue.batches]
            queue.in_flight.clear()
            queue.batches.clear()
            for batch in waiting:
                queue.sequences.forget(batch)
                self._finish(batch, -1, -1, error)
        self.accumulator.active.clear()
        # Whatever stands in no queue, because something went wrong in between, ends here too.
        for batch in list(self.accumulator.incomplete):
            self._finish(batch, -1, -1, error)
        self._fail_held(error)
        self.settle_flushes()

    def _fail_refused(self) -> None:
        """Fail what waits for brokers that refused the credentials: the next attempt would end the same way."""
        refusals, self._refusals = self._refusals, []
        for key, error in refusals:
            was_metadata = error is self.core.metadata_error
            for topic in list(self.accumulator.held) if was_metadata else ():
                self._fail_held_for(topic, refused_error(error, f"records for {topic} were not sent"))
            for queue in list(self.accumulator.active.values()):
                leader = self.core.view.leader_of(queue.topic, queue.partition)
                if was_metadata if leader is None else leader.id == key:
                    self._give_up_waiting(queue, partial(last_error, error=error, expired_ms=None))
        self.settle_flushes()

    def _give_up_waiting(self, queue: PartitionQueue, error_of: Callable[[ProducerBatch], HeadraceError]) -> None:
        while queue.batches:
            batch = queue.batches.popleft()
            self._give_up(batch, error_of(batch))
        self.accumulator.active.pop((queue.topic, queue.partition), None)

    def _fail_held(self, error: HeadraceError) -> None:
        for topic in list(self.accumulator.held):
            self._fail_held_for(topic, error)

    def _fail_held_for(self, topic: str, error: HeadraceError) -> None:
        for entry in self.accumulator.held.pop(topic):
            self.accumulator.fail_held(entry, error)

    def abort(self, reason: str) -> None:
        """The end: whatever is not delivered has failed, and nothing is taken any more."""
        error = ClientClosedError(f"the record was not delivered: {reason}")
        now = self.core.clock.monotonic()
        self.accumulator.refusal = error
        self.accumulator.drain(now, self.core.clock.now_ms(), now)
        if self.transactions is not None:
            self.transactions.transaction.close(ClientClosedError(f"the outcome is not known: {reason}"))
        self._fail_all(error)

    def recover(self) -> None:
        """Something was left half done (a caller's thread was interrupted): whatever was under way is sent again."""
        error = NetworkError("the request was interrupted")
        for node_id in self.core.connected_nodes():
            self.core.disconnect(node_id, error)
        now = self.core.clock.monotonic()
        for queue in self.accumulator.queues.values():
            for batch in [one for one in queue.sequences.assigned if one not in self.accumulator.incomplete]:
                queue.sequences.forget(batch)
                self.numbers.gave_up(queue)
            if queue.batches:
                self.accumulator.active[queue.topic, queue.partition] = queue
        for batch in list(self.accumulator.incomplete):
            if not self._is_waiting(batch):
                self._landed(batch)
                self._failed_attempt(batch, error, None, now)
