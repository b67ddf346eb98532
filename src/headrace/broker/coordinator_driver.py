"""Runs a pure coordinator: loads it from its internal topic, writes its records, sends its replies, keeps its timers.

A coordinator decides on the event loop, in one step. Its records are appended to its topic before anyone hears of the
decision, in batches as large as the topic allows; when that fails, in whatever way, the coordinator is told, and
answers those who wait with the error. Of one partition, outcomes are told as written in the order in which they were
decided.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace.broker.dispatch import Pending, RequestContext
from headrace.broker.write_order import Append, WriteOrder, batch_bytes_max, begin_append
from headrace.coordination import BATCH_OVERHEAD_BYTES, Caller, CoordinatorRecord, Now, record_bytes
from headrace.errors import ErrorCode
from headrace.log import Log
from headrace.records import build_batch, read_control, read_records, split
from headrace.records.build import BatchOptions

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger("headrace.broker.coordinator")

LOAD_READ_BYTES = 4 * 1024 * 1024
LOAD_RECORDS_PER_TURN = 5_000
LOAD_RETRY_S = 5.0
TIMER_RETRY_S = 5.0
NO_PRODUCER_ID = -1


class Coordinator(Protocol):
    """What the group and the transaction coordinator have in common."""

    def written(self, outcome: Any, now: Now) -> Any: ...
    def failed(self, outcome: Any, error: Mapping[int, ErrorCode], now: Now) -> Any: ...
    def on_timer(self, timer: Any, now: Now) -> Any: ...
    def loaded(self, partition: int, now: Now) -> Any: ...
    def unload(self, partition: int) -> Any: ...


class StoredRecord(NamedTuple):
    """One record of an internal topic, or the marker that ends a transaction in it."""

    key: bytes
    value: bytes | None
    producer_id: int = NO_PRODUCER_ID
    committed: bool | None = None  # set for a marker only


@dataclass(slots=True)
class _Filling:
    """A batch to be, for one partition, and the positions of the effects whose records are in it."""

    size_max: int
    size: int = BATCH_OVERHEAD_BYTES
    records: list[CoordinatorRecord] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


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
        self.order = WriteOrder()
        self._loading: dict[int, asyncio.Task[Any]] = {}
        self._closed = False

    def now(self) -> Now:
        clock = self.broker.runtime.clock
        return Now(clock.now_ms(), int(clock.monotonic() * 1000))

    # --- requests

    def call(self, method: Callable[[Caller, Any, Now], Any], context: RequestContext, request: Any) -> Any:
        """Give a request to the coordinator: its answer at once, or `Pending`."""
        token = next(self._tokens)
        caller = Caller(token, context.client_id, f"/{context.client_host}", context.api_version)
        outcome = method(caller, request, self.now())
        replies = outcome.replies
        if not outcome.effects and not outcome.timers and len(replies) == 1 and replies[0].token == token:
            return replies[0].response  # the way of every heartbeat
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        future.add_done_callback(lambda _: self._waiting.pop(token, None))
        self.apply(outcome)
        return future.result() if future.done() and not future.cancelled() else Pending(future)

    def apply(self, outcome: Any) -> None:
        """Set its timers, write its records; when they are written, or if there are none, send its replies."""
        for note in outcome.notes:
            log.info("%s", note)
        for change in outcome.timers:
            self._set_timer(change.timer, change.deadline_ms)
        if not outcome.effects:
            self.settled(outcome)
            return
        appends = self._write(outcome)
        partitions = {effect.partition for effect in outcome.effects}
        self.order.add(partitions, list(dict.fromkeys(appends)), functools.partial(self._written, outcome, appends))

    def settled(self, outcome: Any) -> None:
        """Nothing of it has to be written any more: tell those who wait."""
        for reply in outcome.replies:
            future = self._waiting.get(reply.token)
            if future is not None and not future.done():
                future.set_result(reply.response)

    def _written(self, outcome: Any, appends: list[Append]) -> None:
        """The appends of an outcome's effects have ended, and it is its turn."""
        if self._closed:
            return
        errors = {position: append.error for position, append in enumerate(appends) if append.error}
        try:
            if errors:
                self.apply(self._coordinator.failed(outcome, errors, self.now()))
            else:
                self.apply(self._coordinator.written(outcome, self.now()))
        except Exception as error:
            log.error("%s: what follows from a record failed: please report it", self.topic, exc_info=error)
            for reply in outcome.replies:
                future = self._waiting.get(reply.token)
                if future is not None and not future.done():
                    future.set_exception(error)

    def _write(self, outcome: Any) -> list[Append]:
        """Append the records of the effects, in as few batches as the topic allows; what became of each effect's."""
        options = self.batch_options(outcome)
        appends: list[Append | None] = [None] * len(outcome.effects)
        filling: dict[int, _Filling] = {}

        def append(index: int, batch: _Filling) -> None:
            begun = begin_append(self.broker, self.topic, index, functools.partial(self._build, batch.records, options))
            for position in batch.positions:
                appends[position] = begun

        for position, effect in enumerate(outcome.effects):
            index = effect.partition
            size = sum(map(record_bytes, effect.records))
            batch = filling.get(index)
            if batch is None:
                batch = filling[index] = _Filling(batch_bytes_max(self.broker, self.topic, index))
            elif batch.size + size > batch.size_max:
                append(index, batch)
                batch = filling[index] = _Filling(batch.size_max)
            batch.size += size
            batch.records += effect.records
            batch.positions.append(position)
        for index, batch in filling.items():
            append(index, batch)
        return [begun for begun in appends if begun is not None]

    def _build(self, records: list[CoordinatorRecord], options: BatchOptions) -> bytearray | memoryview:
        now_ms = self.broker.runtime.clock.now_ms()
        return build_batch([(now_ms, record.key, record.value, ()) for record in records], **options)

    def batch_options(self, outcome: Any) -> BatchOptions:
        """How the batch of an outcome's records is marked, beside the records themselves."""
        return {}

    # --- timers

    def _set_timer(self, timer: Hashable, deadline_ms: int | None) -> None:
        running = self._timers.pop(timer, None)
        if running is not None:
            running.cancel()
        if deadline_ms is not None and not self._closed:
            delay_s = max(0, deadline_ms - self.now().monotonic_ms) / 1000
            self._timers[timer] = asyncio.get_running_loop().call_later(delay_s, self._on_timer, timer)

    def _on_timer(self, timer: Hashable) -> None:
        self._timers.pop(timer, None)
        try:
            self.apply(self._coordinator.on_timer(timer, self.now()))
        except Exception as error:
            log.error(
                "%s: %s failed, and is tried again in %.0f s: please report it",
                self.topic,
                timer,
                TIMER_RETRY_S,
                exc_info=error,
            )
            if timer not in self._timers and not self._closed:
                again = asyncio.get_running_loop().call_later(TIMER_RETRY_S, self._on_timer, timer)
                self._timers[timer] = again

    # --- loading

    def begin_loading(self, index: int, begin: Callable[[], Any], load: Callable[[int, StoredRecord], None]) -> None:
        """Have the coordinator take over a partition: from its beginning, again and again, until it is read."""
        earlier = self._loading.pop(index, None)
        if earlier is not None:
            earlier.cancel()
        self.apply(begin())
        task = self._loading[index] = self.keep(self._load_until_done(index, begin, load))
        task.add_done_callback(functools.partial(self._loading_ended, index))

    def unload(self, index: int) -> None:
        """The partition is gone, or led elsewhere: nothing of it is known here any more, nor is read to its end."""
        loading = self._loading.pop(index, None)
        if loading is not None:
            loading.cancel()
        self.apply(self._coordinator.unload(index))

    def _loading_ended(self, index: int, task: asyncio.Task[Any]) -> None:
        if self._loading.get(index) is task:
            del self._loading[index]

    async def _load_until_done(
        self, index: int, begin: Callable[[], Any], load: Callable[[int, StoredRecord], None]
    ) -> None:
        while True:
            try:
                await self.load_partition(index, load)
                return
            except Exception:
                log.exception(
                    "%s-%d could not be loaded, and is tried again in %.0f s; until then its coordinator answers "
                    "nobody. If it does not pass, look at the disk of its log directory",
                    self.topic,
                    index,
                    LOAD_RETRY_S,
                )
            await asyncio.sleep(LOAD_RETRY_S)
            self.apply(begin())

    async def load_partition(self, index: int, load: Callable[[int, StoredRecord], None]) -> None:
        """Replay a partition of the topic, read off the loop and folded in turns, then let it be served."""
        await self.order.idle(index)  # an append that is still under way would be read by nobody
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
        self.apply(self._coordinator.loaded(index, self.now()))
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
