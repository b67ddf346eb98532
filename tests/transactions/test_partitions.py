"""Which partitions belong to a transaction: adding, several transactions at once, offsets, and verification."""

from __future__ import annotations

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from headrace.topics import TopicPartition
from headrace.transactions import ADD_VERSION, errors_of
from headrace.transactions.partitions import REPETITIONS_ANSWERED_MAX

from .clients import A0, A1, B0, ID, Clients, all_of


def test_partitions_add_up_and_the_first_starts_the_transaction() -> None:
    clients = Clients()
    me = clients.started()
    clients.advance(1_000)
    began_ms = clients.now_ms
    clients.add(me, A0)
    clients.advance(1_000)
    clients.add(me, A0, B0)
    snapshot = clients.snapshots()[ID]
    assert snapshot.partitions == {A0, B0}
    assert (snapshot.start_ms, snapshot.update_ms) == (began_ms, began_ms + 1_000)


def test_partitions_that_are_known_already_cost_no_write() -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, A0, A1)
    written = sum(map(len, clients.log.values()))
    assert clients.add(me, A1) == {A1: ErrorCode.NONE}
    assert sum(map(len, clients.log.values())) == written


def test_with_one_unknown_partition_none_is_added() -> None:
    clients = Clients()
    me = clients.started()
    nowhere, beyond = TopicPartition("nowhere", 0), TopicPartition("b", 1)
    assert clients.add(me, A0, nowhere, beyond) == {
        A0: ErrorCode.OPERATION_NOT_ATTEMPTED,
        nowhere: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        beyond: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert clients.state() == "Empty"


def test_a_second_change_waits_for_the_first_to_be_written() -> None:
    clients = Clients()
    me = clients.started()
    clients.hold = True
    with pytest.raises(AssertionError, match="waits"):
        clients.add(me, A0)
    assert clients.add(me, A1) == {A1: ErrorCode.CONCURRENT_TRANSACTIONS}
    assert clients.end(me) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert clients.init()[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    clients.release()
    clients.hold = False
    assert clients.add(me, A1) == {A1: ErrorCode.NONE}


def test_a_partition_counts_only_once_it_is_written() -> None:
    clients = Clients()
    me = clients.started()
    clients.hold = True
    with pytest.raises(AssertionError, match="waits"):
        clients.produce(me, A0)
    assert clients.coordinator.verify(ID, *me, [A0]) == {A0: ErrorCode.TRANSACTION_ABORTABLE}
    clients.release()
    assert clients.coordinator.verify(ID, *me, [A0]) == {A0: ErrorCode.NONE}


def test_brokers_ask_for_several_transactions_at_once() -> None:
    clients = Clients()
    names = ["one", "two", "three"]
    producers = {name: clients.started(name=name) for name in names}
    clients.add(producers["two"], A0, name="two")
    assert len({clients.coordinator.partition_of(name) for name in names}) == 3

    def asked(name: str, epoch: int, *, verify_only: bool) -> AddPartitionsToTxnTransaction:
        topics = [AddPartitionsToTxnTopic(name="a", partitions=[0, 1])]
        producer_id, _ = producers[name]
        return AddPartitionsToTxnTransaction(
            transactional_id=name, producer_id=producer_id, producer_epoch=epoch, verify_only=verify_only, topics=topics
        )

    request = AddPartitionsToTxnRequest(
        transactions=[
            asked("one", 0, verify_only=False),
            asked("two", 0, verify_only=True),
            asked("three", 7, verify_only=False),
        ]
    )
    answer = clients.ask("add_partitions_to_txn", request, ADD_VERSION)
    assert errors_of(answer, "one") == all_of([A0, A1], ErrorCode.NONE)
    assert errors_of(answer, "two") == {A0: ErrorCode.NONE, A1: ErrorCode.TRANSACTION_ABORTABLE}
    assert errors_of(answer, "three") == all_of([A0, A1], ErrorCode.PRODUCER_FENCED)

    # Of several writes some may fail: the answer says which.
    again = AddPartitionsToTxnRequest(
        transactions=[asked("two", 0, verify_only=False), asked("three", 0, verify_only=False)]
    )
    clients.hold = True
    token = clients.send("add_partitions_to_txn", again, ADD_VERSION)
    (outcome,) = clients.held
    errors = {0: ErrorCode.NOT_ENOUGH_REPLICAS}
    clients.absorb(clients.coordinator.failed(outcome, errors, clients.now))
    answer = clients.answers[token]
    assert errors_of(answer, "two") == all_of([A0, A1], ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert errors_of(answer, "three") == all_of([A0, A1], ErrorCode.NONE)
    assert clients.snapshots()["two"].partitions == {A0}
    assert clients.snapshots()["three"].partitions == {A0, A1}


def test_an_id_that_is_named_again_is_about_the_partitions_of_its_last_mention() -> None:
    clients = Clients()
    producer_id, epoch = clients.started()

    def asked(epoch: int, index: int, *, verify_only: bool = False) -> AddPartitionsToTxnTransaction:
        return AddPartitionsToTxnTransaction(
            transactional_id=ID,
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only=verify_only,
            topics=[AddPartitionsToTxnTopic(name="a", partitions=[index])],
        )

    def ask(*transactions: AddPartitionsToTxnTransaction) -> list[tuple[int, ErrorCode]]:
        request = AddPartitionsToTxnRequest(transactions=list(transactions))
        answer = clients.ask("add_partitions_to_txn", request, ADD_VERSION)
        return [
            (part.partition_index, ErrorCode(part.partition_error_code))
            for result in answer.results_by_transaction
            for topic in result.topic_results
            for part in topic.results_by_partition
        ]

    # Asked of Kafka 4.3.1: each mention speaks for itself of who asks, and additions are answered in the first's words.
    fenced = ErrorCode.PRODUCER_FENCED
    assert ask(asked(epoch + 1, 0), asked(epoch, 1)) == [(0, fenced), (0, ErrorCode.NONE)]
    assert clients.snapshots()[ID].partitions == {A1}
    assert (
        ask(asked(epoch, 1, verify_only=True), asked(epoch, 0, verify_only=True))
        == [(0, ErrorCode.TRANSACTION_ABORTABLE)] * 2
    )
    assert ask(asked(epoch, 0), asked(epoch, 99)) == [(99, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)] * 2
    assert clients.snapshots()[ID].partitions == {A1}
    assert ask(asked(epoch, 1), asked(epoch, 0)) == [(1, ErrorCode.NONE)] * 2
    assert clients.snapshots()[ID].partitions == {A0, A1}


def test_an_id_that_is_named_very_often_is_answered_once() -> None:
    clients = Clients()
    producer_id, epoch = clients.started()
    other_id, _ = clients.started(name="other")

    def asked(name: str, producer_id: int, epoch: int, *indexes: int) -> AddPartitionsToTxnTransaction:
        topics = [AddPartitionsToTxnTopic(name="a", partitions=list(indexes))]
        return AddPartitionsToTxnTransaction(
            transactional_id=name, producer_id=producer_id, producer_epoch=epoch, topics=topics
        )

    often = [asked(ID, producer_id, epoch + number, 0) for number in range(1, REPETITIONS_ANSWERED_MAX + 2)]
    request = AddPartitionsToTxnRequest(
        transactions=[*often, asked("other", other_id, epoch, 0), asked(ID, producer_id, epoch, 0, 1)]
    )
    answer = clients.ask("add_partitions_to_txn", request, ADD_VERSION)
    assert [result.transactional_id for result in answer.results_by_transaction] == [ID, "other"]
    assert errors_of(answer, ID) == all_of([A0, A1], ErrorCode.NONE)
    assert errors_of(answer, "other") == {A0: ErrorCode.NONE}
    assert clients.snapshots()[ID].partitions == {A0, A1}

    # As many as that are answered each time, which is what Kafka does.
    request.transactions = often
    answer = clients.ask("add_partitions_to_txn", request, ADD_VERSION)
    assert len(answer.results_by_transaction) == REPETITIONS_ANSWERED_MAX + 1


def test_who_only_asks_about_no_partition_begins_no_transaction() -> None:
    clients = Clients()
    producer_id, epoch = clients.started()
    before = clients.snapshots()[ID]

    def ask(*topics: list[AddPartitionsToTxnTopic]) -> list[list[AddPartitionsToTxnTopicResult]]:
        transactions = [
            AddPartitionsToTxnTransaction(
                transactional_id=ID, producer_id=producer_id, producer_epoch=epoch, verify_only=True, topics=asked
            )
            for asked in topics
        ]
        request = AddPartitionsToTxnRequest(transactions=transactions)
        answer = clients.ask("add_partitions_to_txn", request, ADD_VERSION)
        return [result.topic_results for result in answer.results_by_transaction]

    assert ask([]) == [[]]
    assert ask([AddPartitionsToTxnTopic(name="a", partitions=[0])], []) == [[], []]
    assert clients.snapshots()[ID] == before


def test_offsets_are_a_partition_of_the_offsets_topic() -> None:
    clients = Clients()
    me = clients.started()
    assert clients.add_offsets(me, "group") == ErrorCode.NONE
    offsets = TopicPartition("__consumer_offsets", 47)
    assert clients.snapshots()[ID].partitions == {offsets}
    assert clients.coordinator.verify(ID, *me, [offsets]) == {offsets: ErrorCode.NONE}
    clients.end(me)
    assert clients.markers == [(offsets, 1_000, 0, True)]


def test_partitions_added_by_brokers_belong_to_the_newer_protocol() -> None:
    clients = Clients()
    me = clients.started()
    clients.produce(me, B0)
    assert clients.snapshots()[ID].client_version == 2
    clients.end(me, version=5)
    clients.add((1_000, 1), B0)
    assert clients.snapshots()[ID].client_version == 0


@pytest.mark.parametrize(("version", "error"), [(1, "INVALID_PRODUCER_EPOCH"), (2, "PRODUCER_FENCED")])
def test_fenced_producers_are_told_in_words_that_their_version_knows(version: int, error: str) -> None:
    clients = Clients()
    old = clients.started()
    clients.started()
    assert clients.add(old, A0, version=version) == {A0: ErrorCode[error]}
    assert clients.add_offsets(old, "group", version=version) == ErrorCode[error]
    assert clients.end(old, version=version) == ErrorCode[error]


def test_an_empty_transactional_id_is_no_valid_request() -> None:
    clients = Clients()
    assert clients.add((1, 0), A0, name="") == {A0: ErrorCode.INVALID_REQUEST}
    assert clients.end((1, 0), name="") == ErrorCode.INVALID_REQUEST
    assert clients.produce((1, 0), A0, name="") == {A0: ErrorCode.INVALID_REQUEST}
    assert clients.state("") == "INVALID_REQUEST"
