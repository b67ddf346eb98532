"""Consume-transform-produce as one call: what is committed together, what comes again; crashes lose nothing."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

import headrace.testing
from headrace import AbortableTransactionError, Admin, Consumer, Producer, aio, exactly_once
from headrace.config import ConfigError
from headrace.functions import NotRunError
from headrace.testing.processes import BrokerProcess

from .conftest import OVERRIDES, Cluster

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("worker.py")


def fill(kafka: Cluster, topic: str, count: int, start: int = 0) -> list[bytes]:
    values = [b"%06d" % number for number in range(start, start + count)]
    with Producer({"bootstrap.servers": kafka.address}) as producer:
        for value in values:
            producer.send(topic, value, key=value)
    return values


def committed(kafka: Cluster, group: str) -> int:
    with Admin({"bootstrap.servers": kafka.address}) as admin:
        return sum(one.offset for one in admin.list_group_offsets([group])[group].values())


def test_each_batch_is_committed_with_its_offsets(kafka: Cluster) -> None:
    source, target, group = kafka.topic(2), kafka.topic(2), kafka.name("group")
    values = fill(kafka, source, 500)
    seen = 0
    with Consumer(kafka.consumer_config(group_id=group)) as consumer, Producer(kafka.producer_config()) as producer:
        consumer.subscribe([source])
        batches = exactly_once(consumer, producer, max_records=100, poll_timeout=0.2)
        for batch in batches:
            assert 0 < len(batch) <= 100
            assert committed(kafka, group) <= seen
            for record in batch:
                producer.send(target, b"out " + record.value)
            seen += len(batch)
            if seen >= 500:
                batches.stop()
        assert list(exactly_once(consumer, producer, poll_timeout=0.2, idle_timeout=0.5)) == []
    assert seen == 500
    assert sorted(kafka.read(target)) == [b"out " + value for value in values]
    eventually(lambda: committed(kafka, group) == 500, "the commit of all")


def test_a_batch_that_raises_comes_again_and_leaves_nothing(kafka: Cluster) -> None:
    source, target, group = kafka.topic(), kafka.topic(), kafka.name("group")
    values = fill(kafka, source, 100)
    with Consumer(kafka.consumer_config(group_id=group)) as consumer, Producer(kafka.producer_config()) as producer:
        consumer.subscribe([source])
        batches = exactly_once(consumer, producer, max_records=40, poll_timeout=0.2)
        failures = 0
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the loop is what is tested
            for batch in batches:
                for record in batch:
                    producer.send(target, record.value)
                producer.flush()
                failures += 1
                if failures == 2:
                    raise ZeroDivisionError
        assert not producer._on_transaction(lambda transaction: transaction.is_open), "the loop's end aborted it"
        for batch in batches:
            for record in batch:
                producer.send(target, record.value)
                if record.value == values[-1]:
                    batches.stop()
    assert kafka.read(target) == values


def test_leaving_the_loop_aborts_and_stop_commits(kafka: Cluster) -> None:
    source, target, group = kafka.topic(), kafka.topic(), kafka.name("group")
    values = fill(kafka, source, 90)
    with Consumer(kafka.consumer_config(group_id=group)) as consumer, Producer(kafka.producer_config()) as producer:
        consumer.subscribe([source])
        with exactly_once(consumer, producer, max_records=30, poll_timeout=0.2) as batches:
            for number, batch in enumerate(batches):
                producer.send_batch(target, [record.value for record in batch])
                if number == 1:
                    break
        assert kafka.read(target) == values[:30]
        with exactly_once(consumer, producer, max_records=30, poll_timeout=0.2) as batches:
            for batch in batches:
                producer.send_batch(target, [record.value for record in batch])
                batches.stop()
    assert kafka.read(target) == values[:60]


def test_what_cannot_work_is_said_before_anything_is_read(headrace_2: Cluster) -> None:
    kafka = headrace_2
    with Producer(kafka.producer_config()) as producer, Producer({"bootstrap.servers": kafka.address}) as plain:
        with Consumer(kafka.consumer_config()) as consumer, pytest.raises(ConfigError, match=r"group\.id"):
            exactly_once(consumer, producer)
        automatic = kafka.consumer_config(group_id="g", enable_auto_commit=True)
        with Consumer(automatic) as consumer, pytest.raises(ConfigError, match=r"enable\.auto\.commit"):
            exactly_once(consumer, producer)
        good = kafka.consumer_config(group_id="g")
        with Consumer(good) as consumer, pytest.raises(ConfigError, match=r"transactional\.id"):
            exactly_once(consumer, plain)


@pytest.mark.slow
def test_run_tries_again_what_passes_and_gives_up_on_what_does_not(headrace_2: Cluster) -> None:
    kafka = headrace_2
    source, target, group = kafka.topic(), kafka.topic(), kafka.name("group")
    fill(kafka, source, 10)
    with Consumer(kafka.consumer_config(group_id=group)) as consumer, Producer(kafka.producer_config()) as producer:
        consumer.subscribe([source])
        attempts = 0

        def handle(batch: Any) -> None:
            nonlocal attempts
            attempts += 1
            if attempts < 3:
                producer.send(target, b"half")
                producer.flush()
                # As a rebalance in the middle of a batch: the group has given this member up.
                with Admin({"bootstrap.servers": kafka.address}) as admin:
                    admin.remove_members(group).all()
            else:
                batches.stop()
            for record in batch:
                producer.send(target, record.value)

        batches = exactly_once(consumer, producer, poll_timeout=0.2)
        batches.run(handle)
        assert attempts == 3
        fill(kafka, source, 1)
        with pytest.raises(AbortableTransactionError, match="larger than"):
            exactly_once(consumer, producer, poll_timeout=0.2).run(lambda _: producer.send(target, b"x" * 2_000_000))
    assert kafka.read(target) == [b"%06d" % number for number in range(10)]


def test_what_would_not_run_is_refused_and_nothing_is_committed(kafka: Cluster) -> None:
    source, group = kafka.topic(), kafka.name("group")
    fill(kafka, source, 10)

    async def handle(batch: Any) -> None:
        raise AssertionError("nobody awaits it")

    def generate(batch: Any) -> Iterator[None]:
        yield

    with Consumer(kafka.consumer_config(group_id=group)) as consumer, Producer(kafka.producer_config()) as producer:
        consumer.subscribe([source])
        batches = exactly_once(consumer, producer, poll_timeout=0.2)
        with pytest.raises(TypeError, match="handle is an `async def`"):
            batches.run(handle)
        with pytest.raises(TypeError, match="generate is a generator function"):
            batches.run(generate)
        with pytest.raises(NotRunError, match="handle did not run"):
            batches.run(lambda batch: handle(batch))
        assert committed(kafka, group) == 0

    async def run() -> None:
        consumer_config, producer_config = kafka.consumer_config(group_id=group), kafka.producer_config()
        async with aio.Consumer(consumer_config) as consumer, aio.Producer(producer_config) as producer:
            consumer.subscribe([source])
            async with aio.exactly_once(consumer, producer, poll_timeout=0.2) as batches:
                with pytest.raises(TypeError, match=r"lambda.* gave back NoneType: give an `async def`"):
                    await batches.run(lambda batch: None)  # type: ignore[arg-type,return-value]  # that is the mistake
                with pytest.raises(TypeError, match="generate is a generator function"):
                    await batches.run(generate)  # type: ignore[arg-type]  # another

    asyncio.run(run())
    assert committed(kafka, group) == 0


def test_joining_the_group_is_no_idle_time() -> None:
    with headrace.testing.broker(overrides={**OVERRIDES, "group.initial.rebalance.delay.ms": "1500"}) as broker:
        kafka = Cluster(broker.address, 2)
        source, group = kafka.topic(), kafka.name("group")
        fill(kafka, source, 10)
        with Consumer(kafka.consumer_config(group_id=group)) as consumer, Producer(kafka.producer_config()) as producer:
            consumer.subscribe([source])
            batches = exactly_once(consumer, producer, poll_timeout=0.2, idle_timeout=0.6)
            assert sum(len(batch) for batch in batches) == 10


def test_on_asyncio_the_same(kafka: Cluster) -> None:
    source, target, group = kafka.topic(), kafka.topic(), kafka.name("group")
    values = fill(kafka, source, 90)

    async def run() -> None:
        consumer_config, producer_config = kafka.consumer_config(group_id=group), kafka.producer_config()
        async with aio.Consumer(consumer_config) as consumer, aio.Producer(producer_config) as producer:
            consumer.subscribe([source])
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the loop is what is tested
                async with aio.exactly_once(consumer, producer, max_records=30, poll_timeout=0.2) as batches:
                    count = 0
                    async for batch in batches:
                        producer.send_batch(target, [record.value for record in batch])
                        count += 1
                        if count == 2:
                            raise ZeroDivisionError

            async def handle(batch: Any) -> None:
                found = [record.value for record in batch]
                producer.send_batch(target, found)
                if values[-1] in found:
                    rest.stop()

            rest = aio.exactly_once(consumer, producer, max_records=30, poll_timeout=0.2)
            await rest.run(handle)
            await aio.exactly_once(consumer, producer, poll_timeout=0.2, idle_timeout=0.5).run(handle)

    asyncio.run(run())
    assert kafka.read(target) == values


@pytest.mark.slow
@pytest.mark.parametrize("kills_broker", [False, True])
def test_workers_that_are_killed_lose_nothing_and_double_nothing(tmp_path: Path, kills_broker: bool) -> None:
    rng = random.Random(11)
    overrides = {**OVERRIDES, "group.initial.rebalance.delay.ms": "100"}
    with BrokerProcess(tmp_path / "data", overrides) as broker:
        kafka = Cluster(broker.address, 2)
        source, targets, group = kafka.topic(4), [kafka.topic(2), kafka.topic(3)], kafka.name("group")
        workers: list[subprocess.Popen[bytes]] = []

        def start(slot: int) -> subprocess.Popen[bytes]:
            arguments = [kafka.address, source, ",".join(targets), group, f"{group}-{slot}", str(rng.randrange(1000))]
            return subprocess.Popen([sys.executable, str(WORKER), *arguments])

        try:
            workers += [start(slot) for slot in range(3)]
            values: list[bytes] = []
            for round_number in range(8):
                values += fill(kafka, source, 300, start=round_number * 300)
                slot = rng.randrange(len(workers))
                time.sleep(rng.uniform(0.3, 1.2))
                workers[slot].kill()
                workers[slot].wait()
                if kills_broker and round_number % 3 == 1:
                    broker.kill()
                    broker.start()
                workers[slot] = start(slot)

            def all_processed() -> bool:
                assert all(worker.poll() is None for worker in workers), "a worker ended by itself"
                return committed(kafka, group) >= len(values)

            eventually(all_processed, f"the commit of {len(values)} records")
            for target in targets:
                found = Counter(kafka.read(target))
                assert set(found) == set(values)
                assert max(found.values()) == 1, [value for value, count in found.items() if count > 1]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
