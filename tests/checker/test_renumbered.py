"""Which records librdkafka wrote twice by itself, told by its log and by the batches."""

from __future__ import annotations

from pathlib import Path

from .renumbered import Batches, Missed, Written, left_epochs, renumbered

SKIPPED = (
    "2026-11-18 01:37:12,863 ERRSEQ [rdkafka#producer-1] [thrd:a:1/2]: a:1/2: ProduceRequest for in [1] "
    "with 2 message(s) failed due to skipped sequence numbers (PID{Id:5,Epoch:0}, base seq 9 > next seq 4) caused by "
    "previous failed request (NOT_ENOUGH_REPLICAS, actions Retry,MsgNotPersisted, base seq 8..8, msgid 9, 4ms)"
)
DRAIN = (
    "2026-11-18 01:37:12,863 DRAIN [rdkafka#producer-1] [thrd:127.0.0.1:1/2]: Beginning partition drain in state "
    "Assigned for PID{Id:5,Epoch:0} epoch bump for 1 partition(s) with in-flight requests: "
)
SKIPPING, OTHER = ("in", 1), ("in", 0)
LOGS = {OTHER: [(0, 40), (1, 44), (2, 40), (3, 44), (4, 48)], SKIPPING: [(0, 52)]}


def batches(*, epochs: tuple[int, ...] = (0, 0, 1, 1, 1), last_of_skipping: int = 7) -> Batches:
    """Offset by offset; what the partition that answered OUT_OF_ORDER_SEQUENCE_NUMBER had."""
    return {
        OTHER: {offset: Written(5, epoch, offset, offset) for offset, epoch in enumerate(epochs)},
        SKIPPING: {0: Written(5, 0, 0, last_of_skipping)},
    }


def found(tmp_path: Path, batches: Batches, lines: list[str]) -> set[int]:
    log = tmp_path / "client.librdkafka"
    log.write_text("\n".join(lines))
    return renumbered(LOGS, batches, [log])


def test_the_reason_of_an_epochs_end_is_read() -> None:
    lines = [SKIPPED, DRAIN + "skipped sequence numbers"]
    assert left_epochs(lines) == {(5, 0): [Missed(SKIPPING, 9)]}
    assert left_epochs([*lines, DRAIN + "1 message(s) timed out on in [0]"]) == {}


def test_what_is_under_two_epochs_was_written_again_by_the_client(tmp_path: Path) -> None:
    assert found(tmp_path, batches(), [SKIPPED, DRAIN + "skipped sequence numbers"]) == {40, 44}


def test_what_is_under_one_epoch_twice_was_not(tmp_path: Path) -> None:
    assert found(tmp_path, batches(epochs=(0, 0, 0, 0, 0)), [SKIPPED, DRAIN + "skipped sequence numbers"]) == set()


def test_an_epoch_that_the_log_does_not_explain_excuses_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, batches(), []) == set()
    assert found(tmp_path, batches(), [DRAIN + "message sequence gap"]) == set()
    assert found(tmp_path, batches(epochs=(0, 0, 2, 2, 2)), [SKIPPED, DRAIN + "skipped sequence numbers"]) == set()


def test_a_broker_that_had_what_it_said_to_miss_is_not_excused(tmp_path: Path) -> None:
    was_there = batches(last_of_skipping=8)
    assert found(tmp_path, was_there, [SKIPPED, DRAIN + "skipped sequence numbers"]) == set()
