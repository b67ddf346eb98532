"""Clients behind a proxy that cuts, delays and goes silent, and brokers that are killed: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.client import fault_run
from tests.client.fault_run import Sender, audit, make_topic
from tests.waiting import eventually

from headrace import Consumer, Producer, TopicPartition, aio
from headrace.testing import BrokerProcess, Direction, FaultProxy

pytestmark = pytest.mark.slow

PATIENT = {"delivery.timeout.ms": 100_000}
QUICK_TO_RETURN = {"reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 5}


class Faulty:
    """A broker's process and the proxy that clients are sent through."""

    def __init__(self, proxy: FaultProxy, process: BrokerProcess) -> None:
        self.proxy = proxy
        self.process = process
        self.address = proxy.address


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Faulty]:
    with FaultProxy() as proxy:
        overrides = {**proxy.overrides, "group.initial.rebalance.delay.ms": "0"}
        with BrokerProcess(tmp_path / "data", overrides) as process:
            proxy.target = process.address
            try:
                yield Faulty(proxy, process)
            finally:
                os.kill(process.pid, signal.SIGCONT)


# --- the producer -----------------------------------------------------------------------------------------------------


def test_an_idempotent_producer_loses_and_doubles_nothing_over_many_cuts(tmp_path: Path) -> None:
    report = fault_run.run(60, 7, tmp_path / "data")
    assert report.connections > 60 // 2
    assert report.retried > 0


def test_records_that_are_waited_for_one_by_one_are_there_once_after_cuts(faulty: Faulty) -> None:
    # Sent by their caller's thread, which meets the cuts itself.
    rng = random.Random(5)
    topic = make_topic(faulty.address, "one-by-one")
    config = {"bootstrap.servers": faulty.address, "linger.ms": 0, **QUICK_TO_RETURN, **PATIENT}
    sent = [0] * fault_run.PARTITIONS
    with Producer(config) as producer:
        for i in range(30):
            direction = (Direction.TO_BROKER, Direction.TO_CLIENT)[i % 2]
            cut = faulty.proxy.cut_after(rng.randrange(2_000), direction)
            while not cut.happened:
                partition = rng.randrange(fault_run.PARTITIONS)
                producer.send(topic, b"%d ." % sent[partition], partition=partition).result(100)
                sent[partition] += 1
        assert producer.metrics()["record-retry-total"] > 0
    audit(faulty.address, topic, sent)


@contextmanager
def sending(faulty: Faulty, **config: Any) -> Iterator[Sender]:
    """Numbers are sent through the proxy for as long as the block lasts; in the end each has to be there, once."""
    topic = make_topic(faulty.address, "t")
    sender = Sender(faulty.address, topic, **config)
    try:
        yield sender
    finally:
        faulty.proxy.resume()
        sender.finish()
    audit(faulty.address, topic, sender.sent)


def test_delays_lose_nothing(faulty: Faulty) -> None:
    # Shorter than an answer takes at times: requests are given up and sent again though the broker has them.
    with sending(faulty, **{"request.timeout.ms": 300, **PATIENT}) as sender:
        sender.progress()
        for seconds in (0.02, 0.4, 0.0, 0.2):
            faulty.proxy.delay(seconds, Direction.TO_CLIENT)
            if seconds < 0.3:
                sender.progress(500)
            else:
                made = faulty.proxy.accepted
                sender.wait_for(lambda m=made: faulty.proxy.accepted > m, "another connection")


def test_half_open_connections_are_given_up_and_nothing_is_lost(faulty: Faulty) -> None:
    with sending(faulty, **{"request.timeout.ms": 500, **PATIENT}) as sender:
        for _ in range(3):
            sender.progress(200)
            faulty.proxy.swallow()
            made = faulty.proxy.accepted
            # The request's time is over: another connection is tried, which is swallowed too.
            sender.wait_for(lambda m=made: faulty.proxy.accepted > m, "another connection")
            faulty.proxy.resume()
        sender.progress(200)


def test_requests_that_arrive_after_those_sent_in_their_place_double_nothing(faulty: Faulty) -> None:
    with sending(faulty, **{"request.timeout.ms": 500, **PATIENT}) as sender:
        for overtaking_bytes in (1, 2_000, 20_000):
            sender.progress(200)
            reorder = faulty.proxy.reorder(overtaking_bytes)
            # The requests' time is over: they are sent again on a new connection, and only then arrive themselves.
            sender.wait_for(lambda r=reorder: r.happened, "requests that overtake")
        sender.progress(200)


def test_refused_connections_and_a_pause_lose_nothing(faulty: Faulty) -> None:
    def refuse() -> None:
        faulty.proxy.refuse()
        faulty.proxy.cut()

    with sending(faulty) as sender:
        for _ in range(3):
            for fault in (refuse, faulty.proxy.pause):
                sender.progress(200)
                fault()
                # Until it is as far ahead as it may be: then all of that waits for the fault to end.
                sender.wait_for(lambda: sender.is_ahead, "as many records as may wait")
                faulty.proxy.resume()


def test_a_broker_killed_and_started_again_loses_nothing_that_was_sent(faulty: Faulty) -> None:
    with sending(faulty) as sender:
        for _ in range(4):
            sender.progress(2_000)
            faulty.process.kill()
            faulty.process.start()
        sender.progress(2_000)


def test_the_asyncio_producer_loses_and_doubles_nothing_over_cuts_and_a_restart(faulty: Faulty) -> None:
    topic = make_topic(faulty.address, "t")
    rng = random.Random(3)
    sent = [0] * fault_run.PARTITIONS

    async def main() -> None:
        async with aio.Producer({"bootstrap.servers": faulty.address, **fault_run.CONFIG}) as producer:
            for i in range(30):
                cut = faulty.proxy.cut_after(
                    rng.randrange(1_000) if i % 2 else rng.randrange(20_000),
                    Direction.TO_CLIENT if i % 2 else Direction.TO_BROKER,
                )
                while not cut.happened:
                    last = []
                    for _ in range(20):
                        for partition in range(fault_run.PARTITIONS):
                            value = b"%d " % sent[partition] + fault_run.PAYLOAD
                            last.append(producer.send(topic, value, partition=partition))
                            sent[partition] += 1
                    await last[rng.randrange(len(last))]
                if i == 15:
                    producer.send(topic, b"%d" % sent[0], partition=0)
                    sent[0] += 1
                    await asyncio.to_thread(faulty.process.kill)
                    await asyncio.to_thread(faulty.process.start)
            await producer.flush(60)

    asyncio.run(main())
    audit(faulty.address, topic, sent)


# --- the consumer -----------------------------------------------------------------------------------------------------


def consumer_config(faulty: Faulty, **overrides: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": faulty.address,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "max.poll.records": 50,
        "max.partition.fetch.bytes": 2_000,
        **QUICK_TO_RETURN,
    } | {key.replace("_", "."): value for key, value in overrides.items()}


def fill(faulty: Faulty, topic: str, count: int) -> None:
    with Producer({"bootstrap.servers": faulty.address, "batch.size": 1_000}) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=0)


def test_a_consumer_reads_on_where_it_was_after_cuts(faulty: Faulty) -> None:
    topic = make_topic(faulty.address, "t", 1)
    fill(faulty, topic, 3_000)
    rng = random.Random(11)
    seen: list[int] = []
    with Consumer(consumer_config(faulty)) as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 90
        cuts = 0
        while len(seen) < 3_000:
            assert time.monotonic() < deadline, f"{len(seen)} records after {cuts} cuts"
            records = consumer.poll(0.5)
            seen.extend(int(record.value) for record in records)
            if records and rng.random() < 0.5:
                cuts += 1
                if rng.random() < 0.5:
                    faulty.proxy.cut()
                else:
                    faulty.proxy.cut_after(rng.randrange(3_000), Direction.TO_CLIENT)
            if records and rng.random() < 0.5:
                consumer.commit_sync(timeout=30)
        faulty.proxy.resume()
        consumer.commit_sync(timeout=30)
        found = consumer.committed([(topic, 0)])[TopicPartition(topic, 0)]
    assert cuts >= 10
    assert seen == list(range(3_000))
    assert found is not None
    assert found.offset == 3_000


@pytest.mark.timeout(240)
def test_a_consumer_resumes_at_its_commit_after_broker_and_consumer_restarted(faulty: Faulty) -> None:
    topic = make_topic(faulty.address, "t", 1)
    fill(faulty, topic, 1_000)
    rng = random.Random(5)
    processed: list[int] = []
    for turn in range(2):
        with Consumer(consumer_config(faulty)) as consumer:
            consumer.subscribe([topic])
            pending: list[int] = []
            deadline = time.monotonic() + 60
            while len(processed) < 100 * (turn + 1):
                assert time.monotonic() < deadline
                pending.extend(int(record.value) for record in consumer.poll(0.5))
                if pending and rng.random() < 0.5:
                    consumer.commit_sync(timeout=30)
                    processed += pending
                    pending.clear()
                    faulty.proxy.cut()
            # Read and not committed: the next consumer has to have these again.
            while not consumer.poll(0.5):
                assert time.monotonic() < deadline
        faulty.process.kill()
        faulty.process.start()
    assert processed == list(range(len(processed)))


def test_the_asyncio_consumer_reads_on_after_cuts_and_a_restart(faulty: Faulty) -> None:
    topic = make_topic(faulty.address, "t", 1)
    fill(faulty, topic, 2_000)
    rng = random.Random(13)

    async def main() -> list[int]:
        seen: list[int] = []
        restarted = False
        async with asyncio.timeout(90), aio.Consumer(consumer_config(faulty)) as consumer:
            consumer.subscribe([topic])
            while len(seen) < 2_000:
                records = await consumer.poll(0.5)
                seen.extend(int(record.value) for record in records)
                if records and rng.random() < 0.4:
                    faulty.proxy.cut()
                if records and rng.random() < 0.4:
                    await consumer.commit_sync(timeout=30)
                if not restarted and len(seen) > 1_000:
                    restarted = True
                    await asyncio.to_thread(faulty.process.kill)
                    await asyncio.to_thread(faulty.process.start)
        return seen

    assert asyncio.run(main()) == list(range(2_000))


# --- waits ------------------------------------------------------------------------------------------------------------

TIMEOUT_S = 0.4
SLACK_S = 20.0
"""For a busy machine; what a call would wait for without its time-out is 30 s and more."""


@pytest.fixture(params=["half-open", "stopped", "refused"])
def silence(request: pytest.FixtureRequest, faulty: Faulty) -> Callable[[], None]:
    """Makes the broker silent."""

    def swallow() -> None:
        faulty.proxy.swallow()

    def stop() -> None:
        os.kill(faulty.process.pid, signal.SIGSTOP)

    def refuse() -> None:
        faulty.proxy.refuse()
        faulty.proxy.cut()

    return {"half-open": swallow, "stopped": stop, "refused": refuse}[request.param]


class Waits:
    """Calls that have to end, with an error or without, at their time-out."""

    def __init__(self) -> None:
        self.late: list[str] = []
        self.untold: list[str] = []

    def check(self, name: str, began: float, error: Exception | None, raises: bool) -> None:
        took = time.monotonic() - began
        if took > TIMEOUT_S + SLACK_S:
            self.late.append(f"{name} took {took:.1f} s")
        if raises and error is None:
            self.untold.append(name)

    def run(self, name: str, call: Callable[[], Any], *, raises: bool = True) -> None:
        began = time.monotonic()
        error: Exception | None = None
        try:
            call()
        except Exception as found:  # noqa: BLE001 - which error it is other tests say; this one is about time
            error = found
        self.check(name, began, error, raises)

    async def await_(self, name: str, call: Any, *, raises: bool = True) -> None:
        began = time.monotonic()
        error: Exception | None = None
        try:
            await call
        except Exception as found:  # noqa: BLE001 - as above
            error = found
        self.check(name, began, error, raises)

    def __enter__(self) -> Waits:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            assert not self.late
            assert not self.untold


@pytest.mark.parametrize("is_used", [True, False], ids=["used", "fresh"])
def test_every_wait_of_the_blocking_clients_ends(faulty: Faulty, silence: Callable[[], None], is_used: bool) -> None:
    from headrace import Admin

    topic = make_topic(faulty.address, "t", 1)
    part = (topic, 0)
    producer = Producer(bootstrap_servers=faulty.address)
    consumer = Consumer(consumer_config(faulty))
    admin = Admin(bootstrap_servers=faulty.address)
    consumer.subscribe([topic])
    if is_used:
        producer.send(topic, b"x").result(30)
        eventually(lambda: consumer.poll(0.2), "a record")
        admin.list_topics()
    silence()
    with Waits() as waits:
        delivery = producer.send(topic, b"y")
        waits.run("result", lambda: delivery.result(TIMEOUT_S))
        waits.run("flush", lambda: producer.flush(TIMEOUT_S))
        waits.run("partitions_for", lambda: producer.partitions_for("unknown", TIMEOUT_S))
        waits.run("producer.close", lambda: producer.close(TIMEOUT_S), raises=False)
        waits.run("poll", lambda: consumer.poll(TIMEOUT_S), raises=False)
        waits.run("commit_sync", lambda: consumer.commit_sync({part: 1}, timeout=TIMEOUT_S))
        waits.run("committed", lambda: consumer.committed([part], timeout=TIMEOUT_S))
        waits.run("end_offsets", lambda: consumer.end_offsets([part], timeout=TIMEOUT_S))
        waits.run("beginning_offsets", lambda: consumer.beginning_offsets([part], timeout=TIMEOUT_S))
        waits.run("offsets_for_times", lambda: consumer.offsets_for_times({part: 1}, timeout=TIMEOUT_S))
        waits.run("list_topics", lambda: consumer.list_topics(timeout=TIMEOUT_S))
        waits.run("consumer.partitions_for", lambda: consumer.partitions_for("unknown", timeout=TIMEOUT_S))
        waits.run("consumer.close", lambda: consumer.close(timeout=TIMEOUT_S), raises=False)
        hasty = admin.within(TIMEOUT_S)
        waits.run("admin.list_topics", hasty.list_topics)
        waits.run("admin.describe_cluster", hasty.describe_cluster)
        waits.run("admin.create_topics", lambda: hasty.create_topics(["new"]))
        waits.run("admin.list_groups", hasty.list_groups)
        waits.run("admin.close", admin.close, raises=False)


@pytest.mark.parametrize("is_used", [True, False], ids=["used", "fresh"])
def test_every_wait_of_the_asyncio_clients_ends(faulty: Faulty, silence: Callable[[], None], is_used: bool) -> None:
    topic = make_topic(faulty.address, "t", 1)
    part = (topic, 0)

    async def main(waits: Waits) -> None:
        producer = aio.Producer(bootstrap_servers=faulty.address)
        consumer = aio.Consumer(consumer_config(faulty))
        admin = aio.Admin(bootstrap_servers=faulty.address)
        consumer.subscribe([topic])
        if is_used:
            await producer.send(topic, b"x")
            async with asyncio.timeout(30):
                while not await consumer.poll(0.2):
                    pass
            await admin.list_topics()
        await asyncio.to_thread(silence)
        delivery = producer.send(topic, b"y")

        async def awaited() -> None:
            async with asyncio.timeout(TIMEOUT_S):
                await delivery

        await waits.await_("await delivery", awaited())
        await waits.await_("flush", producer.flush(TIMEOUT_S))
        await waits.await_("partitions_for", producer.partitions_for("unknown", TIMEOUT_S))
        await waits.await_("producer.close", producer.close(TIMEOUT_S), raises=False)
        await waits.await_("poll", consumer.poll(TIMEOUT_S), raises=False)
        await waits.await_("commit_sync", consumer.commit_sync({part: 1}, timeout=TIMEOUT_S))
        await waits.await_("committed", consumer.committed([part], timeout=TIMEOUT_S))
        await waits.await_("end_offsets", consumer.end_offsets([part], timeout=TIMEOUT_S))
        await waits.await_("list_topics", consumer.list_topics(timeout=TIMEOUT_S))
        await waits.await_("consumer.close", consumer.close(timeout=TIMEOUT_S), raises=False)
        hasty = admin.within(TIMEOUT_S)
        await waits.await_("admin.list_topics", hasty.list_topics())
        await waits.await_("admin.create_topics", hasty.create_topics(["new"]))
        await waits.await_("admin.close", admin.close(), raises=False)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with Waits() as waits:
        asyncio.run(main(waits))
