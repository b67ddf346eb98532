"""`headrace.aio.Producer`: the producer for asyncio. The same core as the blocking one, on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self, Unpack

from headrace.client.cluster.view import PartitionView
from headrace.client.consumer.records import ConsumerGroupMetadata
from headrace.client.errors import BufferExhaustedError
from headrace.client.producer._base import ProducerSetup, check_record
from headrace.client.producer._calls import ProducerCalls
from headrace.client.producer._failures import FailedDeliveries, tell_unheard
from headrace.client.producer._loop_sender import LoopSender, set_done
from headrace.client.producer._sender import SenderState
from headrace.client.producer._topic_wait import TopicWait
from headrace.client.producer._transactions import (
    CLOSE_ABORT_S,
    need_transactions,
    outcome,
    read_offsets,
    timed_out,
)
from headrace.client.producer.keywords import ProducerKeywords
from headrace.client.transactions._core import TransactionCore, TransactionOperation
from headrace.client.typed import K, V
from headrace.client.unclosed import Watch
from headrace.errors import HeadraceError
from headrace.runtime import Runtime, real_runtime

log = logging.getLogger("headrace.client.producer")


class Producer(ProducerCalls[K, V]):
    """Sends records from an event loop.

        async with aio.Producer({"bootstrap.servers": "localhost:9092"}) as producer:
            metadata = await producer.send("orders", b"value", key=b"key")

    `send` returns at once with a `Delivery`; awaiting it waits for the acknowledgement, and need not be done. When
    `buffer.memory` is full `send` raises `BufferExhaustedError`: a loop that never awaits should `await
    producer.room()`. Delivery callbacks run on the loop.
    """

    _sender: LoopSender

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        /,
        *,
        runtime: Runtime | None = None,
        **keywords: Unpack[ProducerKeywords],
    ) -> None:
        self._own_runtime = runtime is None
        self._runtime = runtime or real_runtime()
        super().__init__(ProducerSetup(config, keywords), self._runtime.clock)
        self._sender = LoopSender(self._setup, self._runtime)
        self._watch = Watch(self, self._sender, f"the producer {self._setup.connection.client_id}")
        if not self._own_runtime:
            self._watch.end()  # a simulated process that is killed drops its clients, as they are

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def room(self) -> None:
        """Wait until a quarter of `buffer.memory` is free; `BufferExhaustedError` after `max.block.ms`."""
        sender = self._sender
        try:
            async with asyncio.timeout(self._settings.max_block_ms / 1000):
                while not sender.has_room:
                    await sender.room()
        except TimeoutError:
            raise BufferExhaustedError(
                f"buffer.memory={self._settings.buffer_memory} stayed full for max.block.ms="
                f"{self._settings.max_block_ms}: the brokers take less than is sent, or cannot be reached"
            ) from None

    async def flush(self, timeout: float | None = None) -> FailedDeliveries:
        """Send everything now and wait until it is acknowledged or has failed; `TimeoutError` after `timeout` s.

        What failed since the last flush, and nobody has heard of: `if failed := await producer.flush(): ...`.
        """
        await self._flush(timeout)
        return self._sender.failures.flushed()

    async def _flush(self, timeout: float | None) -> None:
        sender = self._sender
        if sender.state is not SenderState.OPEN and sender.core.is_idle:
            return
        wait = sender.flush()
        sender.client.schedule()
        if not wait.is_done:
            future: asyncio.Future[None] = sender.client.loop.create_future()
            wait.waiters.append(lambda: set_done(future))
            async with asyncio.timeout(timeout):
                await future

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionView]:
        """The topic's partitions with their leaders; waits for its metadata up to `max.block.ms`."""
        check_record(topic, None, None)
        seconds = self._seconds(timeout)
        sender, arrived = self._sender, asyncio.Event()
        client = sender.client
        wait = TopicWait(sender.open_core(), topic)

        def look(*_: Any) -> None:
            if wait.is_over:
                arrived.set()

        client.core.listeners.append(look)
        client.core.refusal_listeners.append(look)
        sender.on_end.append(arrived.set)
        wait.ask()
        look()
        client.schedule()
        try:
            async with asyncio.timeout(seconds):
                await arrived.wait()
        except TimeoutError:
            pass
        finally:
            client.core.listeners.remove(look)
            client.core.refusal_listeners.remove(look)
            sender.on_end.remove(arrived.set)
        sender.open_core()
        return wait.partitions(seconds)

    async def close(self, timeout: float | None = None) -> None:
        """Deliver what was sent (for at most that many seconds), then end. What is left has failed. Idempotent.

        `UndeliveredError` as with `headrace.Producer.close`.
        """
        if self._closed:
            return
        sender, begun = self._sender, self._clock.monotonic()
        try:
            if timeout is None or timeout > 0:
                await self._abort_open(timeout)
                self._closed = True
                sender.close()
                await self._flush(None if timeout is None else max(0.0, timeout - (self._clock.monotonic() - begun)))
        except TimeoutError:
            log.warning("closing with records undelivered: %s s were not enough", timeout)
        finally:
            self._closed = True
            self._watch.end()
            sender.end()
            try:
                await sender.client.close()
            finally:
                self._setup.close()
                if self._own_runtime:
                    await self._runtime.close()
            tell_unheard(sender.failures)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if kind is not None:
                await self._abort_open(CLOSE_ABORT_S)
        finally:
            await self.close(None if kind is None else 0)

    # --- transactions -------------------------------------------------------------------------------------------------

    async def init_transactions(self, timeout: float | None = None) -> None:
        """Once, before the first transaction; see `headrace.Producer.init_transactions`."""
        await self._finish_operation(self._transaction.init(), timeout)

    async def begin_transaction(self) -> None:
        """Everything sent from now on, up to commit or abort, becomes readable together or not at all."""
        self._transaction.begin()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[Any, Any], group: ConsumerGroupMetadata | str, timeout: float | None = None
    ) -> None:
        """Commit a consumer's offsets if and when the transaction commits."""
        made, metadata = read_offsets(offsets, group)
        await self._finish_operation(self._transaction.send_offsets(made, metadata), timeout)

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Deliver what was sent and commit; see `headrace.Producer.commit_transaction` for the errors."""
        transaction = self._transaction
        self._sender.flush()
        await self._finish_operation(transaction.commit(), timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Give the transaction up: readers that read committed records never see it."""
        transaction = self._transaction
        self._sender.flush()
        await self._finish_operation(transaction.abort(), timeout)

    @contextlib.asynccontextmanager
    async def transaction(self, timeout: float | None = None) -> AsyncIterator[Self]:
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
            if self._transaction.is_open:
                await self.abort_transaction(timeout)
            raise

    @property
    def _transaction(self) -> TransactionCore:
        return need_transactions(self._sender.core.transaction)

    async def _finish_operation(self, operation: TransactionOperation, timeout: float | None) -> None:
        sender, seconds = self._sender, self._seconds(timeout)
        sender.open_core()
        sender.client.schedule()
        if not operation.is_done:
            future: asyncio.Future[None] = sender.client.loop.create_future()
            operation.waiters.append(lambda: set_done(future))
            try:
                async with asyncio.timeout(seconds):
                    await future
            except TimeoutError:
                raise timed_out(operation, seconds, sender.client.core.trouble) from None
        outcome(operation)

    async def _abort_open(self, timeout: float | None) -> None:
        """Leave no transaction open: readers would wait for its time-out."""
        transaction = self._sender.core.transaction
        if self._sender.state is not SenderState.OPEN or transaction is None or not transaction.is_open:
            return
        try:
            await self.abort_transaction(timeout)
        except HeadraceError as error:
            log.warning("closing with a transaction open, which will end by its time-out: %s", error)
