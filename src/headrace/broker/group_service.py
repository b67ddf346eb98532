"""Runs the pure group coordinator: loads it, writes its records, sends its replies, keeps its timers.

The coordinator decides on the event loop, in one step. Its records are appended to `__consumer_offsets` before anyone
hears of the decision; when that fails the coordinator is told, and answers those who wait with the error.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any

from headrace.broker.dispatch import RequestContext
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.groups import Caller, GroupCoordinator, Outcome, Timer
from headrace.log import Appended, Log, Origin
from headrace.records import build_batch, read_records, split

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger("headrace.broker.groups")

OFFSETS_TOPIC = "__consumer_offsets"
LOAD_READ_BYTES = 4 * 1024 * 1024
LOAD_RECORDS_PER_TURN = 5_000
EXPIRY_SCAN_MIN_MS = 1_000

Method = Callable[[Caller, Any, int], Outcome]


class GroupService:
    """The groups whose partition of `__consumer_offsets` is led here."""

    def __init__(self, broker: Broker, coordinator: GroupCoordinator) -> None:
        self.broker = broker
        self.coordinator = coordinator
        self._waiting: dict[Hashable, asyncio.Future[Any]] = {}
        self._timers: dict[Timer, asyncio.TimerHandle] = {}
        self._tokens = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    # --- requests

    def call(self, method: Method, context: RequestContext, request: Any) -> Any:
        """Give a request to the coordinator: its answer at once, or something to wait for."""
        token = next(self._tokens)
        caller = Caller(token, context.client_id or "", f"/{context.client_host}", context.api_version)
        outcome = method(caller, request, self.broker.runtime.clock.now_ms())
        if (
            not outcome.records
            and not outcome.timers
            and len(outcome.replies) == 1
            and outcome.replies[0].token == token
        ):
            return outcome.replies[0].response  # the way of every heartbeat
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        future.add_done_callback(lambda _: self._waiting.pop(token, None))
        self.apply(outcome)
        return future.result() if future.done() and not future.cancelled() else future

    def apply(self, outcome: Outcome) -> None:
        """Set its timers, write its records, then send its replies."""
        for change in outcome.timers:
            self._set_timer(change.timer, change.deadline_ms)
        if not outcome.records:
            self._send(outcome)
            return
        try:
            written = self._write(outcome)
        except HeadraceError as error:
            self._failed(outcome, error)
            return
        if written is None:
            self.apply(self.coordinator.written(outcome, self.broker.runtime.clock.now_ms()))
        else:
            self._keep(self._send_when(outcome, written))

    def _send(self, outcome: Outcome) -> None:
        for reply in outcome.replies:
            future = self._waiting.get(reply.token)
            if future is not None and not future.done():
                future.set_result(reply.response)

    async def _send_when(self, outcome: Outcome, written: list[Awaitable[Any]]) -> None:
        try:
            for append in written:
                await append
        except HeadraceError as error:
            self._failed(outcome, error)
            return
        self.apply(self.coordinator.written(outcome, self.broker.runtime.clock.now_ms()))

    def _failed(self, outcome: Outcome, error: HeadraceError) -> None:
        log.error("the coordinator's records could not be written: %s", error)
        code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        self.apply(self.coordinator.failed(outcome, ErrorCode(code), self.broker.runtime.clock.now_ms()))

    def _write(self, outcome: Outcome) -> list[Awaitable[Any]] | None:
        """Append the records, a batch per partition; what has to be waited for, if anything."""
        now_ms = self.broker.runtime.clock.now_ms()
        by_partition: dict[int, list[tuple[int, bytes, bytes | None, tuple[()]]]] = defaultdict(list)
        for record in outcome.records:
            by_partition[record.partition].append((now_ms, record.key, record.value, ()))
        waits: list[Awaitable[Any]] = []
        for index, records in by_partition.items():
            partition = self.broker.partition(OFFSETS_TOPIC, index)
            appended = partition.append(build_batch(records), origin=Origin.COORDINATOR, acks=-1)
            if not isinstance(appended, Appended):
                waits.append(appended)
        return waits or None

    def topics_deleted(self, topics: dict[str, bytes]) -> None:
        """Forget what was committed for topics that are gone."""
        self.apply(self.coordinator.topics_deleted(topics, self.broker.runtime.clock.now_ms()))

    # --- timers

    def _set_timer(self, timer: Timer, deadline_ms: int | None) -> None:
        running = self._timers.pop(timer, None)
        if running is not None:
            running.cancel()
        if deadline_ms is not None:
            delay_s = max(0, deadline_ms - self.broker.runtime.clock.now_ms()) / 1000
            self._timers[timer] = asyncio.get_running_loop().call_later(delay_s, self._on_timer, timer)

    def _on_timer(self, timer: Timer) -> None:
        self._timers.pop(timer, None)
        self.apply(self.coordinator.on_timer(timer, self.broker.runtime.clock.now_ms()))

    # --- loading

    def load(self, index: int) -> None:
        """Take over a partition of the offsets topic: read it in the background, then serve its groups."""
        self.apply(self.coordinator.begin_load(index))
        self._keep(self._load(index))

    async def _load(self, index: int) -> None:
        partition = self.broker.partition(OFFSETS_TOPIC, index)
        started = self.broker.runtime.clock.monotonic()
        count = 0
        chunks = iter_records(partition.log)
        while True:
            chunk = await self.broker.runtime.offload(lambda: next(chunks, None))
            if chunk is None:
                break
            for start in range(0, len(chunk), LOAD_RECORDS_PER_TURN):
                for key, value in chunk[start : start + LOAD_RECORDS_PER_TURN]:
                    self.coordinator.load(index, key, value)
                await asyncio.sleep(0)
            count += len(chunk)
        self.apply(self.coordinator.loaded(index, self.broker.runtime.clock.now_ms()))
        if count:
            took_ms = (self.broker.runtime.clock.monotonic() - started) * 1000
            log.info("%s-%d: %d records loaded in %.0f ms", OFFSETS_TOPIC, index, count, took_ms)

    async def close(self) -> None:
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for future in list(self._waiting.values()):
            future.cancel()

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the group coordinator failed", exc_info=task.exception())


def iter_records(partition_log: Log) -> Iterator[list[tuple[bytes, bytes | None]]]:
    """Keys and values of all data records of a log, in chunks. Blocking: for a disk thread."""
    offset = partition_log.start_offset
    end = partition_log.end_offset
    while offset < end:
        found = partition_log.locate(offset, LOAD_READ_BYTES, limit=end, at_least_one=True)
        data = found.file.read(found.position, found.length)
        chunk: list[tuple[bytes, bytes | None]] = []
        reached = offset
        for batch in split(data):
            reached = batch.next_offset
            if batch.is_control:
                continue
            chunk += [
                (bytes(record.key), None if record.value is None else bytes(record.value))
                for record in read_records(batch)
                if record.key is not None and record.offset >= offset
            ]
        if reached <= offset:
            return
        offset = reached
        yield chunk
