"""Parallel consumers in groups of the newer protocol: every record once, also while members come and go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.parallel.helpers import commits, config, fill, stop
from tests.waiting import eventually

from headrace import Admin
from headrace.parallel import Consumers, Model, ParallelConsumer, Pool, Ranges, Window

pytestmark = pytest.mark.slow
COUNT, PARTITIONS = 600, 3


@pytest.mark.parametrize("model", [Consumers(), Pool(), Window(slot=20, slots=8), Ranges(size=50)], ids=str)
def test_members_come_and_go_and_each_record_is_handled_once(
    address: str, new_topic: Callable[..., str], model: Model
) -> None:
    topic = new_topic(PARTITIONS)
    lock = threading.Lock()
    handled: dict[str, list[tuple[int, int]]] = {"first": [], "second": []}

    def member(name: str) -> ParallelConsumer:
        def handle(record: Any) -> None:
            with lock:
                handled[name].append((record.partition, record.offset))

        given = config(address, **{"group.protocol": "consumer"})
        order = "none" if isinstance(model, Ranges) else "key"
        # With a consumer for each worker, more of them than partitions might leave the second member nothing.
        workers = 1 if isinstance(model, Consumers) else 4
        made = ParallelConsumer(
            handle, topics=topic, group=topic, config=given, model=model, order=order, workers=workers
        )
        made.start()
        return made

    def total() -> int:
        with lock:
            return sum(map(len, handled.values()))

    fill(address, topic, COUNT)
    first = member("first")
    eventually(lambda: total() >= COUNT, "the first records")
    second = member("second")

    def more_of_the_second() -> bool:
        fill(address, topic, 30)
        return bool(handled["second"])

    eventually(more_of_the_second, "a part of the second member")
    stop(first)
    fill(address, topic, COUNT)

    def all_committed() -> bool:
        found = commits(address, topic, topic, PARTITIONS)
        return sum(offset for offset, _ in found.values()) == total()

    eventually(all_committed, "commits of all that was handled")
    stop(second)
    with Admin({"bootstrap.servers": address}) as admin:
        assert admin.describe_groups([topic])[topic].type == "consumer"
    every = [*handled["first"], *handled["second"]]
    assert len(every) == len(set(every)), "a record was handled twice"
