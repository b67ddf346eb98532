"""What parallel consumers are made of, in turns with the simulation: waits, workers, and clients that write down what
they are asked for and told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.client.cluster.drivers import AsyncClient
from headrace.client.consumer._base import ConsumerSetup
from headrace.client.ranges import RangeReader, range_settings
from headrace.parallel.handling import Handling
from headrace.parallel.member import Member
from headrace.parallel.ranges import RangeReaders
from headrace.parallel.retries import (
    ATTEMPT,
    DUE_MS,
    FAILED_MS,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TOPIC,
    header,
    number,
)
from headrace.parallel.workers import Coroutines
from headrace.runtime.simulated import Host
from headrace.testing.simulated.blocking import BlockingCluster, ThreadedClient, Turns, run_blocking
from headrace.testing.simulated.cluster import SimulatedCluster
from headrace.testing.simulated.history import CommitCall, History, Letter, ParallelCommit
from headrace.testing.simulated.holdings import Holdings
from headrace.testing.simulated.variants import PARALLEL_GROUP, RETRIES
from headrace.topics import TopicPartition


class TurnedCondition:
    """A condition of threads that wait in virtual time."""

    def __init__(self, turns: Turns, lock: threading.Lock) -> None:
        self._turns = turns
        self._lock = lock
        self._waiting: list[asyncio.Future[None]] = []

    def wait(self, timeout: float | None = None) -> None:
        async def wait() -> None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await asyncio.wait([future], timeout=timeout)
            if future in self._waiting:
                self._waiting.remove(future)

        self._lock.release()
        try:
            self._turns.call(wait)
        finally:
            self._lock.acquire()

    def notify(self, count: int = 1) -> None:
        woken, self._waiting = self._waiting[:count], self._waiting[count:]

        def wake() -> None:
            for future in woken:
                future.set_result(None)

        if woken:
            self._turns.call(wake)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class _Loop:
    """The loop of a simulation, as far as whoever is on a thread needs it."""

    def __init__(self, turns: Turns, loop: asyncio.AbstractEventLoop) -> None:
        self._turns = turns
        self._loop = loop

    def call_soon_threadsafe(self, function: Callable[[], None]) -> None:
        def call() -> None:
            self._loop.call_soon(function)

        self._turns.call(call)

    def create_task(self, work: Any) -> Any:
        return self._loop.create_task(work)

    def is_closed(self) -> bool:
        return self._loop.is_closed()


class TurnedCoroutines(Coroutines):
    """The workers of a member as tasks of the simulation."""

    def __init__(self, turns: Turns, member: Member, handling: Handling, count: int) -> None:
        loop: Any = _Loop(turns, turns.call(asyncio.get_running_loop))
        super().__init__(member, handling, count, loop)
        self._by_turns = turns

    def stop(self, seconds: float) -> None:
        self._by_turns.call(lambda: self._end(seconds, threading.Event()))


class TurnedRangeReaders(RangeReaders):
    """The readers of ranges, each a program of its own."""

    def __init__(
        self,
        turns: Turns,
        cluster: SimulatedCluster,
        host: Host,
        member: Member,
        handling: Handling,
        count: int,
        size: int,
        config: Mapping[str, Any],
    ) -> None:
        self._by_turns = turns
        self._cluster = cluster
        self._host = host
        self._reading: list[asyncio.Future[None]] = []
        self.turns: list[Turns] = []
        super().__init__(member, handling, count, size, config, 1, self._open)

    def _open(self, config: Mapping[str, Any]) -> RangeReader:
        runtime, servers = self._host.runtime, self._cluster.bootstrap_servers
        setup = ConsumerSetup({**config, "bootstrap.servers": servers, "client.id": self._host.name}, {})
        turned: Any = _TurnedClient(self._by_turns, lambda: AsyncClient(setup.connection, runtime))
        return _TurnedRangeReader.over(turned, range_settings(config))

    def start(self) -> None:
        self._handling.prepare()
        self._by_turns.call(self._begin)

    def _begin(self) -> None:
        def read(program: BlockingCluster) -> None:
            self.turns.append(program.turns)
            self._work()

        self._reading = [asyncio.ensure_future(run_blocking(self._cluster, read)) for _ in range(self._count)]

    def stop(self, seconds: float) -> None:
        async def end() -> None:
            await asyncio.wait(self._reading, timeout=seconds)

        self._by_turns.call(end)


class _TurnedClient:
    """A client on the simulation's loop for whoever blocks: it waits until something was heard, or is due."""

    def __init__(self, turns: Turns, make: Callable[[], AsyncClient]) -> None:
        self._turns = turns
        self._client: AsyncClient = turns.call(make)
        self.core = self._client.core
        self._news: asyncio.Event = turns.call(asyncio.Event)
        turns.call(self._begin)

    def _begin(self) -> None:
        assert self._client.loop is not None
        self._client.hooks.append(self._heard)

    def _heard(self) -> float:
        self._news.set()
        return 60.0

    def poll(self, seconds: float) -> None:
        async def wait() -> None:
            self._news.clear()
            self._client.schedule()
            # The first time is that look itself.
            await asyncio.sleep(0)
            self._news.clear()
            try:
                async with asyncio.timeout(max(0.0, seconds)):
                    await self._news.wait()
            except TimeoutError:
                pass

        self._turns.call(wait)

    poll_for_news = poll

    def close(self) -> None:
        self._turns.call(self._client.close)


class _TurnedRangeReader(RangeReader):
    """A reader of ranges that closes its client."""

    def close(self) -> None:
        if not self._closed and self._core is not None:
            self._core.client.close()
        super().close()


# --- clients that write down ------------------------------------------------------------------------------------------


class NotingConsumer(ThreadedClient):
    """A consumer that writes down what is committed, when that was asked for and answered, and what it holds."""

    def __init__(self, turns: Turns, client: Any, history: History, holdings: Holdings) -> None:
        super().__init__(turns, client)
        self._history = history
        self._holdings = holdings

    def subscribe(self, topics: Any, listener: Any = None, **named: Any) -> None:
        super().subscribe(topics, _NotingListener(self, self._holdings, listener), **named)

    def note_owner(self, partitions: Iterable[TopicPartition]) -> None:
        """It has these in the generation that it is in."""
        self._history.owns(self.group_metadata(), partitions)

    def committed(self, partitions: Any) -> Any:
        known = {partition: self._history.known_commit(PARALLEL_GROUP, partition) for partition in partitions}
        found = self._turns.call(lambda: self._client.committed(partitions))
        for partition, offset in known.items():
            told = 0 if found.get(partition) is None else found[partition].offset
            if told < offset:
                self._history.handled.broken.append(
                    f"{partition}: {PARALLEL_GROUP} had committed {offset}, and is told {told}"
                )
        self._holdings.told(found)
        return found

    def commit_async(self, offsets: Mapping[TopicPartition, Any], callback: Any = None) -> None:
        calls = note_commit(self._history, self._holdings, offsets)

        def ended(error: Any, told: Any) -> None:
            if error is None:
                _answered(self._history, calls)
            callback(error, told)

        self._turns.call(lambda: self._client.commit_async(offsets, ended))

    def commit_sync(self, offsets: Mapping[TopicPartition, Any], timeout: float | None = None) -> None:
        calls = note_commit(self._history, self._holdings, offsets)
        self._turns.call(lambda: self._client.commit_sync(offsets, timeout))
        _answered(self._history, calls)


class _NotingListener:
    """A listener of a group that writes down what comes and goes before it tells its own listener, and after."""

    def __init__(self, consumer: NotingConsumer, holdings: Holdings, listener: Any) -> None:
        self._consumer = consumer
        self._holdings = holdings
        self._listener = listener

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self._consumer.note_owner(self._consumer.assignment())
        self._holdings.assigned(partitions)
        self._listener.on_partitions_assigned(partitions)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._consumer.note_owner(partitions)
        began_s = self._holdings.leaving(partitions)
        self._listener.on_partitions_revoked(partitions)
        self._holdings.revoked(partitions, began_s)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self._listener.on_partitions_lost(partitions)
        self._holdings.lost(partitions)


def note_commit(
    history: History, holdings: Holdings, offsets: Mapping[TopicPartition, Any], letters: list[Letter] | None = None
) -> list[CommitCall]:
    """Offsets are about to be committed, in a transaction with these letters."""
    history.count("commits of parallel consumers")
    along = frozenset(letter.of for letter in letters or ())
    calls = []
    for partition, offset in offsets.items():
        commit = ParallelCommit(partition, offset.offset, offset.metadata, history.tick(), along)
        history.handled.commits.append(commit)
        holdings.commits(commit)
        calls.append(CommitCall(commit.offset, commit.tick))
        history.group_commits.setdefault((PARALLEL_GROUP, partition), []).append(calls[-1])
    return calls


def _answered(history: History, calls: list[CommitCall]) -> None:
    for call in calls:
        call.answered_at = history.tick()


def _letter(history: History, topic: str, value: bytes, key: bytes | None, headers: Any) -> Letter:
    """What is about to be sent."""
    text = value.decode()
    history.sent[topic].add(text)
    rounds = number(headers, ATTEMPT, 0)
    origin = TopicPartition(header(headers, ORIGIN_TOPIC) or "", number(headers, ORIGIN_PARTITION, -1))
    letter = Letter(
        topic,
        (text, rounds - 1 if topic == RETRIES else rounds),
        (text, rounds),
        None if key is None else key.decode(),
        (origin, number(headers, ORIGIN_OFFSET, -1)),
        number(headers, DUE_MS, 0) - number(headers, FAILED_MS, 0) if topic == RETRIES else 0,
    )
    history.handled.letters.append(letter)
    return letter


class NotingProducer:
    """The producer of letters: a record whose letter is acknowledged is finished."""

    def __init__(self, turns: Turns, producer: Any, history: History, holdings: Holdings) -> None:
        self._turns = turns
        self._producer = producer
        self._history = history
        self._holdings = holdings

    def send(self, topic: str, value: bytes, key: bytes | None, *, headers: Any, on_delivery: Any) -> None:
        letter = _letter(self._history, topic, value, key, headers)
        self._holdings.sends(letter.of)

        def delivered(error: Any, told: Any) -> None:
            if error is not None:
                self._holdings.not_sent(letter.of)
            if error is None:
                self._history.count(f"letters to {topic}")
                self._history.handled.arrived(letter, self._history.tick(), is_retry=topic == RETRIES)
            on_delivery(error, told)

        self._turns.call(
            lambda: self._producer.send(topic, value, key=key, headers=headers, on_delivery=delivered) and None
        )


class NotingTransactions(ThreadedClient):
    """A transactional producer: letters are there, and records finished, when their transaction is committed.

    It counts from when that was asked for: nobody is told before, but others may be told earlier than this one.
    """

    def __init__(self, turns: Turns, client: Any, history: History, holdings: Holdings) -> None:
        super().__init__(turns, client)
        self._history = history
        self._holdings = holdings
        self._letters: list[Letter] = []
        self._commits: list[CommitCall] = []
        self._asked_at: int | None = None
        holdings.is_in_doubt = True

    def begin_transaction(self) -> None:
        self._letters, self._commits, self._asked_at = [], [], None
        self._holdings.is_in_doubt = True
        self._turns.call(self._client.begin_transaction)

    def send(self, topic: str, value: bytes, key: bytes | None, *, headers: Any) -> None:
        self._letters.append(_letter(self._history, topic, value, key, headers))
        self._turns.call(lambda: self._client.send(topic, value, key=key, headers=headers) and None)

    def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, Any], group: Any, timeout: float) -> None:
        self._commits = note_commit(self._history, self._holdings, offsets, self._letters)
        self._turns.call(lambda: self._client.send_offsets_to_transaction(offsets, group, timeout))

    def commit_transaction(self, timeout: float) -> None:
        handled = self._history.handled
        if self._asked_at is None:
            self._asked_at = self._history.tick()
            for letter in self._letters:
                handled.doubtful.setdefault(letter, self._asked_at)
        self._turns.call(lambda: self._client.commit_transaction(timeout))
        self._holdings.is_in_doubt = False
        _answered(self._history, self._commits)
        for letter in self._letters:
            tick = handled.doubtful.pop(letter, self._asked_at)
            handled.arrived(letter, tick, is_retry=letter.topic == RETRIES)
            self._history.count(f"letters to {letter.topic}")
        self._history.count("transactions of parallel consumers")

    def abort_transaction(self, timeout: float) -> None:
        self._turns.call(lambda: self._client.abort_transaction(timeout))
        self._history.count("transactions of parallel consumers aborted")
        for letter in self._letters:
            if self._history.handled.doubtful.get(letter) == self._asked_at:
                self._history.handled.doubtful.pop(letter, None)
