"""Every model in every order, over a broker: all records, keys in order, all committed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.parallel.handlers import Writer, lines
from tests.parallel.helpers import Seen, check_key_order, commits, config, fill, stop, zipf_keys
from tests.waiting import eventually

from headrace.config import ConfigError
from headrace.parallel import (
    Consumers,
    Limits,
    Model,
    ParallelConsumer,
    ParallelError,
    Pool,
    Ranges,
    Retry,
    Window,
)

pytestmark = pytest.mark.slow

COUNT = 2_000
PARTITIONS = 3

MODELS: list[tuple[Model, str]] = [
    (Consumers(), "partition"),
    (Consumers(), "key"),
    (Ranges(size=100), "none"),
    (Pool(), "partition"),
    (Pool(), "key"),
    (Pool(), "none"),
    (Window(slot=20, slots=8), "partition"),
    (Window(slot=20, slots=8), "key"),
    (Window(slot=20, slots=8), "none"),
]


def check_all_committed(address: str, group: str, topic: str, count: int) -> None:
    found = commits(address, group, topic, PARTITIONS)
    assert sum(offset for offset, _ in found.values()) == count
    assert {note for _, note in found.values()} == {""}


@pytest.mark.parametrize(("model", "order"), MODELS, ids=lambda one: str(one).split("(")[0])
def test_all_records_are_handled_once_in_order_and_committed(
    address: str, new_topic: Callable[..., str], model: Model, order: str
) -> None:
    topic = new_topic(PARTITIONS)
    fill(address, topic, COUNT)
    seen = Seen()
    consumer = ParallelConsumer(
        seen, topics=topic, group=topic, config=config(address), model=model, order=order, workers=6
    )
    consumer.start()
    eventually(lambda: len(seen.order) >= COUNT, "all records")
    stop(consumer)
    assert len(seen.order) == seen.distinct() == COUNT
    if order != "none":
        seen.check_key_order()
    if order == "partition":
        check_key_order([(partition, offset, "all") for partition, offset, _ in seen.order])
    check_all_committed(address, topic, topic, COUNT)
    counters = consumer.snapshot().counters
    assert counters.handled == COUNT
    assert counters.failures == 0


@pytest.mark.parametrize("model", [Pool(), Window(slot=10, slots=8), Consumers()], ids=lambda m: type(m).__name__)
def test_async_handlers_keep_the_order_of_keys(address: str, new_topic: Callable[..., str], model: Model) -> None:
    topic = new_topic(PARTITIONS)
    fill(address, topic, COUNT)
    seen = Seen()

    async def handle(record: Any) -> None:
        seen.begin(record)
        await asyncio.sleep(0)
        seen.end(record)

    workers = 3 if isinstance(model, Consumers) else 50
    consumer = ParallelConsumer(
        handle, topics=[topic], group=topic, config=config(address), model=model, workers=workers
    )
    consumer.start()
    eventually(lambda: len(seen.order) >= COUNT, "all records")
    stop(consumer)
    assert seen.distinct() == COUNT
    seen.check_key_order()
    check_all_committed(address, topic, topic, COUNT)


def test_async_handlers_run_on_the_loop_of_run_async(address: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(PARTITIONS)
    fill(address, topic, 300)
    loops: set[Any] = set()
    seen = Seen()

    async def main() -> None:
        async def handle(record: Any) -> None:
            loops.add(asyncio.get_running_loop())
            seen(record)
            if seen.distinct() == 300:
                consumer.stop()

        consumer = ParallelConsumer(handle, topics=[topic], group=topic, config=config(address))
        task = asyncio.create_task(consumer.run_async())
        await asyncio.wait_for(task, 30)
        assert loops == {asyncio.get_running_loop()}

    asyncio.run(main())
    check_all_committed(address, topic, topic, 300)


@pytest.mark.slow
@pytest.mark.parametrize("model", [Pool(), Window(slot=10, slots=8)], ids=lambda m: type(m).__name__)
def test_processes_handle_in_key_order(
    address: str, new_topic: Callable[..., str], tmp_path: Path, model: Model
) -> None:
    topic = new_topic(PARTITIONS)
    fill(address, topic, 500)
    path = str(tmp_path / "handled")
    consumer = ParallelConsumer(
        Writer(path), topics=[topic], group=topic, config=config(address), model=model, on="processes", workers=2
    )
    consumer.start()
    count = 500

    def both_have_some() -> bool:
        """The one that is ready first may be through with all there is before the other one is: then there is more."""
        nonlocal count
        handled = lines(path)
        if len({pid for *_, pid in handled}) == 2:
            return True
        if len(handled) >= count:
            count += 100
            fill(address, topic, 100)
        return False

    eventually(both_have_some, "records of both processes")
    eventually(lambda: len(lines(path)) >= count, "all records")
    stop(consumer)
    check_key_order([(partition, offset, key) for partition, offset, key, _ in lines(path)])
    check_all_committed(address, topic, topic, count)


@pytest.mark.slow
def test_a_process_that_crashes_costs_one_record(address: str, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic(1)
    fill(address, topic, 60)
    path = str(tmp_path / "handled")
    consumer = ParallelConsumer(
        Writer(path, crashes_on=b"30"),
        topics=[topic],
        group=topic,
        config=config(address),
        on="processes",
        order="none",
        workers=1,
        retry=Retry(local=1, backoff_s=(0.01, 0.01), dead_letters=f"{topic}.dead"),
    )
    consumer.start()
    eventually(lambda: consumer.snapshot().counters.dead_letters == 1, "the dead letter")
    eventually(lambda: len(lines(path)) >= 59, "the others")
    stop(consumer)
    assert sorted(offset for _, offset, *_ in lines(path)) == [n for n in range(60) if n != 30]


@pytest.mark.slow
def test_a_consumer_per_process(address: str, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic(PARTITIONS)
    fill(address, topic, 600)
    path = str(tmp_path / "handled")
    consumer = ParallelConsumer(
        Writer(path, wait_s=0.005),
        topics=[topic],
        group=topic,
        config=config(address),
        model=Consumers(processes=True),
        order="partition",
        workers=2,
    )
    consumer.start()
    eventually(lambda: len({(p, o) for p, o, *_ in lines(path)}) >= 600, "all records")
    stop(consumer)
    check_all_committed(address, topic, topic, 600)
    assert consumer.snapshot().counters.handled >= 600


def test_batches_have_at_most_so_many_records(address: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(PARTITIONS)
    fill(address, topic, COUNT)
    seen, sizes = Seen(), []

    def handle(records: list[Any]) -> None:
        sizes.append(len(records))
        for record in records:
            seen(record)

    consumer = ParallelConsumer(
        handle, topics=[topic], group=topic, config=config(address), order="none", batch=50, workers=4
    )
    consumer.start()
    eventually(lambda: len(seen.order) >= COUNT, "all records")
    stop(consumer)
    assert seen.distinct() == COUNT
    assert max(sizes) == 50
    check_all_committed(address, topic, topic, COUNT)


def test_a_slow_key_holds_up_only_itself(address: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    fill(address, topic, 1_000, keys=20)
    seen, gate = Seen(), threading.Event()

    def handle(record: Any) -> None:
        if record.key == b"k3":
            gate.wait(60)
        seen(record)

    consumer = ParallelConsumer(handle, topics=[topic], group=topic, config=config(address), workers=3)
    consumer.start()
    try:
        others = sum(key != b"k3" for key in zipf_keys(1_000, 20))
        eventually(lambda: seen.distinct() == others, "every other key")
        # What the handler has done is told to the tracker a moment later.
        eventually(lambda: consumer.snapshot().partitions[0].incomplete == 1_000 - others, "only the slow key is left")
    finally:
        gate.set()
    eventually(lambda: seen.distinct() == 1_000, "the slow key too")
    stop(consumer)
    seen.check_key_order()


def test_what_a_stuck_reader_was_given_ahead_is_read_by_others(address: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    fill(address, topic, 50)
    seen, is_stuck, gate = Seen(), threading.Event(), threading.Event()

    def handle(record: Any) -> None:
        # The last record of a range: by then its reader has the next one.
        if record.offset == 9:
            is_stuck.set()
            gate.wait(120)
        elif record.offset > 9:
            is_stuck.wait(120)
        seen(record)

    consumer = ParallelConsumer(
        handle, topics=[topic], group=topic, config=config(address), model=Ranges(size=10), order="none", workers=2
    )
    consumer.start()
    try:
        eventually(lambda: seen.distinct() == 49, "all but the stuck one")
    finally:
        gate.set()
    eventually(lambda: seen.distinct() == 50, "the stuck one")
    stop(consumer)
    assert len(seen.order) == 50
    assert commits(address, topic, topic, 1)[0] == (50, "")


def test_async_handlers_that_never_wait_leave_the_loop_to_others(address: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    fill(address, topic, COUNT)
    turns, turns_seen = 0, []

    async def main() -> None:
        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async def handle(record: Any) -> None:
            turns_seen.append(turns)
            if len(turns_seen) == COUNT:
                consumer.stop()

        counting = asyncio.create_task(count_turns())
        consumer = ParallelConsumer(
            handle, topics=[topic], group=topic, config=config(address), order="none", workers=1
        )
        await asyncio.wait_for(consumer.run_async(), 60)
        counting.cancel()

    asyncio.run(main())
    # A worker takes at most 256 records before it lets others on.
    assert len(set(turns_seen)) >= COUNT // 256


def test_memory_is_bounded_while_handlers_stand_still(address: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(PARTITIONS)
    fill(address, topic, 5_000)
    gate, seen = threading.Event(), Seen()

    def handle(record: Any) -> None:
        gate.wait(30)
        seen(record)

    consumer = ParallelConsumer(
        handle, topics=[topic], group=topic, config=config(address, **{"max.poll.records": 100}), order="none",
        workers=4, limits=Limits(records=500),
    )  # fmt: skip
    consumer.start()
    try:
        eventually(lambda: any(one.paused for one in consumer.snapshot().partitions), "a pause")
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            assert consumer.snapshot().buffered_records <= 1_000
            time.sleep(0.01)
    finally:
        gate.set()
    eventually(lambda: seen.distinct() == 5_000, "all of them after all")
    stop(consumer)
    check_all_committed(address, topic, topic, 5_000)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transactional": True}, "transactional"),
        ({"order": "any"}, "order is"),
        ({"workers": 0}, "workers is"),
        ({"batch": 0}, "batch is"),
        ({"model": Ranges()}, "order='none'"),
        ({"enable_auto_commit": True}, "enable.auto.commit"),
        ({"retry": Retry(topic="orders")}, "take another"),
        ({"on": "async"}, "async def"),
        ({"model": "pool"}, r"model is Consumers\(…\) or .*Window\(…\), not 'pool'"),
        ({"model": Window}, "not the class Window"),
        ({"retry": 3}, r"retry is Retry\(…\), not 3"),
        ({"limits": {"records": 3}}, r"limits is Limits\(…\), not"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, ParallelError), match=words):
        ParallelConsumer(lambda record: None, topics=["orders"], group="g", **options)


def generate(record: Any) -> Iterator[None]:
    yield


async def generate_later(records: Any) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("handler", "batch", "words"),
    [
        (None, None, "the handler is a function that takes a record, not None"),
        (lambda: None, None, "called with a record, and .*lambda.* cannot be: too many positional arguments"),
        (lambda one, other: None, 10, "called with a list of records, .* missing a required argument: 'other'"),
        (generate, None, "generate is a generator function"),
        (generate_later, 10, "generate_later is a generator function"),
    ],
)
def test_a_handler_that_takes_no_record_is_refused_before_it_fails_on_every_one(
    handler: Any, batch: int | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        ParallelConsumer(handler, topics=["orders"], group="g", batch=batch)


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        (Consumers(), {}, 500),
        (Consumers(), {"heartbeat.interval.ms": 2_000}, 2_000),
        (Consumers(), {"session.timeout.ms": 1_000}, None),
        (Pool(), {}, None),
    ],
)
def test_many_members_hear_soon_of_a_rebalance(model: Model, given: dict[str, Any], expected: int | None) -> None:
    consumer = ParallelConsumer(
        print, topics=["t"], group="g", config=config("127.0.0.1:1", **given), model=model, order="partition"
    )
    assert consumer.plan.config.get("heartbeat.interval.ms") == expected


@pytest.mark.slow
def test_a_consumer_process_that_is_killed_is_replaced(
    address: str, new_topic: Callable[..., str], session_ms: int, tmp_path: Path
) -> None:
    topic = new_topic(PARTITIONS)
    fill(address, topic, 600)
    path = str(tmp_path / "handled")
    consumer = ParallelConsumer(
        Writer(path, wait_s=0.01),
        topics=[topic],
        group=topic,
        # The killed one's partitions are free when its session is over.
        config=config(address, **{"session.timeout.ms": session_ms, "heartbeat.interval.ms": 200}),
        model=Consumers(processes=True),
        order="partition",
        workers=1,
    )
    consumer.start()
    eventually(lambda: len(lines(path)) >= 50, "a first part")
    killed = lines(path)[0][3]
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: len({(p, o) for p, o, *_ in lines(path)}) >= 600, "all records")
    stop(consumer)
    assert len({pid for *_, pid in lines(path)}) == 2
    check_all_committed(address, topic, topic, 600)
