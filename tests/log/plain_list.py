"""A log next to a plain list of its batches: every rule counted out anew from the list, each time it is asked.

`python -m tests.log.plain_list 1000 [first]`. Producers that send again and out of order, transactions, cuts, syncs,
deleted records, clean stops, kills and power losses; after each step, everything that the log tells is compared.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from tests.log.making import DIRECTORY, NOW_MS, PARTITION, append_copies, append_one

from headrace.client.consumer._chunks import FetchedChunk
from headrace.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    OutOfOrderSequenceNumberError,
    UnknownProducerIdError,
)
from headrace.log import Caches, Log, LogConfig, Origin
from headrace.log.log_files import LogFiles
from headrace.protocol.messages.fetch import AbortedTransaction
from headrace.records import ControlType, build_batch, control_batch, split
from headrace.runtime.simulated import CrashModel, simulated_host

_KEPT = 5


@dataclass(slots=True)
class Written:
    """One batch of the list."""

    base: int
    values: list[bytes]
    leader_epoch: int
    producer: int = -1
    epoch: int = -1
    sequence: int = -1
    is_transactional: bool = False
    #: Of a marker: whether it commits.
    commits: bool | None = None
    data: bytes = b""

    @property
    def next(self) -> int:
        return self.base + max(1, len(self.values))

    @property
    def last_sequence(self) -> int:
        return self.sequence + len(self.values) - 1


@dataclass(slots=True)
class Known:
    """What the list says of one producer."""

    epoch: int = -1
    kept: list[Written] = field(default_factory=list)
    first: int | None = None


class PlainList:
    """What is in the log, and the rules."""

    def __init__(self) -> None:
        self.batches: list[Written] = []
        self.start = 0
        #: Where it ends when it is empty.
        self.empty_at = 0
        self.watermark = 0

    @property
    def end(self) -> int:
        return self.batches[-1].next if self.batches else self.empty_at

    def producers(self) -> dict[int, Known]:
        found: dict[int, Known] = {}
        for one in self.batches:
            if one.producer < 0:
                continue
            known = found.setdefault(one.producer, Known())
            if one.epoch != known.epoch:
                known.epoch, known.kept = one.epoch, []
            if one.commits is not None:
                known.first = None
                continue
            known.kept = [*known.kept, one][-_KEPT:]
            if one.is_transactional and known.first is None:
                known.first = one.base
        return found

    def transactions(self) -> list[tuple[int, int, Written | None]]:
        """Producer, first offset, and the marker, if there is one."""
        found: list[tuple[int, int, Written | None]] = []
        opened: dict[int, int] = {}
        for one in self.batches:
            if one.commits is not None:
                if one.producer in opened:
                    found.append((one.producer, opened.pop(one.producer), one))
            elif one.is_transactional:
                opened.setdefault(one.producer, one.base)
        return [*found, *((producer, first, None) for producer, first in opened.items())]

    def stable(self) -> int:
        """No reader of what is committed sees beyond it: the watermark, or where a transaction begins that is open, or
        whose end could still be lost."""
        undecided = [
            first for _, first, marker in self.transactions() if marker is None or marker.base >= self.watermark
        ]
        return max(min([self.watermark, *undecided]), self.start)

    def committed(self, start: int, end: int) -> list[tuple[int, bytes]]:
        """What a reader of committed records is given of these offsets."""
        aborted = [
            (producer, first, marker.base)
            for producer, first, marker in self.transactions()
            if marker is not None and not marker.commits
        ]
        found = []
        for one in self.batches:
            if one.commits is not None:
                continue
            if any(producer == one.producer and first <= one.base < last for producer, first, last in aborted):
                continue
            found += [(one.base + n, value) for n, value in enumerate(one.values) if start <= one.base + n < end]
        return found

    def epochs(self) -> list[tuple[int, int]]:
        """Each leader epoch that wrote something, and where it began."""
        found: list[tuple[int, int]] = []
        for one in self.batches:
            if not found or found[-1][0] != one.leader_epoch:
                found.append((one.leader_epoch, one.base))
        return found

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The greatest epoch up to that one, and where it ended."""
        known = self.epochs()
        below = [one for one in known if one[0] <= epoch]
        if not known or epoch > known[-1][0]:
            return -1, -1
        if not below:
            return epoch, known[0][1]
        at = known.index(below[-1])
        return below[-1][0], self.end if at + 1 == len(known) else known[at + 1][1]

    def outcome_of(self, one: Written) -> type[KafkaError] | Written | None:
        """Why a producer's batch is refused; the one that it repeats; or None: it is written."""
        known = self.producers().get(one.producer)
        if known is None or known.epoch < 0:
            return None
        if one.epoch == known.epoch:
            for kept in known.kept:
                if (kept.sequence, kept.last_sequence) == (one.sequence, one.last_sequence):
                    if one.is_transactional and (known.first is None or kept.next <= known.first):
                        return UnknownProducerIdError
                    return kept
        if one.epoch < known.epoch:
            return InvalidProducerEpochError
        expected = 0 if one.epoch != known.epoch or not known.kept else known.kept[-1].last_sequence + 1
        if one.sequence != expected:
            return OutOfOrderSequenceNumberError
        if known.first is not None and (not one.is_transactional or one.epoch != known.epoch):
            return InvalidTxnStateError
        return None

    def cut(self, offset: int) -> None:
        self.batches = [one for one in self.batches if one.next <= offset]
        self.watermark = min(self.watermark, self.end)


class Comparison:
    """The log and the list, step by step."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.host = simulated_host(seed)
        self.plain = PlainList()
        self.config = LogConfig(
            segment_bytes=self.rng.choice([600, 1_500, 1 << 20]),
            index_interval_bytes=self.rng.choice([0, 200, 4096]),
            file_delete_delay_ms=0,
        )
        self.leader_epoch = 0
        self.values = 0
        #: Below it all is durable: what a sync that has come back had in it, unless it was cut since.
        self.durable = 0
        self.log = self._open(0)
        self.last: Callable[[], None] = self.compare

    def _open(self, recovery_point: int) -> Log:
        return Log.open(
            self.host.runtime,
            DIRECTORY,
            PARTITION,
            self.config,
            recovery_point=recovery_point,
            start_offset=self.plain.start,
            producer_expiration_ms=2**62,
            caches=Caches(self.host.disk, open_files_max=self.rng.choice([1, 64])),
        )

    # --- steps

    def step(self) -> None:
        steps = {
            self.send: 40,
            self.send_again: 12,
            self.end_transaction: 12,
            self.watermark_moves: 10,
            self.cut: 7,
            self.next_leader: 3,
            self.roll: 3,
            self.sync: 5,
            self.sync_beside_an_append: 3,
            self.delete_records: 2,
            self.restart: 4,
        }
        self.last = self.rng.choices(list(steps), list(steps.values()))[0]
        self.last()
        self.compare()

    def _made(self) -> list[bytes]:
        count = self.rng.choice((1, 1, 1, 2, 5))
        self.values += count
        return [b"%d" % number + b"x" * self.rng.choice((0, 60)) for number in range(self.values - count, self.values)]

    def send(self) -> None:
        producer = self.rng.choice((-1, 1, 2, 3, 4))
        values = self._made()
        if producer < 0:
            self._append(Written(self.plain.end, values, self.leader_epoch))
            return
        known = self.plain.producers().get(producer, Known())
        epoch = max(0, known.epoch)
        sequence = known.kept[-1].last_sequence + 1 if known.kept else 0
        strange = self.rng.random()
        if strange < 0.06:
            epoch, sequence = epoch + 1, self.rng.choice((0, 0, sequence))
        elif strange < 0.09:
            epoch, sequence = max(0, epoch - 1), self.rng.choice((0, sequence))
        elif strange < 0.15:
            sequence += self.rng.choice((1, 7))
        is_transactional = producer >= 3 and self.rng.random() < 0.95
        self._append(Written(self.plain.end, values, self.leader_epoch, producer, epoch, sequence, is_transactional))

    def send_again(self) -> None:
        """One that is there, perhaps for long, or that was cut off."""
        mine = [one for one in self.plain.batches if one.producer >= 0 and one.commits is None]
        if mine:
            one = self.rng.choice(mine[-12:])
            known = self.plain.producers()[one.producer]
            if one.epoch == known.epoch and one not in known.kept:
                return  # after a restart a broker may know more than the last five
            again = Written(self.plain.end, one.values, self.leader_epoch, one.producer, one.epoch, one.sequence)
            again.is_transactional = one.is_transactional
            self._append(again)

    def _append(self, one: Written) -> None:
        options = {}
        if one.producer >= 0:
            options = {"producer_id": one.producer, "producer_epoch": one.epoch, "base_sequence": one.sequence}
        records = build_batch(
            [(NOW_MS, b"k", value, []) for value in one.values], transactional=one.is_transactional, **options
        )
        expected = None if one.producer < 0 else self.plain.outcome_of(one)
        if isinstance(expected, type):
            outcome: object
            try:
                outcome = append_one(self.log, records, self.leader_epoch, now_ms=NOW_MS)
            except KafkaError as error:
                outcome = error
            assert type(outcome) is expected, f"{one}: {outcome!r}, not {expected.__name__}"
            return
        told = append_one(self.log, records, self.leader_epoch, now_ms=NOW_MS)
        if expected is not None:
            assert (told.duplicate, told.base_offset) == (True, expected.base), f"{one}: {told}, not {expected}"
            return
        assert (told.duplicate, told.base_offset, told.last_offset) == (False, one.base, one.next - 1), told
        one.data = bytes(records)
        self.plain.batches.append(one)

    def end_transaction(self) -> None:
        producer = self.rng.choice((3, 4))
        known = self.plain.producers().get(producer)
        if known is None:
            return
        commits = self.rng.random() < 0.5
        epoch = known.epoch + self.rng.choice((0, 0, 1))
        marker = control_batch(
            ControlType.COMMIT if commits else ControlType.ABORT,
            producer_id=producer,
            producer_epoch=epoch,
            coordinator_epoch=0,
            timestamp=NOW_MS,
        )
        one = Written(self.plain.end, [], self.leader_epoch, producer, epoch, commits=commits)
        told = append_one(self.log, marker, self.leader_epoch, Origin.COORDINATOR, now_ms=NOW_MS)
        assert told.base_offset == one.base
        one.data = bytes(marker)
        self.plain.batches.append(one)

    def watermark_moves(self) -> None:
        ends = [one.next for one in self.plain.batches if one.next > self.plain.watermark]
        if ends:
            self._watermark(self.rng.choice(ends))

    def _watermark(self, offset: int) -> None:
        self.plain.watermark = offset
        self.log.update_high_watermark(offset)

    def cut(self) -> None:
        """As a follower: to anywhere above the start; then it is given other records, or the same once more."""
        if self.plain.end <= self.plain.start:
            return
        gone = list(self.plain.batches)
        # Often to where a segment begins, or a snapshot of producers was made.
        places = [*self.log.files.bases, *self.log.files.snapshots.offsets]
        offset = self.rng.choice((self.rng.randint(self.plain.start, self.plain.end), self.rng.choice(places)))
        offset = min(max(offset, self.plain.start), self.plain.end)
        self.plain.cut(offset)
        if self.plain.end < self.plain.start:
            self.plain.start = self.plain.end
        self.durable = min(self.durable, self.plain.end)
        self.log.truncate_to(offset)
        # A second cut may take back more than it cuts; its leader's next answer says what is committed.
        assert self.log.high_watermark <= self.plain.watermark
        self._watermark(self.plain.watermark)
        gone = gone[len(self.plain.batches) :]
        if gone and self.rng.random() < 0.4:
            kept = gone[: self.rng.randint(1, len(gone))]
            append_copies(self.log, b"".join(one.data for one in kept))
            self.plain.batches += kept
        else:
            self.next_leader()

    def next_leader(self) -> None:
        self.leader_epoch = max(self.leader_epoch, self.log.leader_epoch) + 1

    def roll(self) -> None:
        self.log.roll()

    def sync(self) -> None:
        self.log.sync()
        self.durable = self.plain.end

    def sync_beside_an_append(self) -> None:
        """Of what is appended while a sync is under way, nobody knows whether it is durable."""
        before, plain_sync = self.plain.end, LogFiles.sync

        def sync(files: LogFiles, *given: Any, **named: Any) -> None:
            plain_sync(files, *given, **named)
            self._append(Written(self.plain.end, self._made(), self.leader_epoch))

        with mock.patch.object(LogFiles, "sync", sync):
            self.log.sync()
        self.durable = before

    def delete_records(self) -> None:
        before = self.rng.randint(self.plain.start, max(self.plain.start, self.plain.watermark))
        self.log.delete_records(before)
        self.plain.start = max(self.plain.start, before)
        self.durable = max(self.durable, self.plain.start) if self.durable >= self.plain.start else self.durable

    def restart(self) -> None:
        """Stopped in order, killed, or without power: then only what is durable has to be there."""
        how = self.rng.choice(("stopped", "killed", "power lost"))
        recovery_point = self.log.recovery_point
        if how == "stopped":
            self.log.close()
            self.durable = recovery_point = self.plain.end
        self.host.kill(power_loss=how == "power lost", model=self.rng.choice(list(CrashModel)))
        self.host.restart()
        self.log = self._open(recovery_point)
        if how == "power lost":
            end = self.log.end_offset
            assert end >= self.durable, f"it ends at {end}, and all below {self.durable} was synced"
            self.plain.batches = [one for one in self.plain.batches if one.next <= end]
            if self.plain.end < self.plain.start or self.log.segments[0].base_offset > self.plain.empty_at:
                # Nothing of it was left, so that it begins anew behind what was deleted.
                self.plain.batches, self.plain.empty_at = [], self.plain.start
        # What a stopped broker knew to be committed, it reads from a checkpoint; without one it asks its leader. Until
        # then, nobody is told more than what was deleted; and no end of a transaction can be lost any more.
        self.plain.watermark = self.plain.start
        self._watermark(self.plain.end)

    # --- looks

    def compare(self) -> None:
        log, plain = self.log, self.plain
        told = (log.start_offset, log.end_offset)
        assert told == (plain.start, plain.end), f"from {told[0]} to {told[1]}, not {plain.start} to {plain.end}"
        committed = max(plain.watermark, plain.start)
        assert log.high_watermark == committed, f"watermark {log.high_watermark}, not {committed}"
        assert log.last_stable_offset == plain.stable(), f"stable up to {log.last_stable_offset}, not {plain.stable()}"
        assert log.recovery_point <= max(self.durable, plain.start), (
            f"durable up to {log.recovery_point}, and only what is below {self.durable} was synced"
        )
        if plain.start == 0:
            for epoch in range(self.leader_epoch + 2):
                told = log.end_offset_for(epoch)
                assert told == plain.end_of(epoch), f"epoch {epoch} ends at {told}, not {plain.end_of(epoch)}"
        self._compare_producers()
        self._compare_committed()

    def _compare_producers(self) -> None:
        known = self.log.producers.producers
        for producer, wanted in self.plain.producers().items():
            told = known[producer]
            last = wanted.kept[-1].last_sequence if wanted.kept else -1
            first = -1 if wanted.first is None else wanted.first
            assert (told.epoch, told.last_sequence, told.txn_first_offset) == (wanted.epoch, last, first), producer
        assert set(known) == set(self.plain.producers())

    def _compare_committed(self) -> None:
        start, stable = self.plain.start, self.plain.stable()
        if start == stable:
            return
        start = self.rng.randrange(start, stable)
        found: list[tuple[int, bytes]] = []
        at = start
        while at < stable:
            place = self.log.locate(at, self.rng.choice((1, 500, 1 << 20)), limit=stable, at_least_one=True)
            aborted = [
                AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
                for one in self.log.aborted_transactions(at, place)
            ]
            data = place.file.read(place.position, place.length)
            chunk = FetchedChunk(PARTITION, at, data, aborted, read_committed=True, check_crcs=True)
            while (piece := chunk.peek(100)) is not None:
                found += zip(piece.columns.offsets, map(bytes, piece.columns.values.to_list()))
                chunk.advance(len(piece))
            whole = [batch.next_offset for batch in split(data)]
            at = whole[-1]
        assert found == self.plain.committed(start, stable), f"read from {start} to {stable}"


def run_seed(seed: int, steps: int = 60) -> None:
    comparison = Comparison(seed)
    for number in range(steps):
        try:
            comparison.step()
        except Exception as error:
            error.add_note(f"seed {seed}, step {number}: {comparison.last.__name__}")
            raise


if __name__ == "__main__":
    count = int(sys.argv[1])
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for number in range(first, first + count):
        run_seed(number)
    print(f"{count} seeds from {first}: the log is what the list says")
