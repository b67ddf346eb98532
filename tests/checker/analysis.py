"""What must not be in a history, after the anomalies that Jepsen's Kafka workload looks for.

Given what clients saw and what the logs hold in the end (read committed, from the beginning), each function names what
contradicts Kafka's promises. Writes of two transactions may interleave (G0), so the order of offsets says nothing about
the order of transactions, and cycles that need it are only counted; cycles of information flow (`cycles`) are not
allowed. Polls of a group may skip or go back where a rebalance lies between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .cycles import information_flow_cycles
from .history import Kind, Operation, Outcome, Place

Logs = Mapping[Place, Sequence[tuple[int, int]]]
"""Per partition the committed (offset, value) in order."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


@dataclass(frozen=True, slots=True)
class Moved:
    """The consume-transform-produce part: where its group stands, and what becomes of an input value."""

    source: str
    committed: Mapping[Place, int]

    @staticmethod
    def outputs(value: int) -> tuple[int, int]:
        return value + 1, value + 2


def analyse(
    operations: Sequence[Operation],
    logs: Logs,
    moved: Moved | None = None,
    renumbered: Collection[int] = frozenset(),
) -> list[Anomaly]:
    """Everything that is wrong. `renumbered` are values that their client wrote again by itself: they, and what was
    made of them, may be there twice."""
    found: list[Anomaly] = []
    for check in (lost_writes, aborted_reads, torn_transactions, inconsistent_offsets, phantoms):
        found += check(operations, logs)
    found += duplicates(logs, {one for value in renumbered for one in (value, *Moved.outputs(value))})
    found += nonmonotonic_polls(operations)
    found += skipped_polls(operations, logs)
    found += nonmonotonic_sends(operations)
    found += reordered_logs(operations, logs, renumbered)
    found += offsets_taken_back(operations)
    found += precommitted_reads(operations)
    found += circular_information(operations)
    if moved is not None:
        found += moved_apart(logs, moved)
    return found


def _present(logs: Logs) -> set[int]:
    return {value for log in logs.values() for _, value in log}


def _writing(operations: Iterable[Operation]) -> Iterator[Operation]:
    return (operation for operation in operations if operation.writes)


def lost_writes(operations: Sequence[Operation], logs: Logs) -> Iterator[Anomaly]:
    """Acknowledged (or committed), and not there."""
    present = _present(logs)
    for operation in _writing(operations):
        if operation.outcome is not Outcome.OK:
            continue
        gone = [(place, value, offset) for place, value, offset in operation.writes if value not in present]
        if gone:
            place, value, offset = gone[0]
            yield Anomaly(
                "lost write",
                f"{value} of {operation.process}, acknowledged in {place} at {offset}, is not in the log "
                f"({len(gone)} of {len(operation.writes)} of its {operation.kind.value})",
            )


def duplicates(logs: Logs, allowed: Collection[int] = frozenset()) -> Iterator[Anomaly]:
    """A value in two places of the logs."""
    where: dict[int, list[tuple[Place, int]]] = defaultdict(list)
    for place, log in logs.items():
        for offset, value in log:
            where[value].append((place, offset))
    for value, places in where.items():
        if len(places) > 1 and value not in allowed:
            yield Anomaly("duplicate", f"{value} is in the logs {len(places)} times: {places[:4]}")


def aborted_reads(operations: Sequence[Operation], logs: Logs) -> Iterator[Anomaly]:
    """Of a transaction that was aborted for certain, and read (or in the log) all the same: G1a."""
    kept = {value for one in _writing(operations) if one.outcome is not Outcome.FAIL for _, value, _ in one.writes}
    aborted = {
        value: operation.process
        for operation in _writing(operations)
        if operation.outcome is Outcome.FAIL
        for _, value, _ in operation.writes
        # The same output may have been tried again, and committed then.
        if value not in kept
    }
    present = _present(logs)
    for value, process in aborted.items():
        if value in present:
            yield Anomaly("aborted read", f"{value}, which {process} aborted, is in the log")
    for operation in operations:
        for place, offset, value in operation.reads:
            if value in aborted and value not in present:
                yield Anomaly(
                    "aborted read", f"{operation.process} read {value}, which was aborted, {place} at {offset}"
                )


def torn_transactions(operations: Sequence[Operation], logs: Logs) -> Iterator[Anomaly]:
    """A part of a transaction's writes is there, and a part is not."""
    present = _present(logs)
    for operation in operations:
        if operation.kind is not Kind.TRANSACTION:
            continue
        there = [value for _, value, _ in operation.writes if value in present]
        if there and len(there) != len(operation.writes):
            yield Anomaly(
                "torn transaction",
                f"{len(there)} of the {len(operation.writes)} writes of a transaction of {operation.process} "
                f"({operation.outcome.value}) are there, such as {there[0]}",
            )


def inconsistent_offsets(operations: Sequence[Operation], logs: Logs) -> Iterator[Anomaly]:
    """One offset, two values."""
    seen: dict[tuple[Place, int], tuple[int, str]] = {}

    def look(place: Place, offset: int, value: int, who: str) -> Iterator[Anomaly]:
        before = seen.setdefault((place, offset), (value, who))
        if before[0] != value:
            yield Anomaly(
                "inconsistent offsets", f"{place} at {offset} is {before[0]} for {before[1]} and {value} for {who}"
            )

    for place, log in logs.items():
        for offset, value in log:
            yield from look(place, offset, value, "the log")
    for operation in operations:
        for place, offset, value in operation.reads:
            yield from look(place, offset, value, f"a read of {operation.process}")
        if operation.outcome is Outcome.OK:
            for place, value, offset in operation.writes:
                if offset >= 0:
                    yield from look(place, offset, value, f"a write of {operation.process}")


def phantoms(operations: Sequence[Operation], logs: Logs) -> Iterator[Anomaly]:
    """Values that nobody sent."""
    sent = {value for operation in _writing(operations) for _, value, _ in operation.writes}
    for value in sorted(_present(logs) - sent):
        yield Anomaly("phantom", f"{value} is in the log, and nobody sent it")


def _sessions(operations: Sequence[Operation]) -> dict[tuple[str, int, Place], list[tuple[int, int]]]:
    """What each session of a reader read of a partition, in the order of its polls."""
    polls: dict[tuple[str, int, Place], list[tuple[int, int]]] = defaultdict(list)
    for operation in sorted(operations, key=lambda one: one.began):
        # What a mover read may come again, in the next attempt.
        if operation.kind is not Kind.MOVE:
            for place, offset, value in operation.reads:
                polls[operation.process, operation.session, place].append((offset, value))
    return polls


def nonmonotonic_polls(operations: Sequence[Operation]) -> Iterator[Anomaly]:
    """A reader goes back, or reads something again, without a rebalance or seek."""
    for (process, session, place), read in _sessions(operations).items():
        for (before, _), (after, value) in pairwise(read):
            if after <= before:
                yield Anomaly(
                    "nonmonotonic poll",
                    f"{process} (session {session}) read {place} at {before}, then {value} at {after}",
                )
                break


def skipped_polls(operations: Sequence[Operation], logs: Logs) -> Iterator[Anomaly]:
    """A reader that assigned itself a partition passes over a committed record."""
    assigned = [one for one in operations if one.is_assigned]
    for (process, session, place), read in _sessions(assigned).items():
        if not read:
            continue
        offsets = {offset for offset, _ in read}
        for offset, value in logs.get(place, ()):
            if read[0][0] < offset < read[-1][0] and offset not in offsets:
                yield Anomaly("poll skip", f"{process} (session {session}) passed over {value}, {place} at {offset}")
                break


def nonmonotonic_sends(operations: Sequence[Operation]) -> Iterator[Anomaly]:
    """A client's acknowledged writes to a partition are not in the order in which it sent them."""
    last: dict[tuple[str, Place], tuple[int, int]] = {}
    for operation in sorted(_writing(operations), key=lambda one: one.began):
        if operation.outcome is not Outcome.OK:
            continue
        for place, value, offset in operation.writes:
            if offset < 0:
                continue
            key = (operation.process, place)
            if key in last and last[key][0] >= offset:
                yield Anomaly(
                    "nonmonotonic send",
                    f"{operation.process} sent {last[key][1]} before {value}, and {place} has them at {last[key][0]} "
                    f"and {offset}",
                )
            last[key] = (offset, value)


def reordered_logs(
    operations: Sequence[Operation], logs: Logs, renumbered: Collection[int] = frozenset()
) -> Iterator[Anomaly]:
    """What one producer sent to a partition is not in its order there, whether it was acknowledged or not."""
    sender = {
        value: operation.process
        for operation in operations
        # The results of a mover that begins again come in another order.
        if operation.kind in (Kind.SEND, Kind.TRANSACTION)
        for _, value, _ in operation.writes
    }
    for place, log in logs.items():
        last: dict[str, tuple[int, int]] = {}
        for offset, value in log:
            process = sender.get(value)
            if process is None or value in renumbered:
                continue
            # A client's values grow.
            before = last.get(process)
            if before is not None and before[0] > value:
                yield Anomaly(
                    "reordered log",
                    f"{process} sent {value} before {before[0]}, and {place} has them at {offset} and {before[1]}",
                )
            last[process] = (value, offset)


def offsets_taken_back(operations: Sequence[Operation]) -> Iterator[Anomaly]:
    """A group's committed offset is seen lower than by a look that had ended before."""
    looks = sorted((one for one in operations if one.kind is Kind.OFFSETS), key=lambda one: one.began)
    last: dict[tuple[str, Place], tuple[int, float]] = {}
    for look in looks:
        for group, place, offset in look.committed:
            before, at = last.get((group, place), (-1, 0.0))
            if before > offset:
                yield Anomaly(
                    "offset taken back",
                    f"{group} stood at {before} of {place} and {look.ended - at:.3f} s later at {offset}",
                )
            last[group, place] = (offset, look.ended)


def precommitted_reads(operations: Sequence[Operation]) -> Iterator[Anomaly]:
    """Read before anybody had asked for the commit."""
    committing: dict[int, tuple[float, str]] = {}
    for operation in operations:
        if operation.kind is Kind.TRANSACTION:
            for _, value, _ in operation.writes:
                committing[value] = (operation.committing, operation.process)
    for operation in operations:
        for place, offset, value in operation.reads:
            at, process = committing.get(value, (float("-inf"), ""))
            if operation.ended < at:
                yield Anomaly(
                    "precommitted read",
                    f"{operation.process} read {value} in {place} at {offset} before {process} committed it",
                )


def circular_information(operations: Sequence[Operation]) -> Iterator[Anomaly]:
    """G1c: transactions that read each other's writes, at once or through others, or against the clock."""
    for cycle in information_flow_cycles(operations):
        shown = " → ".join(f"{one.process} ({one.kind.value} at {one.began:.3f})" for one in [*cycle, cycle[0]][:8])
        yield Anomaly("circular information flow", f"{len(cycle)} operations: {shown}")


def moved_apart(logs: Logs, moved: Moved) -> Iterator[Anomaly]:
    """Input is behind the group's offset if and only if all of its output is there."""
    present = _present({place: log for place, log in logs.items() if place[0] != moved.source})
    for place, log in logs.items():
        if place[0] != moved.source:
            continue
        committed = moved.committed.get(place, 0)
        for offset, value in log:
            there = [output for output in moved.outputs(value) if output in present]
            if offset < committed and len(there) < 2:
                yield Anomaly(
                    "offsets without output",
                    f"{value} ({place} at {offset}) is behind the group's offset {committed}, and "
                    f"{2 - len(there)} of its 2 results are missing",
                )
            elif offset >= committed and there:
                yield Anomaly(
                    "output without offsets",
                    f"{value} ({place} at {offset}) has results, and the group stands at {committed}",
                )
