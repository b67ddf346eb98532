"""What of a run tells of its failure, and how a difference of replicas is said."""

from __future__ import annotations

from headrace.records import build_batch
from headrace.testing.simulated import story
from headrace.testing.simulated.checks import where_they_differ
from headrace.testing.simulated.timeline import TimelineEntry

FAILURE = "BrokenError: numbered-0: 'numbered-1:00003' was acknowledged at 3 and is lost; the log is 3"


def entry(at_s: float, kind: str, text: str, lane: str = "cluster") -> TimelineEntry:
    return TimelineEntry(at_s, lane, kind, text)


def test_a_failure_is_told_by_the_records_concerned_and_the_first_faults() -> None:
    about = [
        entry(0.1, "leader", "numbered-0: broker 1 leads, epoch 0"),
        entry(0.2, "fault", "cut off: from the others", "broker-1"),
        entry(0.3, "client", "numbered-0: sends 'numbered-1:00003'", "numbered-1"),
        entry(0.4, "client", "numbered-0: 'numbered-1:00003' is acknowledged at 3", "numbered-1"),
        entry(0.5, "belief", "numbered-0: takes itself for the leader, epoch 0; its log ends at 4", "broker-1"),
        entry(0.6, "isr", "numbered-0: in sync [2, 3]"),
    ]
    others = [
        entry(0.15, "client", "numbered-0: sends 'numbered-1:00002'", "numbered-1"),
        entry(0.25, "leader", "numbered-01: broker 2 leads, epoch 0"),
        entry(0.35, "client", "plain-0: 'plain-1:00003' is acknowledged at 3", "plain-1"),
    ]
    late = [entry(1.0 + number / 100, "log", f"line {number}", "broker-2") for number in range(100)]
    end = entry(3.0, "failure", FAILURE)
    told = story.chosen(story.in_order([*about, *others, *late, end]), FAILURE)
    assert told[: len(about)] == about
    assert told[-1] == end
    assert len(told) < len(about) + 20
    assert not set(others) & set(told)


def test_a_long_story_is_told_from_both_ends() -> None:
    entries = [entry(number, "isr", f"numbered-0: in sync [{number}]") for number in range(200)]
    lines = story.lines([*entries, entry(300, "failure", FAILURE)], FAILURE, most=20)
    assert len(lines) == 21
    assert "lines more" in lines[10]
    assert FAILURE in lines[-1]


def test_replicas_that_differ_are_told_by_their_first_batch_that_does() -> None:
    def batch(offset: int, value: bytes, epoch: int, producer: int = -1) -> bytes:
        options = {"producer_id": producer, "producer_epoch": 2, "base_sequence": 0} if producer >= 0 else {}
        return bytes(build_batch([(1, None, value, ())], base_offset=offset, leader_epoch=epoch, **options))

    same = batch(0, b"same", 1)
    told = where_they_differ(
        {
            1: same + batch(1, b"here", 1, producer=7) + batch(2, b"later", 3),
            2: same + batch(1, b"there", 2),
            3: same,
        }
    )
    assert told == (
        "from offset 1 on: broker 1 has 1 of leader epoch 1, producer 7 epoch 2: ['here']; "
        "broker 2 has 1 of leader epoch 2: ['there']; broker 3 has nothing there"
    )
