"""A work queue: the records of a share group, each with a worker of its own.

One thread polls, and says what became of records; workers only handle them. A record whose handler takes long has its
lock renewed. One that fails is given back and delivered again, to any member; after its last delivery it goes to the
dead letters, and is rejected once it is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import queue
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from headrace.client.admin import Admin
from headrace.client.admin.types import ConfigResource, ResourceType
from headrace.client.configs import common_config
from headrace.client.consumer.errors import WakeupError
from headrace.client.consumer.records import ConsumerRecord
from headrace.client.producer.blocking import Producer
from headrace.client.share.blocking import ShareConsumer
from headrace.client.share.records import AcknowledgeType, ShareRecord
from headrace.errors import HeadraceError
from headrace.functions import check_has_run
from headrace.parallel.errors import Reject, RetriesExhaustedError, RetryLater, UnreadableRecordError
from headrace.parallel.handling import HANDLER, Handling, Kind
from headrace.parallel.letters import TOO_LARGE, messages_of, smaller
from headrace.parallel.metrics import Counters, Snapshot
from headrace.parallel.options import Exhausted, Retry, Share
from headrace.parallel.retries import NextPlace, Outgoing, Verdict
from headrace.parallel.tracker import PartitionTracker
from headrace.parallel.work import Entry
from headrace.runtime import Clock
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.parallel")

DELIVERIES_MAX_KEY: Final = "share.delivery.count.limit"
DELIVERIES_MAX_DEFAULT: Final = 5
_POLL_S: Final = 1.0
_LOOK_S: Final = 0.05
_DONE_S: Final = 5.0
_LOCK_MS_DEFAULT: Final = 30_000


class _Outcome(NamedTuple):
    """What a worker has to say of a record; `error` None: it is handled."""

    record: ShareRecord[Any, Any]
    error: BaseException | None


class _Workers(Protocol):
    def submit(self, record: ShareRecord[Any, Any]) -> None: ...
    def stop(self) -> None: ...


@dataclass(slots=True)
class _Held:
    """A record that a worker has, or that waits to be given back."""

    record: ShareRecord[Any, Any]
    renew_at: float
    release_at: float | None = None


@dataclass(slots=True)
class SharingMember:
    """What is seen of it from outside."""

    group: str
    workers: int
    counters: Counters = field(default_factory=Counters)
    held: dict[tuple[str, int, int], _Held] = field(default_factory=dict)

    def snapshot(self) -> Snapshot:
        count = len(self.held)
        return Snapshot(self.group, self.workers, min(count, self.workers), count, 0, self.counters)


class ShareEngine:
    """One member of the share group. `run` on a thread of its own; `stop` from any."""

    def __init__(
        self,
        topics: list[str],
        config: dict[str, Any],
        handling: Handling,
        kind: Kind,
        model: Share,
        retry: Retry,
        workers: int,
        producer: Producer | None,
        drain_s: float,
        clock: Clock,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.member = SharingMember(config["group.id"], workers)
        self._topics = topics
        self._config = config
        self._handling = handling.prepare()
        self._kind = kind
        self._model = model
        self._retry = retry
        self._producer = producer
        self._drain_s = drain_s
        self._clock = clock
        self._loop = loop
        self._outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._consumer: ShareConsumer[Any, Any] | None = None
        self._is_stopping = self._is_killed = False
        self._is_polling = False
        self._deliveries_max = DELIVERIES_MAX_DEFAULT

    # --- from any thread ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        self._is_stopping = True
        self._wake()

    def kill(self) -> None:
        self._is_killed = self._is_stopping = True
        self._wake()

    def _wake(self) -> None:
        consumer = self._consumer
        if consumer is not None and self._is_polling:
            consumer.wakeup()

    def _told(self, record: ShareRecord[Any, Any], error: BaseException | None) -> None:
        self._outcomes.put(_Outcome(record, error))
        self._wake()

    # --- the poller ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._deliveries_max = self._ask_deliveries_max()
        made: _Workers
        if self._kind is Kind.ASYNC:
            made = _Coroutines(self._handling, self.member.workers, self._told, self._loop)
        else:
            made = _Threads(self._handling, self.member.workers, self._told)
        try:
            with ShareConsumer(self._config) as consumer:
                self._consumer = consumer
                consumer.subscribe(self._topics)
                self._serve(consumer, made)
        finally:
            self._consumer = None
            made.stop()

    def _serve(self, consumer: ShareConsumer[Any, Any], workers: _Workers) -> None:
        held, capacity = self.member.held, self.member.workers
        stopped_at: float | None = None
        while True:
            self._take_outcomes(consumer)
            now = self._clock.monotonic()
            self._look_after(consumer, now)
            if self._is_stopping:
                stopped_at = now if stopped_at is None else stopped_at
                if self._is_killed or not held or now - stopped_at >= self._drain_s:
                    return
            if self._is_stopping or len(held) >= capacity:
                self._wait_for_outcome(consumer)
                continue
            for record in self._poll(consumer, capacity - len(held)):
                where = (record.topic, record.partition, record.offset)
                is_here = where in held
                held[where] = _Held(record, self._clock.monotonic() + _lock_s(consumer) / 3)
                self.member.counters.polled += 1
                if not is_here:  # else its lock was lost, and its worker has not noticed
                    workers.submit(record)

    def _poll(self, consumer: ShareConsumer[Any, Any], room: int) -> list[ShareRecord[Any, Any]]:
        now = self._clock.monotonic()
        due = (min(one.renew_at, one.release_at or one.renew_at) for one in self.member.held.values())
        wait_s = max(0.0, min(_POLL_S, min(due, default=now + _POLL_S) - now))
        self._is_polling = True
        try:
            # What was said since is looked at first: nobody would wake a poll that has not begun.
            if not self._outcomes.empty() or self._is_stopping:
                return []
            return consumer.poll(wait_s, keep=True)
        except WakeupError:
            return []
        finally:
            self._is_polling = False

    def _wait_for_outcome(self, consumer: ShareConsumer[Any, Any]) -> None:
        with contextlib.suppress(queue.Empty):
            self._settle(consumer, self._outcomes.get(timeout=_LOOK_S))
            consumer.commit_async()

    def _take_outcomes(self, consumer: ShareConsumer[Any, Any]) -> None:
        count = 0
        with contextlib.suppress(queue.Empty):
            while True:
                self._settle(consumer, self._outcomes.get_nowait())
                count += 1
        if count:
            consumer.commit_async()

    def _look_after(self, consumer: ShareConsumer[Any, Any], now: float) -> None:
        """Renew locks of what is still being handled, and give back what has waited for it."""
        renewed = False
        for where, one in list(self.member.held.items()):
            if one.release_at is not None and now >= one.release_at:
                self._say(consumer, one.record, AcknowledgeType.RELEASE)
                del self.member.held[where]
                renewed = True
            elif now >= one.renew_at:
                self._say(consumer, one.record, AcknowledgeType.RENEW)
                one.renew_at = now + _lock_s(consumer) / 3
                renewed = True
        if renewed:
            consumer.commit_async()

    # --- what becomes of a record -------------------------------------------------------------------------------------

    def _settle(self, consumer: ShareConsumer[Any, Any], outcome: _Outcome) -> None:
        record, error = outcome
        where = (record.topic, record.partition, record.offset)
        counters = self.member.counters
        if error is None:
            counters.handled += 1
            self.member.held.pop(where, None)
            self._say(consumer, record, AcknowledgeType.ACCEPT)
            return
        counters.failures += 1
        is_last = record.delivery_count >= self._deliveries_max or isinstance(error, (Reject, UnreadableRecordError))
        if not is_last:
            log.info("%s-%d at %d failed, delivery %d: %r", *where, record.delivery_count, error)
            delay_s = error.delay_s if isinstance(error, RetryLater) else self._model.backoff_s
            held = self.member.held.get(where)
            if delay_s > 0 and held is not None:
                held.release_at = self._clock.monotonic() + delay_s
            else:
                self.member.held.pop(where, None)
                self._say(consumer, record, AcknowledgeType.RELEASE)
            return
        self.member.held.pop(where, None)
        if self._retry.dead_letters is not None:
            self._put_away(consumer, record, error)
        elif self._retry.on_exhausted is Exhausted.SKIP:
            log.warning("%s-%d at %d failed its last delivery, and is given up: %r", *where, error)
            counters.skipped += 1
            self._say(consumer, record, AcknowledgeType.REJECT)
        else:
            self._say(consumer, record, AcknowledgeType.RELEASE)
            partition = TopicPartition(record.topic, record.partition)
            raise RetriesExhaustedError(partition, record.offset, record.delivery_count, error)

    def _put_away(self, consumer: ShareConsumer[Any, Any], record: ShareRecord[Any, Any], error: BaseException) -> None:
        """To the dead letters; only once it is there it is rejected. Else it is given back."""
        assert self._producer is not None
        assert self._retry.dead_letters is not None
        plain = ConsumerRecord(*record[:9])
        tracker = PartitionTracker(TopicPartition(record.topic, record.partition), None, "", [])
        entry = Entry(plain, record.offset, record.offset + 1, _size(plain), tracker, 0.0)
        entry.error = error
        verdict = Verdict(NextPlace.DEAD_LETTERS, 0.0, record.delivery_count)
        outgoing = Outgoing(entry, self._retry.dead_letters, verdict)
        try:
            while True:
                messages = messages_of(outgoing, self.member.group, self._clock.now_ms())
                try:
                    sent = [self._producer.send(*message[:3], headers=list(message[3])) for message in messages]
                    for delivery in sent:
                        delivery.result(_DONE_S * 6)
                    break
                except TOO_LARGE:
                    outgoing.part_bytes = smaller(outgoing)
                    if not outgoing.part_bytes:
                        raise
                    self.member.counters.letters_in_parts += 1
        except HeadraceError as failure:
            self.member.counters.produce_failures += 1
            where = (record.topic, record.partition, record.offset)
            log.warning("%s-%d at %d is not put away, and given back: %s", *where, failure)
            self._say(consumer, record, AcknowledgeType.RELEASE)
            return
        self.member.counters.dead_letters += 1
        self._say(consumer, record, AcknowledgeType.REJECT)

    @staticmethod
    def _say(consumer: ShareConsumer[Any, Any], record: ShareRecord[Any, Any], kind: AcknowledgeType) -> None:
        consumer.acknowledge(record, kind)

    def _ask_deliveries_max(self) -> int:
        """How often the group's records are delivered. Who may not know that is told the default."""
        resource = ConfigResource(ResourceType.GROUP, self.member.group)
        common = common_config(self._config)
        try:
            with Admin(common) as admin:
                found = admin.describe_configs([resource])[resource]
            entry = found.get(DELIVERIES_MAX_KEY)
            return DELIVERIES_MAX_DEFAULT if entry is None or entry.value is None else int(entry.value)
        except HeadraceError as error:
            log.warning(
                "how often a record of %s is delivered is not known (%s): %d times, as is the default",
                self.member.group,
                error,
                DELIVERIES_MAX_DEFAULT,
            )
            return DELIVERIES_MAX_DEFAULT


def _lock_s(consumer: ShareConsumer[Any, Any]) -> float:
    return (consumer.acquisition_lock_timeout_ms or _LOCK_MS_DEFAULT) / 1000


def _size(record: ConsumerRecord[Any, Any]) -> int:
    return len(record.key or b"") + len(record.value or b"")


# --- workers ----------------------------------------------------------------------------------------------------------


class _Threads:
    def __init__(self, handling: Handling, count: int, told: Callable[[Any, BaseException | None], None]) -> None:
        self._handling, self._told = handling, told
        self._records: queue.SimpleQueue[ShareRecord[Any, Any] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"headrace-share-worker-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, record: ShareRecord[Any, Any]) -> None:
        self._records.put(record)

    def stop(self) -> None:
        for _ in self._threads:
            self._records.put(None)

    def _work(self) -> None:
        handling = self._handling
        while (record := self._records.get()) is not None:
            error: BaseException | None = None
            try:
                result = handling.handler(_readable(handling, record))
                if result is not None:
                    check_has_run(result, HANDLER)
            except BaseException as raised:  # noqa: BLE001 - whatever a handler raises is its record's failure
                error = raised
            self._told(record, error)


class _Coroutines:
    """All on one loop: its own, or the one that it is given."""

    def __init__(
        self,
        handling: Handling,
        count: int,
        told: Callable[[Any, BaseException | None], None],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._handling, self._told = handling, told
        self._is_own = loop is None
        self._loop = loop or asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        if self._is_own:
            threading.Thread(target=self._run_loop, name="headrace-share-loop", daemon=True).start()

    def _run_loop(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def submit(self, record: ShareRecord[Any, Any]) -> None:
        self._loop.call_soon_threadsafe(self._begin, self._work(record))

    def stop(self) -> None:
        if self._is_own:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, record: ShareRecord[Any, Any]) -> None:
        handling = self._handling
        error: BaseException | None = None
        try:
            result = handling.handler(_readable(handling, record))
            if inspect.isawaitable(result):
                await result
        except BaseException as raised:  # noqa: BLE001 - whatever a handler raises is its record's failure
            error = raised
        self._told(record, error)


def _readable(handling: Handling, record: ShareRecord[Any, Any]) -> Any:
    """What the handler is given: the record, deserialised, with how often it was delivered."""
    if handling.is_plain:
        return record
    made = handling.deserialised(ConsumerRecord(*record[:9]))
    return record._replace(key=made.key, value=made.value)
