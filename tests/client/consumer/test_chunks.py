"""What a fetch brought is handed out the same, whether its batches are looked at one by one or all together."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.records.legacy_messages import message, wrapper

from headrace.client.consumer._chunks import FetchedChunk
from headrace.client.consumer.errors import RecordDeserializationError
from headrace.protocol.messages.fetch import AbortedTransaction
from headrace.records import (
    Codec,
    ControlType,
    TimestampType,
    build_batch,
    control_batch,
    kernels,
    set_max_timestamp,
    survey_stretch,
    use_fast,
)
from headrace.records.batch import seal
from headrace.topics import TopicPartition

pytest.importorskip("headrace.records.kernels_fast")
PART = TopicPartition("t", 0)


def batches(count: int = 6, **options: Any) -> list[bytearray]:
    """Of 20 records each, from offset 0."""
    return [
        bytearray(
            build_batch(
                [(1000 + row, b"k" if row % 2 else None, b"value %d" % row, ()) for row in range(20)],
                base_offset=20 * n,
                leader_epoch=3,
                **options,
            )
        )
        for n in range(count)
    ]


def handed_out(data: bytes, position: int, check_crcs: bool) -> tuple[list[Any], int, str | None]:
    """Every record, where the next fetch goes on, and the error at the end."""
    chunk = FetchedChunk(PART, position, data, None, read_committed=True, check_crcs=check_crcs)
    found: list[Any] = []
    next_offset = chunk.next_offset
    try:
        while (piece := chunk.peek(17)) is not None:
            columns = piece.columns
            rows = zip(columns.offsets, columns.timestamps, columns.keys.to_list(), columns.values.to_list())
            found += [(*row, piece.leader_epoch, piece.timestamp_type) for row in rows]
            chunk.advance(len(piece))
    except RecordDeserializationError as error:
        return found, next_offset, str(error)
    assert chunk.is_done
    return found, next_offset, None


def plain() -> bytes:
    return b"".join(batches())


def cut_at_the_end() -> bytes:
    return plain()[:-30]


def cut_in_a_header() -> bytes:
    return plain() + plain()[:15]


def damaged() -> bytes:
    made = batches()
    made[3][-5] ^= 1
    return b"".join(made)


def lying_about_its_records() -> bytes:
    made = batches()
    made[2][60] += 1
    return b"".join(made)


def of_another_epoch() -> bytes:
    made = batches()
    made[4][15] = 4
    return b"".join(made)


def of_another_format() -> bytes:
    made = batches()
    made[5][16] = 1
    return b"".join(made)


def of_an_unknown_format() -> bytes:
    made = batches()
    made[5][16] = 9
    return b"".join(made)


def with_an_impossible_length() -> bytes:
    made = batches()
    made[5][8:12] = b"\0\0\0\x02"
    return b"".join(made)


def compressed_in_between() -> bytes:
    return b"".join([*batches(3), *batches(5, codec=Codec.LZ4)[3:]])


def compressed() -> bytes:
    return b"".join(batches(codec=Codec.LZ4))


def compressed_otherwise() -> bytes:
    return b"".join(batches(codec=Codec.GZIP))


def compressed_with_two_codecs() -> bytes:
    return b"".join([*batches(3, codec=Codec.ZSTD), *batches(codec=Codec.SNAPPY)[3:]])


def compressed_and_emptied() -> bytes:
    made = batches(codec=Codec.LZ4)
    made[3][57:61] = bytes(4)
    seal(made[3])
    return b"".join(made)


def compressed_and_damaged() -> bytes:
    made = batches(codec=Codec.LZ4)
    made[3][-12] ^= 1
    seal(made[3])
    return b"".join(made)


def stamped_by_the_broker() -> bytes:
    made = batches(3)
    for batch in made:
        set_max_timestamp(batch, TimestampType.LOG_APPEND_TIME, 5_000)
    return b"".join(made)


def many_small_ones() -> bytes:
    return b"".join(bytes(build_batch([(7, None, b"x", ())], base_offset=n)) for n in range(700))


CASES = [
    plain,
    compressed,
    compressed_otherwise,
    compressed_with_two_codecs,
    compressed_and_emptied,
    compressed_and_damaged,
    cut_at_the_end,
    cut_in_a_header,
    damaged,
    lying_about_its_records,
    of_another_epoch,
    of_another_format,
    of_an_unknown_format,
    with_an_impossible_length,
    compressed_in_between,
    stamped_by_the_broker,
    many_small_ones,
]


@pytest.fixture
def fast() -> Any:
    if not use_fast():
        pytest.skip("the compiled kernels are switched off")
    return kernels._fast


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("position", [0, 20, 33, 119])
def test_batches_seen_together_are_handed_out_like_those_seen_one_by_one(
    monkeypatch: pytest.MonkeyPatch, fast: Any, make: Callable[[], bytes], position: int
) -> None:
    data = make()
    for check_crcs in (True, False):
        together = handed_out(data, position, check_crcs)
        monkeypatch.setattr(kernels, "_fast", None)
        assert survey_stretch(data, position, 1 << 30) is None
        assert handed_out(data, position, check_crcs) == together
        monkeypatch.setattr(kernels, "_fast", fast)


@pytest.mark.slow
@pytest.mark.parametrize("make", [plain, compressed, compressed_otherwise], ids=lambda make: make.__name__)
def test_any_byte_may_be_wrong(monkeypatch: pytest.MonkeyPatch, fast: Any, make: Callable[[], bytes]) -> None:
    rng = random.Random(8)
    whole = make()
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        check_crcs = rng.random() < 0.5
        together = handed_out(bytes(data), 25, check_crcs)
        monkeypatch.setattr(kernels, "_fast", None)
        assert handed_out(bytes(data), 25, check_crcs) == together
        monkeypatch.setattr(kernels, "_fast", fast)


def test_a_usual_fetch_is_seen_together(fast: Any) -> None:
    found = survey_stretch(plain(), 45, 1 << 30)
    assert found is not None
    assert (found.record_count, found.next_offset, found.leader_epoch, found.is_log_append_time) == (80, 120, 3, False)
    assert survey_stretch(plain(), 0, 500) is None
    assert survey_stretch(compressed_in_between(), 0, 1 << 30) is None
    for make in (compressed, compressed_otherwise):
        assert survey_stretch(make(), 0, 1 << 30).record_count == 120
    assert survey_stretch(many_small_ones(), 0, 1 << 30).record_count == 700


# --- transactions -----------------------------------------------------------------------------------------------------


class TransactionLog:
    """A log that several producers write to, and what a broker tells of aborted transactions."""

    def __init__(self) -> None:
        self.data = b""
        self.end = 0
        self.aborted: list[AbortedTransaction] = []
        self._markers: list[tuple[int, int]] = []

    def write(self, producer: int, count: int = 1, *, transactional: bool = True) -> list[int]:
        rows = [(1, None, b"x", ()) for _ in range(count)]
        options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0} if producer >= 0 else {}
        self.data += build_batch(rows, base_offset=self.end, transactional=transactional, **options)
        self.end += count
        return list(range(self.end - count, self.end))

    def end_with(self, producer: int, kind: ControlType) -> None:
        self.data += control_batch(
            kind, base_offset=self.end, timestamp=1, producer_id=producer, producer_epoch=0, coordinator_epoch=0
        )
        self._markers.append((producer, self.end))
        self.end += 1

    def aborts(self, producer: int, first: int) -> None:
        self.aborted.append(AbortedTransaction(producer_id=producer, first_offset=first))

    def _told(self, position: int) -> list[AbortedTransaction]:
        """Those that do not end before the position."""
        return [
            one
            for one in self.aborted
            if not any(
                producer == one.producer_id and one.first_offset < at < position for producer, at in self._markers
            )
        ]

    def read(self, position: int = 0, *, read_committed: bool = True) -> list[int]:
        aborted = self._told(position) if read_committed else None
        chunk = FetchedChunk(PART, position, self.data, aborted, read_committed=read_committed, check_crcs=True)
        found: list[int] = []
        while (piece := chunk.peek(3)) is not None:
            found += piece.columns.offsets
            chunk.advance(len(piece))
        assert (chunk.next_offset, chunk.is_done) == (self.end, True)
        return found


def test_only_a_producers_own_abort_ends_what_is_left_out() -> None:
    """Of one producer: aborted, committed, aborted, beside a second one that goes on."""
    log = TransactionLog()
    log.aborts(1, log.end)
    log.write(1, 2)
    kept = log.write(2)
    log.write(1)
    log.end_with(1, ControlType.ABORT)
    kept += log.write(1, 3)
    log.end_with(2, ControlType.COMMIT)
    log.end_with(1, ControlType.COMMIT)
    log.aborts(1, log.end)
    log.write(1)
    log.end_with(1, ControlType.ABORT)
    kept += log.write(1)
    log.end_with(1, ControlType.COMMIT)
    assert log.read() == kept
    assert log.read(kept[1]) == kept[1:]


def test_a_transaction_is_left_out_from_its_first_record_to_its_abort() -> None:
    log = TransactionLog()
    kept = log.write(1)
    log.end_with(1, ControlType.COMMIT)
    log.aborts(1, log.end)
    first = log.write(1, 5)
    log.write(1)
    log.end_with(1, ControlType.ABORT)
    assert log.read() == kept
    for position in range(first[0], log.end):
        assert log.read(position) == []


def test_what_is_in_no_transaction_stays_beside_one_that_is_aborted() -> None:
    log = TransactionLog()
    log.aborts(1, log.end)
    log.write(1)
    kept = log.write(1, transactional=False)
    kept += log.write(-1, transactional=False)
    log.end_with(1, ControlType.ABORT)
    assert log.read() == kept


def test_the_end_of_a_committed_transaction_ends_nothing_that_is_aborted() -> None:
    """Aborted transactions that begin behind what was fetched are told as well: they are none of its records."""
    log = TransactionLog()
    kept = log.write(1)
    log.end_with(1, ControlType.COMMIT)
    log.aborts(2, log.end)
    log.write(2)
    kept += log.write(3)
    log.end_with(3, ControlType.COMMIT)
    log.write(2)
    log.aborts(3, log.end + 10)
    log.end_with(2, ControlType.ABORT)
    kept += log.write(3)
    assert log.read() == kept


def test_who_reads_what_is_not_committed_is_given_all_of_it() -> None:
    log = TransactionLog()
    log.aborts(1, log.end)
    all_of_it = log.write(1, 2)
    log.end_with(1, ControlType.ABORT)
    all_of_it += log.write(2)
    assert log.read(read_committed=False) == all_of_it


@pytest.mark.parametrize("seed", range(40))
def test_transactions_of_several_producers_are_told_apart(seed: int) -> None:
    rng = random.Random(seed)
    log, opened, kept = TransactionLog(), dict[int, tuple[bool, list[int]]](), list[int]()
    for _ in range(40):
        producer = rng.choice((1, 2, 3, 4))
        if producer == 4:
            kept += log.write(rng.choice((-1, 4)), rng.choice((1, 3)), transactional=False)
        elif producer in opened and rng.random() < 0.4:
            is_aborted, offsets = opened.pop(producer)
            log.end_with(producer, ControlType.ABORT if is_aborted else ControlType.COMMIT)
            kept += [] if is_aborted else offsets
        else:
            if producer not in opened:
                opened[producer] = (rng.random() < 0.5, [])
                if opened[producer][0]:
                    log.aborts(producer, log.end)
            opened[producer][1].extend(log.write(producer, rng.choice((1, 3))))
    for producer, (is_aborted, offsets) in opened.items():
        log.end_with(producer, ControlType.ABORT if is_aborted else ControlType.COMMIT)
        kept += [] if is_aborted else offsets
    rng.shuffle(log.aborted)
    for position in (0, rng.randrange(log.end), rng.randrange(log.end)):
        assert log.read(position) == sorted(offset for offset in kept if offset >= position)


# --- formats 0 and 1 --------------------------------------------------------------------------------------------------


def chunk_rows(data: bytes, position: int = 0) -> tuple[list[Any], FetchedChunk]:
    chunk = FetchedChunk(PART, position, data, None, read_committed=True, check_crcs=True)
    rows: list[Any] = []
    while (piece := chunk.peek(2)) is not None:
        rows += [(offset, piece.timestamp_type, piece.leader_epoch) for offset in piece.columns.offsets]
        chunk.advance(len(piece))
    return rows, chunk


def test_old_messages_and_batches_of_one_log_come_in_order() -> None:
    old = message(0, b"a", magic=0) + wrapper(4, [message(n, b"b") for n in range(4)], Codec.GZIP)
    new = build_batch([(1, None, b"c", ())] * 2, base_offset=5, leader_epoch=3)
    rows, chunk = chunk_rows(old + bytes(new))
    kinds = [TimestampType.NO_TIMESTAMP_TYPE, *[TimestampType.CREATE_TIME] * 6]
    assert rows == [(n, kind, -1 if n < 5 else 3) for n, kind in enumerate(kinds)]
    assert (chunk.position, chunk.next_offset, chunk.leader_epoch) == (7, 7, 3)


def test_a_fetch_from_the_middle_of_a_wrapper_begins_there() -> None:
    data = wrapper(4, [message(n, b"b") for n in range(5)], Codec.SNAPPY) + message(5, b"c")
    rows, chunk = chunk_rows(data, position=3)
    assert [row[0] for row in rows] == [3, 4, 5]
    assert chunk.next_offset == 6


@pytest.mark.parametrize("fast", [True, False])
def test_random_timestamps_of_old_messages_are_never_taken_for_a_batch(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert use_fast()
    monkeypatch.setattr(kernels, "_fast", kernels._fast if fast else None)
    rng = random.Random(3)
    for _ in range(200):
        time = rng.randrange(1_450_000_000_000, 1_600_000_000_000)
        data = b"".join(message(100 + n, b"v" * 60, key=b"key", timestamp=time + n) for n in range(3))
        rows, chunk = chunk_rows(data, position=100)
        assert [row[0] for row in rows] == [100, 101, 102]
        assert chunk.next_offset == 103


def test_a_damaged_old_message_stands_where_it_is() -> None:
    bad = bytearray(wrapper(6, [message(n, b"b" * 40) for n in range(4)], Codec.GZIP))
    bad[-3] ^= 1
    data = message(0, b"a") + message(2, b"a") + bytes(bad) + message(7, b"c")
    chunk = FetchedChunk(PART, 0, data, None, read_committed=True, check_crcs=True)
    piece = chunk.peek(10)
    assert piece is not None
    assert piece.columns.offsets.tolist() == [0, 2]
    chunk.advance(2)
    with pytest.raises(RecordDeserializationError) as raised:
        chunk.peek(10)
    assert (raised.value.offset, raised.value.last_offset) == (3, 6)


# --- where a chunk ends -----------------------------------------------------------------------------------------------


def test_the_position_behind_a_marker_is_of_the_markers_leader() -> None:
    options: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0}
    data = build_batch(
        [(1, None, b"v", ())], base_offset=99, base_sequence=0, transactional=True, leader_epoch=0, **options
    )
    marker = control_batch(
        ControlType.COMMIT, coordinator_epoch=0, timestamp=1, base_offset=100, leader_epoch=1, **options
    )
    chunk = FetchedChunk(PART, 99, bytes(data + marker), [], read_committed=True, check_crcs=True)
    piece = chunk.peek(10)
    assert piece is not None
    assert (piece.next_offset, piece.next_epoch, piece.leader_epoch) == (101, 1, 0)
    chunk.advance(1)
    assert (chunk.position, chunk.leader_epoch) == (101, 1)


def test_what_was_taken_and_not_handed_out_comes_again() -> None:
    made = batches(4)
    made[2][15] = 4
    chunk = FetchedChunk(PART, 0, b"".join(made), None, read_committed=True, check_crcs=True)
    first = chunk.peek(10)
    assert first is not None
    chunk.advance(10)
    mark, seen = chunk.mark, []
    for _ in range(2):
        rows = []
        while (piece := chunk.peek(17)) is not None:
            rows += [(offset, piece.leader_epoch) for offset in piece.columns.offsets]
            chunk.advance(len(piece))
        assert chunk.is_done
        seen.append(rows)
        chunk.rewind(mark)
        assert chunk.position == 10
    assert seen[0] == seen[1]
    assert [offset for offset, _ in seen[0]] == list(range(10, 80))
