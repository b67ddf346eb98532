"""What both consumers share: configuration, interceptors, one user at a time, and all that needs no waiting."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Concatenate, ParamSpec, TypeVar

from headrace.assignors import Assignor, AssignorError, resolve
from headrace.client.arguments import check_listener, partitions_of
from headrace.client.cluster.drivers import AsyncClient, BlockingClient
from headrace.client.compiled import begin_loading
from headrace.client.configs import ConnectionConfig, merge
from headrace.client.consumer._chunks import FetchedChunk
from headrace.client.consumer._classic_membership import rebalance_protocol
from headrace.client.consumer._collecting import COLUMNS_ROWS_MAX
from headrace.client.consumer._commits import CommitCallback, Offsets
from headrace.client.consumer._core import ConsumerCore
from headrace.client.consumer._fetching import Fetcher
from headrace.client.consumer._operations import ConsumerOperation
from headrace.client.consumer._subscription import RebalanceListener, SubscriptionPattern, TopicPartitionState
from headrace.client.consumer.config import ConsumerSettings, read_consumer_config
from headrace.client.consumer.errors import (
    CallbackInterruptedError,
    ConcurrentAccessError,
    ConsumerForkedError,
    IllegalStateError,
    WakeupError,
)
from headrace.client.consumer.records import (
    EMPTY,
    ConsumerGroupMetadata,
    ConsumerRecord,
    ConsumerRecords,
    Deserializers,
    OffsetAndMetadata,
    PartitionColumns,
)
from headrace.client.errors import ClientClosedError
from headrace.client.flows import Flow, Task, UserCode
from headrace.client.serializers import load, make_deserializer
from headrace.client.unclosed import weakly
from headrace.config import ConfigError, check_plain_setting
from headrace.errors import RequestTimedOutError
from headrace.functions import check_has_run, check_plain, is_generator
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.client.consumer")

CLOSE_TIMEOUT_S = 30.0
ITERATION_POLL_S = 1.0

_numbers = itertools.count(1)

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound="ConsumerBase")


class ConsumerSetup:
    """A consumer's configuration, read; and the objects that it names."""

    def __init__(self, config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> None:
        given = merge(config, keywords)
        self.values = read_consumer_config(given)
        if not self.values["client.id"]:
            group, instance = self.values["group.id"], self.values["group.instance.id"]
            number = instance if group is not None and instance else next(_numbers)
            self.values["client.id"] = f"consumer-{group}-{number}" if group is not None else f"consumer-{number}"
        self.settings = ConsumerSettings.of(self.values)
        self.connection = ConnectionConfig.of(self.values)
        whole = {**given, **self.values}
        self.key_deserializer = make_deserializer(self.values["key.deserializer"], whole, is_key=True)
        self.value_deserializer = make_deserializer(self.values["value.deserializer"], whole, is_key=False)
        self.deserializers = Deserializers(self.key_deserializer, self.value_deserializer)
        self.assignors = _assignors(self.values["partition.assignment.strategy"])
        self.interceptors = [_interceptor(one, whole) for one in self.values["interceptor.classes"]]

    def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
        for interceptor in self.interceptors:
            try:
                changed = interceptor.on_consume(records)
            except Exception:
                log.exception("an interceptor's on_consume raised; the records go on as they were")
                continue
            if changed is not None:
                records = changed if isinstance(changed, ConsumerRecords) else ConsumerRecords.of(changed)
        return records

    def on_commit(self, offsets: Offsets) -> None:
        for interceptor in self.interceptors:
            try:
                check_has_run(interceptor.on_commit(offsets), "an interceptor's on_commit")
            except Exception:
                log.exception("an interceptor's on_commit raised")

    def close(self) -> None:
        for made in (self.key_deserializer, self.value_deserializer, *self.interceptors):
            end = getattr(made, "close", None)
            if end is None:
                continue
            try:
                end()
            except Exception:
                log.exception("%s.close raised", type(made).__name__)


def _assignors(given: Iterable[Any]) -> list[Assignor]:
    name = "partition.assignment.strategy"
    try:
        made = [resolve(one) for one in given]
        rebalance_protocol(made)
    except (AssignorError, ValueError) as error:
        raise ConfigError({name: f"{name}: {error}"}) from error
    names = [assignor.name for assignor in made]
    if len(set(names)) != len(names):
        raise ConfigError({name: f"{name} has two assignors of the same name: {', '.join(names)}"})
    return made


def _interceptor(given: Any, config: Mapping[str, Any]) -> Any:
    made = load(given, "interceptor.classes", {}) if isinstance(given, str) else given
    if isinstance(made, type):
        made = made()
    for method in ("on_consume", "on_commit"):
        if not callable(getattr(made, method, None)):
            raise ConfigError({"interceptor.classes": f"interceptor {given!r} has no method {method}"})
    # What on_consume gives is gone through, so it may be a generator.
    for method in ("on_commit",) if is_generator(made.on_consume) else ("on_consume", "on_commit"):
        check_plain_setting("interceptor.classes", getattr(made, method), method)
    if hasattr(made, "configure"):
        made.configure(config)
    return made


def exclusive(
    method: Callable[Concatenate[C, P], T],
) -> Callable[Concatenate[C, P], T]:
    """One user at a time: whoever is inside may come in again (from a listener), anybody else is refused at once.

    Between the look at who is inside and the assignment there is no call, and on the way out there is none at all: so
    there is no place where the interpreter lets another thread in, or a signal's handler that raises.
    """

    @functools.wraps(method)
    def guarded(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        me = self._identify()
        user = self._user
        if user is not None and user != me:
            raise self._refusal()
        self._user = me
        try:
            if user is None:
                self._settle()
            return method(self, *args, **kwargs)
        finally:
            self._user = user

    return guarded


def exclusive_async(
    method: Callable[Concatenate[C, P], Awaitable[T]],
) -> Callable[Concatenate[C, P], Coroutine[Any, Any, T]]:
    """`exclusive`, for what is awaited."""

    @functools.wraps(method)
    async def guarded(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        me = self._identify()
        user = self._user
        if user is not None and user != me:
            user = await self._left_by_the_cancelled(me)
        self._user = me
        try:
            if user is None:
                self._settle()
            return await method(self, *args, **kwargs)
        finally:
            self._user = user

    return guarded


class IterationProgress:
    """How far an iteration has come in a piece of records: `taken` of them were handed out."""

    __slots__ = ("chunk", "columns", "row", "state", "steps", "taken")

    def __init__(self, state: TopicPartitionState, chunk: FetchedChunk, steps: list[int] | None) -> None:
        self.state, self.chunk, self.taken = state, chunk, 0
        self.columns, self.row = chunk.place
        self.steps = steps
        """How many rows count as read after so many records; None: as many, since no interceptor changed them."""

    @property
    def rows(self) -> int:
        return self.taken if self.steps is None else self.steps[self.taken]


def _steps(given: list[ConsumerRecord], left: list[ConsumerRecord]) -> list[int]:
    """What an interceptor took out counts as read with the record before it; what it left, when it is handed out, in
    whatever order. So a commit never covers a record that is still to come."""
    place = {record.offset: row for row, record in enumerate(given)}
    steps = [len(given)]
    for record in reversed(left):
        steps.append(min(steps[-1], place.get(record.offset, len(given))))
    steps.reverse()
    return steps


class ConsumerBase(ABC):
    """What needs no waiting, the same for both; and what comes before a wait and after it, around which each class has
    its own few lines that block or are awaited.

    Subclasses give `_connect()`: the client that the core is made with.
    """

    _setup: ConsumerSetup
    _client: BlockingClient | AsyncClient | None
    _core: ConsumerCore | None
    _pid: int
    _fetcher: Fetcher
    """The core's, once there is one."""
    _progress: IterationProgress | None
    _closed: bool = False
    _is_closing: bool = False
    """Whether close() was called: it is not begun twice (by a listener that it calls), nor does a wakeup end it."""
    _is_in_listener: bool = False
    """Whether code of the user's is being run that a rebalance waits for."""
    _wakeup_asked: bool = False
    _is_quiet: bool = False
    """Whether nothing can have happened since the last poll but what the core itself waits for; only the blocking
    consumer ever says so (see its `_poll`)."""
    _user: Any = None
    """The thread or task that is inside."""
    _identify: Callable[[], Any]
    _kind: str
    """What is identified: a thread or a task."""
    _forked: str
    """What to say in a child of the `{pid}` that this consumer belongs to."""

    def _refusal(self) -> ConcurrentAccessError:
        return ConcurrentAccessError(
            f"this consumer is in use by another {self._kind}: a consumer is not safe for several. Give each "
            f"{self._kind} its own, or hand records over; only wakeup() may be called from anywhere"
        )

    async def _left_by_the_cancelled(self, me: Any) -> Any:
        """Who is inside once a task that was cancelled has left; refuses to wait for any other."""
        raise self._refusal()

    def _begin_iteration(
        self, found: tuple[TopicPartitionState, FetchedChunk, list[ConsumerRecord]]
    ) -> tuple[IterationProgress, list[ConsumerRecord], int]:
        state, chunk, records = found
        steps = None
        if self._setup.interceptors:
            given = records
            records = list(self._setup.on_consume(ConsumerRecords.of(given)))
            steps = _steps(given, records)
        self._progress = progress = IterationProgress(state, chunk, steps)
        core = self._core
        assert core is not None
        return progress, records, core.subscriptions.version

    def _settle(self) -> None:
        """Whenever the application comes in: what it was given counts as read, and nothing but that."""
        # Whoever comes in from outside is in no listener, whatever interrupted the one that was called last.
        self._is_in_listener = False
        core = self._core
        if core is None:
            return
        core.fetcher.take_back()
        progress = self._progress
        if progress is None or progress.columns is None:
            return
        state = progress.state
        rows = progress.rows
        if rows and state.chunks and state.chunks[0] is progress.chunk:
            core.fetcher.take_to(state, progress.chunk, progress.columns, progress.row + rows)

    def _use(self) -> ConsumerCore:
        """The core, when it may be used; made on first use."""
        self._is_quiet = False
        self._check_open()
        if self._pid != os.getpid():
            raise ConsumerForkedError(self._forked.format(pid=self._pid))
        core = self._core
        if core is None:
            core = self._start()
        return core

    def _start(self) -> ConsumerCore:
        setup = self._setup
        client = self._connect()
        core = ConsumerCore(
            client.core, setup.settings, setup.assignors, setup.deserializers, weakly(self._notify), setup.on_commit
        )
        self._client, self._core, self._fetcher = client, core, core.fetcher
        if core.membership is not None:
            core.membership.on_heartbeats_begin = weakly(self._begin_heartbeats)
        return core

    @abstractmethod
    def _connect(self) -> BlockingClient | AsyncClient:
        """A client of the cluster."""

    @abstractmethod
    def _notify(self) -> None:
        """From the core: something has changed that a wait is for."""

    @abstractmethod
    def _begin_heartbeats(self) -> None:
        """From the core, when it has joined a group."""

    def _enter_poll(self, user: Any) -> ConsumerCore:
        """Whoever comes in from outside settles what was handed out before; an iteration that was under way ends."""
        if user is None:
            self._settle()
        if self._is_in_listener:
            raise IllegalStateError(
                "poll() was called by a rebalance listener or an assignor, which poll() itself runs: it would begin "
                "the rebalance again, and never end. Let it return; it may seek(), ask for position(), and commit"
            )
        self._progress = None
        # Kept over the look at the core, which is what other methods do first.
        is_quiet = self._is_quiet
        core = self._use()
        self._is_quiet = is_quiet
        return core

    @staticmethod
    def _columns(max_records: int | None) -> Callable[[ConsumerCore], list[PartitionColumns]]:
        """What a poll for columns collects. Who asks for columns wants many: the kernels are there when the first
        records are, or soon after."""
        begin_loading()
        rows_max = COLUMNS_ROWS_MAX if max_records is None else max_records
        return lambda core: core.collector.collect_columns(rows_max)

    def _failed(self, task: Task[Any], code: UserCode, error: BaseException) -> None:
        """Code of the user's that a flow waits for has raised: the flow decides what becomes of it.

        Whatever was interrupted is not done again from the start, nor left half done: it goes on as after an error.
        """
        if not isinstance(error, Exception):
            task.resume(error=CallbackInterruptedError(f"{code.name} was interrupted by {error!r}"))
            raise error
        task.resume(error=error)

    def _begin_closing(self) -> bool:
        """Whether there is anything to close, and nobody does so yet."""
        if self._closed or self._is_closing:
            return False
        self._is_closing = True
        self._progress = None
        return True

    @contextlib.contextmanager
    def _last_flow(
        self, core: ConsumerCore, timeout: float, leave_group: bool | None
    ) -> Iterator[tuple[Flow[None], ConsumerOperation]]:
        """What there is left to do before a consumer may be closed. When its time is over, it is closed without."""
        limit = self._operation()
        limit.limit(timeout, "closing")
        try:
            yield core.close(leave_group=leave_group, until=limit.deadline), limit
        except RequestTimedOutError as error:
            log.warning("closed without having finished: %s", error)
            if leave_group is not False:
                self._leave_in_a_hurry(core)

    def _leave_in_a_hurry(self, core: ConsumerCore) -> None:
        core.leave_in_a_hurry()

    def _operation(self) -> ConsumerOperation:
        return ConsumerOperation(self._use(), self._check_wakeup)

    def _check_wakeup(self) -> None:
        if self._wakeup_asked and not self._is_closing:
            self._wakeup_asked = False
            raise WakeupError("wakeup() was called")

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("the consumer is closed: make a new one")

    # --- what may wait, and how each consumer does it ---------------------------------------------------------------

    @abstractmethod
    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> Any:
        """Records that are there, or come within that many seconds; empty when none do.

        At most `max.poll.records` (or `max_records`). Also joins the group, runs rebalances and their listener, commits
        what is due: call it at least every `max.poll.interval.ms`. `WakeupError` after `wakeup()`.
        """

    @abstractmethod
    def poll_columns(self, timeout: float = 1.0, max_records: int | None = None) -> Any:
        """Like `poll`, but as columns, without an object per record: all that was fetched, or `max_records`; of what
        unpacks to more than 256 MiB, the rest at the next call.

        Keys and values are bytes: deserializers and interceptors are not used.
        """

    @abstractmethod
    def poll_arrow(self, timeout: float = 1.0, max_records: int | None = None, *, headers: bool = False) -> Any:
        """Like `poll_columns`, as one Arrow record batch: topic, partition, leader_epoch, timestamp_type, offset,
        timestamp, key, value, and headers if asked for. Needs `headrace[fast]`."""

    @abstractmethod
    def wakeup(self) -> None:
        """End a wait of this consumer from another thread (or task of its loop): it raises `WakeupError`. Without one,
        the next wait does. Only close() goes on: it has its own time-out."""

    @abstractmethod
    def close(self, timeout: float = CLOSE_TIMEOUT_S, *, leave_group: bool | None = None) -> Any:
        """Commit (if that is automatic), leave the group at once, close every connection. Idempotent.

        From a listener or a callback it ends the poll that called it, which gives nothing.

        `leave_group` False stays in the group until its session ends, True makes even a static member leave.
        """

    # --- what does not wait -----------------------------------------------------------------------------------------

    @exclusive
    def subscribe(
        self,
        topics: list[str] | tuple[str, ...] | AbstractSet[str] | re.Pattern[str] | SubscriptionPattern,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read topics as a member of the group: a list of names, or a compiled pattern that a whole name must match.

        With a pattern, topics created later are picked up within `metadata.max.age.ms`. A `SubscriptionPattern` is
        resolved by the brokers (`group.protocol=consumer`). The listener hears of partitions that come and go, from
        within poll.
        """
        check_listener(listener)
        core = self._use()
        if isinstance(topics, SubscriptionPattern):
            core.subscribe_server_pattern(topics.pattern, listener)
        elif isinstance(topics, re.Pattern):
            core.subscribe_pattern(topics, listener)
        else:
            core.subscribe(topics, listener)

    @exclusive
    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions, without a group deciding. Replaces an earlier assign."""
        self._use().assign(partitions_of(partitions, "assign"))

    @exclusive
    def seek(self, partition: TopicPartition | tuple[str, int], offset: int | OffsetAndMetadata) -> None:
        """Go on at this offset with the next poll."""
        self._use().seek(partition, offset)

    @exclusive
    def seek_to_beginning(self, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None) -> None:
        """Go on at the first offset there is; looked up when needed. Without partitions: all that are assigned."""
        chosen = None if partitions is None else partitions_of(partitions, "seek_to_beginning")
        self._use().seek_to(chosen, beginning=True)

    @exclusive
    def seek_to_end(self, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None) -> None:
        """Go on at the end; looked up when needed. Without partitions: all that are assigned."""
        chosen = None if partitions is None else partitions_of(partitions, "seek_to_end")
        self._use().seek_to(chosen, beginning=False)

    def pause(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Hand out no records of these until resumed. They stay assigned; a rebalance that moves one ends its pause."""
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Hand out records of these again."""
        self._set_paused(partitions, False)

    @exclusive
    def _set_paused(self, partitions: Iterable[TopicPartition | tuple[str, int]], paused: bool) -> None:
        chosen = partitions_of(partitions, "pause" if paused else "resume")
        core = self._use()
        states = [core.subscriptions.state(partition) for partition in chosen]
        for state in states:
            state.paused = paused
        core.subscriptions.version += 1

    @exclusive
    def paused(self) -> set[TopicPartition]:
        """The partitions of which no records are handed out, because they are paused."""
        return {state.partition for state in self._use().subscriptions.states() if state.paused}

    @exclusive
    def assignment(self) -> set[TopicPartition]:
        """The partitions this consumer has now."""
        return set(self._use().subscriptions.assigned())

    @exclusive
    def subscription(self) -> set[str]:
        """The topics subscribed to, or those that the pattern matches now."""
        subscriptions = self._use().subscriptions
        return set(subscriptions.topics) if subscriptions.uses_group else set()

    @exclusive
    def commit_async(self, offsets: Mapping[Any, Any] | None = None, callback: CommitCallback | None = None) -> None:
        """Commit without waiting; it is not tried again. `callback(error, offsets)` is called from a later poll,
        commit_sync or close, in the order of the commits."""
        check_plain(callback, "commit_async(callback=…)")
        self._use().commit_async(offsets, callback)

    @exclusive
    def current_lag(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """How many records are left to read, as of the last fetch; None while that is not known."""
        return self._use().current_lag(partition)

    @exclusive
    def highwater(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """The high watermark, as of the last fetch; None while it is not known."""
        return self._use().subscriptions.state(partition).high_watermark

    @exclusive
    def group_metadata(self) -> ConsumerGroupMetadata:
        """Who this consumer is in its group, for a transactional producer."""
        return self._use().group_metadata()

    @exclusive
    def enforce_rebalance(self, reason: str = "enforce_rebalance() was called") -> None:
        """Have the group rebalance with the next poll."""
        core = self._use()
        core.need_commits("enforce_rebalance")
        assert core.membership is not None
        core.membership.request_rejoin(reason)

    @property
    def client_id(self) -> str:
        """`client.id`, or the name that it was given."""
        return str(self._setup.values["client.id"])

    def metrics(self) -> dict[str, float]:
        """Counters, under Kafka's names. Any thread may ask."""
        core = self._core
        return {} if core is None else core.metrics()


def deadline_of(timeout: float, now: float) -> float:
    """When a poll is over."""
    try:
        return now + max(0.0, timeout)
    except TypeError:
        raise TypeError(
            f"poll takes for how many seconds it may wait, a number, not {timeout!r}; without one it waits for 1 s"
        ) from None


def to_arrow(pieces: list[PartitionColumns], *, headers: bool, setup: ConsumerSetup | None = None) -> Any:
    """One Arrow record batch of what a poll gave; loads pyarrow on first use."""
    from headrace.client.consumer._arrow import pieces_to_arrow, with_types

    made = pieces_to_arrow(pieces, headers=headers)
    if setup is None:
        return made
    deserializers = {"key": setup.key_deserializer, "value": setup.value_deserializer}
    return with_types(made, [piece.topic for piece in pieces], deserializers)


__all__ = [
    "CLOSE_TIMEOUT_S",
    "EMPTY",
    "ITERATION_POLL_S",
    "ConsumerBase",
    "ConsumerSetup",
    "IterationProgress",
    "deadline_of",
    "exclusive",
    "exclusive_async",
    "to_arrow",
]
