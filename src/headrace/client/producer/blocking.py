"""`headrace.Producer`: the blocking producer. `send` appends and returns; one background thread does the rest."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.client.cluster.drivers import BlockingClient
from headrace.client.cluster.view import PartitionView
from headrace.client.compiled import count_rows, is_load_due, load_if_due, note_rows
from headrace.client.configs import ConnectionConfig
from headrace.client.errors import BufferExhausted, ClientClosed
from headrace.client.forks import watch_forks
from headrace.client.producer._base import (
    ProducerRecord,
    Setup,
    as_bytes,
    as_headers,
    batch_rows,
    check_record,
    payload_bytes,
    preload,
)
from headrace.client.producer._core import ProducerCore
from headrace.client.producer._direct_way import DirectWay
from headrace.client.producer._errors import unknown_partitions
from headrace.client.producer._flushes import FlushWait
from headrace.client.producer._one_record import OneRecord
from headrace.client.producer._rows import ColumnRows, Rows
from headrace.client.producer._transaction_calls import NOTHING, TransactionCalls
from headrace.client.producer._transactions import CLOSE_ABORT_S
from headrace.client.producer.delivery import BatchDelivery, Delivery, DeliveryCallback
from headrace.runtime import Clock
from headrace.runtime.real import RealClock

log = logging.getLogger("headrace.client.producer")

_WAKE_BYTES_MIN = 64 * 1024
_STEP_ROWS = 500
"""Below the 700 new objects after which Python's garbage collector looks at them for the first time."""
_STEP_BYTES_FIRST = 32 * 1024
_UNDRAINED_MAX = 20_000
_HANDOVER_S = 0.02
_JOIN_S = 5.0
_LOOK_S = 0.01
"""With requests under way the thread is not woken for records: it looks for them this often, and at every answer."""


class Producer(TransactionCalls, DirectWay):
    """Sends records to a Kafka cluster. Safe to share between threads.

    Configuration by Kafka's names, in a mapping or as keywords with underscores:

        with Producer({"bootstrap.servers": "localhost:9092"}, linger_ms=20) as producer:
            producer.send("orders", b"value", key=b"key")

    `send` returns at once with a `Delivery`, which says how it went when asked. Delivery callbacks run on the
    producer's thread, in the order of the records of each partition; they must not block. A producer used after a fork
    starts afresh in the child; what the parent had not sent yet is the parent's to send.
    """

    def __init__(
        self, config: Mapping[str, Any] | None = None, /, *, clock: Clock | None = None, **keywords: Any
    ) -> None:
        self._setup = Setup(config, keywords)
        self._connection_config = ConnectionConfig.of(self._setup.values)
        self._clock = clock or RealClock()
        self._settings = self._setup.settings
        self._wake_bytes = max(_WAKE_BYTES_MIN, self._settings.batch_size)
        self._is_plain = self._setup.is_plain
        # Before anything can be due of what a caller's thread has sent while this one rests, it looks again.
        self._rest_s = min(self._settings.request_timeout_ms / 1000, self._settings.delivery_timeout_s)
        self._closed = False
        self.may_have_keys = False
        """Whether any record so far had a key; `may_have_extras`: a partition, timestamp or headers. The drain does not
        look for what was never given. Set before the record is appended, and never taken back."""
        self.may_have_extras = False
        self._reset()
        watch_forks(self)

    def _reset(self) -> None:
        """A fresh start: nothing pending, no thread, no socket. Also after a fork."""
        self._client: BlockingClient | None = None
        self._core: ProducerCore | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._reset_direct()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._blocked = 0
        self._requests: list[Callable[[], None]] = []
        self._stopping = False
        self._died: BaseException | None = None
        self._ended = False
        """The thread is gone: whoever appends a record fails it by itself. `_is_over`: what there was has failed."""
        self._is_over = False
        # `send` compares what was taken with this limit; below zero it goes the slow way, which starts the thread.
        self._taken = 0
        self._limit = self._wake_limit = NOTHING
        self._step_bytes = _STEP_BYTES_FIRST
        self._drained = 0
        self._idle = False
        self._append: Callable[[Any], None] = self._not_started

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Any = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> Delivery:
        """Send a record: returns at once, unless `buffer.memory` is full (then it waits up to `max.block.ms`).

        Without a partition, the key decides; without a key, Kafka's sticky way. Without a timestamp (milliseconds), the
        time it is put into a batch. `headers` are pairs (or a mapping) of name and bytes.
        `on_delivery(error, metadata)` is called once, `error` None when all went well.
        """
        # Everything here is paid per record: one list, one append, two comparisons (docs/design/client-speed.md).
        if not self._is_plain:
            record, on_delivery = self._setup.convert(
                ProducerRecord(topic, value, key, partition, timestamp, headers), on_delivery
            )
            topic, value, key, partition, timestamp, headers = record
        size = 0
        if value.__class__ is bytes:
            size = len(value)
        elif value is not None:
            value = as_bytes(value, "value", topic)
            size = len(value)
        if key is not None:
            if key.__class__ is not bytes:
                key = as_bytes(key, "key", topic)
            size += len(key)
            self.may_have_keys = True
        if headers is not None:
            headers = as_headers(headers, topic) or None
            self.may_have_extras = True
        if partition is not None or timestamp is not None or topic.__class__ is not str or not topic:
            check_record(topic, partition, timestamp)
            self.may_have_extras = True
        delivery = Delivery((topic, value, key, partition, timestamp, headers, on_delivery, self))
        self._taken = taken = self._taken + size
        if taken > self._limit:
            self._make_room(size)
        self._append(delivery)
        if self._idle:
            self._send_now(delivery)
        return delivery

    def send_batch(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        *,
        partition: int | Sequence[int | None] | None = None,
        timestamps: int | Sequence[int | None] | None = None,
        headers: Sequence[Any] | None = None,
        on_delivery: Callable[[Any, Any], Any] | None = None,
    ) -> BatchDelivery:
        """Send many records at once, as columns: several times faster than one by one. They are not intercepted.

        `on_delivery(error, ranges)` is called once, when all of them are done.
        """
        check_record(
            topic,
            partition if isinstance(partition, int) else None,
            timestamps if isinstance(timestamps, int) else None,
        )
        delivery = BatchDelivery(self, topic, on_delivery)
        now_ms = self._clock.now_ms()
        rows = batch_rows(self._setup, delivery, topic, values, keys, partition, timestamps, headers, now_ms)
        return self._submit(rows, delivery)

    def send_arrow(
        self,
        topic: str,
        data: Any,
        *,
        partition: int | None = None,
        on_delivery: Callable[[Any, Any], Any] | None = None,
    ) -> BatchDelivery:
        """Send an Arrow table or record batch with the columns value, and if wanted key, headers, timestamp, partition.

        Nothing is copied before the records are encoded; serializers and interceptors are not used.
        """
        from headrace.client.producer._arrow import arrow_rows

        check_record(topic, partition, None)
        delivery = BatchDelivery(self, topic, on_delivery)
        rows = arrow_rows(
            delivery, topic, data, partition, self._setup.partitioner, self._settings.ignore_keys, self._clock.now_ms()
        )
        return self._submit(rows, delivery)

    def _submit(self, rows: Rows | ColumnRows, delivery: BatchDelivery) -> BatchDelivery:
        delivery.expect(len(rows))
        if len(rows) == 0:
            delivery.is_done = True
            return delivery
        size = payload_bytes(rows)
        count_rows(len(rows))
        self._taken = taken = self._taken + size
        if taken > self._limit:
            self._make_room(size)
        self._append(rows)
        if self._idle:
            self._wake()
        return delivery

    def _not_started(self, _: Any) -> None:
        raise AssertionError("unreachable: the slow way starts the producer first")

    def _wake(self) -> None:
        self._idle = False
        client = self._client
        if client is not None:
            client.wakeup()
        # Looked at last: what is appended after the thread's last look is failed by who finds the flag set, or by us.
        if self._ended:
            self._idle = True
            self._fail_rest()

    def _fail_rest(self) -> None:
        """Without a thread, whatever is there has failed."""
        reason = "the producer was closed" if self._died is None else f"the producer's thread failed: {self._died!r}"
        with self._lock:
            if self._core is not None:
                self._core.abort(reason)
            self._changed.notify_all()

    def _make_room(self, size: int) -> None:
        """The slow way of `send`: start the thread, or wake it, or wait for room."""
        if self._taken <= self._wake_limit and self._pid == os.getpid():
            self._compact(size)
            return
        if self._pid != os.getpid():
            # Forked without the hook having run (a raw fork in C): the thread did not come along.
            self.after_fork()
        if threading.current_thread() is not self._thread:
            load_if_due()
        with self._lock:
            try:
                self._start()
                core = self._running()
                if core.transaction is not None:
                    core.transaction.check_send()
                if self._used(core) > self._settings.buffer_memory and self._used(core) > size:
                    self._wait_for_room(core, size)
                self._set_limit(core)
            except BaseException:
                self._taken -= size
                raise
            self._wake()
            if len(core.accumulator.pending) > _UNDRAINED_MAX and threading.current_thread() is not self._thread:
                # Hand over to the sender now, not when the interpreter's switch interval ends: what is not drained yet
                # are objects, which the garbage collector walks over again and again while they are alive.
                self._waiting += 1
                try:
                    self._changed.wait(_HANDOVER_S)
                finally:
                    self._waiting -= 1

    def _compact(self, size: int) -> None:
        """Now and then on the way to a batch's worth: see `Accumulator.compact`."""
        core = self._core
        if core is not None and self._taking.acquire(False):
            try:
                rows = core.accumulator.compact()
            finally:
                self._taking.release()
            note_rows(rows)
            # By the sizes of records that happen to come by, the next time is about so many records away.
            self._step_bytes = max(_STEP_ROWS, (3 * self._step_bytes + size * _STEP_ROWS) // 4)
        with self._lock:
            self._limit = min(self._wake_limit, self._taken + self._step_bytes)

    def _used(self, core: ProducerCore) -> int:
        return core.accumulator.buffered_bytes + self._taken - self._drained

    def _set_limit(self, core: ProducerCore) -> None:
        """How much may be taken before somebody has to look again: enough to wake the sender for, or all there is."""
        if self._closed or is_load_due() or (core.transaction is not None and not core.transaction.accepts_records):
            self._limit = self._wake_limit = NOTHING
            return
        left = self._settings.buffer_memory - core.accumulator.buffered_bytes
        taken = max(self._taken, self._drained)
        self._wake_limit = taken + max(0, min(self._wake_bytes, left))
        self._limit = min(self._wake_limit, taken + self._step_bytes)

    def _wait_for_room(self, core: ProducerCore, size: int) -> None:
        if threading.current_thread() is self._thread:
            raise BufferExhausted(
                "buffer.memory is full, and send() was called from a delivery callback, which cannot wait for room: "
                "hand the record to another thread, or raise buffer.memory"
            )
        deadline = self._clock.monotonic() + self._settings.max_block_ms / 1000
        # Some room at once: waking for every acknowledged batch would cost more than it moves.
        enough = self._settings.buffer_memory * 3 // 4
        self._blocked += 1
        try:
            while self._used(core) > enough and self._used(core) > size:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    if self._used(core) <= self._settings.buffer_memory:
                        return
                    raise BufferExhausted(
                        f"buffer.memory={self._settings.buffer_memory} stayed full for max.block.ms="
                        f"{self._settings.max_block_ms}: the brokers take less than is sent, or cannot be reached. "
                        "The record was not sent"
                    )
                self._wake()
                self._changed.wait(min(left, 0.1))
                core = self._running()
        finally:
            self._blocked -= 1

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Make the connections' core and start the thread, once."""
        if self._closed:
            raise ClientClosed("the producer is closed: make a new one")
        if self._thread is not None:
            return
        preload(self._settings)
        client = BlockingClient(self._connection_config, clock=self._clock)
        core = ProducerCore(client.core, self._settings, self._setup.partitioner, self)
        self._client, self._core = client, core
        self._append = core.accumulator.pending.append
        self._taking = core.accumulator.taking = threading.Lock()
        # One record may be sent by its caller's thread: where nothing lingers, and no code of the user's is called.
        if client.can_be_alone and not (
            self._settings.linger_s or self._setup.partitioner or self._settings.transactional_id
        ):
            self._one = OneRecord(core)
        self._thread = threading.Thread(
            target=self._run, args=(client, core), name=f"headrace-{self._connection_config.client_id}", daemon=True
        )
        self._thread.start()

    def _started(self) -> ProducerCore:
        if self._pid != os.getpid():
            self.after_fork()
        with self._lock:
            self._start()
            return self._running()

    def _running(self) -> ProducerCore:
        if self._died is not None:
            raise ClientClosed(f"the producer's thread ended with an error: {self._died!r}") from self._died
        if self._closed or self._core is None:
            raise ClientClosed("the producer is closed: make a new one")
        return self._core

    def _run(self, client: BlockingClient, core: ProducerCore) -> None:
        try:
            self._loop(client, core)
        except BaseException as error:
            log.exception("the producer's thread failed")
            self._died = error
        finally:
            with self._baton:
                self._end(client)

    def _end(self, client: BlockingClient) -> None:
        """The thread is about to end: nothing may be left waiting for it, now or later."""
        try:
            self._take_back(client)
            with self._lock:
                self._limit = self._wake_limit = NOTHING
                # First the flags, then the look, as in `_loop`.
                self._ended = self._idle = True
            self._fail_rest()
        finally:
            self._is_over = True
            with self._lock:
                self._changed.notify_all()
            client.close()

    def _loop(self, client: BlockingClient, core: ProducerCore) -> None:
        opened = self._clock.monotonic()
        was_idle = True
        self._baton.acquire()
        try:
            while not self._stopping:
                # Records that came since the last drain are as old as that; after a rest, the first one has just come.
                now = self._clock.monotonic()
                wait_s = client.prepare(self._turn(core, now if was_idle else opened))
                opened = now
                was_idle = not core.has_work
                if was_idle:
                    # First the flag, then the look: whoever appends looks at the flag afterwards, so one of both
                    # notices.
                    self._idle = True
                    if core.accumulator.pending or self._requests or self._stopping:
                        self._idle = False
                        continue
                events = self._rest(client, wait_s) if was_idle else self._select(client, min(wait_s, _LOOK_S))
                self._idle = False
                self._take_back(client)
                client.serve(events)
        finally:
            self._baton.release()

    def _turn(self, core: ProducerCore, created: float) -> float:
        """One turn of the core, with all that was asked of the thread; seconds until something is due by itself."""
        if self._was_interrupted:
            self._was_interrupted = False
            core.recover()
        while self._requests:
            self._requests.pop(0)()
        self._drained = self._taken
        note_rows(len(core.accumulator.pending))
        core.memory_is_short = self._blocked > 0
        due = core.turn(created)
        core.settle_flushes()
        ended, core.accumulator.interruption = core.accumulator.interruption, None
        if ended is not None:
            log.error("a delivery callback raised %r, which does not end the producer's thread", ended)
        with self._lock:
            self._set_limit(core)
            if self._waiting or self._blocked:
                self._changed.notify_all()
        return due

    def _on_thread(self, request: Callable[[], None]) -> None:
        """Have something done by the thread, soon."""
        self._requests.append(request)
        self._wake()

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _wait(self, condition: Callable[[], bool], timeout: float | None, what: str, waited: float = 0.0) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                f"{what} was called from a delivery callback, on the thread that would have to do the work"
            )
        deadline = None if timeout is None else self._clock.monotonic() + timeout - waited
        with self._lock:
            self._waiting += 1
            try:
                while not condition():
                    if self._is_over:
                        self._running()
                        raise ClientClosed(f"the producer was closed while {what} was waited for")
                    left = 1.0 if deadline is None else deadline - self._clock.monotonic()
                    if left <= 0:
                        raise TimeoutError(f"{what} did not end within {timeout} s")
                    self._changed.wait(min(left, 1.0))
            finally:
                self._waiting -= 1

    def wait_for_delivery(self, delivery: Delivery | BatchDelivery, timeout: float | None) -> None:
        """What `Delivery.result` calls."""
        waited = 0.0
        if self._call is not None and isinstance(delivery, Delivery):
            waited = self._wait_alone(timeout)
            if delivery.done():
                return
        self._wait(delivery.done, timeout, "the delivery", waited)

    def delivery_future(self, delivery: Any) -> Any:
        raise TypeError("a blocking producer's delivery cannot be awaited: use result(), or headrace.aio.Producer")

    def flush(self, timeout: float | None = None) -> None:
        """Send everything now and wait until it is acknowledged or has failed; `TimeoutError` after `timeout` s."""
        if self._thread is None or self._closed:
            return
        core = self._running()
        waited = 0.0 if self._call is None else self._wait_alone(timeout)
        if self._is_all_done(core):
            return
        waits: list[FlushWait] = []
        self._on_thread(lambda: waits.append(core.flush()))
        self._wait(lambda: bool(waits) and waits[0].is_done, timeout, "flush", waited)

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionView]:
        """The topic's partitions with their leaders; waits for its metadata up to `max.block.ms`."""
        check_record(topic, None, None)
        core = self._started()
        self._on_thread(lambda: core.core.add_topic(topic))
        seconds = self._settings.max_block_ms / 1000 if timeout is None else timeout

        def known() -> bool:
            view = core.core.view.topics.get(topic)
            return view is not None and bool(view.partitions)

        try:
            self._wait(known, seconds, "partitions_for")
        except TimeoutError:
            raise unknown_partitions(topic, seconds, core.core.trouble) from None
        return list(core.core.view.topics[topic].partitions)

    def metrics(self) -> dict[str, float]:
        """Counters and averages, under Kafka's names."""
        core = self._core
        if core is None:
            return {}
        used = self._used(core)
        return {
            **core.metrics.read(),
            "record-error-total": core.metrics.record_errors + core.accumulator.failed_records,
            "requests-in-flight": sum(core.core.in_flight(node) for node in list(core.core.view.nodes)),
            "buffer-total-bytes": self._settings.buffer_memory,
            "buffer-available-bytes": max(0, self._settings.buffer_memory - used),
            "waiting-threads": self._blocked,
        }

    def close(self, timeout: float | None = None) -> None:
        """Deliver what was sent (for at most that many seconds), then end. What is left has failed. Idempotent."""
        if self._closed:
            return
        on_own_thread = threading.current_thread() is self._thread
        try:
            if not on_own_thread and self._died is None and (timeout is None or timeout > 0):
                self._abort_open(timeout)
                self.flush(timeout)
        except TimeoutError:
            log.warning("closing with records undelivered: %s s were not enough", timeout)
        finally:
            with self._lock:
                self._closed = True
                self._limit = self._wake_limit = NOTHING
            thread = self._thread
            self._stopping = True
            self._wake()
            if thread is not None and not on_own_thread:
                thread.join(_JOIN_S)
            with self._lock:
                self._changed.notify_all()
            self._setup.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        # After an error there is nothing to wait for but what is on its way already.
        try:
            if kind is not None and self._thread is not None and not self._closed and self._died is None:
                self._abort_open(CLOSE_ABORT_S)
        finally:
            self.close(None if kind is None else 0)

    def after_fork(self) -> None:
        """In a child: the parent's thread and connections are not ours, nor is what it had pending."""
        client = self._client
        self._reset()
        if client is not None:
            client.abandon()
