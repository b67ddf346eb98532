"""A group's offsets as values: committed, waiting for the end of a transaction, and being written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.coordination import NO_PRODUCER_ID
from headrace.protocol.schema import ZERO_UUID
from headrace.topics import TopicPartition

NO_EXPIRY = -1


@dataclass(slots=True)
class CommittedOffset:
    """An offset and what was committed with it. `sequence` tells which of two stands later in the log."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY
    topic_id: bytes = ZERO_UUID
    sequence: int = 0


OffsetTable = dict[str, dict[int, CommittedOffset]]
"""Topic → partition → offset."""


@dataclass(slots=True)
class GroupOffsets:
    """All offsets of one group."""

    committed: OffsetTable = field(default_factory=dict)
    pending: dict[int, OffsetTable] = field(default_factory=dict)  # by producer id, until its transaction ends
    in_flight: dict[TopicPartition, int] = field(default_factory=dict)  # commits being written

    @property
    def is_in_use(self) -> bool:
        return bool(self.committed or self.pending or self.in_flight)

    @property
    def count(self) -> int:
        """Of how many partitions an offset is committed."""
        return sum(map(len, self.committed.values()))

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        partitions = self.committed.get(topic)
        return None if partitions is None else partitions.get(partition)

    def put(self, topic: str, partition: int, offset: CommittedOffset, producer_id: int = NO_PRODUCER_ID) -> None:
        """Keep an offset, unless one that stands later in the log was kept already."""
        table = self.committed if producer_id == NO_PRODUCER_ID else self.pending.setdefault(producer_id, {})
        partitions = table.setdefault(topic, {})
        current = partitions.get(partition)
        if current is None or current.sequence <= offset.sequence:
            partitions[partition] = offset

    def remove(self, topic: str, partition: int) -> None:
        """A tombstone: it takes what transactions have pending with it, but these stay open."""
        _remove(self.committed, topic, partition)
        for table in self.pending.values():
            _remove(table, topic, partition)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Let what is pending take effect, unless something was committed after it; or forget it."""
        table = self.pending.pop(producer_id, {})
        if not committed:
            return
        for topic, partition, offset in _entries(table):
            self.put(topic, partition, offset)

    def has_pending(self, topic: str, partition: int) -> bool:
        return any(partition in table.get(topic, ()) for table in self.pending.values())

    def is_unstable(self, topic: str, partition: int) -> bool:
        """Whether another offset is on its way, so that the committed one may be outdated any moment."""
        return (TopicPartition(topic, partition) in self.in_flight) or self.has_pending(topic, partition)

    def begin_write(self, partition: TopicPartition) -> None:
        self.in_flight[partition] = self.in_flight.get(partition, 0) + 1

    def end_write(self, partition: TopicPartition) -> None:
        left = self.in_flight.get(partition, 0) - 1
        if left > 0:
            self.in_flight[partition] = left
        else:
            self.in_flight.pop(partition, None)

    def kept_for(self, topic: str, partition: int) -> Iterator[CommittedOffset]:
        """What is committed for a partition, or pending in transactions."""
        for table in (self.committed, *self.pending.values()):
            offset = table.get(topic, {}).get(partition)
            if offset is not None:
                yield offset

    def topics(self) -> set[str]:
        """Every topic with an offset of whatever kind."""
        found = set(self.committed)
        for table in self.pending.values():
            found.update(table)
        found.update(partition.topic for partition in self.in_flight)
        return found

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """As `partitions`, of one topic, in order."""
        found = {index for table in (self.committed, *self.pending.values()) for index in table.get(topic, ())}
        if self.in_flight:
            found.update(partition for name, partition in self.in_flight if name == topic)
        return [TopicPartition(topic, index) for index in sorted(found)]

    def partitions(self) -> set[TopicPartition]:
        """Every partition with an offset of whatever kind, also one that is still being written."""
        found = {TopicPartition(topic, partition) for topic, partition, _ in _entries(self.committed)}
        for table in self.pending.values():
            found.update(TopicPartition(topic, partition) for topic, partition, _ in _entries(table))
        found.update(self.in_flight)
        return found


def _remove(table: OffsetTable, topic: str, partition: int) -> None:
    partitions = table.get(topic)
    if partitions is not None and partitions.pop(partition, None) is not None and not partitions:
        del table[topic]


def _entries(table: OffsetTable) -> Iterator[tuple[str, int, CommittedOffset]]:
    for topic, partitions in table.items():
        for partition, offset in partitions.items():
            yield topic, partition, offset
