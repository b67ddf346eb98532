"""What becomes of failures that nobody looks at, and of clients that nobody closes."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from tests.waiting import eventually

from headrace import Admin, Consumer, Delivery, NewTopic, Producer, UndeliveredError, aio
from headrace.testing import EmbeddedBroker, broker

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "max.block.ms": 50}


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with broker() as started:
        with Admin(bootstrap_servers=started.address) as admin:
            admin.create_topics([NewTopic(name, 1) for name in ("exit", "dropped", "read")]).all()
            admin.create_topics([NewTopic("small", 1, configs={"max.message.bytes": "100"})]).all()
        yield started


def end_of(address: str, topic: str) -> int:
    with Consumer(bootstrap_servers=address) as consumer:
        return consumer.end_offsets([(topic, 0)])[topic, 0]


def client_threads() -> set[threading.Thread]:
    names = ("headrace-producer", "headrace-heartbeat")
    return {thread for thread in threading.enumerate() if thread.name.startswith(names)}


# --- failures ---------------------------------------------------------------------------------------------------------


def test_leaving_the_block_raises_for_a_record_that_the_broker_refused(kafka: EmbeddedBroker) -> None:
    def work(producer: Producer) -> None:
        with producer:
            producer.send("small", b"x" * 1000)
            producer.send("small", b"x" * 1000)

    producer = Producer(bootstrap_servers=kafka.address)
    with pytest.raises(UndeliveredError, match=r"2 records could not be delivered.*larger") as raised:
        work(producer)
    assert raised.value.count == 2
    assert raised.value.__cause__ is raised.value.first
    producer.close()  # once is enough


def test_a_failure_that_somebody_heard_of_is_not_raised_again() -> None:
    heard = []
    with Producer(NOWHERE) as producer:
        asked = producer.send("t", b"1")
        called = producer.send("t", b"2", on_delivery=lambda error, _: heard.append(error))
        batch = producer.send_batch("t", [b"3", b"4"])
        assert asked.exception(10) is not None
        assert asked.exception(10) is not None
        assert batch.exception(10) is not None
        eventually(called.done)
    assert len(heard) == 1


def test_flush_says_what_failed_since_the_last_one() -> None:
    with Producer(NOWHERE) as producer:
        assert not producer.flush()
        producer.send("t", b"1")
        producer.send_batch("t", [b"2", b"3"])
        failed = producer.flush()
        assert (bool(failed), failed.count) == (True, 3)
        assert "no broker can be reached" in str(failed.first)
        assert not producer.flush()


def test_a_failure_that_flush_gave_back_and_nobody_looked_at_is_raised() -> None:
    producer = Producer(NOWHERE)
    producer.send("t", b"1")
    producer.flush()
    with pytest.raises(UndeliveredError, match="1 record "):
        producer.close()


def test_while_another_error_is_on_its_way_the_failures_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        with Producer(NOWHERE) as producer:
            held.append(producer.send("t", b"1"))
            raise ZeroDivisionError

    held: list[Delivery] = []
    with pytest.raises(ZeroDivisionError):
        work()
    assert [record.levelname for record in caplog.records if "could not be delivered" in record.message] == ["ERROR"]


def test_a_failure_that_nobody_can_ask_about_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    producer = Producer(NOWHERE)
    for _ in range(3):
        producer.send("t", b"1")
    producer.flush()
    eventually(lambda: "nobody asked" in caplog.text)
    with pytest.raises(UndeliveredError, match="3 records"):
        producer.close()
    assert caplog.text.count("nobody asked") == 1


def test_on_asyncio_it_is_the_same(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        async with aio.Producer(NOWHERE) as producer:
            producer.send("t", b"1")
            asked = producer.send("t", b"2")
            with pytest.raises(Exception, match="no broker can be reached"):
                await asked
            producer.send("t", b"3", on_delivery=lambda *_: None)

    async def break_off() -> None:
        async with aio.Producer(NOWHERE) as producer:
            producer.send("t", b"1")
            raise ZeroDivisionError

    async def main() -> None:
        with pytest.raises(UndeliveredError, match="1 record "):
            await fail()
        async with aio.Producer(NOWHERE) as producer:
            producer.send("t", b"1")
            assert (await producer.flush()).count == 1
        with pytest.raises(ZeroDivisionError):
            await break_off()

    asyncio.run(main())
    assert "could not be delivered" in caplog.text


# --- clients that nobody closes ---------------------------------------------------------------------------------------


def test_a_producer_that_nobody_has_delivers_and_ends(kafka: EmbeddedBroker) -> None:
    before = client_threads()

    def use() -> None:
        producer = Producer(bootstrap_servers=kafka.address, linger_ms=100)
        for _ in range(10):
            producer.send("dropped", b"x")
        del producer
        gc.collect()

    with pytest.warns(ResourceWarning, match=r"the producer .* was never closed"):
        use()
    eventually(lambda: not client_threads() - before)
    assert end_of(kafka.address, "dropped") == 10


def test_a_consumer_that_nobody_has_leaves_its_group(kafka: EmbeddedBroker) -> None:
    before = client_threads()

    def use() -> None:
        consumer = Consumer(bootstrap_servers=kafka.address, group_id="dropped")
        consumer.subscribe(["read"])
        while not consumer.assignment():
            consumer.poll(0.1)
        del consumer
        gc.collect()

    with pytest.warns(ResourceWarning, match=r"the consumer .* was never closed"):
        use()
    eventually(lambda: not client_threads() - before)
    with Admin(bootstrap_servers=kafka.address) as admin:
        assert admin.describe_groups(["dropped"])["dropped"].members == ()


def test_a_consumer_on_asyncio_that_nobody_has_leaves_its_group(kafka: EmbeddedBroker) -> None:
    """Its heartbeats held it: it was a member, and had its connections, for as long as the loop ran."""

    async def use() -> None:
        consumer = aio.Consumer(bootstrap_servers=kafka.address, group_id="dropped-on-a-loop")
        consumer.subscribe(["read"])
        while not consumer.assignment():
            await consumer.poll(0.1)

    async def use_and_drop() -> None:
        await use()
        # Until then a task holds what it was last interrupted by, and that where it was.
        await asyncio.sleep(0)
        gc.collect()

    async def main() -> None:
        with pytest.warns(ResourceWarning, match=r"the consumer .* was never closed"):
            await use_and_drop()
        async with aio.Admin(bootstrap_servers=kafka.address) as admin, asyncio.timeout(10):
            while (await admin.describe_groups(["dropped-on-a-loop"]))["dropped-on-a-loop"].members:
                await asyncio.sleep(0.02)

    asyncio.run(main())


def test_a_program_that_ends_delivers_what_it_sent(kafka: EmbeddedBroker) -> None:
    done = run(f"""
from headrace import Producer
producer = Producer(bootstrap_servers={kafka.address!r}, linger_ms=1000)
for number in range(1000):
    producer.send("exit", b"x")
""")
    assert (done.returncode, done.stderr) == (0, "")
    assert end_of(kafka.address, "exit") == 1000


def test_a_process_of_multiprocessings_delivers_what_it_sent(kafka: EmbeddedBroker) -> None:
    """It ends without what `atexit` knows."""
    before = end_of(kafka.address, "exit")
    done = run(f"""
import multiprocessing
from headrace import Producer
def work():
    producer = Producer(bootstrap_servers={kafka.address!r}, linger_ms=1000)
    for number in range(10):
        producer.send("exit", b"x")
if __name__ == "__main__":
    inherited = Producer(bootstrap_servers={kafka.address!r}, linger_ms=1000)
    inherited.send("exit", b"x").result()
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    inherited.close()
""")
    assert (done.returncode, done.stderr) == (0, "")
    assert end_of(kafka.address, "exit") == before + 11


def test_what_a_dropped_producer_on_asyncio_did_not_deliver_is_said(kafka: EmbeddedBroker) -> None:
    """Its loop ended before it could: only a ResourceWarning said so, which Python does not show."""
    done = run(f"""
import asyncio
import os
from headrace import aio
async def main():
    producer = aio.Producer(bootstrap_servers={kafka.address!r}, linger_ms=1000)
    producer.send("exit", b"x")
asyncio.run(main())
if os.fork() == 0:
    raise SystemExit
os.wait()
""")
    assert done.returncode == 0
    assert done.stderr.count("still had records to deliver") == 1


def test_a_program_that_ends_says_what_it_could_not_deliver() -> None:
    done = run("""
from headrace import Producer
producer = Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=100)
held = [producer.send("t", b"x") for _ in range(5)]
""")
    assert done.returncode == 0
    assert "5 records could not be delivered; the first error: nothing could be sent to topic t" in done.stderr


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(autouse=True)
def _errors_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "headrace.client.producer")
