"""A transaction that several processes write, over a cluster in memory: numbers, retries, and what is certain when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.client.fake import CUT, CUT_BEFORE, SILENCE
from tests.client.transactions.shared_world import MARKS, NAME, OUT, Bench, columns, play, refused

from headrace.client.errors import ProducerFencedError, TransactionOutcomeUnknownError, TransactionStateError
from headrace.client.offsets import OffsetAndMetadata
from headrace.client.transactions import TransactionalWriter
from headrace.client.transactions._writer import cut
from headrace.errors import (
    ErrorCode,
    MessageTooLargeError,
    OutOfOrderSequenceNumberError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
)
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from headrace.protocol.messages.end_txn import EndTxnResponse
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdResponse
from headrace.records import Batch, decode_columns
from headrace.topics import TopicPartition

FIRST = TopicPartition(OUT, 0)


def values(first: int, count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(first, first + count)]


def sequences(bench: Bench) -> list[tuple[int, int]]:
    """First number and count of every batch that was sent, in order."""
    sent = []
    for request in bench.asked("Produce"):
        batch = Batch(bytes(request.topic_data[0].partition_data[0].records))
        sent.append((batch.header().base_sequence, batch.count))
    return sent


# --- the whole --------------------------------------------------------------------------------------------------------


def test_what_several_write_is_there_together_with_offsets_and_marks() -> None:
    bench = Bench()
    identity = bench.begin()
    for index in range(3):
        writer = bench.writer(identity)
        writer.write(TopicPartition(OUT, index), columns([b"%d" % index]))
        writer.finish()
    bench.transaction.commit_offsets(identity, "g", {TopicPartition("in", 0): OffsetAndMetadata(7)})
    bench.transaction.mark(identity, MARKS, columns([b"mark"]))
    assert bench.cluster.committed == []
    bench.transaction.end(identity, commit=True)
    assert bench.cluster.committed == [b"0", b"1", b"2", b"mark"]
    assert bench.cluster.offsets == {("in", 0): 7}


def test_what_is_aborted_is_not_there() -> None:
    bench = Bench()
    identity = bench.begin()
    bench.transaction.mark(identity, MARKS, columns([b"mark"]))
    bench.transaction.end(identity, commit=False)
    assert (bench.cluster.committed, bench.cluster.aborted) == ([], [b"mark"])


def test_a_second_mark_goes_on_behind_the_first() -> None:
    """Under the first one's number a broker would take it for a repetition, and write nothing."""
    bench = Bench()
    identity = bench.begin()
    bench.transaction.mark(identity, MARKS, columns([b"1"]))
    bench.transaction.mark(identity, MARKS, columns([b"2"]))
    bench.transaction.end(identity, commit=True)
    identity = bench.begin()
    bench.transaction.mark(identity, MARKS, columns([b"3"]))
    bench.transaction.end(identity, commit=True)
    assert bench.cluster.committed == [b"1", b"2", b"3"]


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 60))])
def test_whatever_fails_every_transaction_is_there_whole_once_and_in_order_or_not_at_all(seed: int) -> None:
    assert play(seed) == ""


def believed(plain: Any) -> Any:
    """A batch that was not answered counts as written."""

    def outcome(self: Any, lane: Any, sent: Any) -> None:
        plain(self, lane, sent)

    return outcome


def renumbered(plain: Any) -> Any:
    """A batch that may have been written is sent again under the next number."""

    def submit(self: Any, lane: Any, records: Any) -> Any:
        if len(lane.unanswered) == 1 and lane.unanswered[0].records is records and lane.unanswered[0].is_doubtful:
            batch = Batch(memoryview(records))
            lane.unanswered[0].records = records = self._built(decode_columns(batch), lane.sequence)
            lane.sequence += batch.count
        return plain(self, lane, records)

    return submit


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fault"), [("_outcome", believed), ("_submit", renumbered)])
def test_a_fault_that_is_put_in_is_found(monkeypatch: pytest.MonkeyPatch, name: str, fault: Any) -> None:
    monkeypatch.setattr(TransactionalWriter, name, fault(getattr(TransactionalWriter, name)))
    assert any(play(seed) for seed in range(60))


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_a_second_batch_waits_until_the_first_is_in_and_then_five_are_under_way() -> None:
    bench = Bench(batch_size="60")
    identity = bench.begin()
    writer = bench.writer(identity)
    writer.write(FIRST, columns(values(0, 1)))
    writer.write(FIRST, columns(values(1, 1)))
    lane = writer._lanes[FIRST]
    assert (lane.is_known, len(lane.unanswered)) == (True, 1)
    bench.cluster.script = lambda node, name, request: SILENCE if name == "Produce" else None
    for number in range(2, 6):
        writer.write(FIRST, columns(values(number, 1)))
    assert len(lane.unanswered) == 5
    assert lane.sequence == 6


@pytest.mark.parametrize("told", [CUT, CUT_BEFORE, SILENCE, refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)])
def test_a_batch_that_is_sent_again_keeps_its_number_and_its_bytes(told: Any) -> None:
    bench = Bench(batch_size="60")
    identity = bench.begin()
    writer = bench.writer(identity)
    writer.write(FIRST, columns(values(0, 1)))
    writer.finish()
    bench.on("Produce", told)
    for number in range(1, 6):
        writer.write(FIRST, columns(values(number, 1)))
    writer.finish()
    bench.transaction.end(identity, commit=True)
    assert bench.cluster.committed == values(0, 6)
    sent: dict[int, set[bytes]] = {}
    for request in bench.asked("Produce"):
        records = bytes(request.topic_data[0].partition_data[0].records)
        sent.setdefault(Batch(records).header().base_sequence, set()).add(records)
    assert {number: len(kinds) for number, kinds in sent.items()} == dict.fromkeys(range(6), 1)


def test_a_batch_too_large_is_halved_under_its_own_numbers() -> None:
    bench = Bench()
    bench.cluster.message_max_bytes = 100
    identity = bench.begin()
    writer = bench.writer(identity)
    writer.write(FIRST, columns(values(0, 8)))
    writer.write(FIRST, columns(values(8, 1)))
    writer.finish()
    bench.transaction.end(identity, commit=True)
    assert bench.cluster.committed == values(0, 9)
    assert sequences(bench)[:3] == [(0, 8), (0, 4), (0, 2)]


def test_a_batch_that_may_be_in_the_log_is_not_halved() -> None:
    """Its first attempt was written and not answered; then the topic took less than that."""
    bench = Bench()
    identity = bench.begin()
    writer = bench.writer(identity)

    def lowered(node: int, request: Any) -> None:
        bench.cluster.message_max_bytes = 100

    bench.on("Produce", CUT, lowered)
    writer.write(FIRST, columns(values(0, 8)))
    with pytest.raises(MessageTooLargeError, match="writing to out-0"):
        writer.finish()
    assert sequences(bench) == [(0, 8), (0, 8)]


def test_one_record_that_is_too_large_says_where() -> None:
    bench = Bench()
    bench.cluster.message_max_bytes = 100
    identity = bench.begin()
    writer = bench.writer(identity)
    writer.write(FIRST, columns([bytes(200)]))
    with pytest.raises(MessageTooLargeError, match="writing to out-0"):
        writer.finish()


def test_a_writer_that_failed_writes_no_more() -> None:
    """What came behind would leave out a number, or take one a second time."""
    bench = Bench()
    identity = bench.begin()
    writer = bench.writer(identity)
    bench.on("Produce", refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    writer.write(FIRST, columns(values(0, 1)))
    with pytest.raises(OutOfOrderSequenceNumberError):
        writer.finish()
    with pytest.raises(TransactionStateError, match="begin again"):
        writer.write(FIRST, columns(values(1, 1)))
    with pytest.raises(TransactionStateError):
        writer.finish()


def test_a_writer_of_an_older_epoch_is_fenced() -> None:
    bench = Bench()
    old = bench.begin()
    bench.begin()
    writer = bench.writer(old)
    writer.write(FIRST, columns(values(0, 1)))
    with pytest.raises(ProducerFencedError, match="writing to out-0"):
        writer.finish()


def test_a_partition_without_a_leader_is_waited_for_as_long_as_delivery_may_take() -> None:
    bench = Bench(delivery_timeout_ms="5000")
    identity = bench.begin()
    writer = bench.writer(identity)
    bench.cluster.leaders[FIRST] = (-1, 1)
    began = bench.cluster.clock.now
    writer.write(FIRST, columns(values(0, 1)))
    with pytest.raises(RequestTimedOutError, match=r"out-0 took no batch for delivery.timeout.ms=5000.*no leader"):
        writer.finish()
    assert 5 <= bench.cluster.clock.now - began < 8


def test_the_time_for_delivery_begins_anew_with_every_batch_that_is_taken() -> None:
    bench = Bench(batch_size="60", delivery_timeout_ms="2000")
    identity = bench.begin()
    writer = bench.writer(identity)
    writer.write(FIRST, columns(values(0, 1)))
    writer.finish()

    def slowly(node: int, request: Any) -> None:
        bench.cluster.clock.now += 1.5

    moved = refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    # The first is refused, the four behind it are out of order; then each comes again, refused once and then slow.
    bench.on("Produce", moved, None, None, None, None, *[slowly, moved] * 5)
    for number in range(1, 6):
        writer.write(FIRST, columns(values(number, 1)))
    writer.finish()
    bench.transaction.end(identity, commit=True)
    assert bench.cluster.committed == values(0, 6)


# --- coordinators -----------------------------------------------------------------------------------------------------


def test_a_coordinator_that_moved_is_found_anew() -> None:
    bench = Bench()
    bench.on("InitProducerId", lambda node, request: InitProducerIdResponse(error_code=ErrorCode.NOT_COORDINATOR))
    bench.begin()
    assert len(bench.asked("FindCoordinator")) == 2


def test_the_end_of_the_last_transaction_is_not_waited_for_longer_than_it_takes() -> None:
    bench = Bench()
    bench.begin()
    began = bench.cluster.clock.now
    busy = [lambda node, request: InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)]
    bench.on("InitProducerId", *busy)
    bench.transaction.fence()
    assert bench.cluster.clock.now - began < 0.05
    assert len(bench.asked("FindCoordinator")) == 1


def test_no_coordinator_is_no_coordinator_also_without_an_error() -> None:
    bench = Bench()
    nobody = Coordinator(key=NAME, node_id=-1, host="", port=-1)
    bench.on("FindCoordinator", lambda node, request: FindCoordinatorResponse(coordinators=[nobody]))
    bench.begin()
    assert len(bench.asked("FindCoordinator")) == 2


def test_what_will_not_pass_is_not_waited_for_because_of_what_may() -> None:
    bench = Bench()
    identity = bench.transaction.fence()

    def answered(node: int, request: Any) -> AddPartitionsToTxnResponse:
        codes = (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        results = [
            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
            for index, code in enumerate((*codes, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        ]
        topic = AddPartitionsToTxnTopicResult(name=OUT, results_by_partition=results)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])

    bench.on("AddPartitionsToTxn", answered)
    with pytest.raises(TopicAuthorizationFailedError):
        bench.transaction.enlist(identity, [FIRST])
    assert len(bench.asked("AddPartitionsToTxn")) == 1


def test_an_end_whose_answer_is_lost_is_asked_for_again_and_is_one() -> None:
    bench = Bench()
    identity = bench.begin()
    bench.transaction.mark(identity, MARKS, columns([b"mark"]))
    bench.on("EndTxn", CUT, CUT)
    bench.transaction.end(identity, commit=True)
    assert (bench.cluster.committed, bench.cluster.ends) == ([b"mark"], 1)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.INVALID_TXN_STATE, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED],
)
def test_an_end_that_is_refused_behind_one_that_was_not_answered_is_not_known(code: ErrorCode) -> None:
    bench = Bench()
    identity = bench.begin()
    bench.transaction.mark(identity, MARKS, columns([b"mark"]))
    bench.on("EndTxn", CUT, lambda node, request: EndTxnResponse(error_code=code))
    with pytest.raises(TransactionOutcomeUnknownError, match="whether the transaction was committed is not known"):
        bench.transaction.end(identity, commit=True)
    assert bench.cluster.committed == [b"mark"]


def test_an_end_that_nobody_answers_is_not_known_when_time_is_over() -> None:
    bench = Bench()
    identity = bench.begin()
    bench.transaction.mark(identity, MARKS, columns([b"mark"]))
    bench.cluster.script = lambda node, name, request: CUT_BEFORE if name == "EndTxn" else None
    began = bench.cluster.clock.now
    with pytest.raises(TransactionOutcomeUnknownError, match="not done within 60000 ms"):
        bench.transaction.end(identity, commit=True)
    assert 60 <= bench.cluster.clock.now - began < 95


def test_an_end_of_an_older_epoch_is_fenced() -> None:
    bench = Bench()
    old = bench.begin()
    bench.begin()
    with pytest.raises(ProducerFencedError, match=f"EndTxn of {NAME}"):
        bench.transaction.end(old, commit=True)


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_rows_are_cut_into_batches_that_fit() -> None:
    assert cut([10, 10, 10, 100, 10], 25) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert cut([], 10) == []
    sizes = np.random.default_rng(3).integers(1, 50, 500)
    parts = cut(sizes, 100)
    assert [row for start, end in parts for row in range(start, end)] == list(range(500))
    assert all(end - start == 1 or sizes[start:end].sum() <= 100 for start, end in parts)
