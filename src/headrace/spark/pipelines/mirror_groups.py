"""Offsets of consumer groups at a mirror's source, translated to the target's.

Every mirrored record has a header that says where it was at the source (`HOP`). So the mapping is in the records
themselves: a group's position is the first mirrored record that was at its offset or behind it, found by bisection.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client.admin import Admin
from headrace.client.consumer.blocking import Consumer
from headrace.errors import HeadraceError, RequestTimedOutError
from headrace.spark.cluster import Cluster
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.spark")

HOP = "headrace-mirror"
"""`<cluster>/<topic>/<partition>/<offset>` of the record at the source; one header for each mirror on its way. Its name
lacks the prefix of headers that retries take off."""

Probe = Callable[[int, int], tuple[int, int] | None]
"""(from, before) → target offset and source offset of the first mirrored record there."""

_POLL_S = 0.2
_QUIET_S = 20.0
_IDLE_STATES = ("Empty", "Dead")
# Anybody may write such a header: not all that counts as digits makes a number.
_NUMBER = re.compile("[0-9]{1,19}")


def hop_of(value: bytes | None) -> tuple[str, str, int, int] | None:
    """Cluster, topic, partition and offset; None for what no mirror wrote."""
    parts = (value or b"").decode("utf-8", "replace").split("/")
    if len(parts) != 4 or not (_NUMBER.fullmatch(parts[2]) and _NUMBER.fullmatch(parts[3])):
        return None
    return parts[0], parts[1], int(parts[2]), int(parts[3])


def find(probe: Probe, start: int, end: int, wanted: int) -> int:
    """The target offset of the first mirrored record that was at the wanted source offset or behind it; else the end.

    Source offsets ascend along the target's, so half of what is left goes with every probe.
    """
    low, high, best = start, end, end
    while low < high:
        middle = (low + high) // 2
        found = probe(middle, high)
        if found is None:
            high = middle
        elif found[1] >= wanted:
            best, high = found[0], middle
        else:
            low = found[0] + 1
    return best


@dataclass(frozen=True, slots=True)
class Translated:
    """What a round did: offsets that were set, and groups that have members at the target and were left alone."""

    offsets: int
    busy: tuple[str, ...]


class GroupMirror:
    """Translates the offsets of the source's groups, and sets those that moved. Offsets at the target never go back."""

    def __init__(self, source: Cluster, target: Cluster, kafka: Mapping[str, Any], pattern: str) -> None:
        self._source = source
        self._target = target
        self._pattern = re.compile(pattern)
        self._known: dict[tuple[str, TopicPartition], int] = {}
        self._consumer = Consumer(
            {
                **kafka,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                # A probe looks at one record.
                "max.partition.fetch.bytes": 65_536,
                "max.poll.records": 100,
            }
        )

    def close(self) -> None:
        self._consumer.close()

    def round(
        self, targets: Mapping[TopicPartition, TopicPartition], mirrored: Mapping[TopicPartition, int]
    ) -> Translated:
        """Translate what moved since the last round.

        `targets`: where each partition of the source is mirrored to; `mirrored`: how far it is.
        """
        admin = self._source.admin
        names = [one.group_id for one in admin.list_groups() if self._pattern.fullmatch(one.group_id)]
        found = admin.list_group_offsets(names).all() if names else {}
        moved: dict[str, dict[TopicPartition, int]] = {}
        for group in found:
            for partition, committed in found[group].items():
                if partition in targets and self._known.get((group, partition)) != committed.offset:
                    moved.setdefault(group, {})[partition] = committed.offset
        if not moved:
            return Translated(0, ())
        wanted = {targets[partition] for offsets in moved.values() for partition in offsets}
        starts = self._target.earliest(wanted)
        ends = self._target.latest(wanted, read_committed=True)
        busy = _busy(self._target.admin, moved)
        count = 0
        for group, offsets in moved.items():
            if group not in busy:
                count += self._move(group, offsets, targets, mirrored, starts, ends)
        return Translated(count, tuple(sorted(busy)))

    def _move(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        targets: Mapping[TopicPartition, TopicPartition],
        mirrored: Mapping[TopicPartition, int],
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> int:
        there = self._target.admin.list_group_offsets([group])[group]
        changed: dict[TopicPartition, int] = {}
        for partition, offset in offsets.items():
            target = targets[partition]
            probe = self._probe(partition, target)
            made = find(probe, starts[target], ends[target], offset)
            if target not in there or made > there[target].offset:
                changed[target] = made
        if changed:
            try:
                self._target.admin.alter_group_offsets(group, changed).all()
            except HeadraceError as error:
                log.warning("the offsets of group %s could not be set at the target: %s", group, error)
                return 0
        for partition, offset in offsets.items():
            # A group that is ahead of the mirror stands at the mirror's end for now, and is looked at again.
            if offset <= mirrored[partition]:
                self._known[group, partition] = offset
        return len(changed)

    def _probe(self, partition: TopicPartition, target: TopicPartition) -> Probe:
        cluster = self._source.id

        def probe(begin: int, before: int) -> tuple[int, int] | None:
            self._consumer.assign([target])
            self._consumer.seek(target, begin)
            quiet = 0.0
            while self._consumer.position(target) < before:
                records = self._consumer.poll(_POLL_S)
                quiet = 0.0 if records else quiet + _POLL_S
                if quiet >= _QUIET_S:
                    raise RequestTimedOutError(f"{target} gave no records for {_QUIET_S:.0f} s before offset {before}")
                for record in records:
                    if record.offset >= before:
                        return None
                    origin = _last_hop(record.headers)
                    if origin is not None and origin[:3] == (cluster, *partition):
                        return record.offset, origin[3]
            return None

        return probe


def _last_hop(headers: Iterable[tuple[str, bytes | None]]) -> tuple[str, str, int, int] | None:
    values = [value for name, value in headers if name == HOP]
    return hop_of(values[-1]) if values else None


def _busy(admin: Admin, groups: Iterable[str]) -> set[str]:
    """Groups with members at the target: their offsets are theirs."""
    described = admin.describe_groups(groups)
    # A group that nobody knows there yet is none with members.
    return {name for name in described if name not in described.errors and described[name].state not in _IDLE_STATES}
