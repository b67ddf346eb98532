"""Rows go to the partition that Kafka's own clients would choose, and one task owns each partition."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.records.murmur2 import murmur2
from headrace.spark.lanes import OutputPartitions, UnknownDestinationError, route
from headrace.topics import TopicPartition

ONE = OutputPartitions.of({"t": 5})
TWO = OutputPartitions.of({"t": 5, "a": 2})


def batch(**columns: list[object]) -> pa.RecordBatch:
    types = {"key": pa.binary(), "value": pa.binary(), "partition": pa.int32(), "topic": pa.string()}
    arrays = {name: pa.array(rows, types[name]) for name, rows in columns.items()}
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def test_keys_go_where_kafkas_clients_send_them() -> None:
    keys = [f"key-{number}".encode() for number in range(100)]
    lanes = route(batch(key=keys, value=keys), ONE, "t", 0)
    assert lanes.tolist() == [(murmur2(key) & 0x7FFFFFFF) % 5 for key in keys]


def test_rows_without_a_key_go_together_and_take_turns() -> None:
    rows = batch(key=[None, None], value=[b"1", b"2"])
    assert route(rows, ONE, "t", 3).tolist() == [3, 3]
    assert route(rows, ONE, "t", 7).tolist() == [2, 2]


def test_a_partition_of_its_own_comes_first() -> None:
    rows = batch(key=[b"k", b"k", None], value=[b"1", b"2", b"3"], partition=[4, None, None])
    assert route(rows, ONE, "t", 1).tolist() == [4, (murmur2(b"k") & 0x7FFFFFFF) % 5, 1]
    with pytest.raises(UnknownDestinationError, match="partition 5"):
        route(batch(value=[b"1"], partition=[5]), ONE, "t", 0)


def test_topics_of_rows_have_lanes_of_their_own() -> None:
    rows = batch(value=[b"1", b"2", b"3"], topic=["t", "a", "t"], partition=[0, 1, 4])
    assert TWO.partitions()[:3] == [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("t", 0)]
    assert route(rows, TWO, None, 0).tolist() == [2, 1, 6]
    with pytest.raises(UnknownDestinationError, match="begun for a, t only"):
        route(batch(value=[b"1"], topic=["x"]), TWO, None, 0)
    with pytest.raises(UnknownDestinationError, match="null"):
        route(batch(value=[b"1"], topic=[None]), TWO, None, 0)


@pytest.mark.parametrize("tasks", [1, 2, 3, 5])
@pytest.mark.parametrize("turn", [0, 1, 7])
def test_every_lane_has_one_owner(tasks: int, turn: int) -> None:
    owned = [lane for task in range(tasks) for lane in ONE.owned(task, tasks, turn)]
    assert sorted(owned) == list(range(5))
