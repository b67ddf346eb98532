"""Parallel consumers in a run: the poller, its core, retries and dead letters are those of `headrace.parallel`.

The poller is a blocking program on a thread, in turns with the simulation. Its workers are tasks of the simulation, so
that how long a handler takes, and who comes first, is the seed's to say.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from headrace.parallel.core import ParallelCore
from headrace.parallel.engine import Engine, EngineSettings
from headrace.parallel.errors import Reject
from headrace.parallel.handling import Handling
from headrace.parallel.member import Member
from headrace.parallel.options import CoreSettings, Limits, Order, Pool, Retry
from headrace.parallel.work import WorkChunk
from headrace.runtime.simulated import Host
from headrace.testing.simulated.blocking import BlockingCluster, ThreadedClient, Turns
from headrace.testing.simulated.cluster import SimulatedCluster
from headrace.testing.simulated.history import Handled, History
from headrace.testing.simulated.plans import DEAD_LETTERS, KEYED, Plan
from headrace.testing.simulated.workloads import PATIENT_MS, KeyedWriter, Workload, member_config
from headrace.topics import TopicPartition

GROUP = "parallel"
_WORKERS = 3
_KEYS = 4
_HANDLER_S = (0.0, 0.001, 0.02, 0.3)
#: Of all handlings so many fail and are tried again; of all records so many are refused, whenever they are handled.
_FAILS = 0.1
_REFUSED = 20
_TIMES = EngineSettings(drain_s=5.0, commit_every_s=0.3)


class KeyedRecords(KeyedWriter):
    """Writes numbered records of a few keys, several at a time."""

    def _record(self, number: int) -> tuple[str | None, str]:
        key = f"key-{self.rng.randrange(_KEYS)}"
        return key, f"{self.name}:{number:05d}:{key}"

    async def _rest(self, sent: asyncio.Task[None]) -> None:
        await self.pause(0.1)


class _Workers:
    """The workers of one member: tasks that take pieces of work and wait when there are none."""

    def __init__(self, turns: Turns, host: Host, member: Member, handling: Handling) -> None:
        self._turns = turns
        self._host = host
        self._member = member
        self._handling = handling
        self._idle: list[asyncio.Future[None]] = []
        self._working: list[asyncio.Future[None]] = []

    def start(self) -> None:
        self._handling.prepare()
        self._member.wake_workers = self._wake
        self._turns.call(self._begin)

    def _begin(self) -> None:
        self._working = [self._host.start(self._work()) for _ in range(_WORKERS)]

    async def _work(self) -> None:
        chunk: WorkChunk | None = None
        while not self._member.is_closed:
            chunk = self._member.exchange_now(chunk, asyncio.current_task())
            if chunk is not None:
                await self._handling.work_async(chunk)
            elif not self._member.is_closed:
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(future)
                await future
        if chunk is not None:
            self._member.hand_in(chunk)

    def _wake(self, count: int) -> None:
        """Called with the member's lock held, by the poller's thread or by a worker."""
        self._member.idle -= min(count, self._member.idle)
        while self._idle and (count > 0 or self._member.is_closed):
            future = self._idle.pop()
            if not future.done():
                future.set_result(None)
                count -= 1

    def replace(self, chunk: WorkChunk) -> None:
        raise AssertionError("no handler is given up: Pool.stall_s is not set")

    def stop(self, seconds: float) -> None:
        async def end() -> None:
            await asyncio.wait(self._working, timeout=seconds)

        self._turns.call(end)


class _WorkEnded:
    """The condition that a poller waits for while it drains, in virtual time."""

    def __init__(self, turns: Turns, lock: threading.Lock) -> None:
        self._turns = turns
        self._lock = lock

    def wait(self, timeout: float) -> None:
        self._lock.release()
        try:
            self._turns.call(lambda: asyncio.sleep(timeout))
        finally:
            self._lock.acquire()

    def notify_all(self) -> None:
        """Whoever waits looks again soon anyway."""


class _Committing(ThreadedClient):
    """A consumer that writes down what is committed, and when that was asked for."""

    def __init__(self, turns: Turns, client: Any, history: History) -> None:
        super().__init__(turns, client)
        self._history = history

    def commit_async(self, offsets: Mapping[TopicPartition, Any], callback: Any = None) -> None:
        self._note(offsets)
        self._turns.call(lambda: self._client.commit_async(offsets, callback))

    def commit_sync(self, offsets: Mapping[TopicPartition, Any], timeout: float | None = None) -> None:
        self._note(offsets)
        self._turns.call(lambda: self._client.commit_sync(offsets, timeout))

    def _note(self, offsets: Mapping[TopicPartition, Any]) -> None:
        self._history.count("commits of parallel consumers")
        for partition, offset in offsets.items():
            self._history.handled.commits.append((partition, offset.offset, self._history.tick()))


class _DeadLetters:
    """The producer of dead letters: a record whose letter is acknowledged is finished."""

    def __init__(self, turns: Turns, producer: Any, history: History) -> None:
        self._turns = turns
        self._producer = producer
        self._history = history

    def send(self, topic: str, value: bytes, key: bytes | None, *, headers: Any, on_delivery: Any) -> None:
        text = value.decode()
        self._history.sent[DEAD_LETTERS].add(text)

        def delivered(error: Any, told: Any) -> None:
            if error is None:
                self._history.count("dead letters")
                self._history.handled.ended(text, self._history.tick())
            on_delivery(error, told)

        self._turns.call(
            lambda: self._producer.send(topic, value, key=key, headers=headers, on_delivery=delivered) and None
        )


class ParallelMember(Workload):
    """One member: a poller with its workers, in the order of keys. It leaves, or is killed, and comes back."""

    is_reading = True

    def __init__(self, cluster: SimulatedCluster, plan: Plan, history: History, name: str) -> None:
        super().__init__(cluster, plan, history, name)
        self._engine: Engine | None = None
        # One for all members, or they would have none in common.
        self._assignor = cluster.simulation.random_for("parallel").choice(("range", "cooperative-sticky"))

    async def run(self) -> None:
        while not self.is_stopping:
            ending = asyncio.ensure_future(self._end_some_time())
            try:
                await self.cluster.blocking(self._consume)
            finally:
                ending.cancel()
            self.history.count("parallel consumers ended")

    async def _end_some_time(self) -> None:
        """Stop or kill it after a while; stop it when all is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.rng.uniform(0.5, 2.0) * self.plan.duration_s
        while not self.is_stopping and loop.time() < until:
            await asyncio.sleep(0.1)
        is_killed = not self.is_stopping and self.rng.random() < 0.5
        while self._engine is None:
            await asyncio.sleep(0.1)
        if is_killed:
            self._engine.kill()
        else:
            self._engine.stop()

    def _consume(self, cluster: BlockingCluster) -> None:
        turns = cluster.turns
        producer = turns.call(lambda: self.cluster.producer(host=self.host, request_timeout_ms=PATIENT_MS))
        try:
            self._engine = self._make_engine(turns, producer)
            self._engine.run()
        finally:
            self._engine = None
            turns.call(lambda: producer.close(5))

    def _make_engine(self, turns: Turns, producer: Any) -> Engine:
        retry = Retry(local=50, backoff_s=(0.01, 0.1), dead_letters=DEAD_LETTERS)
        settings = CoreSettings.of(Pool(), Order.KEY, retry, Limits(), None, _WORKERS)
        letters: Any = _DeadLetters(turns, producer, self.history)
        member = Member(ParallelCore(settings), self.host.clock, GROUP, letters, _WORKERS)
        ended: Any = _WorkEnded(turns, member.lock)
        member.work_ended = ended
        handling = Handling(self._handle, False, True)

        def make_consumer(config: Mapping[str, Any]) -> Any:
            made = turns.call(lambda: self.cluster.consumer(host=self.host, **config))
            return _Committing(turns, made, self.history)

        workers = _Workers(turns, self.host, member, handling)
        timeout_ms = self.rng.choice((1_000, PATIENT_MS))
        return Engine(
            member,
            [KEYED],
            member_config(GROUP, self._assignor, timeout_ms),
            _TIMES,
            workers,
            handling,
            None,
            make_consumer,
        )

    async def _handle(self, record: Any) -> None:
        handled: Handled = self.history.handled
        value = bytes(record.value).decode()
        place = TopicPartition(record.topic, record.partition), record.offset
        handled.begins.append((*place, value, self.history.tick()))
        await self.pause(self.rng.choice(_HANDLER_S))
        if int(value.split(":")[1]) % _REFUSED == _REFUSED - 1:
            raise Reject("refused")
        if self.rng.random() < _FAILS:
            self.history.count("handlers failed")
            raise ValueError("a handler failed")
        self.history.count("records handled in parallel")
        handled.ended(value, self.history.tick())
