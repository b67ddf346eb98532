"""`headrace.aio.Producer`: the producer for asyncio. The same core as the blocking one, on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from headrace.client.cluster.drivers import AsyncClient
from headrace.client.cluster.view import PartitionView
from headrace.client.compiled import count_rows
from headrace.client.configs import ConnectionConfig
from headrace.client.consumer.records import ConsumerGroupMetadata
from headrace.client.errors import BufferExhausted, ClientClosed
from headrace.client.producer._base import (
    ProducerRecord,
    Setup,
    as_bytes,
    as_headers,
    batch_rows,
    check_record,
    payload_bytes,
)
from headrace.client.producer._batch import ProducerBatch
from headrace.client.producer._core import ProducerCore
from headrace.client.producer._errors import unknown_partitions
from headrace.client.producer._rows import ColumnRows, Rows
from headrace.client.producer._transactions import (
    CLOSE_ABORT_S,
    need_transactions,
    outcome,
    read_offsets,
    timed_out,
)
from headrace.client.producer.delivery import OWNER, BatchDelivery, Delivery, DeliveryCallback
from headrace.client.transactions._core import Operation
from headrace.errors import HeadraceError
from headrace.runtime import Runtime, real_runtime

log = logging.getLogger("headrace.client.producer")


class Producer:
    """Sends records from an event loop.

        async with aio.Producer({"bootstrap.servers": "localhost:9092"}) as producer:
            metadata = await producer.send("orders", b"value", key=b"key")

    `send` returns at once with a `Delivery`; awaiting it waits for the acknowledgement, and need not be done. When
    `buffer.memory` is full `send` raises `BufferExhausted`: a loop that never awaits should `await producer.room()`.
    Delivery callbacks run on the loop.
    """

    def __init__(
        self, config: Mapping[str, Any] | None = None, /, *, runtime: Runtime | None = None, **keywords: Any
    ) -> None:
        self._setup = Setup(config, keywords)
        self._settings = self._setup.settings
        self._own_runtime = runtime is None
        self._runtime = runtime or real_runtime()
        self._client = AsyncClient(ConnectionConfig.of(self._setup.values), self._runtime)
        self._core = ProducerCore(self._client.core, self._settings, self._setup.partitioner, self)
        self._client.hooks.append(self._turn)
        self._pending = self._core.accumulator.pending
        self._is_plain = self._setup.is_plain
        self._pending_bytes = 0
        self._opened = 0.0
        self._scheduled = False
        self._closed = False
        self._died: BaseException | None = None
        self._homeless: list[tuple[Any, asyncio.Future[None]]] = []
        self._room_waiters: list[asyncio.Future[None]] = []

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
        """Send a record; see `headrace.Producer.send`. Await what it returns to wait for the acknowledgement."""
        if not self._is_plain:
            record, on_delivery = self._setup.convert(
                ProducerRecord(topic, value, key, partition, timestamp, headers), on_delivery
            )
            topic, value, key, partition, timestamp, headers = record
        value = value if value.__class__ is bytes else as_bytes(value, "value", topic)
        key = key if key is None or key.__class__ is bytes else as_bytes(key, "key", topic)
        if headers is not None:
            headers = as_headers(headers, topic) or None
        if partition is not None or timestamp is not None or topic.__class__ is not str or not topic:
            check_record(topic, partition, timestamp)
        delivery = Delivery((topic, value, key, partition, timestamp, headers, on_delivery, self))
        self._accept(delivery, (len(value) if value is not None else 0) + (len(key) if key is not None else 0))
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
        """Send many records at once, as columns; see `headrace.Producer.send_batch`."""
        fixed = partition if isinstance(partition, int) else None
        check_record(topic, fixed, timestamps if isinstance(timestamps, int) else None)
        delivery = BatchDelivery(self, topic, on_delivery)
        now_ms = self._runtime.clock.now_ms()
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
        """Send an Arrow table or record batch; see `headrace.Producer.send_arrow`."""
        from headrace.client.producer._arrow import arrow_rows

        check_record(topic, partition, None)
        delivery = BatchDelivery(self, topic, on_delivery)
        now_ms = self._runtime.clock.now_ms()
        partitioner, ignore_keys = self._setup.partitioner, self._settings.ignore_keys
        return self._submit(arrow_rows(delivery, topic, data, partition, partitioner, ignore_keys, now_ms), delivery)

    def _submit(self, rows: Rows | ColumnRows, delivery: BatchDelivery) -> BatchDelivery:
        delivery.expect(len(rows))
        count_rows(len(rows))
        if len(rows):
            self._accept(rows, payload_bytes(rows))
        else:
            delivery.is_done = True
        return delivery

    def _accept(self, record: Any, size: int) -> None:
        self._need_open()
        if self._core.transaction is not None:
            self._core.transaction.check_send()
        used = self._used()
        if used and used + size > self._settings.buffer_memory:
            raise BufferExhausted(
                f"buffer.memory={self._settings.buffer_memory} is full; `await producer.room()` before sending more. "
                "The record was not sent"
            )
        self._pending_bytes += size
        self._pending.append(record)
        if not self._scheduled:
            self._scheduled = True
            self._opened = self._runtime.clock.monotonic()
            self._client.schedule()

    def _need_open(self) -> None:
        if self._died is not None:
            raise ClientClosed(f"the producer failed, and can only be closed: {self._died!r}") from self._died
        if self._closed:
            raise ClientClosed("the producer is closed: make a new one")

    def _used(self) -> int:
        return self._core.accumulator.buffered_bytes + self._pending_bytes

    async def room(self) -> None:
        """Wait until a quarter of `buffer.memory` is free; `BufferExhausted` after `max.block.ms`."""
        enough = self._settings.buffer_memory * 3 // 4
        try:
            async with asyncio.timeout(self._settings.max_block_ms / 1000):
                while self._used() > enough:
                    self._core.memory_is_short = True
                    self._client.schedule()
                    future: asyncio.Future[None] = self._client.loop.create_future()
                    self._room_waiters.append(future)
                    await future
        except TimeoutError:
            raise BufferExhausted(
                f"buffer.memory={self._settings.buffer_memory} stayed full for max.block.ms="
                f"{self._settings.max_block_ms}: the brokers take less than is sent, or cannot be reached"
            ) from None

    def _turn(self) -> float:
        """What the driver calls when something may have changed."""
        self._scheduled = False
        self._pending_bytes = 0
        due = 60.0
        if self._died is None:
            try:
                if self._pending:
                    count_rows(len(self._pending))
                due = self._core.turn(self._opened or None)
                self._core.settle_flushes()
            except BaseException as error:
                log.exception("the producer failed")
                self._fail_rest(error)
                if not isinstance(error, Exception):
                    raise
        self._tell_waiters()
        ended, self._core.accumulator.interruption = self._core.accumulator.interruption, None
        if ended is not None:
            # From a callback, and not meant for this producer: it ends the loop, once everybody has been told.
            self._client.loop.call_soon(_raise, ended)
        return due

    def _tell_waiters(self) -> None:
        if self._homeless:
            self._house()
        if self._room_waiters:
            waiting, self._room_waiters = self._room_waiters, []
            self._core.memory_is_short = False
            for future in waiting:
                _set(future)

    def _fail_rest(self, error: BaseException) -> None:
        """This should not have happened; nobody is left waiting for it."""
        self._died = error
        self._core.abort(f"the producer failed: {error!r}")
        self._tell_waiters()

    # --- waiting ------------------------------------------------------------------------------------------------------

    def delivery_future(self, delivery: Any) -> asyncio.Future[None]:
        """What awaiting a delivery waits for."""
        future: asyncio.Future[None] = self._client.loop.create_future()
        self._homeless.append((delivery, future))
        self._house()
        return future

    def _house(self) -> None:
        """Hang waiters on the batch they wait for, once there is one."""
        left = []
        for delivery, future in self._homeless:
            owner = delivery if isinstance(delivery, BatchDelivery) else delivery[OWNER]
            if delivery.done():
                _set(future)
            elif isinstance(owner, (ProducerBatch, BatchDelivery)):
                owner.waiters.append(lambda f=future, d=delivery: self._delivered(d, f))  # type: ignore[misc]  # defaults bind
            else:
                left.append((delivery, future))
        self._homeless = left

    def _delivered(self, delivery: Any, future: asyncio.Future[None]) -> None:
        if delivery.done():
            _set(future)
        else:
            # Its batch was split: it lives in another one now.
            self._homeless.append((delivery, future))
            self._client.schedule()

    def wait_for_delivery(self, delivery: Any, timeout: float | None) -> None:
        raise RuntimeError("result() would block the event loop: await the delivery instead")

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything now and wait until it is acknowledged or has failed; `TimeoutError` after `timeout` s."""
        if (self._closed or self._died is not None) and self._core.is_idle:
            return
        wait = self._core.flush()
        self._pending_bytes = 0
        self._client.schedule()
        if not wait.is_done:
            future: asyncio.Future[None] = self._client.loop.create_future()
            wait.waiters.append(lambda: _set(future))
            async with asyncio.timeout(timeout):
                await future

    # --- transactions -------------------------------------------------------------------------------------------------

    async def init_transactions(self, timeout: float | None = None) -> None:
        """Once, before the first transaction; see `headrace.Producer.init_transactions`."""
        await self._finish_operation(need_transactions(self._core.transaction).init(), timeout)

    async def begin_transaction(self) -> None:
        """Everything sent from now on, up to commit or abort, becomes readable together or not at all."""
        need_transactions(self._core.transaction).begin()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[Any, Any], group: ConsumerGroupMetadata | str, timeout: float | None = None
    ) -> None:
        """Commit a consumer's offsets if and when the transaction commits."""
        made, metadata = read_offsets(offsets, group)
        operation = need_transactions(self._core.transaction).send_offsets(made, metadata)
        await self._finish_operation(operation, timeout)

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Deliver what was sent and commit; see `headrace.Producer.commit_transaction` for the errors."""
        self._flush_now()
        await self._finish_operation(need_transactions(self._core.transaction).commit(), timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Give the transaction up: readers that read committed records never see it."""
        self._flush_now()
        await self._finish_operation(need_transactions(self._core.transaction).abort(), timeout)

    @contextlib.asynccontextmanager
    async def transaction(self, timeout: float | None = None) -> AsyncIterator[Producer]:
        """`async with producer.transaction():` begins one and commits it; an error inside aborts it."""
        await self.begin_transaction()
        try:
            yield self
        except BaseException:
            with contextlib.suppress(HeadraceError):
                await self.abort_transaction(timeout)
            raise
        try:
            await self.commit_transaction(timeout)
        except HeadraceError:
            if need_transactions(self._core.transaction).is_open:
                await self.abort_transaction(timeout)
            raise

    def _flush_now(self) -> None:
        need_transactions(self._core.transaction)
        self._core.flush()
        self._pending_bytes = 0

    async def _finish_operation(self, operation: Operation, timeout: float | None) -> None:
        self._need_open()
        self._client.schedule()
        seconds = self._settings.max_block_ms / 1000 if timeout is None else timeout
        if not operation.is_done:
            future: asyncio.Future[None] = self._client.loop.create_future()
            operation.waiters.append(lambda: _set(future))
            try:
                async with asyncio.timeout(seconds):
                    await future
            except TimeoutError:
                raise timed_out(operation, seconds, self._client.core.trouble) from None
        outcome(operation)

    async def _abort_open(self, timeout: float | None) -> None:
        """Leave no transaction open: readers would wait for its time-out."""
        if self._closed or self._died is not None:
            return
        if self._core.transaction is None or not self._core.transaction.is_open:
            return
        try:
            await self.abort_transaction(timeout)
        except HeadraceError as error:
            log.warning("closing with a transaction open, which will end by its time-out: %s", error)

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionView]:
        """The topic's partitions with their leaders; waits for its metadata up to `max.block.ms`."""
        check_record(topic, None, None)
        seconds = self._settings.max_block_ms / 1000 if timeout is None else timeout
        self._client.core.add_topic(topic)
        arrived = asyncio.Event()

        def look(_: Any = None) -> None:
            view = self._client.core.view.topics.get(topic)
            if view is not None and view.partitions:
                arrived.set()

        self._client.core.listeners.append(look)
        look()
        self._client.schedule()
        try:
            async with asyncio.timeout(seconds):
                await arrived.wait()
        except TimeoutError:
            raise unknown_partitions(topic, seconds, self._client.core.trouble) from None
        finally:
            self._client.core.listeners.remove(look)
        return list(self._client.core.view.topics[topic].partitions)

    def metrics(self) -> dict[str, float]:
        """Counters and averages, under Kafka's names."""
        core = self._core
        return {
            **core.metrics.read(),
            "record-error-total": core.metrics.record_errors + core.accumulator.failed_records,
            "requests-in-flight": sum(core.core.in_flight(node) for node in core.core.view.nodes),
            "buffer-total-bytes": self._settings.buffer_memory,
            "buffer-available-bytes": max(0, self._settings.buffer_memory - self._used()),
        }

    async def close(self, timeout: float | None = None) -> None:
        """Deliver what was sent (for at most that many seconds), then end. What is left has failed. Idempotent."""
        if self._closed:
            return
        try:
            if timeout is None or timeout > 0:
                await self._abort_open(timeout)
                self._closed = True
                await self.flush(timeout)
        except TimeoutError:
            log.warning("closing with records undelivered: %s s were not enough", timeout)
        finally:
            self._closed = True
            self._core.abort("the producer was closed")
            self._tell_waiters()
            await self._client.close()
            self._setup.close()
            if self._own_runtime:
                await self._runtime.close()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if kind is not None:
                await self._abort_open(CLOSE_ABORT_S)
        finally:
            await self.close(None if kind is None else 0)


def _raise(error: BaseException) -> None:
    raise error


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
