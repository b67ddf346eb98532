"""Records that librdkafka wrote twice by itself, and how that is told from what a broker did.

When a broker misses a batch of a partition (the one before was refused, because it had just lost its leader, say),
librdkafka begins a new epoch, for all partitions, and numbers anew whatever it has no answer for: also what another
partition's leader has written, and could not say so any more. That batch is then there under both epochs. It does so
with Apache Kafka as well (`tests/compat/test_librdkafka_epochs.py`), so it says nothing about brokers, as long as the
batch that was missed was indeed missing. For that, librdkafka's own log is looked at, and the batches as they are.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from headrace.cli.dumping import batch_rows

from .history import Place

LOG_SUFFIX = ".librdkafka"

_SKIPPED = re.compile(
    r"ProduceRequest for (?P<topic>\S+) \[(?P<partition>\d+)\] .* skipped sequence numbers "
    r"\(PID\{Id:(?P<id>\d+),Epoch:(?P<epoch>\d+)\}, base seq (?P<sequence>\d+) > "
)
_REASON = re.compile(r"PID\{Id:(?P<id>\d+),Epoch:(?P<epoch>\d+)\} epoch bump .* in-flight requests: (?P<reason>.*)")
_FOR_SKIPPED = "skipped sequence numbers"


@dataclass(frozen=True, slots=True)
class Written:
    """A batch as it is in a log."""

    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class Missed:
    """A partition was asked to go on with this sequence number, and did not have the one before."""

    place: Place
    sequence: int


Batches = Mapping[Place, Mapping[int, Written]]
"""Per partition: what wrote the record at an offset."""


def batches_of(directory: Path, places: Iterable[Place]) -> Batches:
    """What a broker's data directory has of these partitions."""
    found: dict[Place, dict[int, Written]] = {}
    for topic, partition in places:
        of_place = found[topic, partition] = {}
        for segment in sorted((directory / f"{topic}-{partition}").glob("*.log")):
            for row in batch_rows(segment):
                if row.get("base_sequence") is None:
                    # Without a number, or a marker.
                    continue
                offsets = range(row["base_offset"], row["last_offset"] + 1)
                first = row["base_sequence"]
                written = Written(row["producer_id"], row["producer_epoch"], first, first + len(offsets) - 1)
                of_place.update(dict.fromkeys(offsets, written))
    return found


def left_epochs(log: Iterable[str]) -> dict[tuple[int, int], list[Missed]]:
    """The epochs that a client left because brokers missed a batch, by its log; an epoch that was left for any other
    reason is not among them."""
    missed: dict[tuple[int, int], list[Missed]] = defaultdict(list)
    for_others: set[tuple[int, int]] = set()
    for line in log:
        if (skipped := _SKIPPED.search(line)) is not None:
            key = (int(skipped["id"]), int(skipped["epoch"]))
            missed[key].append(Missed((skipped["topic"], int(skipped["partition"])), int(skipped["sequence"])))
        elif (reason := _REASON.search(line)) is not None and reason["reason"].strip() != _FOR_SKIPPED:
            for_others.add((int(reason["id"]), int(reason["epoch"])))
    return {key: found for key, found in missed.items() if key not in for_others}


def was_missing(missed: Missed, key: tuple[int, int], batches: Batches) -> bool:
    """That the broker was right: no batch of that epoch with the number before is in the log."""
    return not any(
        (one.producer_id, one.epoch) == key and one.first_sequence <= missed.sequence - 1 <= one.last_sequence
        for one in batches.get(missed.place, {}).values()
    )


def renumbered(
    logs: Mapping[Place, Sequence[tuple[int, int]]], batches: Batches, client_logs: Iterable[Path]
) -> set[int]:
    """The values that are in a partition twice because librdkafka numbered them anew."""
    left: dict[tuple[int, int], list[Missed]] = {}
    for path in client_logs:
        with path.open(errors="replace") as lines:
            left |= left_epochs(lines)
    rightly = {key for key, missed in left.items() if all(was_missing(one, key, batches) for one in missed)}
    found: set[int] = set()
    for place, log in logs.items():
        written: dict[int, list[Written]] = defaultdict(list)
        for offset, value in log:
            if offset in batches.get(place, {}):
                written[value].append(batches[place][offset])
        found |= {value for value, by in written.items() if len(by) > 1 and _follow(by, rightly)}
    return found


def _follow(by: Sequence[Written], rightly: set[tuple[int, int]]) -> bool:
    """Each under a later epoch of the same producer than the one before, and all epochs between left rightly."""
    return all(
        before.producer_id == after.producer_id
        and before.epoch < after.epoch
        and all((before.producer_id, epoch) in rightly for epoch in range(before.epoch, after.epoch))
        for before, after in pairwise(by)
    )
