"""Where partitions end and groups are, over time: rates, and lag in records and in time with its trend. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.topics import TopicPartition

SAMPLES_MAX = 360
TREND_S = 60.0


class Ends:
    """The ends of one partition, as they were seen: pairs of seconds and offset."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES_MAX)

    def add(self, now_s: float, end: int) -> None:
        if self._samples and end < self._samples[-1][1]:
            self._samples.clear()  # the topic is another one, or lost records
        self._samples.append((now_s, end))

    @property
    def latest(self) -> int | None:
        return self._samples[-1][1] if self._samples else None

    @property
    def latest_s(self) -> float | None:
        return self._samples[-1][0] if self._samples else None

    def rate(self, over_s: float = 30.0) -> float | None:
        """Records per second, lately."""
        if len(self._samples) < 2:
            return None
        now_s, end = self._samples[-1]
        then_s, before = next(sample for sample in self._samples if now_s - sample[0] <= over_s)
        return (end - before) / (now_s - then_s) if now_s > then_s else None

    def reached_at(self, offset: int) -> float | None:
        """When the end was at this offset; None where that was before what is remembered."""
        samples = self._samples
        if not samples or offset < samples[0][1]:
            return None
        ends = [end for _, end in samples]
        # The last sample that was not beyond it: from then on what comes is behind the offset.
        at = bisect_right(ends, offset) - 1
        then_s, before = samples[at]
        if at + 1 == len(samples) or offset == before:
            return then_s
        next_s, after = samples[at + 1]
        return then_s + (next_s - then_s) * (offset - before) / (after - before)


@dataclass(slots=True)
class GroupLag:
    """One group at one moment."""

    at_s: float
    records: int
    seconds: float | None
    """How far behind in time is what it will read next, of the partition that is furthest behind."""


@dataclass(slots=True)
class Lags:
    """All partitions and groups that are looked at."""

    ends: dict[TopicPartition, Ends] = field(default_factory=dict)
    groups: dict[str, deque[GroupLag]] = field(default_factory=dict)
    written: dict[tuple[TopicPartition, int], float] = field(default_factory=dict)
    """When records were written that groups will read next: by the records themselves, as nobody saw them come."""

    def add_ends(self, now_s: float, ends: Mapping[TopicPartition, int]) -> None:
        for partition, end in ends.items():
            self.ends.setdefault(partition, Ends()).add(now_s, end)

    def forget(self, partitions: set[TopicPartition], groups: set[str]) -> None:
        """What is not in these is gone."""
        self.ends = {one: ends for one, ends in self.ends.items() if one in partitions}
        self.groups = {name: lags for name, lags in self.groups.items() if name in groups}

    def unknown(self, committed: Mapping[TopicPartition, int], now_s: float) -> list[tuple[TopicPartition, int]]:
        """Records that are read next and of which nobody knows how long they have waited; most that wait, first."""
        found = [
            (partition, offset)
            for partition, offset in committed.items()
            if self.records_behind(partition, offset) and self.seconds_behind(partition, offset, now_s) is None
        ]
        return sorted(found, key=lambda one: -(self.records_behind(*one) or 0))

    def keep_written(self, wanted: set[tuple[TopicPartition, int]]) -> None:
        """Forget the times of records that nobody is at any more."""
        self.written = {one: at_s for one, at_s in self.written.items() if one in wanted}

    def seconds_behind(self, partition: TopicPartition, committed: int, now_s: float) -> float | None:
        """For how long the next record of a group has been waiting; 0 where nothing waits, None where nobody knows."""
        ends = self.ends.get(partition)
        latest = None if ends is None else ends.latest
        if ends is None or latest is None:
            return None
        if committed >= latest:
            return 0.0
        reached = ends.reached_at(committed)
        if reached is None:
            reached = self.written.get((partition, committed))
        return None if reached is None else max(0.0, now_s - reached)

    def records_behind(self, partition: TopicPartition, committed: int) -> int | None:
        ends = self.ends.get(partition)
        latest = None if ends is None else ends.latest
        return None if latest is None else max(0, latest - committed)

    def add_group(self, now_s: float, group: str, committed: Mapping[TopicPartition, int]) -> GroupLag:
        """What a group has committed by now."""
        records = 0
        unknown = False
        seconds: float | None = 0.0
        for partition, offset in committed.items():
            records += self.records_behind(partition, offset) or 0
            behind = self.seconds_behind(partition, offset, now_s)
            if behind is not None:
                seconds = max(seconds or 0.0, behind)
            elif (self.records_behind(partition, offset) or 0) > 0:
                unknown = True
        if unknown and not seconds:
            seconds = None
        lag = GroupLag(now_s, records, seconds)
        self.groups.setdefault(group, deque(maxlen=SAMPLES_MAX)).append(lag)
        return lag

    def trend(self, group: str) -> float | None:
        """Records by which a group falls behind (or, below zero, catches up) per second, lately."""
        lags = self.groups.get(group)
        if lags is None or len(lags) < 2:
            return None
        now = lags[-1]
        then = next((lag for lag in lags if now.at_s - lag.at_s <= TREND_S), now)
        return (now.records - then.records) / (now.at_s - then.at_s) if now.at_s > then.at_s else None

    def history(self, group: str) -> list[tuple[float, int, float | None]]:
        return [(lag.at_s, lag.records, lag.seconds) for lag in self.groups.get(group, ())]
