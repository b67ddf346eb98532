"""Ranges of offsets: who is given which, and what is seen of those who read them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.client.consumer.fake_driver import range_clients
from tests.client.consumer.fake_group import FakeGroupCluster
from tests.client.fake import VirtualClock
from tests.parallel.making import PARTITION

from headrace.client.ranges import LostOffsetsError, RangeReader
from headrace.errors import RequestTimedOutError
from headrace.parallel import Ranges
from headrace.parallel.core import ParallelCore
from headrace.parallel.handling import Handling
from headrace.parallel.member import Member
from headrace.parallel.options import CoreSettings, Limits, Order, Retry
from headrace.parallel.ranges import RangeReaders, _Reader
from headrace.runtime.real import RealClock
from headrace.topics import TopicPartition


def test_ranges_of_partitions_are_given_out_in_turn() -> None:
    names = [TopicPartition("orders", number) for number in range(4)]
    core = ParallelCore(CoreSettings.of(Ranges(100), Order.NONE, Retry(), Limits(), None))
    member = Member(core, RealClock(), "billing", None, 1)
    readers = RangeReaders(member, Handling(lambda record: None, False, False), 2, 100, {}, 1)
    for name in names:
        core.assign(name, 0)
    readers.ends = dict.fromkeys(names, 5_000) | {names[0]: 1_000_000}
    given: Counter[TopicPartition] = Counter()

    class Reader:
        partition: TopicPartition | None = None
        position = 0

    reader: Any = Reader()
    while max(given.values(), default=0) < 4_000:
        found = readers._allocate(reader)
        assert found is not None
        entry, _ = found
        reader.partition, reader.position = entry.tracker.partition, entry.end
        given[entry.tracker.partition] += entry.end - entry.offset
        core.range_advanced(entry, entry.end)
        if given.total() > 2_000:
            assert min(given[name] for name in names) >= max(given.values()) / 2, given


def test_a_reader_within_a_range_counts_as_busy() -> None:
    core = ParallelCore(CoreSettings.of(Ranges(100), Order.NONE, Retry(), Limits(), None))
    member = Member(core, RealClock(), "billing", None, 2)
    readers = RangeReaders(member, Handling(lambda record: None, False, False), 2, 100, {}, 1)
    core.assign(PARTITION, 0)
    entry = core.add_range(PARTITION, 0, 10, 0.0)
    seen: list[int] = []

    class Reader:
        def turn_to(self, partition: TopicPartition, position: int, end: int) -> None:
            seen.append(member.snapshot().busy)
            raise RequestTimedOutError("no broker")

    with pytest.raises(RequestTimedOutError):
        readers._do_range(Reader(), entry, [])  # type: ignore[arg-type]  # only what is called first
    assert seen == [1]
    assert member.snapshot().busy == 0
    assert core.trackers[PARTITION].in_flight == 0


@pytest.mark.parametrize("policy", ["latest", "earliest", "none"])
def test_of_a_range_only_what_is_lost_is_passed_over(policy: str) -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    for _ in range(3):
        cluster.write("t", 0, 10)
    cluster.starts["t", 0] = 10
    del cluster.batches["t", 0][0]
    core = ParallelCore(CoreSettings.of(Ranges(100), Order.NONE, Retry(), Limits(), None))
    config = {"bootstrap.servers": "fake:9001", "group.id": "g", "auto.offset.reset": policy}
    member = Member(core, RealClock(), "billing", None, 2)
    readers = RangeReaders(member, Handling(lambda record: None, False, False), 2, 100, config, 1)
    with range_clients(cluster), RangeReader(readers._config, clock=cluster.clock) as own:
        reader = _Reader(own, readers._on_loss)
        reader.turn_to(TopicPartition("t", 0), 0, 20)
        found: list[int] = []
        if policy == "none":
            with pytest.raises(LostOffsetsError):
                reader.poll(20)
            return
        while reader.position < 20:
            found += [record.offset for record in reader.poll(20 - reader.position)]
        # What lies behind the range is there for the next one.
        assert [offset for offset in found if offset < 20] == list(range(10, 20))
