"""The transaction's core, step by step: what it asks, in which protocol, and what it makes of every kind of answer."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.client.consumer.records import ConsumerGroupMetadata
from headrace.client.errors import (
    AbortableTransactionError,
    FatalTransactionError,
    TransactionStateError,
)
from headrace.client.offsets import OffsetAndMetadata
from headrace.client.producer._sequences import CurrentIdentity
from headrace.client.transactions._core import ProducerTransactionState, TransactionCore, TransactionOperation
from headrace.client.transactions._requests import RequestKind, TransactionRequest
from headrace.errors import (
    DelegationTokenNotFoundError,
    ErrorCode,
    InvalidProducerEpochError,
    MessageTooLargeError,
    NetworkError,
    OutOfOrderSequenceNumberError,
    ProducerFencedError,
)
from headrace.net.backoff import Backoff
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from headrace.protocol.messages.end_txn import EndTxnResponse
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdResponse
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from headrace.topics import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 3)
GROUP = ConsumerGroupMetadata("g", 4, "member-1", None)
OFFSETS = {A: OffsetAndMetadata(17), B: OffsetAndMetadata(5, "note", 2)}


class Script:
    """A core, and a coordinator that is played by the test. Coordinators are found by themselves unless told."""

    def __init__(self, version: int = 2) -> None:
        self.core = TransactionCore("tid", 60_000, CurrentIdentity(), Backoff(100, 1000), random.Random(1))
        self.version = version
        self.now = 100.0
        self.epoch = 0
        self.records_left = False
        self.asked: list[RequestKind] = []

    def step(self) -> TransactionRequest:
        """The next request that is not about where coordinators are."""
        for _ in range(5):
            step = self.core.next_step(self.now, records_left=self.records_left)
            if step is None:
                due = self.core.due(self.now)
                assert due < self.now + 10, "nothing is asked, and nothing is due"
                self.now = due
                continue
            self.asked.append(step.kind)
            if step.kind is not RequestKind.FIND_COORDINATOR:
                return step
            found = Coordinator(key="x", node_id=1 if step.group_id is None else 2, host="h", port=9092)
            self.core.answered(step, FindCoordinatorResponse(coordinators=[found]), None, self.now)
        raise AssertionError("no request came")

    def idle(self) -> bool:
        return self.core.next_step(self.now, records_left=self.records_left) is None

    def answer(self, step: TransactionRequest, code: int = 0) -> None:
        self.core.answered(step, self._response(step, code), None, self.now, transaction_version=self.version)

    def lose(self, step: TransactionRequest) -> None:
        self.core.answered(step, None, NetworkError("cut"), self.now)

    def _response(self, step: TransactionRequest, code: int) -> Any:
        if step.kind is RequestKind.INIT:
            self.epoch += step.request.producer_id >= 0
            return InitProducerIdResponse(error_code=code, producer_id=7, producer_epoch=self.epoch)
        if step.kind is RequestKind.ADD_PARTITIONS:
            results = [
                AddPartitionsToTxnTopicResult(
                    name=p.topic,
                    results_by_partition=[
                        AddPartitionsToTxnPartitionResult(partition_index=p.partition, partition_error_code=code)
                    ],
                )
                for p in step.partitions
            ]
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
        if step.kind is RequestKind.ADD_OFFSETS:
            return AddOffsetsToTxnResponse(error_code=code)
        if step.kind is RequestKind.COMMIT_OFFSETS:
            return offsets_answer({A: code, B: code})
        if self.version >= 2 and not code:
            self.epoch += 1
            return EndTxnResponse(producer_id=7, producer_epoch=self.epoch)
        return EndTxnResponse(error_code=code)

    def initialized(self) -> Script:
        operation = self.core.init()
        self.answer(self.step())
        assert done(operation) is None
        return self

    def in_transaction(self) -> Script:
        """With partition A in it."""
        self.initialized().core.begin()
        if not self.core.may_produce(A):
            self.answer(self.step())
        assert self.core.may_produce(A)
        self.asked.clear()
        return self


def offsets_answer(codes: dict[TopicPartition, int]) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=p.topic,
                partitions=[TxnOffsetCommitResponsePartition(partition_index=p.partition, error_code=code)],
            )
            for p, code in codes.items()
        ]
    )


def done(operation: TransactionOperation) -> Exception | None:
    assert operation.is_done
    return operation.take_outcome()


def test_init_finds_the_coordinator_and_takes_id_epoch_and_protocol() -> None:
    for version, protocol in ((0, 1), (1, 1), (2, 2), (3, 2)):
        script = Script(version)
        operation = script.core.init()
        step = script.step()
        assert script.asked == [RequestKind.FIND_COORDINATOR, RequestKind.INIT]
        assert step.node is not None
        assert step.node.id == 1
        assert (step.request.transactional_id, step.request.transaction_timeout_ms) == ("tid", 60_000)
        assert (step.request.producer_id, step.request.producer_epoch) == (-1, -1)
        script.answer(step)
        assert done(operation) is None
        assert (script.core.identity.producer_id, script.core.identity.epoch) == (7, 0)
        assert script.core.protocol == protocol
        assert script.core.state is ProducerTransactionState.READY


def test_protocol_1_adds_partitions_before_records_and_ends_with_the_same_epoch() -> None:
    script = Script(1).initialized()
    script.core.begin()
    assert not script.core.may_produce(A)
    assert not script.core.may_produce(B)
    step = script.step()
    assert step.kind is RequestKind.ADD_PARTITIONS
    assert step.partitions == (A, B)
    assert step.version_max == 3
    assert not script.core.may_produce(A)
    script.answer(step)
    assert script.core.may_produce(A)
    assert script.core.may_produce(B)
    operation = script.core.commit()
    end = script.step()
    assert (end.kind, end.version_max, end.request.committed) == (RequestKind.END, 4, True)
    script.answer(end)
    assert done(operation) is None
    assert script.core.identity.epoch == 0
    script.core.begin()
    assert not script.core.may_produce(A), "a partition is part of one transaction only"


def test_protocol_2_adds_nothing_and_takes_the_new_epoch_of_every_end() -> None:
    script = Script(2).initialized()
    for epoch in (1, 2):
        script.core.begin()
        assert script.core.may_produce(A)
        assert script.idle()
        operation = script.core.commit()
        end = script.step()
        assert (end.kind, end.version_max) == (RequestKind.END, None)
        assert end.request.producer_epoch == epoch - 1
        script.answer(end)
        assert done(operation) is None
        assert script.core.identity.epoch == epoch


def test_an_end_waits_for_records_that_are_under_way() -> None:
    script = Script().in_transaction()
    script.core.commit()
    script.records_left = True
    assert script.idle()
    script.records_left = False
    assert script.step().kind is RequestKind.END


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_empty_transaction_ends_without_a_request(version: int, end: str) -> None:
    script = Script(version).initialized()
    script.core.begin()
    operation = getattr(script.core, end)()
    assert script.idle()
    assert done(operation) is None
    assert script.core.state is ProducerTransactionState.READY


def test_offsets_in_protocol_1_are_announced_to_the_transaction_and_sent_to_the_group() -> None:
    script = Script(1).in_transaction()
    operation = script.core.send_offsets(OFFSETS, GROUP)
    add = script.step()
    assert (add.kind, add.request.group_id) == (RequestKind.ADD_OFFSETS, "g")
    assert add.node is not None
    assert add.node.id == 1
    script.answer(add)
    step = script.step()
    assert (step.kind, step.version_max) == (RequestKind.COMMIT_OFFSETS, 4)
    assert step.node is not None
    assert step.node.id == 2
    request = step.request
    assert (request.group_id, request.generation_id, request.member_id) == ("g", 4, "member-1")
    sent = {(t.name, p.partition_index): p for t in request.topics for p in t.partitions}
    assert sent["a", 0].committed_offset == 17
    assert sent["a", 0].committed_leader_epoch == -1
    assert (sent["b", 3].committed_metadata, sent["b", 3].committed_leader_epoch) == ("note", 2)
    assert not operation.is_done
    script.answer(step)
    assert done(operation) is None
    again = script.core.send_offsets(OFFSETS, GROUP)
    step = script.step()
    assert step.kind is RequestKind.COMMIT_OFFSETS, "a group is announced once"
    script.answer(step)
    assert done(again) is None


def test_offsets_in_protocol_2_go_straight_to_the_group() -> None:
    script = Script(2).initialized()
    script.core.begin()
    operation = script.core.send_offsets(OFFSETS, GROUP)
    step = script.step()
    assert (step.kind, step.version_max) == (RequestKind.COMMIT_OFFSETS, None)
    script.answer(step)
    assert done(operation) is None
    script.core.commit()
    assert script.step().kind is RequestKind.END, "offsets alone make a transaction"


def test_offsets_that_were_taken_are_not_sent_again() -> None:
    script = Script(2).in_transaction()
    script.core.send_offsets(OFFSETS, GROUP)
    step = script.step()
    codes = {A: 0, B: int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}
    script.core.answered(step, offsets_answer(codes), None, script.now)
    assert [t.name for t in script.step().request.topics] == ["b"]


def test_no_offsets_are_no_request() -> None:
    script = Script().in_transaction()
    assert done(script.core.send_offsets({}, GROUP)) is None
    assert script.idle()


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_coordinator_that_moved_is_found_again(code: ErrorCode) -> None:
    script = Script().in_transaction()
    operation = script.core.commit()
    script.answer(script.step(), code)
    assert script.idle(), "after a while, not at once"
    step = script.step()
    assert script.asked == [RequestKind.END, RequestKind.FIND_COORDINATOR, RequestKind.END]
    script.answer(step)
    assert done(operation) is None


def test_a_lost_end_is_asked_again_with_the_same_epoch() -> None:
    script = Script().in_transaction()
    operation = script.core.commit()
    first = script.step()
    script.lose(first)
    second = script.step()
    assert second.request == first.request
    script.answer(second)
    assert done(operation) is None


def test_a_commit_without_an_outcome_is_waited_for_by_calling_it_again() -> None:
    script = Script().in_transaction()
    operation = script.core.commit()
    script.lose(script.step())
    assert script.core.commit() is operation
    for other in (script.core.abort, script.core.begin, lambda: script.core.send_offsets(OFFSETS, GROUP)):
        with pytest.raises(TransactionStateError, match="call it again"):
            other()
    script.answer(script.step())
    assert done(operation) is None
    script.core.begin()


def test_a_commit_that_ended_after_the_wait_for_it_is_still_heard_of() -> None:
    script = Script().in_transaction()
    operation = script.core.commit()
    script.answer(script.step())
    assert operation.is_done
    with pytest.raises(TransactionStateError, match="call it again"):
        script.core.begin()
    assert script.core.commit() is operation
    assert done(operation) is None
    script.core.begin()


def test_concurrent_transactions_are_waited_out_shortly() -> None:
    script = Script(1).initialized()
    script.core.begin()
    script.core.may_produce(A)
    before = script.now
    script.answer(script.step(), ErrorCode.CONCURRENT_TRANSACTIONS)
    script.answer(script.step())
    assert 0.019 < script.now - before < 0.021
    assert script.core.may_produce(A)


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
@pytest.mark.parametrize("version", [1, 2])
def test_a_fenced_producer_is_told_so_and_what_to_do(version: int, code: ErrorCode) -> None:
    script = Script(version).in_transaction()
    operation = script.core.commit()
    script.answer(script.step(), code)
    error = done(operation)
    assert isinstance(error, ProducerFencedError)
    assert "make a new one" in str(error)
    assert error.__cause__ is not None
    for call in (script.core.begin, script.core.abort, script.core.commit, script.core.check_send, script.core.init):
        with pytest.raises(ProducerFencedError):
            call()
    assert script.idle()


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_what_no_abort_can_mend_is_fatal(code: ErrorCode) -> None:
    script = Script().in_transaction()
    operation = script.core.commit()
    script.answer(script.step(), code)
    error = done(operation)
    assert isinstance(error, FatalTransactionError)
    assert not isinstance(error, ProducerFencedError)


def test_an_error_that_is_not_of_the_network_is_fatal() -> None:
    script = Script()
    operation = script.core.init()
    step = script.step()
    script.core.answered(step, None, DelegationTokenNotFoundError(), script.now)
    assert isinstance(done(operation), FatalTransactionError)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTION_ABORTABLE,
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_refusal_of_offsets_spoils_the_transaction_but_not_the_producer(version: int, code: ErrorCode) -> None:
    script = Script(version).in_transaction()
    operation = script.core.send_offsets(OFFSETS, GROUP)
    step = script.step()
    if step.kind is RequestKind.ADD_OFFSETS:
        script.answer(step)
        step = script.step()
    script.answer(step, code)
    error = done(operation)
    assert isinstance(error, AbortableTransactionError)
    assert "abort_transaction()" in str(error)
    with pytest.raises(AbortableTransactionError):
        script.core.commit()
    with pytest.raises(AbortableTransactionError):
        script.core.check_send()
    aborted = script.core.abort()
    end = script.step()
    assert (end.kind, end.request.committed) == (RequestKind.END, False)
    script.answer(end)
    assert done(aborted) is None
    assert script.idle(), "no numbers were lost: no new epoch is needed"
    script.core.begin()


def test_a_topic_that_may_not_be_written_leaves_nothing_to_end() -> None:
    script = Script(1).initialized()
    script.core.begin()
    script.core.may_produce(A)
    script.answer(script.step(), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    aborted = script.core.abort()
    assert script.idle()
    assert done(aborted) is None


def test_lost_records_in_protocol_1_cost_an_epoch_after_the_abort() -> None:
    script = Script(1).in_transaction()
    script.core.record_failed(OutOfOrderSequenceNumberError(), was_numbered=True)
    assert script.core.state is ProducerTransactionState.ABORTABLE_ERROR
    operation = script.core.abort()
    script.answer(script.step())
    assert not operation.is_done
    bump = script.step()
    assert script.asked == [RequestKind.END, RequestKind.INIT]
    assert (bump.request.producer_id, bump.request.producer_epoch) == (7, 0)
    script.lose(bump)
    script.answer(script.step())
    assert done(operation) is None
    assert script.core.identity.epoch == 1


def test_lost_records_in_protocol_2_are_made_up_for_by_the_end_itself() -> None:
    script = Script(2).in_transaction()
    script.core.record_failed(OutOfOrderSequenceNumberError(), was_numbered=True)
    operation = script.core.abort()
    script.answer(script.step())
    assert done(operation) is None
    assert script.asked == [RequestKind.END]
    assert script.core.identity.epoch == 1


def test_a_record_lost_while_committing_fails_the_commit() -> None:
    script = Script().in_transaction()
    operation = script.core.commit()
    script.core.record_failed(MessageTooLargeError("too large"), was_numbered=False)
    error = done(operation)
    assert isinstance(error, AbortableTransactionError)
    assert isinstance(error.__cause__, MessageTooLargeError)
    assert str(error).endswith("committed: too large. Call abort_transaction(), then begin another one")
    assert script.idle(), "nothing is committed"


def test_an_old_epoch_of_a_record_is_abortable_and_the_abort_finds_out_that_it_was_fenced() -> None:
    script = Script().in_transaction()
    script.core.record_failed(InvalidProducerEpochError(), was_numbered=True)
    assert script.core.state is ProducerTransactionState.ABORTABLE_ERROR
    operation = script.core.abort()
    script.answer(script.step(), ErrorCode.PRODUCER_FENCED)
    assert isinstance(done(operation), ProducerFencedError)


def test_a_fenced_record_is_fatal_at_once() -> None:
    script = Script().in_transaction()
    script.core.record_failed(ProducerFencedError(), was_numbered=True)
    assert script.core.state is ProducerTransactionState.FATAL_ERROR


def test_an_abort_learns_first_whether_a_partition_was_added() -> None:
    script = Script(1).initialized()
    script.core.begin()
    script.core.may_produce(A)
    script.lose(script.step())
    operation = script.core.abort()
    step = script.step()
    assert step.kind is RequestKind.ADD_PARTITIONS
    script.answer(step)
    end = script.step()
    assert (end.kind, end.request.committed) == (RequestKind.END, False)
    script.answer(end)
    assert done(operation) is None


def test_a_refusal_after_a_lost_attempt_does_not_pass_for_nothing_begun() -> None:
    script = Script(1).initialized()
    script.core.begin()
    script.core.may_produce(A)
    script.lose(script.step())
    script.answer(script.step(), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    script.core.abort()
    assert script.step().kind is RequestKind.END


def test_an_abort_gives_up_offsets_that_wait() -> None:
    script = Script(1).in_transaction()
    operation = script.core.send_offsets(OFFSETS, GROUP)
    aborted = script.core.abort()
    assert isinstance(done(operation), AbortableTransactionError)
    script.answer(script.step())
    assert done(aborted) is None
    assert script.asked == [RequestKind.END]


def test_calls_out_of_order_say_what_comes_first() -> None:
    script = Script()
    for call in (script.core.begin, script.core.commit, script.core.abort, script.core.check_send):
        with pytest.raises(TransactionStateError, match="init_transactions"):
            call()
    script.initialized()
    with pytest.raises(TransactionStateError, match="once"):
        script.core.init()
    for call in (script.core.commit, script.core.abort, script.core.check_send):
        with pytest.raises(TransactionStateError, match="begin_transaction"):
            call()
    script.core.begin()
    with pytest.raises(TransactionStateError, match="open already"):
        script.core.begin()
    assert script.core.is_open


def test_an_answer_to_an_old_question_changes_nothing() -> None:
    script = Script().in_transaction()
    operation = script.core.commit()
    first = script.step()
    script.lose(first)
    second = script.step()
    script.answer(first)
    assert not operation.is_done
    script.answer(second)
    assert done(operation) is None
