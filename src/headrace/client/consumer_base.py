"""What both consumers share: configuration, interceptors, one user at a time, and all that needs no waiting."""

from __future__ import annotations

import itertools
import logging
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from headrace.assignors import Assignor, AssignorError, resolve
from headrace.client.chunks import Chunk
from headrace.client.configs import ConnectionConfig, merge
from headrace.client.consumer_config import ConsumerSettings, read_consumer_config
from headrace.client.consumer_core import ConsumerCore
from headrace.client.consumer_errors import ConcurrentAccessError
from headrace.client.consumer_records import (
    EMPTY,
    ConsumerGroupMetadata,
    ConsumerRecord,
    ConsumerRecords,
    Deserializers,
    OffsetAndMetadata,
    PartitionColumns,
)
from headrace.client.errors import ClientClosed
from headrace.client.membership_core import rebalance_protocol
from headrace.client.offset_commits import CommitCallback, Offsets
from headrace.client.serializers import load, make_deserializer
from headrace.client.subscription_state import PartitionState, RebalanceListener
from headrace.config import ConfigError
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.client.consumer")

_numbers = itertools.count(1)


class Setup:
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
                interceptor.on_commit(offsets)
            except Exception:
                log.exception("an interceptor's on_commit raised")

    def close(self) -> None:
        for made in (self.key_deserializer, self.value_deserializer, *self.interceptors):
            end = getattr(made, "close", None)
            if end is not None:
                end()


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
    if hasattr(made, "configure"):
        made.configure(config)
    return made


class Guard:
    """One user at a time: whoever is inside may come in again (from a listener), anybody else is refused at once."""

    def __init__(self, identify: Callable[[], Any], kind: str) -> None:
        self._identify = identify
        self._kind = kind
        self._lock = threading.Lock()
        self._owner: Any = None
        self._depth = 0

    def __enter__(self) -> None:
        me = self._identify()
        if self._owner == me and self._depth:
            self._depth += 1
            return
        if not self._lock.acquire(blocking=False):
            raise ConcurrentAccessError(
                f"this consumer is in use by another {self._kind}: a consumer is not safe for several. Give each "
                f"{self._kind} its own, or hand records over; only wakeup() may be called from anywhere"
            )
        self._owner, self._depth = me, 1

    def __exit__(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            self._lock.release()


class Progress:
    """How far an iteration has come in a piece of records."""

    __slots__ = ("chunk", "state", "taken")

    def __init__(self, state: PartitionState, chunk: Chunk) -> None:
        self.state, self.chunk, self.taken = state, chunk, 0


class ConsumerBase(ABC):
    """What needs no waiting, the same for both. Subclasses give `_use()`: the core, when it may be used."""

    _guard: Guard
    _setup: Setup
    _core: ConsumerCore | None
    _progress: Progress | None
    _closed: bool = False

    def _begin_iteration(
        self, found: tuple[PartitionState, Chunk, list[ConsumerRecord]]
    ) -> tuple[Progress, list[ConsumerRecord], int]:
        state, chunk, records = found
        if self._setup.interceptors:
            records = list(self._setup.on_consume(ConsumerRecords.of(records)))
        self._progress = progress = Progress(state, chunk)
        core = self._core
        assert core is not None
        return progress, records, core.subscriptions.version

    def _settle_iteration(self) -> None:
        """Tell the core how far an iteration came, before anything else reads on."""
        progress, self._progress = self._progress, None
        core = self._core
        if progress is not None and core is not None and progress.taken:
            state = progress.state
            if state.chunks and state.chunks[0] is progress.chunk:
                core.fetcher.take(state, progress.chunk, progress.taken)

    @abstractmethod
    def _use(self) -> ConsumerCore:
        """The core, made on first use."""

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the consumer is closed: make a new one")

    def subscribe(self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener | None = None) -> None:
        """Read topics as a member of the group: a list of names, or a compiled pattern that a whole name must match.

        With a pattern, topics created later are picked up within `metadata.max.age.ms`. The
        listener hears of partitions that come and go, from within poll.
        """
        with self._guard:
            core = self._use()
            if isinstance(topics, re.Pattern):
                core.subscribe_pattern(topics, listener)
            else:
                core.subscribe(topics, listener)

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions, without a group deciding. Replaces an earlier assign."""
        with self._guard:
            self._use().assign(partitions)

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int | OffsetAndMetadata) -> None:
        """Go on at this offset with the next poll."""
        with self._guard:
            self._use().seek(partition, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None) -> None:
        """Go on at the first offset there is; looked up when needed. Without partitions: all that are assigned."""
        with self._guard:
            self._use().seek_to(partitions, beginning=True)

    def seek_to_end(self, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None) -> None:
        """Go on at the end; looked up when needed. Without partitions: all that are assigned."""
        with self._guard:
            self._use().seek_to(partitions, beginning=False)

    def pause(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Hand out no records of these until resumed. They stay assigned; a rebalance that moves one ends its pause."""
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: Iterable[TopicPartition | tuple[str, int]], paused: bool) -> None:
        with self._guard:
            core = self._use()
            states = [core.subscriptions.state(partition) for partition in partitions]
            for state in states:
                state.paused = paused
            core.subscriptions.version += 1

    def paused(self) -> set[TopicPartition]:
        with self._guard:
            return {state.partition for state in self._use().subscriptions.states() if state.paused}

    def assignment(self) -> set[TopicPartition]:
        """The partitions this consumer has now."""
        with self._guard:
            return set(self._use().subscriptions.assigned())

    def subscription(self) -> set[str]:
        """The topics subscribed to, or those that the pattern matches now."""
        with self._guard:
            subscriptions = self._use().subscriptions
            return set(subscriptions.topics) if subscriptions.uses_group else set()

    def commit_async(self, offsets: Mapping[Any, Any] | None = None, callback: CommitCallback | None = None) -> None:
        """Commit without waiting; it is not tried again. `callback(error, offsets)` is called from a later poll,
        commit_sync or close, in the order of the commits."""
        with self._guard:
            self._use().commit_async(offsets, callback)

    def current_lag(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """How many records are left to read, as of the last fetch; None while that is not known."""
        with self._guard:
            return self._use().current_lag(partition)

    def highwater(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """The high watermark, as of the last fetch; None while it is not known."""
        with self._guard:
            return self._use().subscriptions.state(partition).high_watermark

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Who this consumer is in its group, for a transactional producer."""
        with self._guard:
            return self._use().group_metadata()

    def enforce_rebalance(self, reason: str = "enforce_rebalance() was called") -> None:
        """Have the group rebalance with the next poll."""
        with self._guard:
            core = self._use()
            core.need_commits("enforce_rebalance")
            assert core.membership is not None
            core.membership.request_rejoin(reason)

    def metrics(self) -> dict[str, float]:
        """Counters, under Kafka's names."""
        with self._guard:
            return self._use().metrics()


def to_arrow(pieces: list[PartitionColumns], *, headers: bool) -> Any:
    """One Arrow record batch of what a poll gave; loads pyarrow on first use."""
    from headrace.client.consumer_arrow import pieces_to_arrow

    return pieces_to_arrow(pieces, headers=headers)


__all__ = ["EMPTY", "ConsumerBase", "Guard", "Setup", "to_arrow"]
