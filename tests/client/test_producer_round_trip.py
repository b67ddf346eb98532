"""One record at a time, each waited for: who sends it, who reads the answer, and that none is left lying."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.waiting import eventually

import headrace.testing
from headrace import Producer
from headrace.client.cluster.drivers import BlockingClient
from headrace.client.producer._accumulator import Accumulator
from headrace.client.producer._core_lock import CoreLock
from headrace.client.producer._direct_sends import DirectSends
from headrace.client.producer._thread_sender import ThreadSender
from headrace.net.blocking import LoneConnection
from headrace.records import use_fast
from headrace.runtime.system import HAS_EPOLL

RESULT_S = 60.0
needs_epoll = pytest.mark.skipif(not HAS_EPOLL, reason="without epoll no answer is waited for apart from the others")


@pytest.fixture(scope="module")
def broker_address() -> Iterator[str]:
    """The broker that HEADRACE_TEST_ON names, or one of our own."""
    address = os.environ.get("HEADRACE_TEST_ON")
    if address:
        yield address
        return
    with headrace.testing.broker() as broker:
        yield broker.address


def rest(producer: Producer) -> None:
    """Wait until the producer's thread has nothing to do."""
    eventually(
        lambda: producer._sender.is_idle and not producer._sender.core_lock.is_held, "rest of the producer's thread"
    )


def come_near(producer: Producer, topic: str) -> int:
    """Send until the producer's thread rests near, as it does when it has just worked; the next offset of partition 0.

    Other work of the thread (metadata that comes late) makes it rest for longer at first.
    """

    def next_offset() -> int:
        where = producer.send(topic, b"to come near", partition=0).result(RESULT_S)
        rest(producer)
        return where.offset + 1 if producer._sender.direct.is_looking else 0

    return eventually(next_offset, "a thread that rests near")


@pytest.fixture
def near(broker_address: str, make_topic: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Producer, str, int]]:
    """A producer whose thread rests near all through the test, however busy the machine is, so that nobody else reads
    the answers; its topic, and the next offset there."""
    topic = make_topic(1)
    monkeypatch.setattr("headrace.client.producer._direct_sends._LOOK_S", RESULT_S)
    with Producer(bootstrap_servers=broker_address, linger_ms=0) as producer:
        yield producer, topic, come_near(producer, topic)


def test_a_record_that_comes_just_before_the_thread_rests_is_sent(
    broker_address: str, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(1)
    late: list[Any] = []
    with Producer(bootstrap_servers=broker_address, linger_ms=0) as producer:
        producer.send(topic, b"first").result(RESULT_S)
        core = producer._core
        assert core is not None
        settle = core.settle_flushes

        def settle_and_send() -> None:
            settle()
            if not core.has_work and not late:
                late.append(producer.send(topic, b"late"))

        monkeypatch.setattr(core, "settle_flushes", settle_and_send)
        producer.send(topic, b"second", on_delivery=lambda error, where: None)
        eventually(lambda: late, "a turn of the producer's thread")
        assert late[0].result(RESULT_S).offset == 2


@needs_epoll
def test_a_resting_thread_is_not_woken_for_one_record(
    broker_address: str, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(2)
    senders: list[str] = []
    flush = BlockingClient.flush_connection

    def spy(client: BlockingClient, connection: Any) -> None:
        senders.append(threading.current_thread().name)
        flush(client, connection)

    # Near all through the test, however busy the machine is.
    monkeypatch.setattr("headrace.client.producer._direct_sends._LOOK_S", RESULT_S)
    with Producer(bootstrap_servers=broker_address, linger_ms=0, client_id="one") as producer:
        offset = come_near(producer, topic)
        monkeypatch.setattr(BlockingClient, "flush_connection", spy)
        for i in range(10):
            rest(producer)
            assert producer.send(topic, b"direct", partition=0).result(RESULT_S).offset == offset + i
        for value, key, headers in [
            (b"x" * 20_000, None, None),
            (None, b"key", None),
            (b"", b"key", None),
            (b"with headers", None, [("name", b"value")]),
        ]:
            rest(producer)
            producer.send(topic, value, key, headers=headers).result(RESULT_S)
        rest(producer)
        assert senders == ["MainThread"] * 14
        producer.send(topic, b"with a callback", on_delivery=lambda error, where: None).result(RESULT_S)
    assert senders[14:] == ["headrace-one"]


def test_records_sent_alone_are_read_as_they_were_sent(broker_address: str, make_topic: Any, read_all: Any) -> None:
    topic = make_topic(3)
    sent: list[tuple[Any, ...]] = []
    with (
        Producer(bootstrap_servers=broker_address, linger_ms=0) as one,
        Producer(bootstrap_servers=broker_address, linger_ms=0, enable_idempotence=False, acks=1) as other,
    ):
        for i in range(60):
            key, value = (None, b"k%d" % (i % 7), b"")[i % 3], (b"v%d" % i, None, b"")[i // 3 % 3]
            stamp = None if i % 4 else 1_600_000_000_000 + i
            where = (one, other)[i % 2].send(topic, value, key, timestamp=stamp).result(RESULT_S)
            assert stamp is None or where.timestamp == stamp
            sent.append((where.partition, where.offset, where.timestamp, key, value))
    got = [(m.partition(), m.offset(), m.timestamp()[1], m.key(), m.value()) for m in read_all(topic)]
    assert sorted(got, key=lambda m: m[:2]) == sorted(sent, key=lambda m: m[:2])


def test_an_answer_that_nobody_waits_for_is_read_all_the_same(broker_address: str, make_topic: Any) -> None:
    topic = make_topic(1)
    with Producer(bootstrap_servers=broker_address, linger_ms=0) as producer:
        producer.send(topic, b"first").result(RESULT_S)
        rest(producer)
        delivery = producer.send(topic, b"not waited for")
        eventually(delivery.done, "the answer")


@needs_epoll
def test_a_flush_after_one_record_does_not_wake_the_thread(
    near: tuple[Producer, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, topic, offset = near
    woken: list[str] = []
    monkeypatch.setattr(ThreadSender, "wake", lambda sender: woken.append("woken"))
    deliveries = []
    for _ in range(5):
        deliveries.append(producer.send(topic, b"flushed"))
        producer.flush(RESULT_S)
        assert deliveries[-1].done()
    producer.flush(RESULT_S)
    assert woken == []
    monkeypatch.undo()
    # With something for the thread to do, it is the thread that is waited for.
    heard: list[Any] = []
    producer.send(topic, b"with a callback", on_delivery=lambda error, where: heard.append(where))
    producer.flush(RESULT_S)
    assert [where.offset for where in heard] == [offset + 5]


@needs_epoll
def test_what_was_waited_alone_counts_towards_the_time_out(
    near: tuple[Producer, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, topic, offset = near
    with monkeypatch.context() as patch:
        patch.setattr(DirectSends, "wait", lambda direct, timeout: RESULT_S)
        delivery = producer.send(topic, b"second")
        with pytest.raises(TimeoutError):
            delivery.result(RESULT_S)
    assert delivery.result(RESULT_S).offset == offset


@needs_epoll
def test_who_waits_alone_is_told_when_the_thread_reads_the_answer(
    broker_address: str, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(1)
    ends: list[bool] = []
    wait = LoneConnection.wait
    monkeypatch.setattr("headrace.client.producer._direct_sends._LOOK_S", RESULT_S)

    with Producer(bootstrap_servers=broker_address, linger_ms=0) as producer:
        offset = come_near(producer, topic)

        def wait_late(watch: LoneConnection, timeout_s: float) -> bool:
            heard: list[Any] = []
            producer.send(topic, b"for the thread", on_delivery=lambda error, where: heard.append(where))
            # Answers come in order: with this one, the one that is waited for has been read as well.
            eventually(lambda: heard, "the thread's record")
            rest(producer)
            # The thread rests again, but here somebody still waits: nobody else may do so on the same connection.
            assert producer.send(topic, b"of another").result(RESULT_S).offset == offset + 2
            ends.append(wait(watch, RESULT_S))
            return ends[-1]

        monkeypatch.setattr(LoneConnection, "wait", wait_late)
        assert producer.send(topic, b"waited for").result(RESULT_S).offset == offset
        monkeypatch.setattr(LoneConnection, "wait", wait)
        assert ends == [True]
        for i in range(3):
            rest(producer)
            assert producer.send(topic, b"direct again").result(RESULT_S).offset == offset + 3 + i


@needs_epoll
def test_a_resting_thread_that_looks_round_does_not_disturb_who_waits_alone(
    broker_address: str, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(1)
    waits: list[tuple[bool, bool]] = []
    looks = [0]
    wait, select = LoneConnection.wait, DirectSends.select

    def spy(direct: DirectSends, *arguments: Any) -> Any:
        looks[0] += 1
        return select(direct, *arguments)

    with Producer(bootstrap_servers=broker_address, linger_ms=0) as producer:

        def wait_long(watch: LoneConnection, timeout_s: float) -> bool:
            before = looks[0]
            eventually(lambda: looks[0] >= before + 4, "looks of the thread")
            waits.append((producer._sender.is_idle, producer._sender.direct.was_called_off))
            return wait(watch, timeout_s)

        producer.send(topic, b"first").result(RESULT_S)
        monkeypatch.setattr(DirectSends, "select", spy)
        monkeypatch.setattr(LoneConnection, "wait", wait_long)

        def waited_alone() -> bool:
            # The first one wakes a thread that has rested for long already.
            producer.send(topic, b"waited for").result(RESULT_S)
            return bool(waits)

        eventually(waited_alone, "a record that its caller waits for alone")
        assert waits[0] == (True, False)


def test_threads_that_wait_for_each_record_do_not_disturb_each_other(
    broker_address: str, make_topic: Any, read_all: Any
) -> None:
    topic = make_topic(2)
    called_on: set[str] = set()
    failed: list[BaseException] = []

    def work(producer: Producer, number: int) -> None:
        try:
            for i in range(150):
                with_callback = (lambda error, where: called_on.add(threading.current_thread().name)) if i % 3 else None
                delivery = producer.send(topic, b"%d-%d" % (number, i), partition=number % 2, on_delivery=with_callback)
                if i % 2 == 0:
                    delivery.result(RESULT_S)
        except BaseException as error:
            failed.append(error)
            raise

    with Producer(bootstrap_servers=broker_address, linger_ms=0, client_id="shared") as producer:
        threads = [threading.Thread(target=work, args=(producer, number)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    assert called_on == {"headrace-shared"}
    got = [message.value().decode() for message in read_all(topic)]
    for number in range(4):
        mine = [int(value.split("-")[1]) for value in got if value.startswith(f"{number}-")]
        assert mine == list(range(150))


@pytest.mark.slow
@pytest.mark.parametrize("step", [7, 5_000])
def test_records_put_into_columns_early_keep_order_callbacks_and_handles(
    broker_address: str, make_topic: Any, read_all: Any, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    # Records of the other topic in between, or next to none: then neighbours in time become neighbours in columns.
    topic, other = make_topic(1), make_topic(1)
    compacted: list[int] = []
    compact = Accumulator.compact

    def spy(accumulator: Accumulator) -> int:
        compacted.append(compact(accumulator))
        return compacted[-1]

    monkeypatch.setattr(Accumulator, "compact", spy)
    heard: list[int] = []

    def hear(number: int, error: Any, where: Any) -> None:
        heard.append(number)

    count, tail = 7_000, 300
    with Producer(bootstrap_servers=broker_address, batch_size=200_000, linger_ms=5) as producer:
        producer.partitions_for(topic)
        with producer._sender.core_lock:
            # The producer's thread cannot take anything before the last record is there.
            for i in range(count):
                value = b"%060d" % i
                producer.send((topic, other)[i % step == 0], value, on_delivery=partial(hear, i))
        producer.send_batch(topic, [b"%d" % count])
        kept = [producer.send(topic, b"%d" % (count + 1 + i), b"key") for i in range(tail)]
    assert sum(compacted) > count // 2
    assert sorted(heard) == list(range(count))
    assert [i for i in heard if i % step] == [i for i in range(count) if i % step]
    expected = [i for i in range(count + 1 + tail) if i % step or i >= count]
    assert [int(message.value()) for message in read_all(topic)] == expected
    assert [int(message.value()) for message in read_all(other)] == list(range(0, count, step))
    assert [delivery.result().offset for delivery in kept] == list(range(len(expected) - tail, len(expected)))


@pytest.mark.parametrize("count", [10, 3_000])
def test_a_list_may_be_changed_as_soon_as_send_batch_returns(
    broker_address: str, make_topic: Any, read_all: Any, count: int
) -> None:
    topic = make_topic(1)
    values = [b"%0100d" % i for i in range(count)]
    use_fast()
    with Producer(bootstrap_servers=broker_address) as producer:
        producer.partitions_for(topic)
        with producer._sender.core_lock:
            delivery = producer.send_batch(topic, values)
            values[:] = [b"changed"] * count
        assert sum(entry.records for entry in delivery.result(RESULT_S)) == count
    assert [int(message.value()) for message in read_all(topic)] == list(range(count))


# --- Ctrl-C right after a lock was acquired ---------------------------------------------------------------------------


class Interrupted:
    """A lock; Ctrl-C arrives at the main thread the first time that it has acquired it, and before it knows."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.was_interrupted = False

    def acquire(self, *arguments: Any) -> Any:
        acquired = self.lock.acquire(*arguments)
        if acquired and threading.current_thread() is threading.main_thread() and not self.was_interrupted:
            self.was_interrupted = True
            raise KeyboardInterrupt
        return acquired

    def release(self) -> None:
        self.lock.release()

    def locked(self) -> Any:
        return self.lock.locked()

    def __enter__(self) -> Any:
        # As the interpreter enters a lock of its own: no signal comes in between.
        return self.lock.__enter__()

    def __exit__(self, *arguments: Any) -> None:
        self.lock.__exit__(*arguments)


def interrupt_next(producer: Producer) -> Interrupted:
    lock = producer._sender.core_lock
    lock._lock = made = Interrupted(lock._lock)  # type: ignore[assignment]  # as much of a lock as is used
    return made


@needs_epoll
def test_ctrl_c_when_send_has_just_acquired_the_lock_leaves_the_producer_well(
    near: tuple[Producer, str, int],
) -> None:
    producer, topic, offset = near
    interrupted = interrupt_next(producer)
    with pytest.raises(KeyboardInterrupt):
        producer.send(topic, b"interrupted", partition=0)
    assert interrupted.was_interrupted
    producer.flush(RESULT_S)
    assert producer.send(topic, b"next", partition=0).result(RESULT_S).offset == offset + 1


@needs_epoll
@pytest.mark.parametrize("wait", ["result", "flush"])
def test_ctrl_c_when_a_wait_has_just_acquired_the_lock_leaves_the_producer_well(
    near: tuple[Producer, str, int], wait: str
) -> None:
    producer, topic, offset = near
    delivery = producer.send(topic, b"waited for", partition=0)
    interrupted = interrupt_next(producer)
    with pytest.raises(KeyboardInterrupt):
        (delivery.result if wait == "result" else producer.flush)(RESULT_S)
    assert interrupted.was_interrupted
    assert delivery.result(RESULT_S).offset == offset
    assert producer.send(topic, b"next", partition=0).result(RESULT_S).offset == offset + 1


def test_ctrl_c_when_records_are_about_to_become_columns_leaves_the_producer_well(
    broker_address: str, make_topic: Any
) -> None:
    topic = make_topic(1)
    with Producer(bootstrap_servers=broker_address, batch_size=200_000, linger_ms=5) as producer:
        producer.partitions_for(topic)
        sender = producer._sender
        assert sender._taking is not None
        taking = Interrupted(sender._taking)
        sender._taking = taking  # type: ignore[assignment]  # as above
        sent = 0
        with contextlib.suppress(KeyboardInterrupt):
            for _ in range(3_000):
                sent += 1
                producer.send(topic, b"x" * 60)
        producer.flush(RESULT_S)
        assert producer.metrics()["record-send-total"] in (sent - 1, sent)


def test_a_lock_that_is_held_is_entered_neither_by_its_holder_nor_by_others() -> None:
    lock, found = CoreLock(), []

    def nested() -> bool:
        found.append(lock.attempt(lambda: True))
        other = threading.Thread(target=lambda: found.append(lock.attempt(lambda: True, 0.01)))
        other.start()
        other.join()
        return True

    assert lock.attempt(nested) is True
    assert found == [None, None]
    with pytest.raises(ZeroDivisionError):
        lock.attempt(lambda: 1 // 0)
    assert not lock.is_held
    assert lock.attempt(lambda: True) is True
