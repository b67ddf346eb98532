"""Partitions as numbers: a million of them are assigned without making a million objects.

A `TopicLayout` numbers the partitions of some topics from 0, topic after topic. A `PartitionList` is a sequence of such
numbers that reads as a sequence of `TopicPartition`; the tuples are made when somebody looks.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from typing import overload

from headrace.topics import TopicPartition


class TopicLayout:
    """Topics with their partition counts; partition p of topic t has the number `starts[t] + p`."""

    __slots__ = ("_partition_column", "_topic_column", "counts", "starts", "topics", "total")

    def __init__(self, topics: Sequence[str], counts: Sequence[int]) -> None:
        assert len(topics) == len(counts), "every topic needs a partition count"
        self.topics = tuple(topics)
        self.counts = tuple(counts)
        self.starts = (0, *accumulate(self.counts))[:-1] if self.counts else ()
        self.total = sum(self.counts)
        self._topic_column: list[str] | None = None
        self._partition_column: list[int] | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicLayout):
            return NotImplemented
        return self is other or (self.counts == other.counts and self.topics == other.topics)

    def __hash__(self) -> int:
        return hash((self.topics, self.counts))

    def topic_column(self) -> list[str]:
        """The topic of every number. Made once: look-ups by list index are what makes large lists cheap to read."""
        if self._topic_column is None:
            self._topic_column = list(chain.from_iterable(map(repeat, self.topics, self.counts)))
        return self._topic_column

    def partition_column(self) -> list[int]:
        """The partition within its topic of every number."""
        if self._partition_column is None:
            self._partition_column = list(chain.from_iterable(map(range, self.counts)))
        return self._partition_column

    def at(self, number: int) -> TopicPartition:
        index = bisect_right(self.starts, number) - 1
        # Topics without partitions share their start with the next one; bisect_right lands on the last of them, which
        # is the one that has the number.
        return TopicPartition(self.topics[index], number - self.starts[index])


class CompactPartitions(Sequence[TopicPartition]):
    """An immutable sequence of partitions that are kept as two columns, whatever these look like.

    It equals any sequence that has the same partitions in the same order.
    """

    __slots__ = ()

    @abstractmethod
    def columns(self) -> tuple[Iterable[str], Iterable[int]]:
        """The topics, and the partitions within them."""

    def __iter__(self) -> Iterator[TopicPartition]:
        return map(TopicPartition, *self.columns())

    def by_topic(self) -> dict[str, list[int]]:
        """Partitions per topic, topics in order of first appearance: the form that goes over the wire."""
        grouped: dict[str, list[int]] = {}
        for topic, partition in zip(*self.columns()):
            if topic in grouped:
                grouped[topic].append(partition)
            else:
                grouped[topic] = [partition]
        return grouped

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, (str, bytes)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other))

    __hash__ = None  # type: ignore[assignment]  # equal to plain lists, which have no hash either

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self[:20]))
        return f"{type(self).__name__}([{shown}{', …' if len(self) > 20 else ''}])"


class PartitionList(CompactPartitions):
    """Partitions of one layout, by number: what the built-in assignors give."""

    __slots__ = ("layout", "numbers")

    def __init__(self, layout: TopicLayout, numbers: Sequence[int]) -> None:
        self.layout = layout
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> TopicPartition: ...
    @overload
    def __getitem__(self, index: slice) -> PartitionList: ...
    def __getitem__(self, index: int | slice) -> TopicPartition | PartitionList:
        if isinstance(index, slice):
            return PartitionList(self.layout, self.numbers[index])
        return self.layout.at(self.numbers[index])

    def columns(self) -> tuple[Iterable[str], Iterable[int]]:
        topics, partitions = self.layout.topic_column(), self.layout.partition_column()
        return map(topics.__getitem__, self.numbers), map(partitions.__getitem__, self.numbers)


class DecodedPartitions(CompactPartitions):
    """Partitions as they were read from the wire, which may or may not exist: a topic and a partition for each."""

    __slots__ = ("partitions", "topics")

    def __init__(self, topics: Sequence[str], partitions: Sequence[int]) -> None:
        assert len(topics) == len(partitions), "both columns have an entry per partition"
        self.topics = topics
        self.partitions = partitions

    def __len__(self) -> int:
        return len(self.topics)

    @overload
    def __getitem__(self, index: int) -> TopicPartition: ...
    @overload
    def __getitem__(self, index: slice) -> DecodedPartitions: ...
    def __getitem__(self, index: int | slice) -> TopicPartition | DecodedPartitions:
        if isinstance(index, slice):
            return DecodedPartitions(self.topics[index], self.partitions[index])
        return TopicPartition(self.topics[index], self.partitions[index])

    def columns(self) -> tuple[Iterable[str], Iterable[int]]:
        return self.topics, self.partitions


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partitions per topic, topics in order of first appearance."""
    if isinstance(partitions, CompactPartitions):
        return partitions.by_topic()
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped
