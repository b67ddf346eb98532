"""What the coordinator needs of each kind of groups, beside the groups themselves (`headrace.groups.group`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from headrace.coordination import Now, Timer
from headrace.groups.group import Group
from headrace.groups.outcome import Outcome


class LoadedRecord(NamedTuple):
    """A record of a group that is still there after compaction. `sequence` is its place in the log."""

    key: Any
    value: Any
    sequence: int


class LoadedGroup(NamedTuple):
    """A group as its records tell it, and the place of the latest of them."""

    group: Group
    sequence: int


class KindOfGroup(Protocol):
    """One kind. `GroupCoordinator` has one of each, and finds it by `Group.kind`, or by the type of a record."""

    @property
    def record_types(self) -> frozenset[int]:
        """The types of records that its groups are kept in."""

    def loaded(self, partition: int, records: Sequence[LoadedRecord]) -> Iterable[LoadedGroup]:
        """The groups of a partition of `__consumer_offsets` that these records tell of, in the order of the log."""

    def served(self, out: Outcome, group: Any, at: Now) -> None:
        """A loaded group is served from now on, and its timers run."""

    def on_timer(self, out: Outcome, group: Any, timer: Timer, at: Now) -> None:
        """A timer of one of its groups has fired."""

    def topics_changed(self, names: frozenset[str], at: Now) -> None:
        """These topics came, went or changed; what that means for groups is seen at their next heartbeats."""
