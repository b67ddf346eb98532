"""A partitioner of the user's own that is wrong about a record, or fails on it: no other record is the worse for it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.client.producer._base import rows_of
from headrace.client.producer.delivery import BatchDelivery
from headrace.errors import KafkaError, UnknownTopicOrPartitionError

from .fake import FakeCluster, VirtualClock, World


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
