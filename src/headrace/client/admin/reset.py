"""Reset a group's offsets: to the earliest, the latest, an offset, a time, by a shift, to another group's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from headrace.client.admin.core import Context
from headrace.client.admin.groups import (
    GroupOffsets,
    alter_group_offsets,
    describe_groups,
    list_group_offsets,
)
from headrace.client.admin.topics import describe_topics, list_offsets
from headrace.client.admin.types import ResetOffset
from headrace.client.flows import Flow
from headrace.client.offsets import OffsetAndMetadata, OffsetSpec
from headrace.errors import GroupIdNotFoundError, HeadraceError, NonEmptyGroupError
from headrace.topics import TopicPartition


class ResetError(HeadraceError):
    """The offsets cannot be reset as asked. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class ResetTo:
    """Where to. Use the constructors."""

    kind: str
    number: int = 0
    group_id: str = ""
    offsets: tuple[tuple[TopicPartition, int], ...] = ()

    @classmethod
    def earliest(cls) -> ResetTo:
        return cls("earliest")

    @classmethod
    def latest(cls) -> ResetTo:
        return cls("latest")

    @classmethod
    def current(cls) -> ResetTo:
        """The committed offset; the latest where there is none."""
        return cls("current")

    @classmethod
    def offset(cls, offset: int) -> ResetTo:
        """One offset for every partition, or the nearest that exists."""
        return cls("offset", offset)

    @classmethod
    def timestamp(cls, timestamp_ms: int) -> ResetTo:
        """The first record at or after a time; the latest where there is none."""
        return cls("timestamp", timestamp_ms)

    @classmethod
    def duration(cls, seconds: float) -> ResetTo:
        """As `timestamp`, that long ago."""
        return cls("duration", int(seconds * 1000))

    @classmethod
    def shift(cls, by: int) -> ResetTo:
        """Forward, or back if below zero, from the committed offset; not beyond either end."""
        return cls("shift", by)

    @classmethod
    def group(cls, group_id: str) -> ResetTo:
        """To what another group has committed; partitions that it has not are left alone."""
        return cls("group", group_id=group_id)

    @classmethod
    def each(cls, offsets: Mapping[TopicPartition, int]) -> ResetTo:
        """An offset of its own for every partition, or the nearest that exists."""
        return cls("each", offsets=tuple(offsets.items()))


def reset_group_offsets(
    context: Context,
    group_id: str,
    to: ResetTo,
    *,
    topics: Iterable[str | TopicPartition] | None = None,
    dry_run: bool = False,
) -> Flow[dict[TopicPartition, ResetOffset]]:
    """Set a group's offsets; with `dry_run` only say to what. `topics`: whole topics or partitions (None: all it has).

    The group must be without members. Offsets beyond the ends of a partition become the nearest that exists.
    """
    yield from _check_inactive(context, group_id)
    committed = (yield from list_group_offsets(context, [group_id]))[group_id]
    other: GroupOffsets = {}
    if to.kind == "group":
        other = (yield from list_group_offsets(context, [to.group_id]))[to.group_id]
        if not other:
            raise ResetError(f"group {to.group_id} has committed nothing, so there is nothing to reset {group_id} to")
    partitions = yield from _partitions(context, to, topics, committed, other)
    if not partitions:
        raise ResetError(f"group {group_id} has committed nothing; name the topics whose offsets shall be set")
    targets = yield from _targets(context, to, partitions, committed, other)
    result = {
        partition: ResetOffset(committed[partition].offset if partition in committed else None, target)
        for partition, target in sorted(targets.items())
    }
    if not dry_run:
        wanted = {partition: OffsetAndMetadata(target) for partition, target in targets.items()}
        (yield from alter_group_offsets(context, group_id, wanted)).all()
    return result


def _check_inactive(context: Context, group_id: str) -> Flow[None]:
    described = yield from describe_groups(context, [group_id])
    error = described.errors.get(group_id)
    if isinstance(error, GroupIdNotFoundError):
        return
    group = described[group_id]
    if group.members:
        raise NonEmptyGroupError(
            f"group {group_id} is {group.state} with {len(group.members)} members; "
            "stop its consumers (or wait for their session.timeout.ms) before its offsets are reset"
        )


def _partitions(
    context: Context,
    to: ResetTo,
    topics: Iterable[str | TopicPartition] | None,
    committed: GroupOffsets,
    other: GroupOffsets,
) -> Flow[list[TopicPartition]]:
    """Which partitions are meant; for another group's (or each its own) offset, those that have one."""
    if topics is None:
        found = list(committed)
        if to.kind in ("group", "each"):
            found = list(other) or [partition for partition, _ in to.offsets]
        return found
    wanted = list(topics)
    partitions = [item for item in wanted if isinstance(item, TopicPartition)]
    names = [item for item in wanted if not isinstance(item, TopicPartition)]
    described = (yield from describe_topics(context, names)).all()
    for name, topic in described.items():
        partitions += [TopicPartition(name, info.partition) for info in topic.partitions]
    if to.kind in ("group", "each"):
        having: Mapping[TopicPartition, object] = other or dict(to.offsets)
        partitions = [partition for partition in partitions if partition in having]
    return list(dict.fromkeys(partitions))


def _targets(
    context: Context, to: ResetTo, partitions: list[TopicPartition], committed: GroupOffsets, other: GroupOffsets
) -> Flow[dict[TopicPartition, int]]:
    starts = yield from _ends(context, partitions, OffsetSpec.earliest())
    ends = yield from _ends(context, partitions, OffsetSpec.latest())
    if to.kind == "earliest":
        return starts
    if to.kind == "latest":
        return ends
    if to.kind in ("timestamp", "duration"):
        time_ms = to.number if to.kind == "timestamp" else context.core.clock.now_ms() - to.number
        at = yield from _ends(context, partitions, OffsetSpec.for_timestamp(max(0, time_ms)))
        return {partition: offset if offset >= 0 else ends[partition] for partition, offset in at.items()}
    wanted = _wanted(to, committed, other, ends)
    return {partition: min(max(wanted(partition), starts[partition]), ends[partition]) for partition in partitions}


def _wanted(
    to: ResetTo, committed: GroupOffsets, other: GroupOffsets, ends: Mapping[TopicPartition, int]
) -> Callable[[TopicPartition], int]:
    """The wished offset of a partition, before it is brought within the partition's ends."""
    if to.kind == "offset":
        return lambda partition: to.number
    if to.kind == "each":
        return dict(to.offsets).__getitem__
    if to.kind == "group":
        return lambda partition: other[partition].offset
    if to.kind == "current":
        return lambda partition: committed[partition].offset if partition in committed else ends[partition]
    if to.kind == "shift":

        def shifted(partition: TopicPartition) -> int:
            if partition not in committed:
                raise ResetError(f"{partition} has no committed offset to shift from; reset it to an offset or an end")
            return committed[partition].offset + to.number

        return shifted
    raise ValueError(f"unknown kind of reset {to.kind!r}")


def _ends(context: Context, partitions: list[TopicPartition], spec: OffsetSpec) -> Flow[dict[TopicPartition, int]]:
    found = yield from list_offsets(context, dict.fromkeys(partitions, spec))
    return {partition: info.offset for partition, info in found.all().items()}
