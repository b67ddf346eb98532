"""Several batches that are appended at once: the same log as one by one, with fewer writes."""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from tests.log.making import append_copies, append_one

from headrace.errors import KafkaError, KafkaStorageError, OutOfOrderSequenceNumberError
from headrace.log import (
    Appended,
    Log,
    LogConfig,
    Origin,
)
from headrace.log.files import LogFile
from headrace.log.invariants import BrokenInvariantError
from headrace.log.log_files import LogFiles
from headrace.log.producer_state import LogProducers
from headrace.records import build_batch
from headrace.runtime import Buffer, DiskError

from .making import DIRECTORY, NOW_MS, batch, make_host, marker, open_log

EPOCH = 3
SEEDS = 60


def append_together(log: Log, batches: Sequence[bytearray]) -> list[Appended | KafkaError | DiskError]:
    return log.append([log.check(one) for one in batches], EPOCH)


def append_each(log: Log, batches: Sequence[bytearray]) -> list[Appended | KafkaError | DiskError]:
    outcomes: list[Appended | KafkaError | DiskError] = []
    for one in batches:
        try:
            outcomes.append(append_one(log, one, EPOCH))
        except KafkaError as error:
            outcomes.append(error)
    return outcomes


def told(outcomes: Sequence[Any]) -> list[Any]:
    return [
        outcome[:4] if isinstance(outcome, Appended) else (type(outcome), outcome.message)  # type: ignore[union-attr]
        for outcome in outcomes
    ]


def files_of(log: Log) -> dict[str, bytes]:
    log.close()
    disk = log.caches.disk
    found = {}
    for name in disk.listdir(DIRECTORY):
        file = disk.open(f"{DIRECTORY}/{name}")
        found[name] = bytes(file.read(0, file.size()))
        file.close()
    return found


def some_batches(rng: random.Random, sequences: dict[int, int]) -> list[bytearray]:
    """Of clients without a number, and of producers that repeat themselves, leave gaps, and send more than once."""
    made = []
    for _ in range(rng.randint(1, 12)):
        values = [bytes(rng.choice([1, 40, 300])) for _ in range(rng.choice([1, 1, 1, 3]))]
        timestamp = NOW_MS + rng.choice([0, 0, 0, 5, 2_000])
        producer = None
        number = rng.randrange(8)
        if number < 5:
            sequence = max(0, sequences.get(number, 0) + rng.choice([0, 0, 0, 0, 0, -len(values), 2]))
            producer = (number, 0, sequence)
            sequences[number] = max(sequences.get(number, 0), sequence + len(values))
        made.append(batch(*values, timestamp=timestamp, producer=producer))
    return made


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_same_as_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    config = LogConfig(
        segment_bytes=rng.choice([600, 3_000, 1 << 20]),
        segment_ms=rng.choice([1_000, 10**9]),
        index_interval_bytes=rng.choice([0, 200]),
        segment_index_bytes=rng.choice([60, 1 << 20]),
    )
    one, other = open_log(make_host(), config), open_log(make_host(), config)
    sequences: dict[int, int] = {}
    for _ in range(rng.randint(1, 10)):
        batches = some_batches(rng, sequences)
        copies = [bytearray(one_batch) for one_batch in batches]
        assert told(append_together(one, batches)) == told(append_each(other, copies))
        assert one.view.end_offset == other.view.end_offset
        assert one.producers.producers == other.producers.producers
        assert [s.base_offset for s in one.segments] == [s.base_offset for s in other.segments]
    assert files_of(one) == files_of(other)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_plain_records_without_producers_are_the_same_as_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    config = LogConfig(
        segment_bytes=rng.choice([600, 3_000, 1 << 20]),
        segment_ms=rng.choice([1_000, 10**9]),
        index_interval_bytes=rng.choice([0, 200]),
        segment_index_bytes=rng.choice([60, 1 << 20]),
    )
    one, other = open_log(make_host(), config), open_log(make_host(), config)
    if rng.random() < 0.5:  # numbers of others stay what they are
        epoch = EPOCH - rng.randint(0, 1)
        for log in (one, other):
            append_one(log, batch(b"open", producer=(7, 0, 0), transactional=True), epoch)
    for _ in range(rng.randint(1, 20)):
        batches = [
            batch(bytes(rng.choice([1, 40, 300])), timestamp=NOW_MS + rng.choice([0, 0, -7, 5, 2_000]))
            for _ in range(rng.randint(1, 12))
        ]
        copies = [bytearray(one_batch) for one_batch in batches]
        assert told(append_together(one, batches)) == told(append_each(other, copies))
        assert one.view[2:7] == other.view[2:7]
        assert one.epochs.entries == other.epochs.entries
        assert one.producers.producers == other.producers.producers
        assert [s.base_offset for s in one.segments] == [s.base_offset for s in other.segments]
        assert one.max_timestamp() == other.max_timestamp()
        for offset in range(one.end_offset):
            assert (
                one.locate(offset, 1, limit=one.end_offset, at_least_one=True)[1:4]
                == (other.locate(offset, 1, limit=other.end_offset, at_least_one=True)[1:4])
            )
    assert files_of(one) == files_of(other)


def test_batches_of_an_epoch_that_falls_are_refused() -> None:
    log = open_log(make_host())
    append_one(log, batch(b"first"), EPOCH + 1)
    outcomes = append_together(log, [batch(b"a"), batch(b"b")])
    assert [type(outcome) for outcome in outcomes] == [BrokenInvariantError] * 2
    assert log.end_offset == 1


def test_many_batches_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(make_host())
    append_one(log, batch(b"first"), EPOCH)
    written: list[int] = []
    write = LogFile.append
    monkeypatch.setattr(LogFile, "append", lambda self, parts: (written.append(len(parts)), write(self, parts))[1])
    outcomes = append_together(log, [batch(b"v", producer=(number, 0, 0)) for number in range(20)])
    assert [outcome.base_offset for outcome in outcomes if isinstance(outcome, Appended)] == list(range(1, 21))
    assert written == [20]
    assert log.end_offset == 21


def test_copies_of_a_leaders_batches_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = open_log(make_host()), open_log(make_host())
    for number in range(10):
        append_one(leader, batch(b"%d" % number, producer=(7, 0, number), transactional=number >= 5), EPOCH)
    append_one(leader, marker(7, commit=False), EPOCH + 1, Origin.COORDINATOR)
    found = leader.locate(0, 1 << 20, limit=11, at_least_one=True)
    records = found.file.read(found.position, found.length)
    first_bytes = len(batch(b"0", producer=(7, 0, 0)))
    append_copies(follower, bytearray(records[:first_bytes]))
    written: list[int] = []
    write = LogFile.append
    monkeypatch.setattr(LogFile, "append", lambda self, parts: (written.append(len(parts)), write(self, parts))[1])
    append_copies(follower, bytearray(records[first_bytes:]))
    assert written == [10]
    assert follower.view.end_offset == leader.view.end_offset == 11
    assert follower.epochs.entries == leader.epochs.entries
    assert follower.producers.producers == leader.producers.producers
    assert files_of(follower) == files_of(leader)


def replicas(count: int) -> list[bytearray]:
    """Batches as a leader sends them, of about a hundred bytes."""
    return [
        build_batch([(NOW_MS, None, b"v" * 30, [])], base_offset=number, leader_epoch=EPOCH) for number in range(count)
    ]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_a_follower_outlasts_a_shortage_of_descriptors(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(make_host())
    first, second = replicas(2)
    append_copies(log, first)

    def failing(self: LogFile, parts: Sequence[Buffer]) -> int:
        raise DiskError("open", self.path, number)

    with monkeypatch.context() as patch:
        patch.setattr(LogFile, "append", failing)
        with pytest.raises(DiskError):
            append_copies(log, second)
    assert (log.end_offset, log.failure is None) == (1, number == errno.EMFILE)
    if log.failure is None:
        assert append_copies(log, second).last_offset == 1
        assert log.end_offset == 2


def test_what_a_follower_wrote_before_descriptors_were_short_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not told to the leader before it is as durable as the topic wants."""
    log = open_log(make_host(), LogConfig(segment_bytes=250, flush_messages=1))
    batches = replicas(5)
    append_copies(log, batches[0])
    log.sync()
    rolls = itertools.count(1)
    roll = LogFiles.roll

    def failing(self: LogFiles, *args: Any) -> None:
        if next(rolls) == 2:
            raise DiskError("open", self.directory, errno.EMFILE)
        roll(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(LogFiles, "roll", failing)
        appended = append_copies(log, bytearray().join(batches[1:]))
    assert log.failure is None
    assert 2 < log.end_offset < 5
    assert (appended.base_offset, appended.last_offset) == (1, log.end_offset - 1)
    assert appended.rolled
    assert appended.sync_due
    missing = batches[log.end_offset :]
    assert append_copies(log, bytearray().join(missing)).last_offset == 4
    assert log.end_offset == 5


def test_what_is_refused_does_not_hinder_the_others() -> None:
    log = open_log(make_host())
    append_one(log, batch(b"a", producer=(1, 0, 0)), EPOCH)
    again = batch(b"a", producer=(1, 0, 0))
    gap = batch(b"b", producer=(2, 0, 0))
    append_one(log, gap, EPOCH)
    outcomes = append_together(
        log, [batch(b"x"), batch(b"c", producer=(2, 0, 5)), again, batch(b"b", producer=(1, 0, 1)), batch(b"y")]
    )
    assert [getattr(outcome, "base_offset", None) for outcome in outcomes] == [2, None, 0, 3, 4]
    assert isinstance(outcomes[1], OutOfOrderSequenceNumberError)
    assert isinstance(outcomes[2], Appended)
    assert outcomes[2].duplicate
    assert log.end_offset == 5


def test_a_disk_that_fails_is_told_to_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(make_host())
    append_one(log, batch(b"first"), EPOCH)

    def failing(self: LogFile, parts: object) -> int:
        raise DiskError("append", self.path, 5)

    monkeypatch.setattr(LogFile, "append", failing)
    twice = [batch(b"a", producer=(1, 0, 0)), batch(b"b", producer=(1, 0, 1)), batch(b"c")]
    outcomes = append_together(log, twice)
    assert all(isinstance(outcome, (DiskError, KafkaStorageError)) for outcome in outcomes), outcomes
    assert log.end_offset == 1
    assert log.failure is not None


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_a_disk_that_cannot_be_asked_how_old_the_segment_is_is_told_to_all(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log that was opened again that has to be read."""
    host = make_host()
    log = open_log(host)
    append_one(log, batch(b"first"), EPOCH)
    log.close()
    log = open_log(host, clean=True)

    def failing(self: LogFile, position: int, length: int) -> bytes:
        raise DiskError("read", self.path, number)

    with monkeypatch.context() as patch:
        patch.setattr(LogFile, "read", failing)
        outcomes = append_together(log, [batch(b"a"), batch(b"b")])
    assert all(isinstance(outcome, (DiskError, KafkaStorageError)) for outcome in outcomes), outcomes
    assert (log.end_offset, log.failure is None) == (1, number == errno.EMFILE)
    if log.failure is None:
        assert len(append_together(log, [batch(b"a"), batch(b"b")])) == 2
        assert log.end_offset == 3


def test_what_cannot_be_taken_in_is_seen_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(make_host())
    append_one(log, batch(b"first"), EPOCH)
    apply = LogProducers.apply_batch

    def failing_for_two(self: LogProducers, header: Any, *args: Any) -> None:
        if header.producer_id == 2:
            raise MemoryError
        apply(self, header, *args)

    monkeypatch.setattr(LogProducers, "apply_batch", failing_for_two)
    outcomes = append_together(log, [batch(b"v", producer=(number, 0, 0)) for number in (1, 2, 3)])
    assert [type(outcome) for outcome in outcomes] == [KafkaStorageError] * 3
    assert log.view.end_offset == 1, "the bytes are there, and no other batch may be given their offsets"
    with pytest.raises(KafkaStorageError):
        append_one(log, batch(b"next"), EPOCH)


def test_none_at_all() -> None:
    log = open_log(make_host())
    assert log.append([], EPOCH) == []
    assert log.end_offset == 0


def test_nothing_of_copies_counts_where_the_disk_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(make_host(), LogConfig(segment_bytes=250))
    write, writes = LogFile.append, itertools.count(1)

    def failing(self: LogFile, parts: Sequence[Buffer]) -> int:
        if next(writes) == 2:
            raise DiskError("append", self.path, errno.EIO)
        return write(self, parts)

    monkeypatch.setattr(LogFile, "append", failing)
    outcomes = log.append(log.copies(bytearray().join(replicas(5))))
    assert [type(outcome) for outcome in outcomes] == [DiskError] * 5
    assert log.failure is not None
