"""Runs a pure coordinator: loads it from its internal topic, writes its records, sends its replies, keeps its timers.

A coordinator decides on the event loop, in one step. Its records are appended to its topic before anyone hears of the
decision; when that fails the coordinator is told, and answers those who wait with the error. Of one partition, outcomes
are told as written in the order in which they were decided.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace.broker.dispatch import RequestContext
from headrace.coordination import Caller
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.log import Appended, Log, Origin
from headrace.records import build_batch, read_control, read_records, split
from headrace.records.build import BatchOptions

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger("headrace.broker.coordinator")

LOAD_READ_BYTES = 4 * 1024 * 1024
LOAD_RECORDS_PER_TURN = 5_000
NO_PRODUCER_ID = -1


class Coordinator(Protocol):
    """What the group and the transaction coordinator have in common."""

    def written(self, outcome: Any, now_ms: int) -> Any: ...
    def failed(self, outcome: Any, error: Mapping[int, ErrorCode], now_ms: int) -> Any: ...
    def on_timer(self, timer: Any, now_ms: int) -> Any: ...
    def loaded(self, partition: int, now_ms: int) -> Any: ...


class StoredRecord(NamedTuple):
    """One record of an internal topic, or the marker that ends a transaction in it."""

    key: bytes
    value: bytes | None
    producer_id: int = NO_PRODUCER_ID
    committed: bool | None = None  # set for a marker only


class CoordinatorDriver:
    """Drives one coordinator whose state is kept in the partitions of `topic`."""

    def __init__(self, broker: Broker, topic: str, coordinator: Coordinator) -> None:
        self.broker = broker
        self.topic = topic
        self._coordinator = coordinator
        self._waiting: dict[Hashable, asyncio.Future[Any]] = {}
        self._timers: dict[Hashable, asyncio.TimerHandle] = {}
        self._tokens = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writing: dict[int, asyncio.Task[Any]] = {}
        self._closed = False

    def now_ms(self) -> int:
        return self.broker.runtime.clock.now_ms()

    # --- requests

    def call(self, method: Callable[[Caller, Any, int], Any], context: RequestContext, request: Any) -> Any:
        """Give a request to the coordinator: its answer at once, or something to wait for."""
        token = next(self._tokens)
        caller = Caller(token, context.client_id, f"/{context.client_host}", context.api_version)
        outcome = method(caller, request, self.now_ms())
        replies = outcome.replies
        if not outcome.records and not outcome.timers and len(replies) == 1 and replies[0].token == token:
            return replies[0].response  # the way of every heartbeat
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        future.add_done_callback(lambda _: self._waiting.pop(token, None))
        self.apply(outcome)
        return future.result() if future.done() and not future.cancelled() else future

    def apply(self, outcome: Any) -> None:
        """Set its timers, write its records; when they are written, or if there are none, send its replies."""
        for note in outcome.notes:
            log.info("%s", note)
        for change in outcome.timers:
            self._set_timer(change.timer, change.deadline_ms)
        if not outcome.records:
            self.settled(outcome)
            return
        errors, waits = self._write(outcome)
        partitions = {record.partition for record in outcome.records}
        earlier = [self._writing[index] for index in partitions if index in self._writing]
        if not waits and not earlier:
            self._written(outcome, errors)
            return
        task = self.keep(self._written_later(outcome, errors, waits, earlier))
        for index in partitions:
            self._writing[index] = task

    def settled(self, outcome: Any) -> None:
        """Nothing of it has to be written any more: tell those who wait."""
        for reply in outcome.replies:
            future = self._waiting.get(reply.token)
            if future is not None and not future.done():
                future.set_result(reply.response)

    def _written(self, outcome: Any, errors: dict[int, ErrorCode]) -> None:
        if errors:
            log.error("%s: records could not be written: %s", self.topic, _shown(errors))
            self.apply(self._coordinator.failed(outcome, errors, self.now_ms()))
        else:
            self.apply(self._coordinator.written(outcome, self.now_ms()))

    async def _written_later(
        self,
        outcome: Any,
        errors: dict[int, ErrorCode],
        waits: dict[int, Awaitable[Appended]],
        earlier: list[asyncio.Task[Any]],
    ) -> None:
        for index, append in waits.items():
            try:
                await append
            except HeadraceError as error:
                errors[index] = _code(error)
        for task in earlier:
            await asyncio.wait([task])
        own = asyncio.current_task()
        for index in [index for index, task in self._writing.items() if task is own]:
            del self._writing[index]
        self._written(outcome, errors)

    def _write(self, outcome: Any) -> tuple[dict[int, ErrorCode], dict[int, Awaitable[Appended]]]:
        """Append the records, a batch per partition: what failed, and what has to be waited for."""
        now_ms = self.now_ms()
        by_partition: dict[int, list[tuple[int, bytes, bytes | None, tuple[()]]]] = defaultdict(list)
        for record in outcome.records:
            by_partition[record.partition].append((now_ms, record.key, record.value, ()))
        errors: dict[int, ErrorCode] = {}
        waits: dict[int, Awaitable[Appended]] = {}
        for index, records in by_partition.items():
            try:
                partition = self.broker.partition(self.topic, index)
                batch = build_batch(records, **self.batch_options(outcome))
                appended = partition.append(batch, origin=Origin.COORDINATOR, acks=-1)
            except HeadraceError as error:
                errors[index] = _code(error)
                continue
            if not isinstance(appended, Appended):
                waits[index] = appended
        return errors, waits

    def batch_options(self, outcome: Any) -> BatchOptions:
        """How the batch of an outcome's records is marked, beside the records themselves."""
        return {}

    # --- timers

    def _set_timer(self, timer: Hashable, deadline_ms: int | None) -> None:
        running = self._timers.pop(timer, None)
        if running is not None:
            running.cancel()
        if deadline_ms is not None and not self._closed:
            delay_s = max(0, deadline_ms - self.now_ms()) / 1000
            self._timers[timer] = asyncio.get_running_loop().call_later(delay_s, self._on_timer, timer)

    def _on_timer(self, timer: Hashable) -> None:
        self._timers.pop(timer, None)
        self.apply(self._coordinator.on_timer(timer, self.now_ms()))

    # --- loading

    async def load_partition(self, index: int, load: Callable[[int, StoredRecord], None]) -> None:
        """Replay a partition of the topic, read off the loop and folded in turns, then let it be served."""
        partition_log = self.broker.partition(self.topic, index).log
        started = self.broker.runtime.clock.monotonic()
        count = 0
        chunks = stored_records(partition_log)
        while (chunk := await self.broker.runtime.offload(next, chunks, None)) is not None:
            for start in range(0, len(chunk), LOAD_RECORDS_PER_TURN):
                for record in chunk[start : start + LOAD_RECORDS_PER_TURN]:
                    load(index, record)
                await asyncio.sleep(0)
            count += len(chunk)
        self.apply(self._coordinator.loaded(index, self.now_ms()))
        if count:
            took_ms = (self.broker.runtime.clock.monotonic() - started) * 1000
            log.info("%s-%d: %d records loaded in %.0f ms", self.topic, index, count, took_ms)

    # --- life

    def keep(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something in the background until it ends or the broker stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s: a task of the coordinator failed", self.topic, exc_info=task.exception())

    async def close(self) -> None:
        self._closed = True
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for future in list(self._waiting.values()):
            future.cancel()


def stored_records(partition_log: Log) -> Iterator[list[StoredRecord]]:
    """The records and markers of an internal topic's log, in chunks. Blocking: for a disk thread."""
    offset, end = partition_log.start_offset, partition_log.end_offset
    while offset < end:
        found = partition_log.locate(offset, LOAD_READ_BYTES, limit=end, at_least_one=True)
        chunk: list[StoredRecord] = []
        reached = offset
        for batch in split(found.file.read(found.position, found.length)):
            reached = batch.next_offset
            producer_id = batch.producer_id if batch.is_transactional else NO_PRODUCER_ID
            for record in read_records(batch):
                if record.key is None or record.offset < offset:
                    continue
                if batch.is_control:
                    committed = read_control(record).control_type == 1
                    chunk.append(StoredRecord(b"", None, producer_id, committed))
                else:
                    value = None if record.value is None else bytes(record.value)
                    chunk.append(StoredRecord(bytes(record.key), value, producer_id))
        if reached <= offset:
            return
        offset = reached
        yield chunk


def _code(error: HeadraceError) -> ErrorCode:
    return ErrorCode(error.code) if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR


def _shown(errors: dict[int, ErrorCode]) -> str:
    return ", ".join(f"partition {index}: {code.name}" for index, code in errors.items())
