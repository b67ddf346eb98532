"""The core: what is begun when, and what is committed."""

from __future__ import annotations

import pytest
from tests.parallel.making import PARTITION, committed, core, do, record, records

from headrace.client.consumer.errors import RecordDeserializationError
from headrace.client.consumer.records import ConsumerRecords
from headrace.parallel.core import ParallelCore
from headrace.parallel.engine import Engine, EngineSettings
from headrace.parallel.errors import HandlerStalledError, Reject, RetriesExhaustedError, UnreadableRecordError
from headrace.parallel.finished import decode_finished
from headrace.parallel.handling import Handling
from headrace.parallel.member import Member
from headrace.parallel.options import CoreSettings, Limits, Order, Pool, Retry, Window
from headrace.parallel.retries import DUE_MS, ERROR, ORIGIN_OFFSET, NextPlace, damage_of, diverted_headers, header
from headrace.runtime.real import RealClock
from headrace.topics import TopicPartition


def test_a_worker_dies_on_the_first_slot_while_another_finishes_the_second_and_nothing_is_committed() -> None:
    made = core(Window(slot=100, slots=4, stall_s=None))
    made.add(PARTITION, records(0, 200), 0.0, 0)
    first, second = made.take(0.0), made.take(0.0)
    assert first is not None
    assert second is not None
    assert [run.entries[0].offset for run in (first.todo[0], second.todo[0])] == [0, 100]
    do(second)
    made.complete(second, 1.0)
    found = committed(made)
    assert found is not None
    offset, note = found
    assert offset == 0
    assert decode_finished(0, note) == [(100, 200)]
    # The worker of 0-99 never comes back. Whoever has the partition next handles 0-99, and only those.
    heir = core(Window(slot=100, slots=4, stall_s=None))
    heir.assign(PARTITION, offset, note)
    heir.add(PARTITION, records(0, 200), 2.0, 0)
    chunk = heir.take(2.0)
    assert chunk is not None
    assert [entry.offset for entry in chunk.todo[0].entries] == list(range(100))
    assert heir.take(2.0) is None
    do(chunk)
    heir.complete(chunk, 3.0)
    assert committed(heir) == (200, "")


def test_a_window_is_committed_slot_by_slot() -> None:
    made = core(Window(slot=10, slots=4))
    made.add(PARTITION, records(0, 20), 0.0, 0)
    chunk = made.take(0.0)
    assert chunk is not None
    run = chunk.next_run()
    assert run is not None
    run.done = 9
    made.tick(0.1)
    assert committed(made) is None or made.trackers[PARTITION].start == 0
    run.done = 10
    chunk.finished.append(run)
    made.complete(chunk, 0.2)
    assert committed(made) == (10, "")


def test_a_worker_takes_several_slots_where_handlers_are_quick() -> None:
    made = core(Window(slot=10, slots=40), Order.KEY)
    made.add(PARTITION, [record(n, b"k%d" % (n % 100)) for n in range(200)], 0.0, 0)
    first = made.take(0.0)
    assert first is not None
    assert len(first.todo) == 1, "nobody knows yet how long a handler takes"
    do(first)
    made.complete(first, 0.0001)
    second = made.take(0.0001)
    assert second is not None
    assert len(second.todo) > 10
    # One of them is through, the next one hangs: the first counts, the others go back in line.
    run = second.next_run()
    assert run is not None
    run.done = len(run.entries)
    second.finished.append(run)
    assert second.next_run() is not None
    made.tick(1.0)
    made.tick(2.0)
    assert not second.todo
    assert made.counters.handled == 4


def test_the_longest_lane_does_not_wait_until_all_others_are_through() -> None:
    made = core(Window(slot=4, slots=500, stall_s=None), Order.KEY, workers=2)
    keys = [b"long"] * 60 + [b"k%d" % n for n in range(300)]
    made.add(PARTITION, [record(n, key) for n, key in enumerate(keys)], 0.0, 0)
    turns: list[bytes] = []
    now = 0.0
    while (chunk := made.take(now)) is not None:
        turns += [entry.record.key for run in chunk.todo for entry in run.entries]
        do(chunk)
        now += 1.0
        made.complete(chunk, now)
    assert turns.count(b"long") == 60
    assert len(turns) - 1 - turns[::-1].index(b"long") < 120, "it goes on at once, with some of the others in between"


def test_a_slow_key_does_not_stop_the_others() -> None:
    made = core(order=Order.KEY)
    made.add(PARTITION, [record(n, b"slow" if n % 10 == 0 else b"k%d" % (n % 7)) for n in range(100)], 0.0, 0)
    slow = made.take(0.0)
    assert slow is not None
    assert slow.next_run() is not None
    handled = 0
    while (chunk := made.take(0.0)) is not None:
        handled += sum(len(run.entries) for run in chunk.todo)
        do(chunk)
        made.complete(chunk, 0.0001)
    assert handled == 90
    offset, note = committed(made) or (None, "")
    assert offset == 0
    assert decode_finished(0, note) == [(n + 1, n + 10) for n in range(0, 100, 10)]


def test_records_without_a_key_wait_for_nobody() -> None:
    made = core(order=Order.KEY)
    made.add(PARTITION, records(0, 5), 0.0, 0)
    chunks = [made.take(0.0) for _ in range(5)]
    assert all(chunk is not None for chunk in chunks)


@pytest.mark.parametrize("seconds", [1.0, 0.0])
def test_partition_order_has_one_worker_at_a_time(seconds: float) -> None:
    """Slow records are handed out one by one, quick ones several at once; but never to two workers."""
    made = core(order=Order.PARTITION)
    made.add(PARTITION, records(0, 30), 0.0, 0)
    taken: list[int] = []
    now = 0.0
    while (chunk := made.take(now)) is not None:
        offsets = [entry.offset for run in chunk.todo for entry in run.entries]
        assert len(offsets) == 1 or not seconds
        taken += offsets
        assert made.take(now) is None
        do(chunk)
        now += seconds
        made.complete(chunk, now)
    assert taken == list(range(30))


def test_a_run_is_cut_short_when_its_partition_goes() -> None:
    made = core(order=Order.PARTITION)
    made._record_s = 1e-6  # as after many quick records
    made.add(PARTITION, records(0, 30), 0.0, 0)
    chunk = made.take(0.0)
    assert chunk is not None

    def handle(record: object) -> None:
        if record == records(4, 5)[0]:
            made.begin_revoke([PARTITION])

    Handling(handle, is_batch=False, stops_at_failure=True).prepare().work(chunk)
    made.complete(chunk, 0.1)
    assert made.is_drained([PARTITION])
    assert committed(made) == (5, "")


def test_a_failed_record_is_tried_again_after_its_backoff_and_its_key_waits() -> None:
    made = core(order=Order.KEY, retry=Retry(local=2, backoff_s=(1.0, 10.0)))
    made.add(PARTITION, [record(0, b"a"), record(1, b"a"), record(2, b"b")], 0.0, 0)
    chunk = made.take(0.0)
    assert chunk is not None
    do(chunk, fails=ValueError("no"))
    made.complete(chunk, 0.0)
    other = made.take(0.0)
    assert other is not None
    assert [entry.offset for run in other.todo for entry in run.entries] == [2]
    do(other)
    made.complete(other, 0.0)
    made.tick(0.9)
    assert made.take(0.9) is None
    made.tick(1.0)
    again = made.take(1.0)
    assert again is not None
    assert [entry.offset for run in again.todo for entry in run.entries] == [0]
    assert made.counters.local_retries == 1


def test_a_record_that_fails_every_try_is_produced_before_the_commit_passes_it() -> None:
    made = core(retry=Retry(local=0, topic="orders.retry", dead_letters="orders.dead", topic_backoff_s=(5.0, 60.0)))
    made.add(PARTITION, records(0, 1), 0.0, 0)
    chunk = made.take(0.0)
    assert chunk is not None
    do(chunk, fails=ValueError("broken"))
    made.complete(chunk, 0.0)
    outgoing = made.failures.outbox.popleft()
    assert (outgoing.topic, outgoing.verdict.fate, outgoing.verdict.attempt) == (
        "orders.retry",
        NextPlace.RETRY_TOPIC,
        1,
    )
    headers = diverted_headers(outgoing, "billing", 1_000)
    assert header(headers, DUE_MS) == "6000"
    assert header(headers, ERROR) == "broken"
    assert header(headers, ORIGIN_OFFSET) == "0"
    assert committed(made) in (None, (0, ""))
    made.failures.produced(outgoing, TimeoutError("refused"), 0.0)
    assert committed(made) in (None, (0, ""))
    made.tick(0.1)
    made.failures.produced(made.failures.outbox.popleft(), None, 0.2)
    assert committed(made) == (1, "")
    assert made.counters.retry_topic == 1


@pytest.mark.parametrize("due", [b"9" * 400, b"9" * 5000, b"soon", b"\xb2", b"-5"])
def test_a_time_that_is_none_makes_a_record_of_the_retry_topic_due_at_once(due: bytes) -> None:
    """Anybody may write there: what cannot be a time must not end whoever reads it, again and again."""
    made = core(retry=Retry(topic="orders.retry"))
    partition = TopicPartition("orders.retry", 0)
    made.assign(partition, 0)
    made.add(partition, [record(0, b"k", partition, headers=((DUE_MS, due),))], now=100.0, now_ms=2_000)
    assert made.take(100.0) is not None


def test_a_record_of_the_retry_topic_waits_until_it_is_due_and_dies_after_its_last_round() -> None:
    retry = Retry(local=0, topic="orders.retry", attempts=2, dead_letters="orders.dead")
    made = core(retry=retry)
    partition = TopicPartition("orders.retry", 0)
    made.assign(partition, 0)
    headers = ((DUE_MS, b"5000"), ("headrace.attempt", b"2"), ("headrace.origin-topic", b"orders"), ("mine", b"x"))
    made.add(partition, [record(0, b"k", partition, headers=headers)], now=100.0, now_ms=2_000)
    assert made.take(100.0) is None
    assert made.failures.due_at() == 103.0
    made.tick(102.9)
    assert made.take(102.9) is None
    made.tick(103.0)
    chunk = made.take(103.0)
    assert chunk is not None
    do(chunk, fails=ValueError("still"))
    made.complete(chunk, 103.0)
    outgoing = made.failures.outbox.popleft()
    assert outgoing.topic == "orders.dead"
    sent = diverted_headers(outgoing, "billing", 0)
    assert header(sent, "headrace.origin-topic") == "orders"
    assert header(sent, "mine") == "x"
    assert header(sent, DUE_MS) is None


@pytest.mark.parametrize("error", [Reject("never"), UnreadableRecordError(PARTITION, 0, "value", ValueError("x"))])
def test_what_no_retry_can_mend_goes_to_the_dead_letters_at_once(error: Exception) -> None:
    made = core(retry=Retry(local=5, topic="orders.retry", dead_letters="orders.dead"))
    made.add(PARTITION, records(0, 1), 0.0, 0)
    chunk = made.take(0.0)
    assert chunk is not None
    do(chunk, fails=error)
    made.complete(chunk, 0.0)
    assert made.failures.outbox.popleft().topic == "orders.dead"


def test_without_a_place_for_it_a_failed_record_stops_everything() -> None:
    made = core(retry=Retry(local=0))
    made.add(PARTITION, records(0, 3), 0.0, 0)
    chunk = made.take(0.0)
    assert chunk is not None
    do(chunk, fails=ValueError("no"))
    made.complete(chunk, 0.0)
    assert isinstance(made.fatal, RetriesExhaustedError)
    assert made.take(1.0) is None
    assert committed(made) in (None, (0, ""))


def test_a_stalled_slot_is_given_up_and_the_rest_of_it_goes_on() -> None:
    made = core(Window(slot=5, slots=4, stall_s=10.0), retry=Retry(local=0, dead_letters="orders.dead"))
    made.add(PARTITION, records(0, 5), 0.0, 0)
    chunk = made.take(0.0)
    assert chunk is not None
    run = chunk.next_run()
    assert run is not None
    run.done = 2
    assert made.tick(5.0) == []
    assert made.tick(14.9) == []
    assert made.tick(15.0) == [chunk]
    assert chunk.abandoned
    outgoing = made.failures.outbox.popleft()
    assert outgoing.entry.offset == 2
    assert isinstance(outgoing.entry.error, HandlerStalledError)
    assert f"{outgoing.entry.tracker.partition} at offset {outgoing.entry.offset}" in str(outgoing.entry.error)
    rest = made.take(15.0)
    assert rest is not None
    assert [entry.offset for entry in rest.todo[0].entries] == [3, 4]
    do(rest)
    made.complete(rest, 16.0)
    made.failures.produced(outgoing, None, 16.0)
    assert committed(made) == (5, "")
    # The one that hung comes back after all.
    run.done = 5
    chunk.finished.append(run)
    made.complete(chunk, 20.0)
    assert made.counters.zombies == 1
    assert committed(made) is None


def test_a_batch_that_fails_is_tried_record_by_record_and_only_the_bad_one_dies() -> None:
    made = core(order=Order.NONE, retry=Retry(local=0, backoff_s=(0.1, 1.0), dead_letters="orders.dead"), batch=4)
    made.add(PARTITION, records(0, 4), 0.0, 0)
    chunk = made.take(0.0)
    assert chunk is not None
    run = chunk.next_run()
    assert run is not None
    assert len(run.entries) == 4
    for entry in run.entries:
        run.failed(entry, ValueError("one of us"))
    run.done = 4
    chunk.finished.append(run)
    made.complete(chunk, 0.0)
    assert not made.failures.outbox
    made.tick(0.1)
    while (alone := made.take(0.1)) is not None:
        while (one := alone.next_run()) is not None:
            assert len(one.entries) == 1
            if one.entries[0].offset == 2:
                one.failed(one.entries[0], ValueError("me"))
            one.done = 1
            alone.finished.append(one)
        made.complete(alone, 0.2)
    assert [outgoing.entry.offset for outgoing in made.failures.outbox] == [2]


def test_on_revoke_what_runs_may_end_and_nothing_new_is_begun() -> None:
    made = core(order=Order.NONE)
    made.add(PARTITION, records(0, 10), 0.0, 0)
    chunk = made.take(0.0)
    assert chunk is not None
    made.begin_revoke([PARTITION])
    assert not made.is_drained([PARTITION]) or not chunk.todo
    do(chunk)
    made.complete(chunk, 0.1)
    assert made.is_drained([PARTITION])
    assert made.take(0.1) is None
    assert made.trackers[PARTITION].start == made.counters.handled
    made.end_revoke([PARTITION])
    assert made.pressure.records == 0
    assert made.pressure.bytes == 0


def test_a_result_after_the_partition_went_is_dropped_and_counted() -> None:
    made = core()
    made.add(PARTITION, records(0, 1), 0.0, 0)
    chunk = made.take(0.0)
    assert chunk is not None
    run = chunk.next_run()
    assert run is not None
    made.lose([PARTITION])
    made.assign(PARTITION, 0)
    run.done = 1
    chunk.finished.append(run)
    made.complete(chunk, 1.0)
    assert made.counters.zombies == 1
    assert made.commits() == []


def test_reading_pauses_at_the_bound_and_goes_on_below_it() -> None:
    made = core(limits=Limits(records=100))
    made.add(PARTITION, records(0, 100), 0.0, 0)
    assert made.pauses() == [(PARTITION, True)]
    assert made.pauses() == []
    finished = 0
    while finished < 30:
        chunk = made.take(0.0)
        assert chunk is not None
        finished += sum(len(run.entries) for run in chunk.todo)
        do(chunk)
        made.complete(chunk, 0.0)
    assert made.pauses() == [(PARTITION, False)]


def test_reading_pauses_when_bytes_are_too_many() -> None:
    made = core(limits=Limits(bytes=10_000))
    made.add(PARTITION, [record(0, value=b"x" * 9_000), record(1, value=b"x" * 9_000)], 0.0, 0)
    assert made.pauses() == [(PARTITION, True)]


def test_a_stuck_record_stops_its_partition_before_memory_does() -> None:
    made = core(limits=Limits(ahead=50))
    made.add(PARTITION, records(0, 50), 0.0, 0)
    stuck = made.take(0.0)
    assert stuck is not None
    while (chunk := made.take(0.0)) is not None:
        do(chunk)
        made.complete(chunk, 0.0)
    assert made.pressure.records == 1
    assert made.pauses() == [(PARTITION, True)]


def test_a_worker_that_is_held_up_gives_back_what_it_has_not_begun() -> None:
    made = core(Pool(), order=Order.NONE)
    made._record_s = 1e-6  # as after many quick records
    made.add(PARTITION, records(0, 50), 0.0, 0)
    chunk = made.take(0.0)
    assert chunk is not None
    assert len(chunk.todo) == 50
    assert chunk.next_run() is not None
    made.tick(0.001)
    made.tick(0.02)
    assert not chunk.todo
    other = made.take(0.02)
    assert other is not None
    assert [run.entries[0].offset for run in other.todo] == list(range(1, 50))


def test_a_position_that_went_back_starts_over_there() -> None:
    made = core()
    made.add(PARTITION, records(0, 10), 0.0, 0)
    made.add(PARTITION, records(3, 5), 0.0, 0)
    assert made.trackers[PARTITION].start == 3


def test_the_leader_epoch_of_the_last_finished_record_is_committed() -> None:
    made = core()
    made.add(PARTITION, [record(0)._replace(leader_epoch=3), record(1)._replace(leader_epoch=4)], 0.0, 0)
    while (chunk := made.take(0.0)) is not None:
        do(chunk, runs=1)
        made.complete(chunk, 0.0)
        if made.trackers[PARTITION].start == 1:
            break
    assert [commit.leader_epoch for commit in made.commits()] == [3]


def test_a_long_lane_is_not_left_for_the_end_and_the_others_get_their_turns() -> None:
    settings = CoreSettings.of(Pool(), Order.KEY, Retry(), Limits(), None, workers=4)
    made = ParallelCore(settings)
    made.assign(PARTITION, 0)
    keys = [b"hot" if n % 2 else b"k%d" % n for n in range(200)]
    made.add(PARTITION, [record(n, keys[n]) for n in range(200)], 0.0, 0)
    turns: list[bool] = []
    now = 0.0
    while (chunk := made.take(now)) is not None:
        turns += [run.entries[0].record.key == b"hot" for run in chunk.todo]
        do(chunk)
        now += 1.0
        made.complete(chunk, now)
    assert len(turns) == 200
    # Once it has had its first turn it is served three times of four, until only it or only the others are left.
    first = turns.index(True)
    assert sum(turns[first : first + 100]) >= 70
    assert not all(turns[first : first + 10])


def test_a_lane_that_is_long_when_it_comes_does_not_wait_for_the_line() -> None:
    settings = CoreSettings.of(Pool(), Order.KEY, Retry(), Limits(), None, workers=4)
    made = ParallelCore(settings)
    made.assign(PARTITION, 0)
    keys = [b"k%d" % n if n < 100 else b"long" for n in range(200)]
    made.add(PARTITION, [record(n, key) for n, key in enumerate(keys)], 0.0, 0)
    chunk = made.take(0.0)
    assert chunk is not None
    assert chunk.todo[0].entries[0].record.key == b"long"


def test_a_stalled_handler_is_named_with_its_record() -> None:
    from headrace.client.consumer.records import ConsumerRecord
    from headrace.parallel.errors import place_of
    from headrace.records import TimestampType
    from headrace.topics import TopicPartition

    record = ConsumerRecord("orders", 3, 17, -1, TimestampType.CREATE_TIME, b"customer-9", b"x")
    assert place_of(TopicPartition("orders", 3), 17, record) == "orders-3 at offset 17 (key customer-9)"
    assert place_of(TopicPartition("orders", 3), 17, None) == "orders-3 at offset 17"


def test_what_an_interceptor_gives_in_another_order_is_committed_no_further_than_it_is_finished() -> None:
    made = core()
    made.assign(PARTITION, 0)
    member = Member(made, RealClock(), "g", None, 1)
    handling = Handling(lambda record: None, False, False)
    engine = Engine(member, ["orders"], {"interceptor.classes": ["some"]}, EngineSettings(), None, handling)
    engine._take_in(ConsumerRecords.of(reversed(records(0, 3))))
    while (chunk := made.take(0.0)) is not None:
        run = chunk.next_run()
        assert run is not None
        if run.entries[0].offset == 2:
            run.done = 1
            chunk.finished.append(run)
            made.complete(chunk, 1.0)
    found = committed(made)
    assert found is not None
    assert (found[0], decode_finished(*found)) == (0, [(2, 3)])


def test_a_partition_of_which_an_interceptor_left_nothing_ends_nothing() -> None:
    made = core()
    made.assign(PARTITION, 0)
    handling = Handling(lambda record: None, False, False)
    member = Member(made, RealClock(), "g", None, 1)
    engine = Engine(member, ["orders"], {"interceptor.classes": ["some"]}, EngineSettings(), None, handling)
    engine._take_in(ConsumerRecords([(TopicPartition("orders", 9), []), (PARTITION, records(0, 3))]))
    assert made.trackers[PARTITION].next_offset == 3


def test_a_commit_has_the_epoch_of_what_lies_before_it_where_one_poll_brought_several() -> None:
    made = core()
    epochs = [0, 0, 1, 1, 3]
    made.add(PARTITION, [record(n)._replace(leader_epoch=epoch) for n, epoch in enumerate(epochs)], 0.0, 0)
    found = []
    for now in range(5):
        chunk = made.take(now)
        assert chunk is not None
        do(chunk)
        made.complete(chunk, now + 1)
        found += [(commit.offset, commit.leader_epoch) for commit in made.commits()]
    # With a lower one, whoever takes over would hold the log for truncated, as that epoch ended before.
    assert found == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 3)]


def test_a_commit_behind_a_marker_of_a_later_epoch_has_that_epoch() -> None:
    made = core()
    made.add(PARTITION, [record(0), record(1)], 0.0, 0, 3, 2)
    made.add(PARTITION, [record(4)._replace(leader_epoch=5)], 0.0, 0, 5, 5)
    for offset, epoch in ((1, 0), (4, 5), (5, 5)):
        chunk = made.take(0.0)
        assert chunk is not None
        do(chunk)
        made.complete(chunk, 1.0)
        assert [(one.offset, one.leader_epoch) for one in made.commits()] == [(offset, epoch)]


def test_a_commit_behind_a_damaged_batch_names_no_epoch() -> None:
    made = core(retry=Retry(on_exhausted="skip"))
    made.add(PARTITION, [record(0)], 0.0, 0, 1, 0)
    damage, lost = damage_of(RecordDeserializationError(PARTITION, 1, "checksum", last_offset=3, raw=b"raw"))
    made.add_damaged(damage, lost, 0.0)
    chunk = made.take(0.0)
    assert chunk is not None
    do(chunk)
    made.complete(chunk, 1.0)
    assert [(one.offset, one.leader_epoch) for one in made.commits()] == [(4, None)]
