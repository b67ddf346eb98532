"""What can be seen from outside: counters, the state of each partition, and both for Prometheus or as a log line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from headrace.topics import TopicPartition

if TYPE_CHECKING:
    from prometheus_client.core import Metric


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

    def collect(self) -> Iterator[Metric]:
        """As prometheus-client wants it (`headrace.metrics`)."""
        # Here, so that consuming starts without it.
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, help_text in _HELP.items():
            total = CounterMetricFamily(f"headrace_parallel_{name}", help_text, labels=["group"])
            total.add_metric([self.group], getattr(self.counters, name))
            yield total
        gauges = (
            ("workers", "Workers.", self.workers),
            ("workers_busy", "Workers with something to do.", self.busy),
            ("buffered_records", "Unfinished records held.", self.buffered_records),
            ("buffered_bytes", "Bytes of those.", self.buffered_bytes),
        )
        for name, help_text, value in gauges:
            gauge = GaugeMetricFamily(f"headrace_parallel_{name}", help_text, labels=["group"])
            gauge.add_metric([self.group], value)
            yield gauge
        for name, help_text, of in _OF_PARTITION:
            labels = ["group", "topic", "partition"]
            gauge = GaugeMetricFamily(f"headrace_parallel_partition_{name}", help_text, labels=labels)
            for one in self.partitions:
                gauge.add_metric([self.group, one.partition.topic, str(one.partition.partition)], of(one))
            yield gauge


def _or_nan(value: int | None) -> float:
    return float("nan") if value is None else value


_OF_PARTITION: tuple[tuple[str, str, Callable[[PartitionState], float]], ...] = (
    ("incomplete", "Unfinished records.", lambda one: one.incomplete),
    ("in_flight", "Records with a worker.", lambda one: one.in_flight),
    ("held", "Records of the retry topic that are not due.", lambda one: one.held),
    ("window_start", "The first unfinished offset.", lambda one: _or_nan(one.start)),
    ("window_end", "The next offset to read.", lambda one: _or_nan(one.end)),
    ("oldest_age_seconds", "Age of the oldest unfinished record.", lambda one: one.oldest_age_s),
    ("paused", "Whether reading is paused.", lambda one: int(one.paused)),
)


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
