"""What can be seen from outside: counters, the state of each partition, and both as Prometheus text or a log line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from headrace.topics import TopicPartition


@dataclass(slots=True)
class Counters:
    """Totals since the start. Changed under the core's lock; reading one at any time is harmless."""

    polled: int = 0
    handled: int = 0
    failures: int = 0
    local_retries: int = 0
    retry_topic: int = 0
    dead_letters: int = 0
    poison: int = 0
    skipped: int = 0
    restored: int = 0
    stalls: int = 0
    zombies: int = 0
    reclaimed: int = 0
    revoked_unfinished: int = 0
    produce_failures: int = 0
    letters_in_parts: int = 0
    commits: int = 0
    commit_failures: int = 0
    notes_cut: int = 0
    rebalances: int = 0

    def add(self, other: Counters) -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


_HELP = {
    "polled": "Records read.",
    "handled": "Records whose handler returned.",
    "failures": "Tries that failed.",
    "local_retries": "Further tries on the spot.",
    "retry_topic": "Records put to the retry topic.",
    "dead_letters": "Records put to the dead-letter topic.",
    "poison": "Records that could not be deserialised.",
    "skipped": "Records given up without a dead-letter topic.",
    "restored": "Records not handled again, because a commit's note said that they were finished.",
    "stalls": "Handlers given up because they hang.",
    "zombies": "Results dropped, because the partition or the work had been given to others.",
    "reclaimed": "Pieces of work taken back from a worker that was held up.",
    "revoked_unfinished": "Records that were unfinished when their partition went.",
    "produce_failures": "Failed tries to put a record to the retry or dead-letter topic.",
    "letters_in_parts": "Dead letters that were too large for their topic, and went in parts.",
    "commits": "Commits that went through.",
    "commit_failures": "Commits that did not.",
    "notes_cut": "Commits whose note did not have room for all finished records.",
    "rebalances": "Rebalances seen.",
}


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition, as it is now."""

    partition: TopicPartition
    start: int | None
    """The first unfinished offset: the window's start, and what is committed next."""
    end: int | None
    incomplete: int
    in_flight: int
    held: int
    oldest_age_s: float
    paused: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything, at one moment."""

    group: str
    workers: int
    busy: int
    buffered_records: int
    buffered_bytes: int
    counters: Counters
    partitions: list[PartitionState] = field(default_factory=list)

    @property
    def oldest_age_s(self) -> float:
        return max((one.oldest_age_s for one in self.partitions), default=0.0)

    @property
    def incomplete(self) -> int:
        return sum(one.incomplete for one in self.partitions)

    def log_line(self) -> str:
        """The state in one line."""
        c = self.counters
        return (
            f"{len(self.partitions)} partitions, {self.incomplete} records unfinished (oldest "
            f"{self.oldest_age_s:.1f} s), {self.busy} of {self.workers} workers busy; handled {c.handled}, failures "
            f"{c.failures}, to retry topic {c.retry_topic}, dead letters {c.dead_letters}, stalls {c.stalls}"
        )

    def prometheus(self) -> str:
        """The text format that Prometheus scrapes."""
        group = f'group="{_escaped(self.group)}"'
        lines: list[str] = []
        for name, help_text in _HELP.items():
            metric = f"headrace_parallel_{name}_total"
            lines += _metric(metric, "counter", help_text, [(group, getattr(self.counters, name))])
        gauges = (
            ("workers", "Workers.", self.workers),
            ("workers_busy", "Workers with something to do.", self.busy),
            ("buffered_records", "Unfinished records held.", self.buffered_records),
            ("buffered_bytes", "Bytes of those.", self.buffered_bytes),
        )
        for name, help_text, value in gauges:
            lines += _metric(f"headrace_parallel_{name}", "gauge", help_text, [(group, value)])
        labels = [
            f'{group},topic="{_escaped(one.partition.topic)}",partition="{one.partition.partition}"'
            for one in self.partitions
        ]
        per_partition = (
            ("incomplete", "Unfinished records.", [one.incomplete for one in self.partitions]),
            ("in_flight", "Records with a worker.", [one.in_flight for one in self.partitions]),
            ("held", "Records of the retry topic that are not due.", [one.held for one in self.partitions]),
            ("window_start", "The first unfinished offset.", [_or_nan(one.start) for one in self.partitions]),
            ("window_end", "The next offset to read.", [_or_nan(one.end) for one in self.partitions]),
            ("oldest_age_seconds", "Age of the oldest unfinished record.", [o.oldest_age_s for o in self.partitions]),
            ("paused", "Whether reading is paused.", [int(one.paused) for one in self.partitions]),
        )
        for name, help_text, values in per_partition:
            lines += _metric(f"headrace_parallel_partition_{name}", "gauge", help_text, zip(labels, values))
        return "\n".join(lines) + "\n"


def _or_nan(value: int | None) -> float:
    return float("nan") if value is None else value


def _metric(name: str, kind: str, help_text: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    return [
        f"# HELP {name} {help_text}",
        f"# TYPE {name} {kind}",
        *(f"{name}{{{labels}}} {'NaN' if value != value else value}" for labels, value in samples),
    ]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def combine(snapshots: list[Snapshot], group: str = "") -> Snapshot:
    """Several members of one group in one process, seen as one."""
    counters = Counters()
    for one in snapshots:
        counters.add(one.counters)
    return Snapshot(
        group=snapshots[0].group if snapshots else group,
        workers=sum(one.workers for one in snapshots),
        busy=sum(one.busy for one in snapshots),
        buffered_records=sum(one.buffered_records for one in snapshots),
        buffered_bytes=sum(one.buffered_bytes for one in snapshots),
        counters=counters,
        partitions=sorted((state for one in snapshots for state in one.partitions), key=lambda s: s.partition),
    )
