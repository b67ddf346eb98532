"""Parallel consumers in a run: pollers, cores, workers, retries and dead letters are those of `headrace.parallel`.

A poller is a blocking program on a thread, in turns with the simulation, and so is each reader of ranges. Handlers are
tasks of the simulation where the model has workers: how long one takes, and who comes first, is the seed's to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from headrace.errors import FencedInstanceIdError
from headrace.parallel.core import ParallelCore
from headrace.parallel.engine import Engine, EngineSettings
from headrace.parallel.errors import BatchFailedError, Reject, RetryLater
from headrace.parallel.handling import Handling
from headrace.parallel.member import Member
from headrace.parallel.options import Consumers, CoreSettings, Limits, Order, Ranges
from headrace.parallel.ranges import RangeEngine
from headrace.parallel.retries import attempts_of, due_ms_of
from headrace.parallel.transactions import Transactions
from headrace.runtime.simulated import Host, HostDiedError
from headrace.testing.simulated.blocking import BlockingCluster, Turns
from headrace.testing.simulated.cluster import SimulatedCluster
from headrace.testing.simulated.history import History
from headrace.testing.simulated.holdings import HandlerCall, Holdings
from headrace.testing.simulated.plans import Plan
from headrace.testing.simulated.turned import (
    NotingConsumer,
    NotingProducer,
    NotingTransactions,
    TurnedCondition,
    TurnedCoroutines,
    TurnedRangeReaders,
)
from headrace.testing.simulated.variants import (
    DRAIN_S,
    KEYED,
    LATER_S,
    PARALLEL_GROUP,
    RETRIES,
    STALL_S,
    VARIANTS,
    RecordKind,
    kind_of,
)
from headrace.testing.simulated.workloads import PATIENT_MS, KeyedWriter, Workload, member_config
from headrace.topics import TopicPartition

_WORKERS = 3
_KEYS = 4
_HANDLER_S = (0.0, 0.001, 0.02, 0.3)
#: Of all handlings so many fail and are tried again; so many hang, where that is noticed.
_FAILS = 0.1
_HANGS = 0.04
_HANGS_S = 3600.0
#: Clocks tell milliseconds, and a wait is counted from when that was asked for.
_EARLY_MS = 2
_TRANSACTION_TIMEOUT_MS = 3_000
#: So long, and a little more, a member waits for the group when a coordinator loses its power and nobody tells it.
_POLL_INTERVAL_MS = 15_000
_TIMES = EngineSettings(drain_s=DRAIN_S, commit_every_s=0.3)


class KeyedRecords(KeyedWriter):
    """Writes numbered records of a few keys, several at a time."""

    def _record(self, number: int) -> tuple[str | None, str]:
        key = f"key-{self.rng.randrange(_KEYS)}"
        return key, f"{self.name}:{number:05d}:{key}"

    async def _rest(self, sent: asyncio.Task[None]) -> None:
        await self.pause(0.1)


class ParallelMember(Workload):
    """One member of the group: a poller with its workers. It leaves, is stopped at once, or dies, and comes back."""

    is_reading = True

    def __init__(self, cluster: SimulatedCluster, plan: Plan, history: History, name: str) -> None:
        super().__init__(cluster, plan, history, name)
        self._variant = VARIANTS[plan.parallel]
        self._engine: Engine | None = None
        self._readers: TurnedRangeReaders | None = None
        self._lives = 0
        self._calm_at = 0.0
        self._process: Host = self.host
        self._holdings = self._hold()
        # One for all members, or they would have none in common.
        rng = cluster.simulation.random_for("parallel")
        self._assignor = rng.choice(("range", "cooperative-sticky"))
        # Not with the cooperative one: a static member that dies before it has given up what it should comes back to
        # its new share, and nobody calls for the rebalance in which others would be given the rest.
        self._is_static = self._assignor == "range" and rng.random() < 0.5

    async def run(self) -> None:
        self._calm_at = asyncio.get_running_loop().time() + self.plan.duration_s
        while not self.is_stopping:
            self._lives += 1
            self._process = self.cluster.client_host(f"{self.name}-{self._lives}")
            self._holdings = self._hold()
            programs: list[Turns] = []

            def consume(cluster: BlockingCluster, programs: list[Turns] = programs) -> None:
                programs.append(cluster.turns)
                self._consume(cluster.turns)

            consuming = self._process.start(self.cluster.blocking(consume))
            ending = asyncio.ensure_future(self._end_some_time())
            try:
                await consuming
            except HostDiedError:
                # Nobody serves its threads any more: whatever they ask for next ends them.
                for turns in programs + ([] if self._readers is None else self._readers.turns):
                    turns.join()
                self.history.count("parallel consumers died")
            except FencedInstanceIdError:
                # Its id was given by a coordinator that was replaced before it had stored it: whoever runs it has to
                # start it anew.
                self.history.count("static parallel consumers fenced")
            except Exception as error:
                self.history.handled.broken.append(f"{self._process.name} ended with {error!r}")
                raise
            finally:
                ending.cancel()
                self._engine = self._readers = None
            self.history.count("parallel consumers ended")

    async def _end_some_time(self) -> None:
        """Stop it after a while, in order or at once, or let its process die; stop it when all is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.rng.uniform(0.2, 1.2) * self.plan.duration_s
        # When the faults are over it stays, so that all comes to an end.
        while not self.is_stopping and (loop.time() < until or until > self._calm_at):
            await asyncio.sleep(0.1)
        how = "stop" if self.is_stopping else self.rng.choice(("stop", "kill", "die"))
        if how == "die":
            self._process.kill(power_loss=self.rng.random() < 0.5)
            return
        while self._engine is None:
            await asyncio.sleep(0.1)
        if how == "kill":
            self._holdings.is_killed = True
            self._engine.kill()
        else:
            self._engine.stop()

    # --- what it is made of -----------------------------------------------------------------------------------------

    @property
    def _workers(self) -> int:
        return 1 if isinstance(self._variant.model, Consumers) else _WORKERS

    def _hold(self) -> Holdings:
        host = self._process
        return Holdings(host.name, self._variant, self._workers, self.history.handled, host.clock)

    def _consume(self, turns: Turns) -> None:
        host = self._process
        producer = turns.call(lambda: self.cluster.producer(host=host, request_timeout_ms=PATIENT_MS))
        try:
            self._engine = self._make_engine(turns, NotingProducer(turns, producer, self.history, self._holdings))
            self._engine.run()
        finally:
            turns.call(lambda: producer.close(5))

    def _make_engine(self, turns: Turns, letters: Any) -> Engine:
        variant, host = self._variant, self._process
        workers = self._workers
        settings = CoreSettings.of(variant.model, variant.order, variant.retry, Limits(), variant.batch, workers)
        member = Member(ParallelCore(settings), host.clock, PARALLEL_GROUP, letters, workers)
        added: Any = TurnedCondition(turns, member.lock)
        ended: Any = TurnedCondition(turns, member.lock)
        member.work_added, member.work_ended = added, ended
        config = member_config(self.plan, PARALLEL_GROUP, self._assignor, self.rng.choice((1_000, PATIENT_MS)))
        config["max_poll_interval_ms"] = _POLL_INTERVAL_MS
        if self._is_static:
            config["group_instance_id"] = self.name

        def make_consumer(config: Mapping[str, Any]) -> Any:
            made = turns.call(lambda: self.cluster.consumer(host=host, **config))
            return NotingConsumer(turns, made, self.history, self._holdings)

        arguments = member, list(variant.topics), config, _TIMES
        transactions = self._transactions(turns) if variant.is_transactional else None
        if isinstance(variant.model, (Consumers, Ranges)):

            def handle(record: Any) -> None:
                turns.call(lambda: self._handle(record))

            handling = Handling(handle, False, variant.order is not Order.NONE)
            if isinstance(variant.model, Consumers):
                return Engine(*arguments, None, handling, transactions, make_consumer)
            readers = TurnedRangeReaders(
                turns, self.cluster, host, member, handling, workers, variant.model.size, _reading(config)
            )
            self._readers = readers
            engine = RangeEngine(*arguments, readers, handling, transactions, make_consumer)
            engine.readers = readers
            return engine
        handler = self._handle if variant.batch is None else self._handle_batch
        handling = Handling(handler, variant.batch is not None, variant.order is not Order.NONE)
        coroutines = TurnedCoroutines(turns, member, handling, workers)
        return Engine(*arguments, coroutines, handling, transactions, make_consumer)

    def _transactions(self, turns: Turns) -> Transactions:
        """As `ParallelPlan.transactions`: a member has its former name again only where the group knows it by that."""
        host = self._process
        name = f"{PARALLEL_GROUP}-{self.name}" if self._is_static else f"{PARALLEL_GROUP}-{host.name}"

        def make_producer(config: Mapping[str, Any]) -> Any:
            made = turns.call(lambda: self.cluster.producer(host=host, **config))
            return NotingTransactions(turns, made, self.history, self._holdings)

        config = {
            "transactional_id": name,
            "transaction_timeout_ms": _TRANSACTION_TIMEOUT_MS,
            "request_timeout_ms": PATIENT_MS,
        }
        return Transactions(config, host.clock, make_producer)

    # --- handlers ---------------------------------------------------------------------------------------------------

    async def _handle(self, record: Any) -> None:
        call = self._begin(record)
        try:
            if self._variant.can_stall and self.rng.random() < _HANGS:
                await self._hang(call)
            await self.pause(self.rng.choice(_HANDLER_S))
        except asyncio.CancelledError:
            self._holdings.hangs(call)
            raise
        try:
            self._finish(call)
        except (Reject, RetryLater, ValueError):
            self._holdings.failed(call)
            raise
        self._succeed([call])

    async def _handle_batch(self, records: list[Any]) -> None:
        """One after the other. At the first that fails it says which are left, or does not."""
        calls = [self._begin(record) for record in records]
        try:
            await self._handle_calls(calls, records)
        except asyncio.CancelledError:
            for call in calls:
                self._holdings.hangs(call)
            raise

    async def _handle_calls(self, calls: list[HandlerCall], records: list[Any]) -> None:
        for done, call in enumerate(calls):
            if self.rng.random() < _HANGS:
                for other in calls:
                    if other is not call:
                        # They hang with it, and are given up together.
                        self.history.handled.failed(other.piece)
                        self._holdings.hangs(other)
                await self._hang(call)
            await self.pause(self.rng.choice(_HANDLER_S))
            try:
                self._finish(call)
            except (Reject, RetryLater, ValueError) as error:
                is_told = len(calls) > 1 and self.rng.random() < 0.5
                for failed in calls[done:] if is_told else calls:
                    self._holdings.failed(failed)
                if len(calls) == 1:
                    raise
                for left in calls[done + 1 :]:
                    self.history.handled.failed(left.piece)
                if is_told:
                    self._succeed(calls[:done])
                    raise BatchFailedError(records[done:]) from error
                for other in calls[:done]:
                    self.history.handled.failed(other.piece)
                raise ValueError("a batch failed") from error
        self._succeed(calls)

    def _begin(self, record: Any) -> HandlerCall:
        handled, tick = self.history.handled, self.history.tick()
        value, rounds = bytes(record.value).decode(), attempts_of(record) if record.topic != KEYED else 0
        partition = TopicPartition(record.topic, record.partition)
        handled.begins.append((partition, record.offset, value, tick))
        # How long a record waits is decided when it comes: a clock that was set back since does not count.
        is_early = due_ms_of(record) > self._process.clock.now_ms() + _EARLY_MS
        if record.topic == RETRIES and is_early and not self.plan.steps_clocks:
            handled.broken.append(f"{partition}: {value!r} at {record.offset} was begun before it was due")
        return self._holdings.begin(partition, record.offset, (value, rounds))

    async def _hang(self, call: HandlerCall) -> None:
        self.history.count("handlers hung")
        self.history.handled.failed(call.piece)
        self._holdings.hangs(call)
        await asyncio.sleep(_HANGS_S)

    def _finish(self, call: HandlerCall) -> None:
        """What a handler's end is: as the record's kind says, or by chance."""
        handled, (value, rounds) = self.history.handled, call.piece
        kind = kind_of(value, self._variant)
        if kind is RecordKind.REFUSED:
            handled.failed(call.piece)
            raise Reject("refused")
        if kind is RecordKind.LATER and rounds == 0:
            handled.failed(call.piece)
            raise RetryLater(LATER_S)
        if kind is RecordKind.DOOMED or self.rng.random() < _FAILS:
            self.history.count("handlers failed")
            handled.failed(call.piece)
            raise ValueError("a handler failed")

    def _succeed(self, calls: list[HandlerCall]) -> None:
        """Handlers return now. One that took so long may have been given up: nobody hears of it then."""
        handled, holdings = self.history.handled, self._holdings
        for call in calls:
            self.history.count("records handled in parallel")
            handled.ended(call.piece, self.history.tick())
            if self._variant.can_stall and self._process.clock.monotonic() >= call.begun_s + STALL_S:
                handled.failed(call.piece)
                holdings.hangs(call)
            else:
                holdings.succeeded(call)


def _reading(config: Mapping[str, Any]) -> dict[str, Any]:
    """What readers of ranges are configured with, of what the member of the group is."""
    names = ("isolation_level", "request_timeout_ms")
    return {name.replace("_", "."): config[name] for name in names}
