"""Which offsets a batch reads, and how they are spread over tasks. Pure: no Spark, no network.

Offsets travel through Spark as JSON in the shape of its own Kafka source, `{"topic": {"0": 23}}`, with one entry more
whose name no topic can have: the cluster and the topics (by their ids) they belong to, and the consumer group that
shows the progress.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from headrace.errors import HeadraceError
from headrace.spark.options import EARLIEST, GROUP_PREFIX, LATEST
from headrace.topics import TopicPartition

Offsets = dict[TopicPartition, int]

IDENTITY = "@headrace"


class DataLossError(HeadraceError):
    """Records that were to be read are not there any more (`failOnDataLoss`)."""


class BackwardRangeError(HeadraceError):
    """A batch was told to end before it starts."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, `end` not included."""

    partition: TopicPartition
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class SourceOffsets:
    """Offsets as they stand in Spark's checkpoint."""

    offsets: Offsets
    cluster: str | None = None
    group: str | None = None
    topics: Mapping[str, str] = field(default_factory=dict)
    """The topics' ids, where the brokers have them."""
    is_initial: bool = False
    """Where a query starts, which Spark asks anew whenever its first batch is planned again."""
    began: Offsets | None = None
    """In the end of a first batch: where it began. Spark's log has ends only."""

    def to_json(self) -> dict[str, Any]:
        made = _to_json(self.offsets)
        identity: dict[str, Any] = {"cluster": self.cluster, "group": self.group}
        identity["topics"] = dict(sorted(self.topics.items())) or None
        identity["initial"] = self.is_initial or None
        identity["began"] = None if self.began is None else _to_json(self.began)
        made[IDENTITY] = {name: value for name, value in identity.items() if value is not None}
        return made

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> SourceOffsets:
        identity = given.get(IDENTITY, {})
        began = identity.get("began")
        return cls(
            _from_json(given),
            identity.get("cluster"),
            identity.get("group"),
            identity.get("topics", {}),
            bool(identity.get("initial", False)),
            None if began is None else _from_json(began),
        )

    def made_anew(self, ids: Mapping[str, str]) -> list[str]:
        """Those of the topics that have another id now: what the offsets were of is not there any more."""
        return sorted(name for name, one in self.topics.items() if ids.get(name, one) != one)


def _to_json(offsets: Offsets) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for partition in sorted(offsets):
        made.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return made


def _from_json(given: Mapping[str, Any]) -> Offsets:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in given.items()
        if topic != IDENTITY
        for partition, offset in partitions.items()
    }


def without(offsets: Offsets, topics: Iterable[str]) -> Offsets:
    """Offsets of other topics only."""
    names = set(topics)
    return {one: offset for one, offset in offsets.items() if one.topic not in names}


def is_ours(given: Any) -> bool:
    """Whether offsets in Spark's reports are those of this source."""
    return isinstance(given, dict) and IDENTITY in given


def group_of(query_id: str, query_name: str | None, progress: SourceOffsets) -> str:
    """The consumer group that shows a query's progress: the one that the user named, or one named after the query."""
    return progress.group or f"{GROUP_PREFIX}-{query_name or query_id}"


# --- how far to go ----------------------------------------------------------------------------------------------------


def limited(start: Offsets, latest: Offsets, earliest: Offsets, max_offsets: int) -> Offsets:
    """The end of a batch of at most so many offsets, shared among partitions by what each has waiting."""
    begins = {partition: start.get(partition, earliest.get(partition, 0)) for partition in latest}
    sizes = {partition: latest[partition] - begins[partition] for partition in latest}
    total = sum(size for size in sizes.values() if size > 0)
    if total <= max_offsets:
        return dict(latest)
    ends: Offsets = {}
    for partition, end in latest.items():
        size = sizes[partition]
        if size <= 0:
            ends[partition] = end
            continue
        # In whole numbers: a float share of a large offset would be off by some.
        share = max_offsets * size // total
        ends[partition] = min(end, begins[partition] + max(share, 1))
    return ends


def waiting(start: Offsets, latest: Offsets, earliest: Offsets) -> int:
    """How many offsets there are to read."""
    return sum(max(0, end - start.get(one, earliest.get(one, 0))) for one, end in latest.items())


@dataclass(slots=True)
class TriggerDelay:
    """`minOffsetsPerTrigger`: hold a batch back until enough is there, or until the last one was long enough ago."""

    min_offsets: int
    max_delay_ms: int
    last_ms: float | None = None

    def holds_back(self, count: int, now_ms: float) -> bool:
        """Whether to wait. The first batch is never held back, as in Spark's own source."""
        if self.last_ms is None or count >= self.min_offsets or now_ms - self.last_ms >= self.max_delay_ms:
            self.last_ms = now_ms
            return False
        return True


def capped(latest: Offsets, target: Offsets) -> Offsets:
    """No further than the target: what was the end when an AvailableNow query began."""
    return {one: min(offset, target[one]) for one, offset in latest.items() if one in target}


# --- what is read -----------------------------------------------------------------------------------------------------


def ranges_between(start: Offsets, end: Offsets, earliest: Offsets) -> tuple[list[OffsetRange], list[str]]:
    """Ranges to read, and what was lost, in words. A partition that is new begins with its first record."""
    losses: list[str] = []
    gone = sorted(start.keys() - end.keys())
    if gone:
        losses.append(f"{', '.join(map(str, gone))} {'is' if len(gone) == 1 else 'are'} not there any more")
    ranges: list[OffsetRange] = []
    for partition in sorted(end):
        until = end[partition]
        begin = start.get(partition)
        if begin is None:
            begin = earliest.get(partition, 0)
            if begin > 0:
                losses.append(f"new partition {partition} begins at offset {begin}: what was before is deleted")
        if until < begin:
            losses.append(f"{partition} ends at offset {until}, before {begin}, which was read already")
            continue
        if until > begin:
            ranges.append(OffsetRange(partition, begin, until))
    return ranges, losses


def batch_ranges(partitions: Iterable[TopicPartition], start: Offsets, end: Offsets) -> list[OffsetRange]:
    """What a batch reads of each partition. A start after its end is a mistake, as in Spark's own source."""
    ranges: list[OffsetRange] = []
    for one in partitions:
        if start[one] > end[one]:
            raise BackwardRangeError(
                f"{one} starts at offset {start[one]}, after its end {end[one]}: exchange the two, or let one be latest"
            )
        if start[one] < end[one]:
            ranges.append(OffsetRange(one, start[one], end[one]))
    return ranges


def pieces(ranges: Iterable[OffsetRange], min_partitions: int | None, max_records: int | None) -> list[OffsetRange]:
    """One piece per task: a range each, cut further for `maxRecordsPerPartition` and `minPartitions`."""
    whole = [one for one in ranges if len(one) > 0]
    if max_records is not None:
        whole = [part for one in whole for part in _cut(one, math.ceil(len(one) / max_records))]
    if min_partitions is None or min_partitions <= len(whole):
        return whole
    total = sum(map(len, whole))
    # Small ones stay whole; the large ones share what is left of the count by size. Rounded as Spark's own source does,
    # so that a job has the same tasks with both.
    large = [one for one in whole if _share(len(one), total, min_partitions) > 1]
    left = max(1, min_partitions - (len(whole) - len(large)))
    size = sum(map(len, large))
    made: list[OffsetRange] = []
    for one in whole:
        is_large = _share(len(one), total, min_partitions) > 1
        made += _cut(one, _share(len(one), size, left)) if is_large else [one]
    return made


def _share(size: int, total: int, count: int) -> int:
    """So many of `count` tasks for its part of the whole; at least one. Halves go up."""
    return max(1, math.floor(size / total * count + 0.5))


def _cut(one: OffsetRange, count: int) -> list[OffsetRange]:
    count = max(1, min(count, len(one)))
    bounds = [one.start + len(one) * part // count for part in range(count + 1)]
    return [OffsetRange(one.partition, low, high) for low, high in pairwise(bounds) if high > low]


def check_losses(losses: Sequence[str], *, fail: bool) -> str | None:
    """Raise, or give the words to warn with; None when nothing was lost."""
    if not losses:
        return None
    text = "; ".join(losses)
    if fail:
        raise DataLossError(
            f"some data may have been lost: {text}. It was deleted by retention before it was read, or the topic was "
            "deleted and made anew. To go on with what is there, set failOnDataLoss to false"
        )
    return f"some data may have been lost, and the query goes on (failOnDataLoss=false): {text}"


def resolved(offsets: Mapping[TopicPartition, int], earliest: Offsets, latest: Offsets) -> Offsets:
    """Offsets with -1 and -2 replaced by the end and the start."""
    ends = {LATEST: latest, EARLIEST: earliest}
    return {one: ends[offset][one] if offset in ends else offset for one, offset in offsets.items()}
