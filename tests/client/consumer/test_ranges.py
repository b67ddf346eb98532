"""Ranges of offsets are read whole, from whoever may be read from, or it is said why not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.consumer.fake_driver import blocking_consumer
from tests.client.consumer.fake_group import FakeGroupCluster, prefers_broker_2
from tests.client.fake import VirtualClock
from tests.records.legacy_messages import message, wrapper

from headrace.client.consumer.errors import OffsetsOutOfRangeError, RecordDeserializationError
from headrace.client.ranges import RangeReader
from headrace.errors import ErrorCode
from headrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.records import Codec
from headrace.topics import TopicPartition

T0 = TopicPartition("t", 0)


def range_reader(cluster: FakeGroupCluster, **config: Any) -> Any:
    manager = blocking_consumer(cluster, auto_offset_reset="none", **config)
    reader = object.__new__(RangeReader)
    reader._consumer = manager.__enter__()
    return manager, reader


def range_offsets(cluster: FakeGroupCluster, start: int, end: int | None, **options: Any) -> list[int]:
    config = {key: options.pop(key) for key in ("client_rack",) if key in options}
    manager, reader = range_reader(cluster, **config)
    try:
        pieces = list(reader.read({T0: (start, end)}, **options))
        return [offset for piece in pieces for offset in piece.columns.offsets.tolist()]
    finally:
        manager.__exit__(None, None, None)


def test_a_range_is_read_from_the_preferred_replica() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 2, {"t": 1})
    cluster.write("t", 0, 10)
    asked = prefers_broker_2(cluster)
    assert range_offsets(cluster, 2, 8, client_rack="a") == [2, 3, 4, 5, 6, 7]
    assert asked[:2] == [1, 2]


def test_a_damaged_batch_behind_a_range_does_not_fail_it() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    cluster.write("t", 0, 10)
    cluster.write("t", 0, 10)
    base, end, data = cluster.batches[T0][1]
    # Compaction took offsets 10 to 14, so that the good part ends before the range does.
    cluster.batches[T0][1] = (base, end + 5, (15).to_bytes(8, "big") + data[8:-1] + b"!")
    assert range_offsets(cluster, 0, 10) == list(range(10))
    assert range_offsets(cluster, 3, 13) == list(range(3, 10))
    assert range_offsets(cluster, 11, 14) == []
    with pytest.raises(RecordDeserializationError):
        range_offsets(cluster, 0, 17)


def test_a_leader_that_does_not_know_yet_what_is_committed_is_waited_for() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    cluster.write("t", 0, 10)
    out_of_range, not_available = [3], [3]

    def script(node: int, name: str, request: Any) -> Any:
        if name == "Fetch" and out_of_range[0]:
            out_of_range[0] -= 1
            data = PartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=2)
            topic = FetchableTopicResponse(topic="t", topic_id=cluster.topic_ids["t"], partitions=[data])
            return FetchResponse(session_id=0, responses=[topic])
        if name == "ListOffsets" and not_available[0]:
            not_available[0] -= 1
            part = ListOffsetsPartitionResponse(partition_index=0, error_code=ErrorCode.OFFSET_NOT_AVAILABLE)
            return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[part])])
        return None

    cluster.script = script
    assert range_offsets(cluster, 5, None) == [5, 6, 7, 8, 9]
    assert out_of_range == not_available == [0]


def test_a_range_that_was_never_written_is_an_error_in_the_end() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    cluster.write("t", 0, 10)
    began = cluster.clock.now
    with pytest.raises(OffsetsOutOfRangeError):
        range_offsets(cluster, 50, 60, timeout=20)
    assert 20 <= cluster.clock.now - began < 30


@pytest.mark.parametrize("fail", [True, False])
def test_what_was_deleted_is_an_error_at_once_or_passed_over(fail: bool) -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    cluster.write("t", 0, 10)
    cluster.write("t", 0, 10)
    cluster.starts[T0] = 10
    del cluster.batches[T0][0]
    if fail:
        with pytest.raises(OffsetsOutOfRangeError):
            range_offsets(cluster, 5, 15)
    else:
        assert range_offsets(cluster, 5, 15, fail_on_data_loss=False) == [10, 11, 12, 13, 14]


def test_old_messages_are_read_in_every_way() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    data = message(0, b"a", magic=0) + wrapper(3, [message(n, b"b") for n in range(3)], Codec.GZIP)
    cluster.batches[T0] = [(0, 4, data)]
    cluster.write("t", 0, 2)
    assert range_offsets(cluster, 0, None) == [0, 1, 2, 3, 4, 5]
    assert range_offsets(cluster, 2, 5) == [2, 3, 4]
    with blocking_consumer(cluster) as consumer:
        consumer.assign([T0])
        records = consumer.poll(5)
        assert [record.offset for record in records] == [0, 1, 2, 3, 4, 5]
        assert [record.value for record in records] == [b"a", b"b", b"b", b"b", b"4", b"5"]
        assert [int(record.timestamp_type) for record in records] == [-1, 0, 0, 0, 0, 0]
        assert all(record.headers == () for record in records)
        pytest.importorskip("pyarrow")
        consumer.seek(T0, 1)
        table = consumer.poll_arrow(5, headers=True)
        assert table.column("offset").to_pylist() == [1, 2, 3, 4, 5]
        assert table.column("headers").to_pylist() == [[]] * 5
