"""Records that another topic does not take: too large for it, not allowed, or beyond what a commit's note can hold."""

from __future__ import annotations

import pytest
from tests.parallel.making import PARTITION, core, do, record

from headrace.client.consumer.records import ConsumerRecord
from headrace.errors import MessageTooLargeError, TopicAuthorizationFailedError
from headrace.parallel.core import ParallelCore
from headrace.parallel.deadletters import joined
from headrace.parallel.errors import DeadLetterRefusedError, Reject, RetriesExhaustedError
from headrace.parallel.finished import decode_finished
from headrace.parallel.letters import PART_BYTES_MIN, Message, messages_of, pack, part_of, unpack
from headrace.parallel.options import Retry
from headrace.parallel.retries import Outgoing
from headrace.records import TimestampType
from headrace.topics import TopicPartition

DEAD = Retry(local=0, dead_letters="orders.dead")
BOTH = Retry(local=0, topic="orders.retry", dead_letters="orders.dead")


def rejected(retry: Retry, value: bytes, headers: tuple[tuple[str, bytes | None], ...] = ()) -> ParallelCore:
    """A core with one record that its handler rejected (or failed, where there is a retry topic)."""
    made = core(retry=retry)
    made.add(PARTITION, [record(0, b"key", value=value, headers=headers), record(1)], 0.0, 0)
    chunk = made.take(0.0)
    assert chunk is not None
    do(chunk, fails=ValueError("no") if retry.topic else Reject("bad"))
    made.complete(chunk, 0.0)
    return made


def sent(made: ParallelCore, bytes_max: int, now: float = 0.0) -> list[Message]:
    """Produce as a topic does that takes records of so many bytes, until it has taken all; what it took last."""
    for _ in range(100):
        made.tick(now)
        if not made.failures.outbox:
            return []
        outgoing = made.failures.outbox.popleft()
        messages = messages_of(outgoing, "billing", 1_000)
        too_large = any(len(value or b"") + len(key or b"") > bytes_max for _, value, key, _ in messages)
        made.failures.produced(outgoing, MessageTooLargeError("too large") if too_large else None, now)
        if not too_large:
            return messages
    raise AssertionError("it never fits")


def as_records(messages: list[Message], first: int = 0) -> list[ConsumerRecord]:
    return [
        ConsumerRecord(topic, 0, first + n, 0, TimestampType.CREATE_TIME, key, value, tuple(headers))
        for n, (topic, value, key, headers) in enumerate(messages)
    ]


@pytest.mark.parametrize("bytes_max", [700_000, 100_000, 20_000])
def test_a_letter_that_is_too_large_goes_in_parts_and_is_whole_again_for_its_readers(bytes_max: int) -> None:
    value = bytes(range(256)) * 4_000
    made = rejected(DEAD, value, (("own", b"1"), ("none", None)))
    messages = sent(made, bytes_max)
    assert len(messages) > 1
    assert len({key for _, _, key, _ in messages}) == 1, "one key: they are in one partition, in order"
    assert made.counters.letters_in_parts == 1
    assert made.counters.dead_letters == 1
    assert made.trackers[PARTITION].start == 1
    other = as_records([("orders.dead", b"another", b"x", [])], first=1)
    parts = as_records(messages)
    rest = [part._replace(offset=part.offset + 1) for part in parts[1:]]
    found = list(joined([parts[0], *other, *rest]))
    assert [offsets for _, offsets in found] == [(1,), (0, *range(2, len(parts) + 1))]
    whole = found[1][0]
    assert (whole.key, whole.value) == (b"key", value)
    assert whole.headers[:2] == (("own", b"1"), ("none", None))
    assert part_of(whole.headers) is None


def test_parts_of_a_letter_that_was_sent_again_are_not_mixed() -> None:
    made = rejected(DEAD, b"x" * 3_000)
    outgoing = made.failures.outbox.popleft()
    outgoing.part_bytes = 2_000
    first, second = (as_records(messages_of(outgoing, "billing", at), at) for at in (10, 20))
    assert [offsets for _, offsets in joined([first[0], *second])] == [(20, 21)]
    assert list(joined(first[:1])) == []


def test_what_is_too_large_for_the_retry_topic_goes_to_the_dead_letters() -> None:
    made = rejected(BOTH, b"x" * 2_000_000)
    outgoing = made.failures.outbox.popleft()
    assert outgoing.topic == "orders.retry"
    made.failures.produced(outgoing, MessageTooLargeError("too large"), 0.0)
    assert [one.topic for one in made.failures.outbox] == ["orders.dead"]
    assert sent(made, 900_000)
    assert made.trackers[PARTITION].diverting == 0
    assert made.trackers[PARTITION].start == 1


def test_without_dead_letters_what_is_too_large_for_the_retry_topic_stops_before_it() -> None:
    made = rejected(Retry(local=0, topic="orders.retry"), b"x" * 2_000_000)
    made.failures.produced(made.failures.outbox.popleft(), MessageTooLargeError("too large"), 0.0)
    assert isinstance(made.fatal, RetriesExhaustedError)
    assert made.trackers[PARTITION].start == 0
    assert made.is_drained([PARTITION])


def refuse(made: ParallelCore, error: Exception) -> list[str]:
    """Refuse all that comes, for an hour; to which topics it was."""
    asked: list[str] = []
    for now in range(3_600):
        made.tick(float(now))
        while made.failures.outbox and made.fatal is None:
            outgoing = made.failures.outbox.popleft()
            asked.append(outgoing.topic)
            made.failures.produced(outgoing, error, float(now))
    return asked


def test_who_may_not_write_to_the_retry_topic_has_the_dead_letters_and_then_stops() -> None:
    made = rejected(BOTH, b"x")
    asked = refuse(made, TopicAuthorizationFailedError("not allowed"))
    assert asked == ["orders.retry"] * 8 + ["orders.dead"] * 8
    assert isinstance(made.fatal, DeadLetterRefusedError)
    assert "orders.dead" in str(made.fatal)
    assert made.trackers[PARTITION].start == 0, "nothing is passed over"
    assert made.is_drained([PARTITION])


def test_a_letter_whose_smallest_parts_are_refused_stops_before_it() -> None:
    made = rejected(DEAD, b"x" * 100_000)
    asked = refuse(made, MessageTooLargeError("too large"))
    assert 8 <= len(asked) < 20
    assert isinstance(made.fatal, DeadLetterRefusedError)


def test_an_outage_is_waited_for_however_long_it_takes() -> None:
    made = rejected(DEAD, b"x")
    assert len(refuse(made, TimeoutError("no broker"))) > 300
    assert made.fatal is None


def test_a_letter_in_a_transaction_is_cut_only_when_it_was_alone_in_it() -> None:
    made = core(retry=DEAD)
    made.add(PARTITION, [record(0, value=b"x" * 3_000), record(1)], 0.0, 0)
    while (chunk := made.take(0.0)) is not None:
        do(chunk, fails=Reject("bad"))
        made.complete(chunk, 0.0)
    now, counts = 0.0, []
    while (transaction := made.failures.begin_transaction()) is not None:
        large = [one for one in transaction.outgoing if not one.part_bytes and len(one.entry.record.value) > 100]
        error = MessageTooLargeError("too large") if large else None
        counts.append((len(transaction.outgoing), error is None))
        made.failures.end_transaction(transaction, error, now)
        now += 20.0
        made.tick(now)
    assert counts[0] == (2, False)
    assert (1, False) in counts
    assert made.trackers[PARTITION].start == 2
    assert made.counters.letters_in_parts == 1


@pytest.mark.slow
def test_a_letter_goes_only_with_a_commit_that_covers_it() -> None:
    """Its record lies beyond what a note can hold, and there is nothing else to commit: it has to wait."""
    made = core(retry=DEAD)
    rows = [record(2 * n) for n in range(19_000)]
    made.add(PARTITION, rows, 0.0, 0)
    first = made.failures.begin_transaction()
    assert first is not None
    made.failures.end_transaction(first, None, 0.0)
    last = made.trackers[PARTITION].entries[-1]
    made.failures.failed(last, Reject("bad"), 0.0)
    for turn in range(200):
        transaction = made.failures.begin_transaction()
        if transaction is not None:
            made.failures.end_transaction(transaction, None, float(turn))
        base, note = made.trackers[PARTITION].committed or (0, "")
        covered = last.offset < base or any(a <= last.offset < b for a, b in decode_finished(base, note) or [])
        assert last.done == covered, "a letter is never there without its offset"
        if last.done:
            break
        for _ in range(150):
            chunk = made.take(0.0)
            if chunk is not None:
                do(chunk)
                made.complete(chunk, 1.0)
    assert last.done, "it goes as soon as the note reaches it"


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [(None, None, []), (b"", b"", [("", b"")]), (b"k", b"v" * 100_000, [("a", None), ("a", b"2"), ("é", b"3")])],
)
def test_what_is_packed_can_be_unpacked(key: bytes | None, value: bytes | None, headers: list) -> None:  # type: ignore[type-arg]  # pairs
    assert unpack(pack(key, value, headers)) == (key, value, headers)


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\0\0\0\x09x", b"\xff\xff\xff\xfe", pack(b"k", b"v", [])[:-1], b"\xff" * 12]
)
def test_what_was_not_packed_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack(data)


def test_parts_are_never_smaller_than_their_headers_are_worth() -> None:
    made = rejected(DEAD, b"x" * 100_000)
    outgoing: Outgoing = made.failures.outbox.popleft()
    outgoing.part_bytes = PART_BYTES_MIN
    assert all(len(value or b"") <= PART_BYTES_MIN for _, value, _, _ in messages_of(outgoing, "billing", 0))
    assert outgoing.entry.tracker.partition == TopicPartition("orders", 0)
