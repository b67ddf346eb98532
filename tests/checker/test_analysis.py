"""The analysis finds each anomaly in a history that has it, and none in one that is sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from .analysis import Anomaly, Logs, Moved, analyse
from .cycles import write_order_cycles
from .history import Kind, Operation, Outcome, Place, Recorder, read_history

P0, P1, OUT = ("in", 0), ("in", 1), ("out", 0)


def send(value: int, offset: int, place: Place = P0, process: str = "w", began: float = 1.0) -> Operation:
    return Operation(process, Kind.SEND, Outcome.OK, began, began + 0.1, writes=[(place, value, offset)])


def transaction(
    writes: list[tuple[Place, int, int]], outcome: Outcome = Outcome.OK, began: float = 1.0, committing: float = 1.5
) -> Operation:
    return Operation("w", Kind.TRANSACTION, outcome, began, began + 1, committing, writes=writes)


def poll(*reads: tuple[Place, int, int], began: float = 5.0, session: int = 1, assigned: bool = True) -> Operation:
    return Operation(
        "r", Kind.POLL, Outcome.OK, began, began + 0.1, reads=list(reads), session=session, is_assigned=assigned
    )


def names(operations: list[Operation], logs: Logs, moved: Moved | None = None) -> list[str]:
    return [anomaly.name for anomaly in analyse(operations, logs, moved)]


SOUND = [
    send(100, 0),
    send(104, 1, began=2.0),
    transaction([(P0, 108, 2), (P1, 112, 0)], began=3.0, committing=3.5),
    transaction([(P0, 116, 4), (P1, 120, 2)], Outcome.FAIL, began=4.0),
    transaction([(P0, 124, -1), (P1, 128, -1)], Outcome.INFO, began=5.0, committing=5.5),
    transaction([(P0, 132, -1), (P1, 136, -1)], Outcome.INFO, began=6.0, committing=6.5),
    poll((P0, 0, 100), (P0, 1, 104), began=7.0),
    poll((P0, 2, 108), (P1, 0, 112), began=8.0),
    Operation("m", Kind.MOVE, Outcome.OK, 9.0, 9.5, writes=[(OUT, 101, 0), (OUT, 102, 1)], reads=[(P0, 0, 100)]),
]
LOGS: dict[Place, list[tuple[int, int]]] = {
    P0: [(0, 100), (1, 104), (2, 108), (6, 124)],
    P1: [(0, 112), (4, 128)],
    OUT: [(0, 101), (1, 102)],
}


def test_a_sound_history_has_no_anomaly() -> None:
    assert names(SOUND, LOGS, Moved("in", {P0: 1})) == []


def test_a_producer_s_records_out_of_order_are_found_acknowledged_or_not() -> None:
    unknown = Operation("w", Kind.SEND, Outcome.INFO, 2.0, writes=[(P0, 104, -1)])
    assert names([send(100, 0), unknown], {P0: [(0, 100), (1, 104)]}) == []
    assert "reordered log" in names([send(100, 1), unknown], {P0: [(0, 104), (1, 100)]})
    of_another = Operation("v", Kind.SEND, Outcome.INFO, 2.0, writes=[(P0, 104, -1)])
    assert names([send(100, 1), of_another], {P0: [(0, 104), (1, 100)]}) == []


def test_an_offset_that_a_group_had_committed_and_lost_is_found() -> None:
    def look(at: float, offset: int, place: Place = P0) -> Operation:
        return Operation("a", Kind.OFFSETS, Outcome.OK, at, at + 0.1, committed=[("g", place, offset)])

    assert names([look(1, 5), look(2, 5), look(3, 7), look(4, 6, P1)], {}) == []
    assert names([look(1, 5), look(2, 4)], {}) == ["offset taken back"]


def test_a_lost_write_is_found() -> None:
    assert "lost write" in names([send(100, 0)], {P0: []})
    assert "lost write" in names([transaction([(P0, 100, 0), (P1, 104, 0)])], {P0: [], P1: []})
    assert names([transaction([(P0, 100, 0)], Outcome.INFO)], {P0: []}) == []


def test_a_duplicate_is_found() -> None:
    assert "duplicate" in names([send(100, 0)], {P0: [(0, 100), (1, 100)]})
    assert "duplicate" in names([send(100, 0)], {P0: [(0, 100)], P1: [(7, 100)]})


def test_an_aborted_read_is_found_in_the_log_and_in_polls() -> None:
    aborted = transaction([(P0, 100, 0)], Outcome.FAIL)
    assert names([aborted], {P0: [(0, 100)]}) == ["aborted read"]
    assert names([aborted, poll((P0, 0, 100))], {P0: []}) == ["aborted read"]


def test_a_torn_transaction_is_found_whatever_its_outcome() -> None:
    writes = [(P0, 100, 0), (P1, 104, 0)]
    for outcome in (Outcome.OK, Outcome.INFO):
        assert "torn transaction" in names([transaction(writes, outcome)], {P0: [(0, 100)], P1: []})


def test_inconsistent_offsets_are_found() -> None:
    operations = [send(100, 0), send(104, 1, began=2.0), poll((P0, 1, 100))]
    assert "inconsistent offsets" in names(operations, {P0: [(0, 100), (1, 104)]})
    assert "inconsistent offsets" in names([send(100, 5), send(104, 0, began=0.5)], {P0: [(0, 100), (1, 104)]})


def test_a_phantom_is_found() -> None:
    assert names([], {P0: [(0, 100)]}) == ["phantom"]


def test_a_poll_that_goes_back_is_found_and_a_new_session_may() -> None:
    log = {P0: [(0, 100), (1, 104)]}
    sends = [send(100, 0), send(104, 1, began=2.0)]
    back = [poll((P0, 0, 100), (P0, 1, 104)), poll((P0, 0, 100), began=6.0)]
    assert names(sends + back, log) == ["nonmonotonic poll"]
    back[1].session = 2
    assert names(sends + back, log) == []


def test_a_poll_that_skips_is_found_for_assigned_readers() -> None:
    log = {P0: [(0, 100), (1, 104), (2, 108)]}
    sends = [send(100, 0), send(104, 1, began=2.0), send(108, 2, began=3.0)]
    assert names([*sends, poll((P0, 0, 100), (P0, 2, 108))], log) == ["poll skip"]
    assert names([*sends, poll((P0, 0, 100), (P0, 2, 108), assigned=False)], log) == []
    assert names([*sends, poll((P0, 1, 104))], log) == []


def test_sends_out_of_order_are_found() -> None:
    log = {P0: [(0, 104), (1, 100)]}
    assert names([send(100, 1), send(104, 0, began=2.0)], log) == ["nonmonotonic send", "reordered log"]


def test_a_read_before_the_commit_is_found() -> None:
    operations = [transaction([(P0, 100, 0)], began=1.0, committing=9.0), poll((P0, 0, 100), began=5.0)]
    assert names(operations, {P0: [(0, 100)]}) == ["precommitted read"]


def mixed(
    process: str, writes: list[int], reads: list[int], began: float = 1.0, ended: float = 2.0, place: Place = P0
) -> Operation:
    return Operation(
        process,
        Kind.TRANSACTION,
        Outcome.OK,
        began,
        ended,
        began,
        writes=[(place, value, -1) for value in writes],
        reads=[(("in", value), 0, value) for value in reads],
    )


def test_transactions_that_read_each_others_writes_are_found() -> None:
    log = {P0: [(0, 100), (1, 104), (2, 108)]}
    two = [mixed("a", [100], [104]), mixed("b", [104], [100]), send(108, 2)]
    assert names(two, log) == ["circular information flow"]
    three = [mixed("a", [100], [108]), mixed("b", [104], [100]), mixed("c", [108], [104])]
    assert names(three, log) == ["circular information flow"]
    one_way = [mixed("a", [100], []), mixed("b", [104], [100]), mixed("c", [108], [100, 104])]
    assert names(one_way, log) == []


def test_a_transaction_that_reads_its_own_uncommitted_write_is_found() -> None:
    assert names([mixed("a", [100], [100])], {P0: [(0, 100)]}) == ["circular information flow"]


def test_information_that_flows_against_the_clock_is_found() -> None:
    """b reads what c wrote, c began after a ended, and a read what b wrote."""
    log = {P0: [(0, 100), (1, 104), (2, 108)]}
    a, b, c = mixed("a", [100], [104]), mixed("b", [104], [108], ended=9.0), mixed("c", [108], [], began=3.0, ended=4.0)
    assert names([a, b, c], log) == ["circular information flow"]
    c.began = 2.0
    assert names([a, b, c], log) == [], "what begins as another ends is in no order with it"
    c.began, a.outcome = 3.0, Outcome.INFO
    assert names([a, b, c], log) == [], "nobody knows when a ended"


def test_cycles_that_need_the_order_of_writes_are_counted_and_allowed() -> None:
    log = {P0: [(0, 100), (1, 104)], P1: [(0, 108)]}
    b = mixed("b", [104], [])
    b.writes.append((P1, 108, -1))
    assert names([mixed("a", [100], [108]), b], log) == []
    assert write_order_cycles([mixed("a", [100], [108]), b], log) == 1
    assert write_order_cycles([mixed("a", [100], []), b], log) == 0


@pytest.mark.parametrize(
    ("out", "committed", "expected"),
    [
        ([(0, 101)], 1, ["offsets without output"]),
        ([], 1, ["offsets without output"]),
        ([(0, 101), (1, 102)], 0, ["output without offsets"]),
        ([(0, 101)], 0, ["output without offsets"]),
        ([(0, 101), (1, 102)], 1, []),
        ([], 0, []),
    ],
)
def test_offsets_and_output_that_are_apart_are_found(
    out: list[tuple[int, int]], committed: int, expected: list[str]
) -> None:
    move = Operation("m", Kind.MOVE, Outcome.INFO, 2.0, writes=[(OUT, 101, -1), (OUT, 102, -1)])
    assert names([send(100, 0), move], {P0: [(0, 100)], OUT: out}, Moved("in", {P0: committed})) == expected


def test_an_output_that_was_tried_again_is_no_aborted_read() -> None:
    writes = [(OUT, 101, -1), (OUT, 102, -1)]
    moves = [Operation("m", Kind.MOVE, outcome, 2.0, writes=writes) for outcome in (Outcome.FAIL, Outcome.OK)]
    assert names([send(100, 0), *moves], {P0: [(0, 100)], OUT: [(0, 101), (3, 102)]}) == []


def test_histories_are_read_as_they_were_written_also_when_a_kill_cut_them_off(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    recorder = Recorder(path, "w")
    first = recorder.began(Kind.TRANSACTION, writes=[["in", 0, 100, -1]])
    recorder.note(first, "committing")
    recorder.ended(first, Outcome.OK, writes=[["in", 0, 100, 17]])
    recorder.began(Kind.POLL, session=3, assigned=True)
    recorder.close()
    with path.open("a") as file:
        file.write('{"process": "w", "at"')
    one, two = read_history([path])
    assert (one.outcome, one.writes, one.kind) == (Outcome.OK, [(("in", 0), 100, 17)], Kind.TRANSACTION)
    assert one.began <= one.committing <= one.ended < float("inf")
    assert (two.outcome, two.session, two.is_assigned) == (Outcome.INFO, 3, True)
    assert str(Anomaly("a", "b")) == "a: b"
