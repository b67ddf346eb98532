"""A work queue on a share group: `parallel.run(handle, …, model=Share())`."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.client.share.test_share_consumer import BROKERS, Work, address_of
from tests.waiting import eventually

from headrace import Admin, ConfigError, NewTopic
from headrace.parallel import Exhausted, ParallelConsumer, Reject, RetriesExhaustedError, Retry, Share
from headrace.parallel.deadletters import DeadLetters

WORKERS = 8


@pytest.fixture(scope="module", params=BROKERS)
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"group.share.min.record.lock.duration.ms": "1000"}
    with address_of(request.param, tmp_path_factory.mktemp("sharing"), **settings) as running:
        yield running


@pytest.fixture
def work(address: str) -> Work:
    return Work(address)


def queue_of(work: Work, handler: Callable[[Any], Any], **options: Any) -> ParallelConsumer:
    config = {"bootstrap.servers": work.address}
    return ParallelConsumer(
        handler, topics=work.topic, group=work.group, config=config, model=Share(), workers=WORKERS, **options
    )


def dead_letter_topic(work: Work) -> str:
    name = f"{work.topic}.dead"
    with Admin({"bootstrap.servers": work.address}) as admin:
        admin.create_topics([NewTopic(name, 1, 1)])
    return name


def test_more_workers_than_partitions_are_at_work_at_once(work: Work) -> None:
    together = threading.Barrier(WORKERS)

    def handle(record: Any) -> None:
        together.wait(30)

    work.write(*(str(number).encode() for number in range(WORKERS)))
    with queue_of(work, handle) as running:
        eventually(lambda: running.snapshot().counters.handled == WORKERS)


def test_what_fails_is_delivered_again_and_what_always_fails_is_put_away(work: Work) -> None:
    letters = dead_letter_topic(work)
    tries: Counter[bytes] = Counter()
    deliveries: list[int] = []

    def handle(record: Any) -> None:
        tries[record.value] += 1
        if record.value == b"twice" and tries[record.value] <= 2:
            raise ValueError("not yet")
        if record.value == b"never":
            deliveries.append(record.delivery_count)
            raise ValueError("never")
        if record.value == b"no":
            raise Reject

    work.write(b"well", b"twice", b"never", b"no")
    with queue_of(work, handle, retry=Retry(dead_letters=letters)) as running:
        eventually(lambda: (c := running.snapshot().counters).handled == 2 and c.dead_letters == 2)
    assert tries == {b"well": 1, b"twice": 3, b"never": 5, b"no": 1}
    assert deliveries == [1, 2, 3, 4, 5]
    with DeadLetters({"bootstrap.servers": work.address}, letters) as found:
        why = {
            letter.record.value: (letter.reason, letter.attempts, letter.origin_offset) for letter in found.letters()
        }
    assert why == {b"never": ("failed", 5, 2), b"no": ("rejected", 1, 3)}


def test_a_lock_is_renewed_as_long_as_its_handler_runs(work: Work) -> None:
    work.configure("share.record.lock.duration.ms", "1000")
    begun: list[int] = []
    end = threading.Event()

    def handle(record: Any) -> None:
        begun.append(record.delivery_count)
        end.wait(30)

    work.write(b"long")
    with queue_of(work, handle) as running, work.consumer() as other:
        eventually(lambda: begun)
        # Far longer than the lock lasts.
        assert other.poll(3.0) == []
        end.set()
        eventually(lambda: running.snapshot().counters.handled == 1)
    assert begun == [1]


def test_coroutines_handle_records_side_by_side(work: Work) -> None:
    at_once = 0
    most = 0

    async def handle(record: Any) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        while most < WORKERS:
            await asyncio.sleep(0.001)
        at_once -= 1

    work.write(*(str(number).encode() for number in range(WORKERS)))
    with queue_of(work, handle) as running:
        eventually(lambda: running.snapshot().counters.handled == WORKERS)


def test_without_dead_letters_a_record_that_always_fails_ends_it_or_is_given_up(work: Work) -> None:
    def handle(record: Any) -> None:
        raise ValueError("never")

    work.write(b"bad")
    consumer = queue_of(work, handle)
    with pytest.raises(RetriesExhaustedError, match="failed 5 times"):
        consumer.run()
    other = Work(work.address)
    other.write(b"bad")
    with queue_of(other, handle, retry=Retry(on_exhausted=Exhausted.SKIP)) as running:
        eventually(lambda: running.snapshot().counters.skipped == 1)


def test_what_a_share_group_cannot_do_is_refused(work: Work) -> None:
    for options, match in (
        ({"order": "partition"}, "no order"),
        ({"batch": 10}, "one by one"),
        ({"retry": Retry(topic="again")}, r"Retry\.topic"),
        (
            {"config": {"bootstrap.servers": "localhost:1", "auto.offset.reset": "earliest"}},
            r"share\.auto\.offset\.reset",
        ),
    ):
        settings: dict[str, Any] = {"config": {"bootstrap.servers": "localhost:1"}, **options}
        with pytest.raises(ConfigError, match=match):
            ParallelConsumer(print, topics="t", group="g", model=Share(), **settings)
