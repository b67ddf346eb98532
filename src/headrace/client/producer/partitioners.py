"""Which partition a record goes to: Kafka's own way (keys by murmur2, keyless sticky), round-robin, or a custom one.

The built-in way is KIP-794's: keyless records go to one partition until it has got `batch.size` bytes, then to another
at random, weighted (if `partitioner.adaptive.partitioning.enable`) by how short its queue is.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import index
from typing import Any, Protocol

from headrace.client.cluster.view import TopicView
from headrace.client.serializers import load
from headrace.config import ConfigError, check_plain_setting
from headrace.records.murmur2 import partition_for_key


class Partitioner(Protocol):
    """A custom partitioner. It runs on the producer's own thread, and must not block.

    It may have `configure(config)`, `close()`, and `on_new_batch(topic, partition)`, told when a batch was closed.
    """

    def partition(
        self, topic: str, key: bytes | None, value: bytes | None, partition_count: int, available: Sequence[int]
    ) -> int: ...


def ask_each(
    partitioner: Partitioner,
    topic: str,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    given: Sequence[int | None] | None,
    view: TopicView,
) -> tuple[list[int | None], dict[int, Exception]]:
    """The partition of each record: the one that is given, or what the partitioner says.

    Records on which it fails are not among them; why it did, by their row, comes beside.
    """
    count, available = len(view.partitions), view.available
    chosen: list[int | None] = []
    failures: dict[int, Exception] = {}
    for row, (key, value) in enumerate(zip(keys, values)):
        place = None if given is None else given[row]
        try:
            chosen.append(index(partitioner.partition(topic, key, value, count, available) if place is None else place))
        except Exception as error:  # noqa: BLE001 - it may raise anything; its record says so, and no other fails of it
            failures[row] = error
    return chosen, failures


class RoundRobinPartitioner:
    """Every record to the next partition that has a leader (or any, when none has), whatever its key."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def partition(
        self, topic: str, key: bytes | None, value: bytes | None, partition_count: int, available: Sequence[int]
    ) -> int:
        turn = self._next.get(topic, 0)
        self._next[topic] = turn + 1
        return available[turn % len(available)] if available else turn % partition_count


class UniformStickyPartitioner:
    """KIP-480: one partition until its batch closes, then another at random, whatever the key."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._current: dict[str, int] = {}
        self._switch: set[str] = set()

    def partition(
        self, topic: str, key: bytes | None, value: bytes | None, partition_count: int, available: Sequence[int]
    ) -> int:
        current = self._current.get(topic)
        gone = current is not None and (current >= partition_count or (bool(available) and current not in available))
        if current is None or gone or topic in self._switch:
            self._switch.discard(topic)
            current = self._current[topic] = pick_other(current, partition_count, available, self._rng)
        return current

    def on_new_batch(self, topic: str, partition: int) -> None:
        if self._current.get(topic) == partition:
            self._switch.add(topic)


class Murmur2Partitioner:
    """Keys by murmur2; keyless records sticky as `UniformStickyPartitioner` (Kafka's default before 3.3)."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._keyless = UniformStickyPartitioner(rng)

    def partition(
        self, topic: str, key: bytes | None, value: bytes | None, partition_count: int, available: Sequence[int]
    ) -> int:
        if key is not None:
            return partition_for_key(key, partition_count)
        return self._keyless.partition(topic, key, value, partition_count, available)

    def on_new_batch(self, topic: str, partition: int) -> None:
        self._keyless.on_new_batch(topic, partition)


def pick_other(current: int | None, partition_count: int, available: Sequence[int], rng: random.Random) -> int:
    """A partition at random: of those with a leader (any when none has one), another than now if possible."""
    choice: Sequence[int] = available or range(partition_count)
    if len(choice) == 1:
        return choice[0]
    picked = choice[rng.randrange(len(choice))]
    if picked == current:
        picked = choice[(choice.index(picked) + 1 + rng.randrange(len(choice) - 1)) % len(choice)]
    return picked


class StickyState:
    """Where the keyless records of one topic go now (KIP-794)."""

    __slots__ = ("partition", "produced_bytes")

    def __init__(self) -> None:
        self.partition: int | None = None
        self.produced_bytes = 0

    def current(self, topic: TopicView, queues: Callable[[int], int], rng: random.Random, adaptive: bool) -> int:
        """The partition in use; one is chosen when there is none, or it lost its leader."""
        if self.partition is None or (topic.available and self.partition not in topic.available):
            self._switch(topic, queues, rng, adaptive)
        assert self.partition is not None
        return self.partition

    def took(
        self, size: int, limit: int, topic: TopicView, queues: Callable[[int], int], rng: random.Random, adaptive: bool
    ) -> None:
        """Bytes went to the current partition; with `limit` of them it is time for another."""
        self.produced_bytes += size
        if self.produced_bytes >= limit:
            self._switch(topic, queues, rng, adaptive)

    def _switch(self, topic: TopicView, queues: Callable[[int], int], rng: random.Random, adaptive: bool) -> None:
        self.produced_bytes = 0
        choice = topic.available or range(len(topic.partitions))
        if not adaptive or len(choice) < 2:
            self.partition = choice[rng.randrange(len(choice))]
            return
        # Weight = longest queue + 1 - own queue: equal queues weigh the same, a queue that grows gets less.
        lengths = [queues(partition) for partition in choice]
        longest = max(lengths) + 1
        weights = list(accumulate(longest - length for length in lengths))
        self.partition = choice[bisect_right(weights, rng.randrange(weights[-1]))]


_JAVA = "org.apache.kafka.clients.producer."
_KNOWN: dict[str, type[Any]] = {
    "round_robin": RoundRobinPartitioner,
    "sticky": UniformStickyPartitioner,
    "murmur2": Murmur2Partitioner,
    _JAVA + "RoundRobinPartitioner": RoundRobinPartitioner,
    _JAVA + "UniformStickyPartitioner": UniformStickyPartitioner,
    _JAVA + "internals.DefaultPartitioner": Murmur2Partitioner,
}


class _Function:
    """A plain function where a partitioner is expected."""

    def __init__(self, function: Callable[..., int]) -> None:
        self.partition = function


def make_partitioner(given: Any, config: Mapping[str, Any]) -> Partitioner | None:
    """The partitioner of `partitioner.class`; None for the built-in way."""
    if given is None:
        return None
    made = load(given, "partitioner.class", _KNOWN) if isinstance(given, str) else given
    if isinstance(made, type):
        made = made()
    if not hasattr(made, "partition") and callable(made):
        made = _Function(made)
    if not callable(getattr(made, "partition", None)):
        raise ConfigError(
            {
                "partitioner.class": f"partitioner.class is {given!r}, which is neither a function (topic, key, value, "
                "partition_count, available) nor has a method partition like it"
            }
        )
    check_plain_setting("partitioner.class", made.partition, "partition")
    if hasattr(made, "configure"):
        made.configure(config)
    return made  # type: ignore[no-any-return]  # checked above by its method
