"""Runs a pure coordinator: loads it from its internal topic, writes its records, sends its replies, keeps its timers.

A coordinator decides on the event loop, in one step. Its records are appended to its topic before anyone hears of the
decision, in batches as large as the topic allows; when that fails, in whatever way, the coordinator is told, and
answers those who wait with the error. Of one partition, outcomes are told as written in the order in which they were
decided.

It serves the partitions that its broker leads: `lead` begins to load one, `resign` gives it up, each for a leader
epoch. All that is appended to a partition is appended in the epoch that it was loaded for, or not at all.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import itertools
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headrace.broker.coordinators.surroundings import CoordinatorSurroundings
from headrace.broker.coordinators.write_order import Append, WriteOrder, batch_bytes_max, begin_append
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.purgatory import Waiter
from headrace.broker.requests.dispatch import Pending, RequestContext
from headrace.broker.requests.refusals import refuse
from headrace.cluster.image import TopicImage
from headrace.coordination import (
    BATCH_OVERHEAD_BYTES,
    NO_PRODUCER_ID,
    Caller,
    Coordinator,
    CoordinatorRecord,
    Job,
    Now,
    StoredRecord,
    Timer,
    record_bytes,
)
from headrace.coordination.outcome import OutcomeT
from headrace.coordination.shards import ShardT
from headrace.errors import ErrorCode, NotCoordinatorError
from headrace.log import Log, Verification
from headrace.protocol.messages.list_groups import ListGroupsResponse
from headrace.protocol.messages.list_transactions import ListTransactionsResponse
from headrace.records import build_batch, read_control, read_records, split
from headrace.records.build import BatchOptions

log = logging.getLogger("headrace.broker.coordinator")

LOAD_READ_BYTES = 4 * 1024 * 1024
LOAD_RECORDS_PER_TURN = 5_000
LOAD_RETRY_S = 5.0
TIMER_RETRY_S = 5.0
# Whoever waits for the high watermark is woken when it moves; this is how long it relies on that.
WATERMARK_LOOK_S = 1.0

RequestT = TypeVar("RequestT")


@dataclass(slots=True)
class _Filling:
    """A batch to be, for one partition, and the positions of the effects whose records are in it."""

    size_max: int
    size: int = BATCH_OVERHEAD_BYTES
    records: list[CoordinatorRecord] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Led:
    """A partition that this broker leads, in one epoch: being loaded, or served."""

    leader_epoch: int
    loading: asyncio.Task[None] | None = None


class CoordinatorDriver(Generic[OutcomeT, ShardT]):
    """Drives one coordinator whose state is kept in the partitions of `topic`."""

    def __init__(
        self,
        around: CoordinatorSurroundings,
        topic: str,
        coordinator: Coordinator[OutcomeT, ShardT],
        append_timeout_ms: int,
    ) -> None:
        """`append_timeout_ms` is how long a record may take to be in all in-sync replicas, before it has failed."""
        self.around = around
        self._append_timeout_ms = append_timeout_ms
        self.topic = topic
        self.coordinator = coordinator
        self._waiting: dict[Hashable, asyncio.Future[object]] = {}
        self._timers: dict[Timer, asyncio.TimerHandle] = {}
        self._tokens = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self.order = WriteOrder()
        self._led: dict[int, _Led] = {}
        # The latest epoch that was heard of, of partitions that are led here or were.
        self._epochs: dict[int, int] = {}
        self._topic_id: bytes | None = None
        self._closed = False

    def now(self) -> Now:
        clock = self.around.runtime.clock
        return Now(clock.now_ms(), int(clock.monotonic() * 1000))

    # --- requests

    def call(
        self,
        method: Callable[[Caller, RequestT, Now], OutcomeT],
        context: RequestContext,
        request: RequestT,
        verification: Verification | None = None,
    ) -> object:
        """Give a request to the coordinator: its response at once, or `Pending`.

        What it writes is written with this `verification` of a transaction, if there is one.
        """
        token = next(self._tokens)
        caller = Caller(
            token, context.client_id, f"/{context.client_host}", context.api_version, context.topics_to_know
        )
        outcome = method(caller, request, self.now())
        replies = outcome.replies
        waits = outcome.effects or outcome.timers or outcome.jobs
        if not waits and len(replies) == 1 and replies[0].token == token:
            return self._told(replies[0].response)  # the way of every heartbeat
        future = self.wait_for(token)
        self.apply(outcome, verification)
        return future.result() if future.done() and not future.cancelled() else Pending(future)

    def wait_for(self, token: Hashable) -> asyncio.Future[object]:
        """What the request of that token is answered with."""
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        future.add_done_callback(lambda _: self._waiting.pop(token, None))
        return future

    def apply(self, outcome: OutcomeT, verification: Verification | None = None) -> None:
        """Set its timers, write its records; when they are written, or if there are none, send its replies."""
        for note in outcome.notes:
            log.info("%s", note)
        for change in outcome.timers:
            self._set_timer(change.timer, change.deadline_ms)
        for job in outcome.jobs:
            self.keep(self._run(job))
        if not outcome.effects:
            self.settled(outcome)
            return
        appends = self._write(outcome, verification)
        partitions = {effect.partition for effect in outcome.effects}
        self.order.add(partitions, list(dict.fromkeys(appends)), functools.partial(self._written, outcome, appends))

    async def _run(self, job: Job[OutcomeT]) -> None:
        """Do what takes long on another thread; what it led to is another outcome."""
        result: object
        try:
            result = await self.around.runtime.offload(job.run)
        except Exception as error:
            log.warning("%s: %s failed", self.topic, job.what, exc_info=error)
            result = error
        if not self._closed:
            self.apply(self.coordinator.finished(job, result, self.now()))

    def settled(self, outcome: OutcomeT) -> None:
        """Nothing of it has to be written any more: tell those who wait."""
        for reply in outcome.replies:
            future = self._waiting.get(reply.token)
            if future is not None and not future.done():
                future.set_result(self._told(reply.response))

    def _told(self, response: object) -> object:
        """What is said, while others may take this broker for dead: they coordinate instead, and know better.

        A list of what there is here is no promise, and is told.
        """
        reason = self.around.out_of_touch()
        if reason is None or isinstance(response, ListGroupsResponse | ListTransactionsResponse):
            return response
        response = copy.deepcopy(response)
        refuse(response, NotCoordinatorError(reason), everywhere=True)
        return response

    def _written(self, outcome: OutcomeT, appends: list[Append]) -> None:
        """The appends of an outcome's effects have ended, and it is its turn."""
        if self._closed:
            return
        errors = {position: append.error for position, append in enumerate(appends) if append.error}
        try:
            if errors:
                self.apply(self.coordinator.failed(outcome, errors, self.now()))
            else:
                self.apply(self.coordinator.written(outcome, self.now()))
        except Exception as error:
            log.error("%s: what follows from a record failed: please report it", self.topic, exc_info=error)
            for reply in outcome.replies:
                future = self._waiting.get(reply.token)
                if future is not None and not future.done():
                    future.set_exception(error)

    def _write(self, outcome: OutcomeT, verification: Verification | None) -> list[Append]:
        """Append the records of the effects, in as few batches as the topic allows; what became of each effect's."""
        options = self.batch_options(outcome)
        appends: list[Append | None] = [None] * len(outcome.effects)
        filling: dict[int, _Filling] = {}

        def append(index: int, batch: _Filling) -> None:
            build = functools.partial(self._build, batch.records, options)
            begun = self.begin_append(index, build, verification)
            for position in batch.positions:
                appends[position] = begun

        for position, effect in enumerate(outcome.effects):
            index = effect.partition
            size = sum(map(record_bytes, effect.records))
            batch = filling.get(index)
            if batch is None:
                batch = filling[index] = _Filling(batch_bytes_max(self.around, self.topic, index))
            elif batch.size + size > batch.size_max:
                append(index, batch)
                batch = filling[index] = _Filling(batch.size_max)
            batch.size += size
            batch.records += effect.records
            batch.positions.append(position)
        for index, batch in filling.items():
            append(index, batch)
        return [begun for begun in appends if begun is not None]

    def begin_append(
        self,
        index: int,
        build: Callable[[], bytearray | memoryview],
        verification: Verification | None = None,
        transaction_version: int = 0,
    ) -> Append:
        """Append to a partition of the topic, in the epoch that it was loaded for."""
        led = self._led.get(index)
        if led is None:
            return Append(f"{self.topic}-{index}", index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return begin_append(
            self.around,
            self.topic,
            index,
            build,
            leader_epoch=led.leader_epoch,
            verification=verification,
            transaction_version=transaction_version,
            timeout_ms=self._append_timeout_ms,
        )

    def _build(self, records: list[CoordinatorRecord], options: BatchOptions) -> bytearray | memoryview:
        now_ms = self.around.runtime.clock.now_ms()
        return build_batch([(now_ms, record.key, record.value, record.headers) for record in records], **options)

    def batch_options(self, outcome: OutcomeT) -> BatchOptions:
        """How the batch of an outcome's records is marked, beside the records themselves."""
        return {}

    # --- timers

    def _set_timer(self, timer: Timer, deadline_ms: int | None) -> None:
        running = self._timers.pop(timer, None)
        if running is not None:
            running.cancel()
        if deadline_ms is not None and not self._closed:
            delay_s = max(0, deadline_ms - self.now().monotonic_ms) / 1000
            self._timers[timer] = asyncio.get_running_loop().call_later(delay_s, self._on_timer, timer)

    def _on_timer(self, timer: Timer) -> None:
        self._timers.pop(timer, None)
        try:
            self.apply(self.coordinator.on_timer(timer, self.now()))
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

    # --- leadership

    def follow(self, topic: TopicImage | None) -> None:
        """Lead those partitions of the topic that the metadata says are led here, and no others."""
        topic_id = None if topic is None else topic.topic_id
        if topic_id != self._topic_id:
            # What was kept in a topic is gone with it, also where another of the same name is there already.
            for index in tuple(self._led):
                self.resign(index)
            self._epochs.clear()
            self._topic_id = topic_id
            if topic is not None:
                # It may have been created with the settings of another broker.
                self.coordinator.partition_count = len(topic.partitions)
        if topic is None:
            return
        for index, state in enumerate(topic.partitions):
            if self.around.identity.is_this(state.leader):
                self.lead(index, state.leader_epoch)
            else:
                self.resign(index, state.leader_epoch)

    def lead(self, index: int, leader_epoch: int) -> None:
        """This broker leads the partition, in this epoch: load it, to its end, then serve it.

        What it served in an earlier epoch is given up: others may have led it since. Of an epoch that is over, or is
        known already, nothing is new.
        """
        if leader_epoch <= self._epochs.get(index, -1):
            return
        self.resign(index, leader_epoch)
        led = self._led[index] = _Led(leader_epoch)
        self.apply(self.coordinator.begin_load(index, leader_epoch))
        led.loading = self.keep(self._load_until_done(index, led))

    def resign(self, index: int, leader_epoch: int | None = None) -> None:
        """Whatever this broker led there up to this epoch is over; without an epoch: the partition itself is gone.

        It is no longer loaded, nor served; who waits is told to look for another coordinator.
        """
        if leader_epoch is None:
            self._epochs.pop(index, None)
        elif leader_epoch < self._epochs.get(index, -1):
            return  # old news: it has led in a later one since, or still does
        else:
            self._epochs[index] = leader_epoch
        led = self._led.pop(index, None)
        if led is None:
            return
        if led.loading is not None:
            led.loading.cancel()
        self.apply(self.coordinator.unload(index))
        self.order.give_up(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def _load_until_done(self, index: int, led: _Led) -> None:
        """Read a partition, from its beginning, again and again, until it is read."""
        while True:
            try:
                await self._load(index)
                led.loading = None
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
            self.apply(self.coordinator.begin_load(index, led.leader_epoch))

    async def _load(self, index: int) -> None:
        """Replay a partition of the topic, read off the loop and folded in turns, then let it be served."""
        partition = self.around.replicas.get(self.topic, index)
        # What was asked for in an earlier epoch and is still under way may come to the log yet: it has to be read too.
        await partition.turns.change_log(_nothing)
        started = self.around.runtime.clock.monotonic()
        count, end_offset = 0, partition.log.end_offset
        chunks = stored_records(partition.log, end_offset)
        while (chunk := await self.around.runtime.offload(next, chunks, None)) is not None:
            for start in range(0, len(chunk), LOAD_RECORDS_PER_TURN):
                for record in chunk[start : start + LOAD_RECORDS_PER_TURN]:
                    self.coordinator.load(index, record)
                await asyncio.sleep(0)
            count += len(chunk)
        await _committed(partition, end_offset)
        self.apply(self.coordinator.loaded(index, self.now()))
        if count:
            took_ms = (self.around.runtime.clock.monotonic() - started) * 1000
            log.info("%s-%d: %d records loaded in %.0f ms", self.topic, index, count, took_ms)

    # --- life

    def keep(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run something in the background until it ends or the broker stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
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


def _nothing(partition_log: Log) -> None:
    """A change of a log that only waits for its turn."""


async def _committed(partition: Partition, end_offset: int) -> None:
    """Wait until nothing below this offset can be lost any more: what is told must not have to be taken back."""
    while partition.high_watermark < end_offset:
        await Waiter(1).wait((partition.watchers,), WATERMARK_LOOK_S)


def stored_records(partition_log: Log, end_offset: int) -> Iterator[list[StoredRecord]]:
    """The records and markers of an internal topic's log, up to this offset, in chunks. Blocking: for a disk thread."""
    offset = partition_log.start_offset
    while offset < end_offset:
        found = partition_log.locate(offset, LOAD_READ_BYTES, limit=end_offset, at_least_one=True)
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
