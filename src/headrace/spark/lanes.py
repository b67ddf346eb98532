"""Which output partition a row goes to, and which task owns which: one task writes a partition, and no other.

Partitions of all output topics are numbered through as lanes. Rows with a key (or a partition) of their own are routed
to their lane by a shuffle; rows without are written where they are, each task into lanes of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError
from headrace.records import kernels
from headrace.records.arrow import arrow_to_columns
from headrace.topics import TopicPartition


class UnknownDestinationError(HeadraceError):
    """A row names a topic or partition that is not among those the transaction covers."""


@dataclass(frozen=True, slots=True)
class OutputPartitions:
    """The output topics with their partition counts, in order."""

    counts: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> OutputPartitions:
        return cls(tuple(sorted(counts.items())))

    def __len__(self) -> int:
        return sum(count for _, count in self.counts)

    def partitions(self) -> list[TopicPartition]:
        """Every output partition, in order of its lane."""
        return [TopicPartition(topic, index) for topic, count in self.counts for index in range(count)]

    def first_of(self, topic: str) -> tuple[int, int]:
        """The first lane of a topic, and how many it has."""
        first = 0
        for name, count in self.counts:
            if name == topic:
                return first, count
            first += count
        names = ", ".join(name for name, _ in self.counts)
        raise UnknownDestinationError(
            f"a row is for the topic {topic!r}, but the transaction was begun for {names} only"
        )

    def owned(self, task: int, tasks: int, turn: int) -> list[int]:
        """The lanes of a task when rows stay where they are; `turn` moves them on, so that all get their share."""
        return [(lane + turn) % len(self) for lane in range(len(self)) if lane % tasks == task]


def route(batch: pa.RecordBatch, lanes: OutputPartitions, topic: str | None, turn: int) -> Any:
    """The lane of every row: its partition if it has one, else by its key as Kafka's clients do, else `turn`.

    `turn` decides for rows without a key: the same input gives the same lanes, however often it is computed.
    """
    if topic is not None:
        return _route_one(batch, *lanes.first_of(topic), turn)
    made = np.zeros(batch.num_rows, np.int32)
    topics = batch.column("topic")
    if topics.null_count:
        raise UnknownDestinationError("a row has null for its topic")
    for name in pc.unique(topics).to_pylist():
        rows = np.flatnonzero(pc.equal(topics, name).to_numpy(zero_copy_only=False))
        made[rows] = _route_one(batch.take(pa.array(rows)), *lanes.first_of(name), turn)
    return made


def _route_one(batch: pa.RecordBatch, first: int, count: int, turn: int) -> Any:
    names = batch.schema.names
    chosen = np.full(batch.num_rows, turn % count, np.int64)
    if "key" in names:
        keys = arrow_to_columns(batch.select(["key"]), default_timestamp_ms=0).keys
        keyed = np.asarray(keys.lengths) >= 0
        if keyed.any():
            hashes = np.asarray(kernels.choose(len(keys)).murmur2_column(keys)).astype(np.int64)
            chosen = np.where(keyed, (hashes & 0x7FFFFFFF) % count, chosen)
    if "partition" in names and batch.column("partition").null_count < batch.num_rows:
        given = pc.fill_null(batch.column("partition"), -1).to_numpy(zero_copy_only=False).astype(np.int64)
        if given.max() >= count or (given < -1).any():
            wrong = int(given.max()) if given.max() >= count else int(given.min())
            raise UnknownDestinationError(f"a row is for partition {wrong}; the topic has {count}, numbered from 0")
        chosen = np.where(given >= 0, given, chosen)
    return (chosen + first).astype(np.int32)
