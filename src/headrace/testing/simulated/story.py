"""What a failure is about, and what of a run tells of it: not the last lines, but those of the records concerned."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.testing.simulated.timeline import TimelineEntry

_FAULTS_FIRST = 4
_ENTRIES_LAST = 8
_PARTITION = re.compile(r"(?<![\w-])([A-Za-z_][\w-]*-\d+)(?![\w-])")
_VALUE = re.compile(r"'([A-Za-z][\w-]*:\d+[^']*)'")
_OFFSET = re.compile(r"\b(?:at|offset|ends at|up to|below) (\d+)")
_ABOUT_A_PARTITION = ("leader", "isr", "belief")


@dataclass(frozen=True, slots=True)
class FailureSubject:
    """The partitions, records and offsets that a failure names."""

    partitions: frozenset[str]
    values: frozenset[str]
    offsets: frozenset[int]

    @classmethod
    def of(cls, failure: str) -> FailureSubject:
        first = failure.split("\n", 1)[0]
        names = {name for name in _PARTITION.findall(first) if not name.startswith(("broker-", "client-"))}
        return cls(frozenset(names), frozenset(_VALUE.findall(first)), frozenset(map(int, _OFFSET.findall(first))))

    def concerns(self, entry: TimelineEntry) -> bool:
        """Whether a line is about what the failure names."""
        if entry.kind in _ABOUT_A_PARTITION:
            return any(re.search(rf"\b{re.escape(name)}(?!\d)", entry.text) for name in self.partitions)
        if entry.kind != "client":
            return False
        if any(f"'{value}'" in entry.text for value in self.values):
            return True
        is_there = any(f"{name}:" in entry.text or f"{name} " in entry.text for name in self.partitions)
        return is_there and not self.values and any(f" {offset}" in entry.text for offset in self.offsets)


def chosen(entries: list[TimelineEntry], failure: str | None) -> list[TimelineEntry]:
    """Of a run's lines those that tell of its failure: the records, leaders and replicas concerned, the first faults,
    and what came last."""
    if failure is None:
        return entries
    subject = FailureSubject.of(failure)
    places = {place for place, entry in enumerate(entries) if entry.kind == "failure" or subject.concerns(entry)}
    faults = [place for place, entry in enumerate(entries) if entry.kind == "fault"]
    places.update(faults[:_FAULTS_FIRST])
    others = [place for place, entry in enumerate(entries) if entry.kind not in ("client", "belief")]
    places.update(others[-_ENTRIES_LAST:])
    return [entries[place] for place in sorted(places)]


def lines(entries: list[TimelineEntry], failure: str | None, *, most: int) -> list[str]:
    """The chosen lines; of more than so many the first and the last ones."""
    found = [entry.line() for entry in chosen(entries, failure)]
    if len(found) <= most:
        return found
    left_out = len(found) - most
    return [*found[: most // 2], f"{'':>12}  … {left_out} lines more: --story shows them …", *found[-(most // 2) :]]


def in_order(entries: Iterable[TimelineEntry]) -> list[TimelineEntry]:
    return sorted(entries, key=lambda entry: entry.at_s)
