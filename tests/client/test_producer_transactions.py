"""The producer's sender in transactions, over a fake cluster under virtual time: numbers, epochs, errors, faults."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.client.consumer.records import ConsumerGroupMetadata
from headrace.client.errors import AbortableTransactionError, DeliveryTimeoutError, ProducerFencedError
from headrace.client.offsets import OffsetAndMetadata
from headrace.client.transactions._core import ProducerTransactionState, TransactionOperation
from headrace.errors import ErrorCode, MessageTooLargeError
from headrace.protocol.messages.produce import PartitionProduceResponse
from headrace.topics import TopicPartition

from .fake import CUT, CUT_BEFORE, SILENCE, VirtualClock, World
from .fake_transactions import TransactionalCluster

pytestmark = pytest.mark.slow

GROUP = ConsumerGroupMetadata("g")


class TransactionalWorld(World):
    """The producer's core with the calls that a user would make."""

    def __init__(self, cluster: TransactionalCluster, **keywords: Any) -> None:
        super().__init__(cluster, transactional_id="tid", linger_ms=0, **keywords)
        transaction = self.producer.transaction
        assert transaction is not None
        self.transaction = transaction

    def finish(self, operation: TransactionOperation) -> Exception | None:
        self.run_until(lambda: operation.is_done, limit_s=1000)
        return operation.take_outcome()

    def init(self) -> None:
        assert self.finish(self.transaction.init()) is None

    def commit(self) -> Exception | None:
        self.producer.flush()
        return self.finish(self.transaction.commit())

    def abort(self) -> Exception | None:
        self.producer.flush()
        return self.finish(self.transaction.abort())


@pytest.fixture(params=[1, 2])
def cluster(request: pytest.FixtureRequest) -> TransactionalCluster:
    return TransactionalCluster(VirtualClock(), request.param, brokers=2, topics={"t": 3})


def refuse_once(cluster: TransactionalCluster, code: ErrorCode) -> None:
    """The next Produce request for partition 0 is answered with this, and nothing of it is written."""
    left = [code]

    def script(node: int, name: str, request: Any) -> Any:
        if name != "Produce" or not left or request.topic_data[0].partition_data[0].index != 0:
            return None
        left.clear()
        answer = FakeAnswer.of(cluster, request)
        for topic in answer.responses:
            topic.partition_responses = [
                PartitionProduceResponse(index=one.index, error_code=code, base_offset=-1)
                for one in topic.partition_responses
            ]
        return answer

    cluster.script = script


class FakeAnswer:
    @staticmethod
    def of(cluster: TransactionalCluster, request: Any) -> Any:
        version = 13 if not request.topic_data[0].name else 11
        cluster._producing = (request.transactional_id, version)
        return cluster._produce(-1, request, version)


def test_transactions_follow_one_another(cluster: TransactionalCluster) -> None:
    world = TransactionalWorld(cluster)
    world.init()
    for number in range(4):
        world.transaction.begin()
        sent = [world.send("t", b"%d-%d" % (number, at), partition=at % 3) for at in range(30)]
        operation = world.transaction.send_offsets({TopicPartition("in", 0): OffsetAndMetadata(number)}, GROUP)
        if number % 2:
            assert world.abort() is None
        else:
            assert world.commit() is None
            assert all(delivery.result().offset >= 0 for delivery in sent)
        assert operation.is_done
    assert sorted(cluster.committed) == sorted(b"%d-%d" % (number, at) for number in (0, 2) for at in range(30))
    assert cluster.offsets == {("in", 0): 2}
    names = [name for _, name, _, _ in cluster.requests]
    assert ("AddPartitionsToTxn" in names) == (cluster.version == 1)
    versions = {version for _, name, version, _ in cluster.requests if name == "Produce"}
    assert versions == ({11} if cluster.version == 1 else {13})
    assert {version for _, name, version, _ in cluster.requests if name == "EndTxn"} == {3 + cluster.version}
    assert world.producer.identity.epoch == (0 if cluster.version == 1 else 4)


def test_sequence_numbers_go_on_in_the_older_protocol_and_start_again_in_the_newer(
    cluster: TransactionalCluster,
) -> None:
    world = TransactionalWorld(cluster)
    world.init()
    for _ in range(3):
        world.transaction.begin()
        world.deliver([world.send("t", b"x", partition=0) for _ in range(5)])
        assert world.commit() is None
    sequences = world.producer.accumulator.queues["t", 0].sequences
    assert sequences.next == (15 if cluster.version == 1 else 0)


def test_a_record_that_fails_spoils_the_transaction_and_an_abort_mends_it(cluster: TransactionalCluster) -> None:
    world = TransactionalWorld(cluster)
    world.init()
    world.transaction.begin()
    refuse_once(cluster, ErrorCode.MESSAGE_TOO_LARGE)
    failed = world.send("t", b"too large", partition=0)
    other = world.send("t", b"never committed", partition=1)
    world.deliver([failed, other])
    assert isinstance(failed.exception(), MessageTooLargeError)
    assert world.transaction.state is ProducerTransactionState.ABORTABLE_ERROR
    with pytest.raises(AbortableTransactionError):
        world.transaction.commit()
    assert world.abort() is None
    assert world.producer.identity.epoch == 1, "numbers were lost: a new epoch"
    world.transaction.begin()
    world.send("t", b"kept", partition=0)
    assert world.commit() is None
    assert cluster.committed == [b"kept"]


def test_records_that_are_not_sent_yet_when_it_is_aborted_fail(cluster: TransactionalCluster) -> None:
    world = TransactionalWorld(cluster)
    world.init()
    world.transaction.begin()
    sent = [world.send("t", b"%d" % at) for at in range(100)]
    assert world.abort() is None
    assert all(isinstance(delivery.exception(), AbortableTransactionError) for delivery in sent)
    assert cluster.committed == []


def test_a_delivery_that_times_out_fails_the_commit(cluster: TransactionalCluster) -> None:
    world = TransactionalWorld(cluster, delivery_timeout_ms=40_000, request_timeout_ms=20_000)
    world.init()
    world.transaction.begin()
    cluster.script = lambda node, name, request: SILENCE if name == "Produce" else None
    sent = world.send("t", b"lost", partition=0)
    error = world.commit()
    assert isinstance(error, AbortableTransactionError)
    assert isinstance(error.__cause__, DeliveryTimeoutError)
    assert isinstance(sent.exception(), DeliveryTimeoutError)
    cluster.script = lambda node, name, request: None
    assert world.abort() is None
    world.transaction.begin()
    world.send("t", b"kept", partition=0)
    assert world.commit() is None
    assert cluster.committed == [b"kept"]


def test_an_unknown_topic_spoils_the_transaction(cluster: TransactionalCluster) -> None:
    world = TransactionalWorld(cluster, max_block_ms=3000)
    world.init()
    world.transaction.begin()
    world.send("nowhere", b"x")
    assert isinstance(world.commit(), AbortableTransactionError)
    assert world.abort() is None


def test_a_zombie_is_fenced_and_its_records_fail(cluster: TransactionalCluster) -> None:
    world = TransactionalWorld(cluster)
    world.init()
    world.transaction.begin()
    world.deliver([world.send("t", b"zombie", partition=0)])
    # Somebody else with the same transactional id.
    heir = cluster.transactions["tid"]
    cluster._finish(heir, is_commit=False)
    heir.epoch += 1
    heir.last_end = None
    late = world.send("t", b"late", partition=0)
    error = world.commit()
    assert isinstance(error, AbortableTransactionError)
    assert late.exception() is not None
    assert isinstance(world.abort(), ProducerFencedError)
    dropped = world.send("t", b"after", partition=0)
    world.run_until(dropped.done)
    assert isinstance(dropped.exception(), ProducerFencedError)
    assert cluster.committed == []


def faulty(cluster: TransactionalCluster, rng: random.Random, share: float) -> Any:
    """Connections break before and after requests were served, answers are lost, brokers refuse for a moment."""

    def script(node: int, name: str, request: Any) -> Any:
        if name in ("ApiVersions", "Metadata") or rng.random() > share:
            return None
        if name == "Produce" and rng.random() < 0.3:
            answer = FakeAnswer.of(cluster, request)
            code = rng.choice([ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.CONCURRENT_TRANSACTIONS])
            for topic in answer.responses:
                for one in topic.partition_responses:
                    one.error_code = code
            return answer
        return rng.choice([CUT, CUT, CUT_BEFORE, SILENCE])

    return script


@pytest.mark.parametrize("seed", range(10))
def test_faults_tear_no_transaction_lose_none_and_double_nothing(cluster: TransactionalCluster, seed: int) -> None:
    rng = random.Random(seed)
    # A short one makes records fail, so that the producer needs new epochs.
    timeout_ms = rng.choice([6_000, 100_000])
    world = TransactionalWorld(cluster, seed=seed, delivery_timeout_ms=timeout_ms, request_timeout_ms=5_000)
    cluster.script = faulty(cluster, rng, 0.15)
    world.init()
    kept: list[bytes] = []
    offset = -1
    for number in range(12):
        world.transaction.begin()
        values = [b"%d-%d" % (number, at) for at in range(rng.randint(0, 20))]
        for value in values:
            world.send("t", value, partition=rng.randrange(3))
            if rng.random() < 0.1:
                world.settle()
        with_offsets = rng.random() < 0.5
        if with_offsets:
            world.transaction.send_offsets({TopicPartition("in", 0): OffsetAndMetadata(number)}, GROUP)
        if rng.random() < 0.3:
            assert world.abort() is None
            continue
        error = world.commit()
        if error is None:
            kept += values
            offset = number if with_offsets else offset
        else:
            assert isinstance(error, AbortableTransactionError)
            assert world.abort() is None
    assert sorted(cluster.committed) == sorted(kept)
    assert cluster.offsets.get(("in", 0), -1) == offset
