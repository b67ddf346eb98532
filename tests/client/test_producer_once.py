"""Once means once: what may have been written is never numbered anew, and what cannot be encoded harms nothing else."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.client.consumer.records import ConsumerRecord, ConsumerRecords
from headrace.client.errors import ClientClosedError, DeliveryTimeoutError, FatalTransactionError, TransactionStateError
from headrace.client.producer._one_record import OneRecord
from headrace.client.producer._rows import Rows
from headrace.client.transactions.exactly_once import ExactlyOnce, _Batch
from headrace.errors import ErrorCode, HeadraceError, InvalidRecordError, InvalidTopicError, RequestTimedOutError
from headrace.protocol.messages.end_txn import EndTxnResponse
from headrace.protocol.messages.produce import ProduceResponse
from headrace.records import TimestampType
from headrace.records.cpython import COUNTS_REFERENCES
from headrace.topics import TopicPartition

from .fake import CUT, CUT_BEFORE, SILENCE, FakeCluster, VirtualClock, World
from .fake_transactions import TransactionalCluster
from .once_model import IN, PARTITIONS, RECORDS, BlockingConsumer, StepProducer, check_once
from .producer_model import ModelWorld
from .test_producer_transactions import TransactionalWorld


def values_of(request: Any) -> list[bytes]:
    from headrace.records import Batch
    from headrace.records.read import read_records

    data = [data for topic in request.topic_data for data in topic.partition_data]
    return [record.value for one in data for record in read_records(Batch(bytes(one.records)))]


def written_but_answered(cluster: FakeCluster, request: Any, code: ErrorCode) -> ProduceResponse:
    """The broker writes it, and answers with an error: its followers were slow, or it was replaced meanwhile."""
    answer = cluster._produce(1, request, 13)
    for topic in answer.responses:
        for one in topic.partition_responses:
            one.error_code = code
    return answer


@pytest.mark.parametrize("first_was_written", [True, False])
def test_a_batch_behind_one_that_expired_is_not_doubled(first_was_written: bool) -> None:
    clock = VirtualClock()
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, linger_ms=0, request_timeout_ms=3_000, delivery_timeout_ms=3_000, retry_backoff_ms=50)
    world.deliver([world.send("t", b"warm")])
    down = [False]

    def script(node: int, name: str, request: Any) -> Any:
        if down[0]:
            return CUT_BEFORE
        if name != "Produce":
            return None
        return CUT_BEFORE if values_of(request) == [b"B1"] and not first_was_written else SILENCE

    cluster.script = script
    first = world.send("t", b"B1")
    world.settle()
    clock.now += 1.5
    second = world.send("t", b"B2")
    world.settle()
    down[0] = True
    world.core.disconnect(1, RequestTimedOutError("cut"))
    world.run_until(first.done)
    assert isinstance(first.exception(), DeliveryTimeoutError)
    assert not second.done()
    cluster.script = lambda node, name, request: None
    world.deliver([second, world.send("t", b"B3")])
    expected = [b"warm", b"B1", b"B2", b"B3"]
    assert cluster.values("t") == (expected if first_was_written else [b"warm", b"B2", b"B3"])
    assert second.exception() is None
    assert world.producer.identity.epoch == (0 if first_was_written else 1), "no number was missing"


def test_a_batch_behind_one_whose_retries_are_over_is_not_doubled() -> None:
    cluster = FakeCluster(VirtualClock(), topics={"t": 1})
    world = World(cluster, linger_ms=0, retries=1, batch_size=80)
    world.deliver([world.send("t", b"warm")])
    left = {b"B1": 2, b"B2": 1}

    def script(node: int, name: str, request: Any) -> Any:
        if name != "Produce" or left.get(values_of(request)[0], 0) == 0:
            return None
        left[values_of(request)[0]] -= 1
        return written_but_answered(cluster, request, ErrorCode.REQUEST_TIMED_OUT)

    cluster.script = script
    first, second = world.send("t", b"B1", partition=0), world.send("t", b"B2", partition=0)
    world.deliver([first, second])
    assert isinstance(first.exception(), RequestTimedOutError)
    assert second.exception() is None
    world.deliver([world.send("t", b"B3")])
    assert cluster.values("t") == [b"warm", b"B1", b"B2", b"B3"]


def test_what_lies_unread_before_a_broker_is_not_sent_under_another_number_beside_it() -> None:
    """Two batches lie in a connection that the client has given up; the broker reads them after the second's retry."""
    clock = VirtualClock()
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, linger_ms=0, request_timeout_ms=3_000, delivery_timeout_ms=4_000, retry_backoff_ms=50)
    world.deliver([world.send("t", b"warm")])
    unread: list[Any] = []

    def script(node: int, name: str, request: Any) -> Any:
        if name == "Produce" and len(unread) < 2:
            unread.append(request)
            return CUT_BEFORE if len(unread) == 2 else SILENCE_UNREAD
        return None

    SILENCE_UNREAD = ProduceResponse()
    cluster.script = script
    first = world.send("t", b"B1")
    world.producer.turn()
    clock.now += 3.5
    # The first one's time is nearly over: it will not be sent again.
    second = world.send("t", b"B2")
    world.core.disconnect(1, RequestTimedOutError("cut"))
    world.settle()
    clock.now += 0.6
    world.run_until(first.done)
    world.run_until(lambda: len(cluster.requests) > 8 or second.done(), 2)
    for request in unread:
        cluster._produce(1, request, 13)
    world.deliver([second])
    assert cluster.values("t").count(b"B2") == 1


def test_a_batch_that_may_have_been_written_is_not_split() -> None:
    cluster = FakeCluster(VirtualClock(), topics={"t": 1})
    world = World(cluster, linger_ms=0)
    world.deliver([world.send("t", b"warm")])
    answers: list[Any] = [CUT]

    def script(node: int, name: str, request: Any) -> Any:
        if name != "Produce":
            return None
        if answers:
            return answers.pop()
        cluster.message_max_bytes = 80
        return None

    cluster.script = script
    sent = [world.send("t", b"%d" % number) for number in range(4)]
    world.deliver(sent)
    cluster.message_max_bytes = 1 << 20
    cluster.script = lambda node, name, request: None
    world.deliver([world.send("t", b"after")])
    assert cluster.values("t") == [b"warm", b"0", b"1", b"2", b"3", b"after"]


# --- what cannot be encoded -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("at", [0, 7, 19])
def test_a_record_that_cannot_be_encoded_fails_alone_and_keeps_no_number(idempotent: bool, at: int) -> None:
    cluster = FakeCluster(VirtualClock(), topics={"t": 2})
    world = World(cluster, linger_ms=5, enable_idempotence=idempotent)
    world.deliver([world.send("t", b"warm", partition=p) for p in (0, 1)])
    told: list[Any] = []
    sent = []
    for number in range(20):
        extra = {"timestamp": 2**63} if number == at else {}
        for partition in (0, 1):
            is_bad = bool(extra) and partition == 0
            value = b"bad" if is_bad else b"%d" % number
            sent.append(
                world.send(
                    "t",
                    value,
                    partition=partition,
                    on_delivery=lambda *how: told.append(how),
                    **(extra if is_bad else {}),
                )
            )
    wait = world.producer.flush()
    world.deliver(sent)
    assert len(told) == 40
    assert [type(delivery.exception()) for delivery in sent].count(InvalidRecordError) == 1
    assert [log.values for log in cluster.logs.values()] == [
        [b"warm", *(b"%d" % number for number in range(20) if number != at)],
        [b"warm", *(b"%d" % number for number in range(20))],
    ]
    assert wait.is_done
    world.deliver([world.send("t", b"after", partition=0)])
    assert world.producer.is_idle
    assert world.producer.accumulator.buffered_bytes == 0


def test_a_record_sent_alone_that_cannot_be_encoded_keeps_no_number() -> None:
    cluster = FakeCluster(VirtualClock(), topics={"t": 1})
    world = World(cluster, linger_ms=0)
    one = OneRecord(world.producer)
    world.deliver([world.send("t", b"warm")])
    bad = world.send("t", b"bad", timestamp=2**63)
    assert one.send(bad) is None
    assert isinstance(bad.exception(), InvalidRecordError)
    good = world.send("t", b"good")
    assert one.send(good) is not None
    world.deliver([good])
    assert cluster.values("t") == [b"warm", b"good"]


def test_a_topic_whose_name_is_no_text_fails_its_records_only() -> None:
    cluster = FakeCluster(VirtualClock(), topics={"t": 1})
    world = World(cluster)
    bad, good = world.send("t\udc80", b"bad"), world.send("t", b"good")
    world.deliver([bad, good], 5)
    assert isinstance(bad.exception(), InvalidTopicError)
    assert cluster.values("t") == [b"good"]


class Chooser:
    """A partitioner that answers as it is told."""

    def __init__(self) -> None:
        self.answer: Any = 0

    def partition(self, topic: str, key: Any, value: Any, partitions: int, available: Any) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def on_new_batch(self, topic: str, partition: int) -> None:
        raise ArithmeticError("not prepared for this")


@pytest.mark.parametrize("answer", ["0", 1.0, None, object(), ArithmeticError("no"), KeyboardInterrupt()])
def test_a_partitioner_that_makes_no_sense_fails_its_records_only(answer: Any) -> None:
    cluster = FakeCluster(VirtualClock(), topics={"t": 2})
    chooser = Chooser()
    world = World(cluster, partitioner_class=chooser)
    world.deliver([world.send("t", b"a")])
    chooser.answer = answer
    failed = world.send("t", b"b")
    world.deliver([failed])
    assert isinstance(failed.exception(), HeadraceError)
    chooser.answer = 1
    world.deliver([world.send("t", b"c")])
    assert cluster.values("t") == [b"a", b"c"]


def test_an_error_code_of_the_future_is_an_error_like_any_other() -> None:
    from .test_producer_core import refuse

    cluster = FakeCluster(VirtualClock(), topics={"t": 1})
    world = World(cluster)
    refuse(cluster, 9_999)  # type: ignore[arg-type]  # a code that no version knows yet
    first = world.send("t", b"a")
    world.deliver([first])
    assert "9999" in str(first.exception())
    world.deliver([world.send("t", b"b")])
    assert cluster.values("t") == [b"b"]


# --- callbacks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [ArithmeticError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("fails", [True, False])
def test_whatever_a_callback_raises_everybody_is_told(raised: type[BaseException], fails: bool) -> None:
    cluster = FakeCluster(VirtualClock(), topics={"t": 3})
    world = World(cluster, max_block_ms=1_000)
    told = []

    def callback(error: Any, metadata: Any) -> None:
        told.append(metadata)
        raise raised

    sent = [world.send("gone" if fails else "t", b"%d" % i, partition=i % 3, on_delivery=callback) for i in range(30)]
    wait = world.producer.flush()
    world.deliver(sent)
    assert len(told) == 30
    assert wait.is_done
    ended = world.producer.accumulator.interruption
    assert ended is None if issubclass(raised, Exception) else isinstance(ended, raised)
    world.deliver([world.send("t", b"after")])


# --- flush and the end ------------------------------------------------------------------------------------------------


def test_a_flush_waits_for_rows_that_are_held_and_for_nothing_that_comes_later() -> None:
    cluster = FakeCluster(VirtualClock(), topics={"busy": 1})
    world = World(cluster, linger_ms=20)
    world.deliver([world.send("busy", b"w")])
    fresh = world.send("fresh", b"first")
    wait = world.producer.flush()
    cluster.create("fresh", 1)
    for _ in range(200):
        world.send("busy", b"x")
        world.step()
        world.send("busy", b"y")
        assert wait.is_done == (wait.left == 0)
        if wait.is_done:
            break
    assert wait.is_done
    assert fresh.done()
    assert not world.producer.is_idle, "others have sent on meanwhile"


@pytest.mark.parametrize("ending", ["fails", "appears"])
def test_a_flush_of_a_topic_that_is_split_over_partitions_ends_with_the_last_of_them(ending: str) -> None:
    cluster = FakeCluster(VirtualClock(), topics={})
    world = World(cluster, max_block_ms=2_000)
    sent = [world.send("late", b"%d" % i, partition=i % 4) for i in range(40)]
    wait = world.producer.flush()
    world.settle()
    if ending == "appears":
        cluster.create("late", 3)
    world.run_until(lambda: wait.is_done, 30)
    assert all(delivery.done() for delivery in sent)


def test_a_record_that_comes_while_its_transaction_is_being_committed_is_refused() -> None:
    for version in (1, 2):
        cluster = TransactionalCluster(VirtualClock(), version, brokers=1, topics={"t": 1})
        world = TransactionalWorld(cluster)
        world.init()
        world.transaction.begin()
        world.send("t", b"in", partition=0)
        world.producer.flush()
        operation = world.transaction.commit()
        late = world.send("t", b"late", partition=0)
        assert world.finish(operation) is None
        world.run_until(late.done, 5)
        assert isinstance(late.exception(), TransactionStateError)
        world.transaction.begin()
        world.send("t", b"next", partition=0)
        assert world.commit() is None
        assert cluster.committed == [b"in", b"next"]


def test_the_end_leaves_nobody_waiting() -> None:
    cluster = TransactionalCluster(VirtualClock(), 2, brokers=1, topics={"t": 1})
    world = TransactionalWorld(cluster)
    world.init()
    world.transaction.begin()
    cluster.script = lambda node, name, request: SILENCE
    sent = [world.send("t", b"a"), world.send("held", b"b")]
    wait = world.producer.flush()
    operation = world.transaction.commit()
    world.settle()
    sent.append(world.send("t", b"pending"))
    world.producer.abort("of a test")
    assert wait.is_done
    assert all(isinstance(delivery.exception(), HeadraceError) for delivery in sent)
    assert isinstance(operation.error, ClientClosedError)


def test_what_was_half_done_when_a_caller_was_interrupted_is_sent_all_the_same() -> None:
    rng = random.Random(5)
    cluster = FakeCluster(VirtualClock(), topics={"t": 2})
    world = World(cluster, linger_ms=0)
    world.deliver([world.send("t", b"warm", partition=p) for p in (0, 1)])
    for number in range(40):
        sent = [world.send("t", b"%d-%d" % (number, i), partition=i % 2) for i in range(4)]
        world.producer.turn()
        for _ in range(rng.randrange(4)):
            if cluster.events:
                cluster.events.popleft()()
        # As if the thread had been stopped between taking a batch from here and putting it there.
        for batch in world.producer.accumulator.incomplete:
            if rng.random() < 0.5:
                queue = world.producer.accumulator.queues["t", batch.partition]
                if batch in queue.in_flight:
                    queue.in_flight.remove(batch)
                if batch in queue.batches:
                    queue.batches.remove(batch)
        world.producer.recover()
        world.deliver(sent)
        assert all(delivery.exception() is None for delivery in sent)
    for partition in (0, 1):
        expected = [b"%d-%d" % (number, i) for number in range(40) for i in range(4) if i % 2 == partition]
        assert cluster.logs["t", partition].values == [b"warm", *expected]


@pytest.mark.parametrize("version", [1, 2])
def test_a_commit_whose_answer_was_lost_is_not_called_aborted_when_it_is_refused_later(version: int) -> None:
    cluster = TransactionalCluster(VirtualClock(), version, brokers=1, topics={"t": 1})
    world = TransactionalWorld(cluster)
    world.init()
    world.transaction.begin()
    world.send("t", b"in", partition=0)
    answers: list[Any] = [EndTxnResponse(error_code=ErrorCode.TRANSACTION_ABORTABLE), CUT]
    cluster.script = lambda node, name, request: answers.pop() if name == "EndTxn" and answers else None
    assert isinstance(world.commit(), FatalTransactionError), "nobody knows the outcome any more"
    assert cluster.committed == [b"in"]


@pytest.mark.skipif(not COUNTS_REFERENCES, reason="nobody can say which handles are kept")
def test_ctrl_c_while_records_are_put_into_columns_early_doubles_none(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(VirtualClock(), topics={"t": 1})
    world = World(cluster)
    extend = Rows.extend

    def interrupted(self: Rows, more: Rows) -> bool:
        extend(self, more)
        raise KeyboardInterrupt

    for number in range(4):
        world.send("t", b"%d" % number)
    world.producer.accumulator.compact()
    for number in range(4, 8):
        world.send("t", b"%d" % number)
    monkeypatch.setattr(Rows, "extend", interrupted)
    with pytest.raises(KeyboardInterrupt):
        world.producer.accumulator.compact()
    wait = world.producer.flush()
    world.run_until(lambda: wait.is_done)
    assert cluster.values("t") == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize("idle_timeout", [0, 0.05])
def test_exactly_once_without_patience_passes_no_record_over(idle_timeout: float) -> None:
    rng = random.Random(1)
    cluster = TransactionalCluster(VirtualClock(), 2, brokers=2, topics={"t": PARTITIONS})
    consumer = BlockingConsumer(cluster, rng)
    producer = StepProducer(ModelWorld(cluster, rng, transactional_id="tid"), rng)
    producer.interrupts = 0.0
    for batch in ExactlyOnce(consumer, producer, idle_timeout=idle_timeout):  # type: ignore[arg-type]  # as much of both as is used
        for record in batch:
            producer.world.send("t", record.value, partition=record.offset % PARTITIONS)
    assert cluster.offsets[IN.topic, IN.partition] == RECORDS
    check_once(cluster)


def test_a_batch_that_an_interceptor_turned_around_begins_and_ends_where_it_was_read() -> None:
    rows = [ConsumerRecord("in", 0, offset, 0, TimestampType.CREATE_TIME, None, b"") for offset in (7, 5, 6)]
    producer = SimpleNamespace(_core=SimpleNamespace(transaction=SimpleNamespace(operation=None)))
    batch = _Batch(producer, ConsumerRecords.of(rows))
    assert batch.starts == {IN: 5}
    assert {partition: one.offset for partition, one in batch.offsets.items()} == {IN: 8}


def test_a_batch_of_which_an_interceptor_left_one_partition_empty_has_the_others() -> None:
    rows = [ConsumerRecord("in", 1, offset, 0, TimestampType.CREATE_TIME, None, b"") for offset in (5, 6)]
    producer = SimpleNamespace(_core=SimpleNamespace(transaction=SimpleNamespace(operation=None)))
    other = TopicPartition("in", 1)
    batch = _Batch(producer, ConsumerRecords([(IN, []), (other, rows)]))
    assert batch.starts == {other: 5}
    assert {partition: one.offset for partition, one in batch.offsets.items()} == {other: 7}


def test_records_of_a_partition_in_several_pieces_end_where_the_furthest_does() -> None:
    rows = [ConsumerRecord("in", 0, offset, 0, TimestampType.CREATE_TIME, None, b"") for offset in range(4)]
    found = ConsumerRecords([(IN, rows[2:]), (IN, rows[:2])]).next_offsets()
    assert {partition: one.offset for partition, one in found.items()} == {IN: 4}
