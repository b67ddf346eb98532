"""Groups of the classic protocol, as the coordinator sees any kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.coordination import Now, Timer
from headrace.groups.classic.loading import loaded_group
from headrace.groups.classic.rebalance import Rebalances
from headrace.groups.classic.state import ClassicGroup
from headrace.groups.config import GroupConfig
from headrace.groups.kinds import LoadedGroup, LoadedRecord
from headrace.groups.outcome import Outcome, TimerKind


class ClassicGroups:
    record_types = frozenset((2,))

    def __init__(self, config: GroupConfig, rebalances: Rebalances) -> None:
        self._config = config
        self._rebalances = rebalances

    def loaded(self, partition: int, records: Sequence[LoadedRecord]) -> Iterable[LoadedGroup]:
        for key, value, sequence in records:
            yield LoadedGroup(loaded_group(partition, key, value), sequence)

    def served(self, out: Outcome, group: ClassicGroup, at: Now) -> None:
        group.start_timers(out, at)
        if len(group.members) > self._config.max_size:
            # The limit was lowered: as the members rejoin, the last ones find no place.
            reason = f"it was loaded with {len(group.members)} members, and {self._config.max_size} are allowed"
            self._rebalances.prepare(out, group, at, reason)

    def on_timer(self, out: Outcome, group: ClassicGroup, timer: Timer, at: Now) -> None:
        if timer.kind is TimerKind.SESSION:
            self._rebalances.on_session_timer(out, group, timer.member_id, at)
        elif timer.member_id:
            return  # of a member of the consumer group that it was before
        elif timer.kind is TimerKind.JOIN:
            self._rebalances.on_join_timer(out, group, at)
        elif timer.kind is TimerKind.SYNC:
            self._rebalances.on_sync_timer(out, group, at)

    def topics_changed(self, names: frozenset[str], at: Now) -> None:
        """The leader of each group watches its topics."""
