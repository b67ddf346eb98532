"""Which partition a record gets: one that was just added, or one that there is not.

A partitioner of the user's own may be wrong about a record, or fail on it: no other record is the worse for it.
"""

from __future__ import annotations

from typing import Any

import pytest

from headrace.client.producer._base import rows_of
from headrace.client.producer.delivery import BatchDelivery
from headrace.errors import KafkaError, UnknownTopicOrPartitionError

from .fake import FakeCluster, Log, VirtualClock, World


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


class Misplacing:
    """A partitioner that is wrong about one record."""

    def partition(self, topic: str, key: Any, value: Any, count: int, available: Any) -> int:
        return -1 if value == b"wrong" else 0


@pytest.mark.parametrize("is_kept", [True, False])
def test_records_beside_one_that_the_partitioner_misplaces_are_told_of_once(clock: VirtualClock, is_kept: bool) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, partitioner_class=Misplacing())
    told: list[Any] = []
    kept = []
    for value in (b"a", b"wrong", b"b"):
        delivery = world.send("t", value, on_delivery=lambda error, _, value=value: told.append((value, type(error))))
        kept.append(delivery if is_kept else None)
        del delivery
    world.run_until(lambda: len(told) >= 3)
    start = clock.now
    world.run_until(lambda: clock.now > start + 5)
    nothing = type(None)
    assert sorted(told) == [(b"a", nothing), (b"b", nothing), (b"wrong", UnknownTopicOrPartitionError)]
    assert cluster.values("t") == [b"a", b"b"]


class Failing:
    """A partitioner that raises on one record, and gives what is no number for another."""

    def partition(self, topic: str, key: Any, value: Any, count: int, available: Any) -> Any:
        if value == b"raises":
            raise ValueError("not this one")
        return None if value == b"nowhere" else 0


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_record_on_which_the_partitioner_fails_fails_alone(clock: VirtualClock, is_kept: bool) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, partitioner_class=Failing())
    told: list[Any] = []
    kept = []
    for value in (b"a", b"raises", b"b", b"nowhere", b"c"):
        delivery = world.send("t", value, on_delivery=lambda error, _, value=value: told.append((value, error)))
        kept.append(delivery if is_kept else None)
        del delivery
    world.run_until(lambda: len(told) >= 5)
    assert cluster.values("t") == [b"a", b"b", b"c"]
    errors = {value: error for value, error in told if error is not None}
    assert set(errors) == {b"raises", b"nowhere"}
    assert isinstance(errors[b"raises"], KafkaError)
    assert "not this one" in str(errors[b"raises"])
    assert "NoneType" in str(errors[b"nowhere"])


@pytest.mark.parametrize(
    ("partitioner", "value", "error", "why"),
    [
        (Misplacing(), b"wrong", UnknownTopicOrPartitionError, "there is no -1"),
        (Failing(), b"raises", KafkaError, "not this one"),
    ],
    ids=["misplaced", "raises"],
)
def test_a_batch_of_which_one_record_has_no_partition_says_where_the_others_are(
    clock: VirtualClock, partitioner: Any, value: bytes, error: type[KafkaError], why: str
) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, partitioner_class=partitioner)
    delivery = BatchDelivery(world, "t", None)
    delivery.expect(3)
    rows = rows_of(world.setup, delivery, "t", [b"a", value, b"b"], None, None, None, None)
    world.producer.accumulator.pending.append(rows)
    world.run_until(delivery.done)
    assert [(one.base_offset, one.records) for one in delivery.ranges] == [(0, 2)]
    with pytest.raises(error, match=why):
        delivery.result()


def add_partition(cluster: FakeCluster, topic: str, partition: int) -> None:
    cluster.logs[topic, partition] = Log()
    cluster.leaders[topic, partition] = (cluster.brokers[0], 0)


def test_a_record_for_a_partition_that_was_just_added_waits_for_metadata_that_have_it(clock: VirtualClock) -> None:
    """A broker may lag behind: that one answer lacks the partition does not say that there is none."""
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster)
    # Held behind one that was sent before the topic was known.
    deliveries = [world.send("t", b"first", partition=0), world.send("t", b"a", partition=1)]
    version = world.core.view.version
    world.run_until(lambda: world.core.view.version > version + 3)
    assert not deliveries[1].done()
    deliveries.append(world.send("t", b"b", partition=1))
    add_partition(cluster, "t", 1)
    world.run_until(lambda: world.core.view.partition_count("t") == 2)
    deliveries.append(world.send("t", b"c", partition=1))
    world.deliver(deliveries)
    assert cluster.logs["t", 1].values == [b"a", b"b", b"c"]


def test_a_record_for_a_partition_that_there_is_not_fails_in_time_and_holds_up_no_other(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster, max_block_ms=3000)
    start = clock.now
    wrong = world.send("t", b"wrong", partition=7)
    wait = world.producer.flush()
    world.deliver([world.send("t", b"%d" % i) for i in range(3)])
    assert clock.now - start < 1
    assert not wrong.done()
    assert not wait.is_done
    world.deliver([wrong])
    assert 3 <= clock.now - start < 4
    with pytest.raises(UnknownTopicOrPartitionError, match=r"there is no 7.*3000 ms"):
        wrong.result()
    assert wait.is_done
    assert world.producer.accumulator.buffered_bytes == 0
    assert cluster.values("t") == [b"0", b"1", b"2"]


def test_columns_for_a_partition_that_was_just_added_wait_for_it_too(clock: VirtualClock) -> None:
    pa = pytest.importorskip("pyarrow")
    from headrace.client.producer._arrow import arrow_rows

    cluster = FakeCluster(clock, topics={"t": 1})
    world = World(cluster)
    delivery = BatchDelivery(world, "t", None)
    table = pa.table({"value": [b"a", b"b", b"c"], "partition": pa.array([0, 1, 1], pa.int32())})
    rows = arrow_rows(delivery, "t", table, None, None, False, clock.now_ms())
    delivery.expect(3)
    world.producer.accumulator.pending.append(rows)
    version = world.core.view.version
    world.run_until(lambda: world.core.view.version > version + 2)
    assert not delivery.done()
    add_partition(cluster, "t", 1)
    world.run_until(delivery.done)
    assert delivery.exception() is None
    assert (cluster.logs["t", 0].values, cluster.logs["t", 1].values) == ([b"a"], [b"b", b"c"])
