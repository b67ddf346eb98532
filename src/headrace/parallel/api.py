"""`run` and `ParallelConsumer`: one interface over the five models."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import inspect
import logging
import signal
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, ParamSpec, Unpack

from headrace.client.configs import common_config, has_no_effect, merge
from headrace.client.consumer.config import CONSUMER_CONFIGS
from headrace.client.consumer.keywords import ConsumerKeywords
from headrace.client.other_names import SAME, equivalent
from headrace.client.producer.blocking import Producer
from headrace.client.share.config import NOT_FOR_SHARES, SHARE_CONSUMER_CONFIGS
from headrace.config import ConfigError
from headrace.parallel.core import ParallelCore
from headrace.parallel.engine import Engine, EngineSettings
from headrace.parallel.errors import ParallelError
from headrace.parallel.handling import DESERIALIZERS, Handling, Kind, kind_of
from headrace.parallel.member import Member
from headrace.parallel.metrics import Snapshot, combine
from headrace.parallel.options import Consumers, CoreSettings, Limits, Model, Order, Pool, Ranges, Retry, Share, Window
from headrace.parallel.processes import Processes
from headrace.parallel.ranges import RangeEngine, RangeReaders
from headrace.parallel.sharing import ShareEngine
from headrace.parallel.transactions import Transactions
from headrace.parallel.workers import Coroutines, HandlerWorkers, Threads
from headrace.runtime import Clock
from headrace.runtime.real import RealClock
from headrace.runtime.signals import Asked, StopRequests, stop_signals

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger("headrace.parallel")

P = ParamSpec("P")

WORKERS_MAX = 10_000
_FORCED = {"enable.auto.commit": False}
_DEFAULTS: dict[str, Any] = {"partition.assignment.strategy": "cooperative-sticky"}
_HEARTBEAT_MS = 500
"""Of a consumer per thread or process: members learn with a heartbeat that the group rebalances, and with many of them
the first assignments take two rebalances. At Kafka's 3 s, partitions would lie idle for up to 6 s."""
_TRANSACTIONAL_DEFAULTS = {"isolation.level": "read_committed"}
_SHARE_WAIT_MS = 100
"""What is said of records goes along with fetches, each of which waits no longer than this for records."""
_TRANSACTION_TIMEOUT = {"transaction.timeout.ms": 10_000}
"""A transaction takes milliseconds; whoever takes over the partitions of a killed member waits for this."""


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """All that was chosen, checked. Can be sent to another process if the handler can."""

    handler: Callable[..., Any]
    topics: tuple[str, ...]
    group: str
    # Not shown: passwords are among them.
    config: dict[str, Any] = field(repr=False)
    producer_config: dict[str, Any] = field(repr=False)
    model: Model
    order: Order
    kind: Kind
    workers: int
    batch: int | None
    retry: Retry
    limits: Limits
    times: EngineSettings = field(default_factory=EngineSettings)
    transactional: bool = False

    def core_settings(self) -> CoreSettings:
        hands = 1 if isinstance(self.model, Consumers) else self.workers
        return CoreSettings.of(self.model, self.order, self.retry, self.limits, self.batch, hands)

    def handling(self) -> Handling:
        return Handling(self.handler, self.batch is not None, self.order is not Order.NONE, self.config)

    def consumer_config(self, number: int = 0) -> dict[str, Any]:
        """For one of the consumers: records stay bytes, workers deserialise them. Static members have their numbers."""
        own = {name: value for name, value in self.config.items() if name not in DESERIALIZERS}
        instance = own.get("group.instance.id")
        if instance is not None and isinstance(self.model, Consumers) and self.workers > 1:
            own["group.instance.id"] = f"{instance}-{number}"
        return own

    def share_config(self) -> dict[str, Any]:
        """For a member of a share group: no more records than there are workers, each acknowledged by itself."""
        own = {name: value for name, value in self.config.items() if name in SHARE_CONSUMER_CONFIGS}
        own = {name: value for name, value in own.items() if name not in DESERIALIZERS}
        return {
            "fetch.max.wait.ms": _SHARE_WAIT_MS,
            **own,
            "share.acknowledgement.mode": "explicit",
            "share.acquire.mode": "record_limit",
            "max.poll.records": self.workers,
        }

    def transactions(self, number: int, clock: Clock) -> Transactions | None:
        """The transactional producer of one member, by the name of the group and of the member.

        A static member that comes back takes its name over, and what it had left open is ended at once. Any other has a
        name of its own: the group's generation fences it, and its time-out ends what it leaves open.
        """
        if not self.transactional:
            return None
        instance = self.consumer_config(number).get("group.instance.id") or uuid.uuid4().hex
        name = self.producer_config.get("transactional.id") or self.group
        return Transactions(
            {**_TRANSACTION_TIMEOUT, **self.producer_config, "transactional.id": f"{name}-{instance}"}, clock
        )


class ParallelConsumer:
    """Consumes topics as a group, with many hands. `run()` here, or `start()` in the background and `stop()`.

        consumer = ParallelConsumer(handle, topics=["orders"], group="billing", config={"bootstrap.servers": "…"},
                                    model=Window(slot=100, slots=64, stall_s=30), order="key", workers=32,
                                    retry=Retry(topic="orders.retry", dead_letters="orders.dead"))
        consumer.run()

    The handler takes one record, or with `batch=N` a list of up to N. A plain function runs on threads (or, with
    `on="processes"`, in processes), an `async def` on an event loop. Every record is handled at least once; with
    `transactional=True` it goes to the retry topic or the dead letters exactly once, for those who read committed.
    """

    def __init__(
        self,
        handler: Callable[..., Any],
        *,
        topics: Collection[str] | str,
        group: str,
        config: Mapping[str, Any] | None = None,
        model: Model | None = None,
        order: Order | str = Order.KEY,
        on: Kind | str | None = None,
        workers: int = 16,
        batch: int | None = None,
        retry: Retry | None = None,
        limits: Limits | None = None,
        drain_s: float = 30.0,
        commit_every_s: float = 1.0,
        log_every_s: float = 60.0,
        transactional: bool = False,
        producer_config: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None:
        """Check all that was chosen. Nothing is connected before it is started.

        Args:
            handler: Called for every record, or with `batch` for every list of records.
            topics: The names of the topics, or one name.
            group: The consumer group: it shares the partitions out, and has the offsets.
            config: Settings of the consumer, by Kafka's names: `bootstrap.servers`, `auto.offset.reset` …
            model: `Pool()`, `Window(…)`, `Consumers(…)`, `Ranges(…)` or `Share()`; None is `Pool()`.
            order: `"key"`, `"partition"` or `"none"`: which records wait for one another.
            on: `"threads"`, `"async"` or `"processes"`; None goes by how the handler is written.
            workers: How many handlers run at once; with `Consumers()` how many members join the group.
            batch: The handler takes lists of up to so many records; None: one record.
            retry: What is done about a handler that fails; None is `Retry()`.
            limits: Bounds on what is held in memory; None is `Limits()`.
            drain_s: How long a partition that goes, or the end, waits for handlers under way.
            commit_every_s: How often offsets are committed.
            log_every_s: How often a line of figures is logged (`headrace.parallel`).
            transactional: Divert a record and commit its offset in one transaction.
            producer_config: Settings of the producer that writes to the retry topic and the dead letters. It has those
                of `config` that every client has (addresses, security).
            clock: Another clock than the machine's, for tests.
            **keywords: Settings of the consumer as keywords: `auto_offset_reset="earliest"`.
        """
        _check_keywords(keywords)
        given = merge(config, keywords)
        retry = retry or Retry()
        self.plan = ParallelPlan(
            handler=handler,
            topics=(topics,) if isinstance(topics, str) else tuple(topics),
            group=group,
            config={
                **_group_defaults(model, given),
                **(_TRANSACTIONAL_DEFAULTS if transactional else {}),
                **given,
                **_FORCED,
                "group.id": group,
            },
            producer_config=_producer_config(given, producer_config),
            model=model or Pool(),
            order=_order(order, model),
            kind=kind_of(handler, on),
            workers=workers,
            batch=batch,
            retry=retry,
            limits=limits or Limits(),
            times=EngineSettings(drain_s, commit_every_s, log_every_s),
            transactional=transactional,
        )
        _check(self.plan, given)
        self._set_up(clock or RealClock())

    @classmethod
    def of(cls, plan: ParallelPlan) -> ParallelConsumer:
        """From a plan that was checked before."""
        made = cls.__new__(cls)
        made.plan = plan
        made._set_up(RealClock())
        return made

    def _set_up(self, clock: Clock) -> None:
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engines: list[Engine | ShareEngine] = []
        self._threads: list[threading.Thread] = []
        self._producer: Producer | None = None
        self._processes: Any = None
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._left = 0
        self._is_stopping = False

    # --- running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Consume until `stop()`, Ctrl-C, SIGTERM or SIGHUP: then drain, commit and leave. A second ends it at once."""
        with self._signals():
            try:
                self.start()
                self.wait()
            except BaseException:
                self.kill()
                raise

    async def run_async(self) -> None:
        """The same from within an event loop: `async def` handlers run on it, everything else elsewhere."""
        loop = asyncio.get_running_loop()
        self._loop = loop if self.plan.kind is Kind.ASYNC else None
        # Starting asks the cluster whether the topics are there, which the loop must not wait for.
        starting = loop.run_in_executor(None, self.start)
        try:
            await asyncio.shield(starting)
            await loop.run_in_executor(None, self._ended.wait)
        except asyncio.CancelledError:
            self.stop()
            # What was being started when this was cancelled ends too, and not only what had been.
            await asyncio.wait([starting])
            if starting.exception() is None:
                await asyncio.shield(loop.run_in_executor(None, self._ended.wait))
            raise
        self.wait()

    def start(self) -> None:
        """Begin in the background."""
        if self._threads or self._processes is not None:
            raise ParallelError("this consumer was started already: make a new one")
        plan = self.plan
        if isinstance(plan.model, Consumers) and plan.model.processes:
            from headrace.parallel.consumer_processes import ConsumerProcesses

            self._processes = ConsumerProcesses(plan, self._all_ended)
            self._processes.start()
            if self._is_stopping:
                self._processes.stop()
            return
        self._producer = _make_producer(plan)
        count = plan.workers if isinstance(plan.model, Consumers) else 1
        self._engines = [self._make_engine(number) for number in range(count)]
        self._left = count
        for number, engine in enumerate(self._engines):
            thread = threading.Thread(
                target=self._run_engine, args=(engine,), name=f"headrace-{plan.group}-poller-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        if self._is_stopping:
            # It was asked for when there was nobody yet to ask.
            self.stop()

    def stop(self) -> None:
        """Ask to drain, commit and leave; `wait()` for it. From any thread, at any time, any number of times."""
        self._is_stopping = True
        for engine in self._engines:
            engine.stop()
        if self._processes is not None:
            self._processes.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Until it has ended; raises what it ended with. False when the time (seconds) was over first."""
        if not self._ended.wait(timeout):
            return False
        if self._error is not None:
            raise self._error
        return True

    def has_ended(self, timeout: float) -> bool:
        """Whether it has ended, well or not, after waiting for that so many seconds."""
        return self._ended.wait(timeout)

    def kill(self) -> None:
        """End at once: nothing is drained, nothing committed. Unfinished records are handled again by others."""
        if self._processes is not None:
            self._processes.kill()
        for engine in self._engines:
            engine.kill()

    def __enter__(self) -> ParallelConsumer:
        self.start()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.stop()
        if kind is None:
            self.wait()
        else:
            self._ended.wait()

    # --- looking ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Counters, and every partition's state."""
        if self._processes is not None:
            found: list[Snapshot] = self._processes.snapshots()
        else:
            found = [engine.member.snapshot() for engine in self._engines]
        return combine(found, self.plan.group)

    def collect(self) -> Iterator[Metric]:
        """The snapshot as prometheus-client takes it: `headrace.metrics.serve(9404, consumer)`."""
        return self.snapshot().collect()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _make_engine(self, number: int) -> Engine | ShareEngine:
        plan = self.plan
        if isinstance(plan.model, Share):
            return ShareEngine(
                list(plan.topics),
                plan.share_config(),
                plan.handling(),
                plan.kind,
                plan.model,
                plan.retry,
                plan.workers,
                self._producer,
                plan.times.drain_s,
                self._clock,
                self._loop,
            )
        settings = plan.core_settings()
        is_own = isinstance(plan.model, Consumers)
        count = 1 if is_own else plan.workers
        member = Member(ParallelCore(settings), self._clock, plan.group, self._producer, count)
        handling, config = plan.handling(), plan.consumer_config(number)
        transactions = plan.transactions(number, self._clock)
        topics = [*plan.topics, *settings.retry_topics]
        if isinstance(plan.model, Ranges):
            batch = plan.batch or 1
            readers = RangeReaders(member, handling, count, plan.model.size, config, batch)
            engine = RangeEngine(member, topics, config, plan.times, readers, handling, transactions)
            engine.readers = readers
            return engine
        workers: HandlerWorkers | None
        if plan.kind is Kind.ASYNC:
            workers = Coroutines(member, handling, count, self._loop)
        elif is_own:
            workers = None
        elif plan.kind is Kind.PROCESSES:
            workers = Processes(member, handling, count)
        else:
            workers = Threads(member, handling, count, plan.limits.hanging)
        return Engine(member, topics, config, plan.times, workers, handling, transactions)

    def _run_engine(self, engine: Engine | ShareEngine) -> None:
        error: BaseException | None = None
        try:
            engine.run()
        except BaseException as raised:  # noqa: BLE001 - raised again where it is waited for
            error = raised
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
            if error is not None and self._error is None:
                self._error = error
                log.error("%s: consuming ends: %r", self.plan.group, error)
        if error is not None:
            self.stop()
        if is_last:
            if self._producer is not None:
                self._producer.close(10.0)
            self._ended.set()

    def _all_ended(self, error: BaseException | None) -> None:
        self._error = error
        self._ended.set()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        requests = StopRequests(RealClock().monotonic)

        def on_signal(number: int, frame: FrameType | None) -> None:
            asked = requests.classify()
            if asked is Asked.AGAIN:
                raise KeyboardInterrupt
            if asked is Asked.FIRST:
                log.info("%s: stopping (drain, commit, leave); once more to stop at once", self.plan.group)
                self.stop()

        previous = {number: signal.signal(number, on_signal) for number in stop_signals()}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _with_options_of(made: Callable[P, ParallelConsumer]) -> Callable[[Callable[..., None]], Callable[P, None]]:
    """For a function that makes one: it takes the same options, for type checkers and for `help`."""

    def give(function: Callable[..., None]) -> Callable[P, None]:
        function.__signature__ = inspect.signature(made).replace(return_annotation="None")  # type: ignore[attr-defined]  # what `inspect` looks for
        return function

    return give


@_with_options_of(ParallelConsumer)
def run(*args: Any, **options: Any) -> None:
    """Consume until stopped: `ParallelConsumer(handler, …).run()`, with the same options."""
    ParallelConsumer(*args, **options).run()


def _group_defaults(model: Model | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """How members of a classic group share partitions, and how often they give a sign of life. Who chooses the
    session's length chooses that too; in a group of the consumer protocol the coordinator decides both."""
    if isinstance(model, Share) or str(given.get("group.protocol", "")).lower() == "consumer":
        return {}
    is_ours = isinstance(model, Consumers) and "session.timeout.ms" not in given
    return _DEFAULTS | ({"heartbeat.interval.ms": _HEARTBEAT_MS} if is_ours else {})


# --- checks -----------------------------------------------------------------------------------------------------------


def _check_keywords(keywords: Iterable[str]) -> None:
    """Refuse a keyword that is neither an option nor a setting: a misspelt option would be a setting without effect."""
    options = [name for name in inspect.signature(ParallelConsumer).parameters if name not in ("handler", "keywords")]
    for name in keywords:
        dotted = name.replace("_", ".")
        if dotted in CONSUMER_CONFIGS or dotted in SAME or has_no_effect(dotted) or dotted.startswith(DESERIALIZERS):
            continue
        near = difflib.get_close_matches(name, [*options, *ConsumerKeywords.__annotations__], n=1, cutoff=0.7)
        hint = f"; did you mean {near[0]}?" if near else equivalent(dotted)
        raise TypeError(f"consuming in parallel has no option {name}, and the consumer no setting {dotted}{hint}")


def _order(order: Order | str, model: Model | None) -> Order:
    try:
        return Order(order)
    except ValueError:
        raise ConfigError({"order": f"order is partition, key or none, not {order!r}"}) from None


def _kinds_of_values(plan: ParallelPlan) -> dict[str, str]:
    """What is none of the things that an option takes: Python would find out with the first record, if at all."""
    problems: dict[str, str] = {}
    handler: Any = plan.handler
    given_values: tuple[tuple[str, Any, tuple[type, ...]], ...] = (
        ("model", plan.model, (Consumers, Ranges, Share, Pool, Window)),
        ("retry", plan.retry, (Retry,)),
        ("limits", plan.limits, (Limits,)),
    )
    for name, value, kinds in given_values:
        if not isinstance(value, kinds):
            given = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
            problems[name] = f"{name} is {' or '.join(f'{kind.__name__}(…)' for kind in kinds)}, not {given}"
    if not callable(handler):
        problems["handler"] = f"the handler is a function that takes a record, not {handler!r}"
        return problems
    try:
        inspect.signature(handler).bind(None)
    except TypeError as error:
        what = "a list of records" if plan.batch is not None else "a record"
        name = getattr(handler, "__qualname__", repr(handler))
        problems["handler"] = f"the handler is called with {what}, and {name} cannot be: {error}"
    except ValueError:
        pass  # Written in C, and says nothing of its parameters.
    return problems


def _check(plan: ParallelPlan, given: Mapping[str, Any]) -> None:
    problems = _kinds_of_values(plan)
    if problems:
        raise ConfigError(problems)
    if not plan.topics or not all(isinstance(topic, str) and topic for topic in plan.topics):
        problems["topics"] = "topics is a list of at least one topic's name"
    if not plan.group:
        problems["group"] = "group is the name of the consumer group"
    if not 1 <= plan.workers <= WORKERS_MAX:
        problems["workers"] = f"workers is 1 to {WORKERS_MAX}, not {plan.workers}"
    if plan.batch is not None and plan.batch < 1:
        problems["batch"] = f"batch is at least 1 (or None: one record a call), not {plan.batch}"
    if given.get("enable.auto.commit") in (True, "true"):
        problems["enable.auto.commit"] = "offsets are committed by what is finished: enable.auto.commit cannot be true"
    for topic in (plan.retry.topic, plan.retry.dead_letters):
        if topic is not None and topic in plan.topics:
            problems["retry"] = f"{topic} is read as a topic and written as a retry or dead-letter topic: take another"
    poll_interval_s = int(plan.config.get("max.poll.interval.ms", 300_000)) / 1000
    if not 0 <= plan.times.drain_s < poll_interval_s:
        problems["drain_s"] = (
            f"drain_s={plan.times.drain_s} must be less than max.poll.interval.ms ({poll_interval_s:g} s): a rebalance "
            "does not wait longer for a member"
        )
    if isinstance(plan.model, Ranges):
        if plan.order is not Order.NONE:
            problems["order"] = "ranges of one partition are handled side by side: the range model needs order='none'"
        if plan.kind is not Kind.THREADS:
            problems["on"] = "the range model runs plain functions on threads"
    if isinstance(plan.model, Window) and plan.batch is not None and plan.batch != plan.model.slot:
        problems["batch"] = f"in the window model a batch is a slot: batch is {plan.model.slot}, as slot, or None"
    if isinstance(plan.model, Consumers) and plan.kind is Kind.PROCESSES and not plan.model.processes:
        problems["on"] = "for a consumer per process take model=Consumers(processes=True)"
    if isinstance(plan.model, Share):
        problems.update(_problems_of_sharing(plan, given))
    if plan.transactional:
        if plan.retry.topic is None and plan.retry.dead_letters is None:
            problems["transactional"] = (
                "transactional=True makes one step of diverting a record and committing its offset: give Retry a topic "
                "or dead_letters to divert to"
            )
        if plan.config.get("isolation.level") != "read_committed":
            problems["isolation.level"] = (
                "transactional=True needs isolation.level=read_committed, or a new owner of a partition would take up "
                "its offset before the old one's transaction has ended"
            )
    if problems:
        raise ConfigError(problems)


def _problems_of_sharing(plan: ParallelPlan, given: Mapping[str, Any]) -> dict[str, str]:
    problems = {name: f"{name} is not for share groups: {why}" for name, why in NOT_FOR_SHARES.items() if name in given}
    if plan.order is Order.PARTITION:
        problems["order"] = "a share group has no order: each record is handed out by itself. Take order='none'"
    if plan.kind is Kind.PROCESSES:
        problems["on"] = "the share model runs handlers on threads or on an event loop"
    if plan.batch is not None:
        problems["batch"] = "the share model hands out records one by one: leave batch out"
    if plan.retry.topic is not None:
        problems["retry"] = "a share group delivers what failed again by itself: leave Retry.topic out"
    if plan.transactional:
        problems["transactional"] = "what a share group has finished is no offset that a transaction could commit"
    return problems


def _producer_config(given: Mapping[str, Any], extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a producer for the same cluster needs, and what the user adds."""
    shared = {name: value for name, value in common_config(given).items() if name != "client.id"}
    return {**shared, "linger.ms": 0, **(extra or {})}


def _make_producer(plan: ParallelPlan) -> Producer | None:
    """A producer, if records can go anywhere; makes sure at once that the topics are there."""
    topics = [topic for topic in (plan.retry.topic, plan.retry.dead_letters) if topic is not None]
    if not topics:
        return None
    producer = Producer({name: value for name, value in plan.producer_config.items() if name != "transactional.id"})
    try:
        for topic in topics:
            producer.partitions_for(topic)
    except BaseException:
        producer.close(0)
        raise
    if plan.transactional:
        # Members have their own, which produce in transactions.
        producer.close(0)
        return None
    return producer
