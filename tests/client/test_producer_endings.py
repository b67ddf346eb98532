"""How a producer ends, whatever happens: nobody who sent, flushed, committed or waited is left without an answer."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.waiting import eventually

import headrace.testing
from headrace import Consumer, Producer, aio, exactly_once
from headrace.client.errors import (
    BufferExhaustedError,
    ClientClosedError,
    TransactionStateError,
    TransactionTimeoutError,
    UndeliveredError,
)
from headrace.client.producer._core import ProducerCore
from headrace.client.producer._one_record import OneRecord
from headrace.client.producer.delivery import OWNER
from headrace.errors import HeadraceError, InvalidTopicError
from headrace.testing import FaultProxy, Reorder
from headrace.testing.proxy import Direction

from .fake import VirtualClock

pytestmark = pytest.mark.slow
WAIT_S = 60.0
FOR_EVER = 1 << 40


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with headrace.testing.broker() as broker:
        yield broker.address


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def proxied() -> Iterator[tuple[FaultProxy, str]]:
    with FaultProxy() as proxy, headrace.testing.broker(overrides=proxy.overrides) as broker:
        proxy.target = f"127.0.0.1:{broker.port}"
        yield proxy, proxy.address


@pytest.mark.usefixtures("hasty_threads")
def test_what_is_sent_while_another_thread_closes_has_an_outcome(address: str) -> None:
    for number in range(12):
        producer = Producer(bootstrap_servers=address)
        producer.send("race", b"w").result(WAIT_S)
        kept: list[list[Any]] = [[] for _ in range(3)]

        def work(mine: list[Any], producer: Producer = producer) -> None:
            with contextlib.suppress(HeadraceError):
                while True:
                    mine.append(producer.send("race", b"x" * 50))

        threads = [threading.Thread(target=work, args=(mine,)) for mine in kept]
        for thread in threads:
            thread.start()
        with contextlib.suppress(UndeliveredError):
            producer.close(0 if number % 2 else 0.02)
        for thread in threads:
            thread.join(WAIT_S)
        assert all(delivery.done() for mine in kept for delivery in mine)


@pytest.mark.usefixtures("hasty_threads")
def test_flushes_end_when_another_thread_closes(address: str) -> None:
    for _ in range(12):
        producer = Producer(bootstrap_servers=address, linger_ms=50)
        producer.send("race", b"w").result(WAIT_S)
        ended = []

        def work(producer: Producer = producer, ended: list[Any] = ended) -> None:
            try:
                while True:
                    producer.send("race", b"x")
                    producer.flush()
            except HeadraceError as error:
                ended.append(error)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        with contextlib.suppress(UndeliveredError):
            producer.close(0)
        for thread in threads:
            thread.join(WAIT_S)
        assert len(ended) == 3


def test_a_thread_that_fails_leaves_nobody_waiting(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(bootstrap_servers=address, linger_ms=20)
    producer.send("t", b"w").result(WAIT_S)
    told: list[Any] = []

    def fail(*_: Any) -> float:
        raise ArithmeticError("as nobody foresaw")

    monkeypatch.setattr(ProducerCore, "turn", fail)
    sent: list[Any] = []
    with contextlib.suppress(ClientClosedError):
        for _ in range(20):
            sent.append(producer.send("t", b"x", on_delivery=lambda error, _: told.append(error)))
    with contextlib.suppress(ClientClosedError):
        producer.flush(WAIT_S)
    assert all(isinstance(delivery.exception(WAIT_S), ClientClosedError) for delivery in sent)
    assert len(told) == len(sent) > 0
    with pytest.raises(ClientClosedError, match="foresaw"):
        producer.send("t", b"y")
    producer.close()


@pytest.mark.parametrize("where", ["_send_alone", "read"])
def test_ctrl_c_in_the_middle_of_a_record_sent_alone_loses_nothing(
    address: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(bootstrap_servers=address, linger_ms=0) as producer:
        for number in range(50):
            producer.send(f"alone{where}", b"%d" % number, partition=0).result(WAIT_S)
        original = OneRecord._send_alone
        was_interrupted = []

        def interrupted(self: OneRecord, *rest: Any) -> Any:
            made = original(self, *rest)
            if made is not None and not was_interrupted:
                was_interrupted.append(made)
                raise KeyboardInterrupt
            return made

        if where == "_send_alone":
            monkeypatch.setattr(OneRecord, "_send_alone", interrupted)
        else:
            monkeypatch.setattr(ProducerCore, "settle_flushes", _interrupt_once(was_interrupted))
        deadline = time.monotonic() + WAIT_S
        number = 50
        while not was_interrupted and time.monotonic() < deadline:
            with contextlib.suppress(KeyboardInterrupt):
                delivery = producer.send(f"alone{where}", b"%d" % number, partition=0)
                number += 1
                delivery.result(WAIT_S)
        number += where == "_send_alone"
        assert was_interrupted
        producer.send(f"alone{where}", b"last", partition=0).result(WAIT_S)
        producer.flush(WAIT_S)
    with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(f"alone{where}", 0)])
        found: list[Any] = []
        while b"last" not in found:
            assert time.monotonic() < deadline
            found += [record.value for record in consumer.poll(0.2)]
    assert found == [*(b"%d" % at for at in range(number)), b"last"]


def _interrupt_once(was_interrupted: list[Any]) -> Any:
    original = ProducerCore.settle_flushes

    def settle(self: ProducerCore) -> None:
        if threading.current_thread() is threading.main_thread() and not was_interrupted:
            was_interrupted.append(True)
            raise KeyboardInterrupt
        original(self)

    return settle


# --- asyncio ----------------------------------------------------------------------------------------------------------


def test_an_asyncio_producer_that_fails_leaves_nobody_waiting(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        producer = aio.Producer(bootstrap_servers=address)
        await producer.send("t", b"w")

        def fail(*_: Any) -> float:
            raise ArithmeticError("as nobody foresaw")

        monkeypatch.setattr(ProducerCore, "turn", fail)
        sent = [producer.send("t", b"x") for _ in range(5)]
        async with asyncio.timeout(WAIT_S):
            flushing = asyncio.create_task(producer.flush())
            for delivery in sent:
                with pytest.raises(ClientClosedError):
                    await delivery
            await flushing
            with pytest.raises(ClientClosedError, match="foresaw"):
                producer.send("t", b"y")
            await producer.close()

    asyncio.run(main())


def test_columns_that_hold_no_numbers_are_refused_where_they_are_given(address: str) -> None:
    numpy = pytest.importorskip("numpy")
    with Producer(bootstrap_servers=address) as producer:
        for wrong in ([1.5], [-1], [2**63], ["1"], [True]):
            with pytest.raises(ValueError, match="timestamp"):
                producer.send_batch("t", [b"x"], timestamps=wrong)  # type: ignore[arg-type]  # that is the test
            with pytest.raises(ValueError, match="partition"):
                producer.send_batch("t", [b"x"], partition=wrong)  # type: ignore[arg-type]  # that is the test
        with pytest.raises(ValueError, match="timestamp"):
            producer.send("t", b"x", timestamp=2**63)
        stamps = numpy.array([1_000, 2_000])
        [delivered] = producer.send_batch("t", [b"a", b"b"], timestamps=stamps, partition=numpy.array([0, 0])).result(
            WAIT_S
        )
        assert delivered.records == 2


# --- transactions -----------------------------------------------------------------------------------------------------


def test_a_record_is_refused_while_a_commit_is_under_way(proxied: tuple[FaultProxy, str]) -> None:
    proxy, address = proxied
    with Producer(bootstrap_servers=address, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"in", partition=0).result(WAIT_S)
        proxy.reorder(FOR_EVER, Direction.TO_CLIENT)
        with pytest.raises(TransactionTimeoutError):
            producer.commit_transaction(timeout=0.2)
        with pytest.raises(TransactionStateError):
            producer.send("t", b"late", partition=0)
        proxy.resume()
        producer.commit_transaction(timeout=WAIT_S)
        producer.begin_transaction()
        producer.send("t", b"next", partition=0)
        producer.commit_transaction(timeout=WAIT_S)


def test_a_batch_whose_commit_has_no_outcome_in_time_is_not_read_again(proxied: tuple[FaultProxy, str]) -> None:
    proxy, address = proxied
    with Producer(bootstrap_servers=address) as filler:
        for number in range(5):
            filler.send("in", b"%d" % number, partition=0).result(WAIT_S)
    config = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    seen: list[bytes] = []
    with (
        Consumer(bootstrap_servers=address, isolation_level="read_committed", **config) as consumer,
        Producer(bootstrap_servers=address, transactional_id="x", max_block_ms=800) as producer,
    ):
        consumer.subscribe(["in"])
        producer.init_transactions(WAIT_S)
        commit, held_back = producer.commit_transaction, list[Reorder]()

        def late(timeout: float | None = None) -> None:
            if not held_back:
                held_back.append(proxy.reorder(FOR_EVER, Direction.TO_CLIENT))
            commit(timeout)

        producer.commit_transaction = late  # type: ignore[method-assign]  # to lose the answer, and nothing before it
        batches = exactly_once(consumer, producer, idle_timeout=3)
        is_late = False
        for _ in range(20):
            try:
                for batch in batches:
                    seen += [record.value for record in batch]
                    producer.send_batch("out", [record.value for record in batch], partition=0)
                    producer.flush(WAIT_S)
                if seen:  # else the group was not there yet
                    break
            except TransactionTimeoutError:
                is_late = True
                proxy.resume()
    assert is_late
    assert seen == [b"%d" % number for number in range(5)]


def test_two_threads_may_close_a_producer_each_in_its_own_time() -> None:
    producer = Producer(bootstrap_servers="127.0.0.1:1")
    delivery = producer.send("t", b"x", on_delivery=lambda *_: None)
    ended: list[BaseException | None] = []

    def close() -> None:
        try:
            producer.close()
        except BaseException as error:
            ended.append(error)
            raise
        ended.append(None)

    patient = threading.Thread(target=close)
    patient.start()
    eventually(lambda: producer._sender.waiting, "the first close")
    producer.close(0)
    patient.join(WAIT_S)
    assert ended == [None]
    with pytest.raises(ClientClosedError):
        delivery.result(WAIT_S)


def test_what_is_refused_in_a_callback_is_not_done_all_the_same(address: str) -> None:
    refused: list[Exception] = []
    with Producer(bootstrap_servers=address, transactional_id="refused-in-a-callback") as producer:
        producer.init_transactions()
        producer.begin_transaction()

        def on_delivery(error: Any, metadata: Any) -> None:
            for call in (producer.commit_transaction, producer.abort_transaction, producer.flush):
                try:
                    call()
                except RuntimeError as raised:
                    refused.append(raised)

        producer.send("t", b"1", on_delivery=on_delivery).result(WAIT_S)
        eventually(lambda: len(refused) == 3, "the callback's end")
        # The transaction is the main thread's to end, and goes on.
        producer.send("t", b"2").result(WAIT_S)
        producer.commit_transaction()


def test_an_asyncio_producer_without_acknowledgements_closes_when_all_has_gone_out(
    proxied: tuple[FaultProxy, str],
) -> None:
    """Much more than the socket takes at once: it goes out after the last record is sent, and after close() began."""
    proxy, address = proxied
    value = b"x" * 100_000

    async def send() -> None:
        async with aio.Producer(bootstrap_servers=address, acks=0, enable_idempotence=False) as producer:
            await producer.send("unacknowledged", value)
            proxy.pause()
            for _ in range(200):
                producer.send("unacknowledged", value)
            asyncio.get_running_loop().call_soon(proxy.resume)

    asyncio.run(send())
    with Consumer(bootstrap_servers=address) as consumer:
        ends = lambda: consumer.end_offsets([("unacknowledged", 0)])  # noqa: E731 - asked until they are there
        eventually(lambda: list(ends().values()) == [201], "every record")


def test_a_callback_at_the_end_may_wait_for_a_lock_that_a_sender_holds() -> None:
    """As one does that counts under a lock under which others send."""
    producer = Producer(bootstrap_servers="127.0.0.1:1")
    lock, is_called = threading.Lock(), threading.Event()
    told: list[Any] = []
    refused: list[Exception] = []

    def on_delivery(error: Any, metadata: Any) -> None:
        is_called.set()
        with lock:
            told.append(error)

    def send() -> None:
        with lock:
            producer.send("t", b"x", on_delivery=on_delivery)
            threading.Thread(target=producer.close, args=(0,), daemon=True).start()
            is_called.wait(WAIT_S)
            try:
                producer.send("t", b"y")
            except ClientClosedError as error:
                refused.append(error)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    sender.join(WAIT_S)
    assert len(refused) == 1
    eventually(lambda: told, "the callback's end")
    assert isinstance(told[0], ClientClosedError)


def test_the_time_to_close_is_for_all_that_a_close_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    given: list[float | None] = []

    def abort_open(producer: Any, timeout: float | None) -> None:
        clock.now += 3

    async def abort_open_async(producer: Any, timeout: float | None) -> None:
        clock.now += 3

    async def flush(producer: Any, timeout: float | None) -> None:
        given.append(timeout)

    monkeypatch.setattr(Producer, "_abort_open", abort_open)
    monkeypatch.setattr(Producer, "flush", lambda producer, timeout: given.append(timeout))
    monkeypatch.setattr(aio.Producer, "_abort_open", abort_open_async)
    monkeypatch.setattr(aio.Producer, "_flush", flush)

    async def close(timeout: float | None) -> None:
        producer = aio.Producer(bootstrap_servers="127.0.0.1:1")
        producer._clock = clock
        await producer.close(timeout)

    for timeout in (10.0, 2.0, None):
        Producer(bootstrap_servers="127.0.0.1:1", clock=clock).close(timeout)
        asyncio.run(close(timeout))
    assert given == [7.0, 7.0, 0.0, 0.0, None, None]


def test_partitions_of_a_topic_that_cannot_be_are_refused_at_once(address: str) -> None:
    """As records for it are. The time given would be up long after the test's."""
    with Producer(bootstrap_servers=address) as producer, pytest.raises(InvalidTopicError, match="not allowed"):
        producer.partitions_for("not/a/topic", 10 * WAIT_S)

    async def ask() -> None:
        async with aio.Producer(bootstrap_servers=address) as producer:
            await producer.partitions_for("not/a/topic", 10 * WAIT_S)

    with pytest.raises(InvalidTopicError, match="not allowed"):
        asyncio.run(asyncio.wait_for(ask(), WAIT_S))


def test_each_delivery_that_is_awaited_is_looked_at_by_itself() -> None:
    """With all the others, thousands that are awaited before their topic is known would keep the loop for a minute."""
    looks = []

    class Unplaced(list[Any]):
        def done(self) -> bool:
            looks.append(self)
            return False

    async def wait_for_many() -> None:
        async with aio.Producer(bootstrap_servers="127.0.0.1:1") as producer:
            for _ in range(1000):
                producer._sender.delivery_future(Unplaced([None] * (OWNER + 1))).cancel()
            assert len(looks) == 1000

    asyncio.run(wait_for_many())


def test_an_asyncio_producer_without_acknowledgements_goes_on_by_itself(address: str) -> None:
    """No answer wakes it: more requests than may be under way at once go out all the same."""

    async def send() -> None:
        async with aio.Producer(bootstrap_servers=address, acks=0, enable_idempotence=False) as producer:
            await producer.send("many-requests", b"first")
            for _ in range(2000):
                producer.send("many-requests", b"x" * 1000)
            await asyncio.wait_for(producer.flush(), WAIT_S)

    asyncio.run(send())


def test_an_asyncio_producer_that_is_waited_for_rests_until_there_is_room() -> None:
    turns = []

    async def fill_and_wait() -> None:
        async with aio.Producer(bootstrap_servers="127.0.0.1:1", buffer_memory=10_000, max_block_ms=300) as producer:
            for _ in range(9):
                producer.send("t", bytes(1000), on_delivery=lambda *_: None)
            producer._sender.client.hooks.append(lambda: turns.append(1) or 60.0)
            with pytest.raises(BufferExhaustedError, match="stayed full"):
                await producer.room()
            await producer.close(0)

    asyncio.run(fill_and_wait())
    assert len(turns) < 100


def test_the_wait_for_room_ends_with_the_producer() -> None:
    async def close_meanwhile() -> None:
        producer = aio.Producer(bootstrap_servers="127.0.0.1:1", buffer_memory=10_000)
        for _ in range(9):
            producer.send("t", bytes(1000), on_delivery=lambda *_: None)
        waiting = asyncio.create_task(producer.room())
        await asyncio.sleep(0)
        await producer.close(0)
        await asyncio.wait_for(waiting, WAIT_S)

    asyncio.run(close_meanwhile())


def test_the_wait_for_partitions_ends_with_the_producer() -> None:
    async def close_meanwhile() -> None:
        producer = aio.Producer(bootstrap_servers="127.0.0.1:1")
        asking = asyncio.create_task(producer.partitions_for("t", 10 * WAIT_S))
        await asyncio.sleep(0)
        await producer.close()
        for waiting in (asking, producer.partitions_for("t", 10 * WAIT_S)):
            with pytest.raises(ClientClosedError):
                await asyncio.wait_for(waiting, WAIT_S)

    asyncio.run(close_meanwhile())
