"""Ranges of offsets are read whole, from whoever may be read from, or it is said why not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
from tests.client.consumer.fake_driver import blocking_consumer, range_clients
from tests.client.consumer.fake_group import FakeGroupCluster, prefers_broker_2
from tests.client.fake import VirtualClock
from tests.records.legacy_messages import message, wrapper

from headrace.client.consumer.errors import (
    ConcurrentAccessError,
    IllegalStateError,
    LogTruncationError,
    RecordDeserializationError,
)
from headrace.client.consumer.records import ConsumerRecord, ConsumerRecords
from headrace.client.ranges import Loss, LostOffsetsError, RangeReader, pass_loss
from headrace.errors import ErrorCode, OffsetOutOfRangeError, RequestTimedOutError, UnsupportedForMessageFormatError
from headrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.records import Codec
from headrace.topics import TopicPartition

T0 = TopicPartition("t", 0)


@contextmanager
def range_reader(cluster: FakeGroupCluster, **config: Any) -> Iterator[RangeReader]:
    servers = ",".join(f"fake:{9000 + b}" for b in cluster.brokers)
    with range_clients(cluster), RangeReader(clock=cluster.clock, bootstrap_servers=servers, **config) as reader:
        yield reader


def offsets_of(pieces: Iterable[Any]) -> list[int]:
    return [offset for piece in pieces for offset in piece.columns.offsets.tolist()]


def range_offsets(cluster: FakeGroupCluster, start: int, end: int | None, **options: Any) -> list[int]:
    config = {key: options.pop(key) for key in ("client_rack",) if key in options}
    with range_reader(cluster, **config) as reader:
        return offsets_of(reader.read({T0: (start, end)}, **options))


def cut_off(cluster: FakeGroupCluster, start: int) -> None:
    """Retention deletes what is before."""
    cluster.starts[T0] = start
    cluster.batches[T0] = [one for one in cluster.batches[T0] if one[0] >= start]


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
    with pytest.raises(OffsetOutOfRangeError):
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
        with pytest.raises(OffsetOutOfRangeError):
            range_offsets(cluster, 5, 15)
    else:
        assert range_offsets(cluster, 5, 15, fail_on_data_loss=False) == [10, 11, 12, 13, 14]


@pytest.mark.slow
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


@pytest.mark.parametrize("fail", [True, False])
def test_a_log_that_ends_within_what_could_be_read_before_has_lost_the_rest(fail: bool) -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    cluster.write("t", 0, 10)
    cluster.epoch_ends[T0] = (0, 10)
    began = cluster.clock.now
    if fail:
        with pytest.raises(LostOffsetsError, match="ends at offset 10; the range goes to 15") as caught:
            range_offsets(cluster, 0, 15, was_written=True)
        assert (caught.value.loss.start, caught.value.loss.end) == (10, 15)
    else:
        assert range_offsets(cluster, 0, 15, was_written=True, fail_on_data_loss=False) == list(range(10))
    assert cluster.clock.now - began < 10


def test_losses_are_told_and_reading_goes_on_behind_them() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    for _ in range(3):
        cluster.write("t", 0, 10)
    cut_off(cluster, 10)
    told: list[Loss] = []
    assert range_offsets(cluster, 5, 25, on_loss=told.append) == list(range(10, 25))
    assert [(one.partition, one.start, one.end) for one in told] == [(T0, 5, 10)]


@pytest.mark.parametrize("fail", [True, False])
def test_a_log_that_was_cut_back_behind_what_was_read_is_a_loss(fail: bool) -> None:
    cluster = FakeGroupCluster(VirtualClock(), 2, {"t": 1})
    cluster.write("t", 0, 10)
    cluster.write("t", 0, 10)
    with range_reader(cluster, metadata_max_age_ms=100) as reader:
        pieces = reader.read({T0: (0, 30)}, rows_max=5, fail_on_data_loss=fail)
        assert next(pieces).columns.offsets.tolist() == [0, 1, 2, 3, 4]
        # Broker 2 leads now, without the first one's last records; others are written in their place.
        cluster.leaders[T0] = (2, 1)
        cluster.epoch_ends[T0] = (0, 3)
        cluster.batches[T0] = []
        cluster.starts[T0] = 3
        cluster.write("t", 0, 27, epoch=1)
        cluster.clock.now += 1
        # What was fetched of the old log is handed out before anybody hears of the new one.
        if fail:
            with pytest.raises(LogTruncationError):
                list(pieces)
        else:
            found = offsets_of(pieces)
            assert found[-1] == 29
            assert found == sorted(set(found))


def test_what_was_known_of_a_topic_before_it_was_created_again_is_no_loss() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    cluster.write("t", 0, 10)
    with range_reader(cluster) as reader:
        assert offsets_of(reader.read({T0: (0, 10)})) == list(range(10))
        cluster.topic_ids["t"] = b"created again...."[:16]
        # The offsets are of the new one: it is the reader that does not know of it yet.
        assert offsets_of(reader.read({T0: (2, 10)}, was_written=True)) == list(range(2, 10))
        pieces = reader.read({T0: (0, 20)}, was_written=True)
        assert offsets_of([next(pieces)]) == list(range(10))
        # What was read is not there any more.
        cluster.topic_ids["t"] = b"and once more...."[:16]
        with pytest.raises(LogTruncationError):
            list(pieces)


def test_a_range_without_an_end_is_followed() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    cluster.write("t", 0, 10)
    with range_reader(cluster) as reader:
        pieces = reader.read({T0: (5, None)}, follow=True, timeout=1.0)
        assert next(pieces).columns.offsets.tolist() == [5, 6, 7, 8, 9]
        later = cluster.clock.now + 30
        plain = cluster.release

        def release() -> float:
            if cluster.clock.now >= later and cluster.end("t", 0) == 10:
                cluster.write("t", 0, 2)
            return plain()

        cluster.release = release  # type: ignore[method-assign]  # something is written long after the time-out
        assert next(pieces).columns.offsets.tolist() == [10, 11]


def test_nothing_behind_a_range_is_asked_for() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    for _ in range(3):
        cluster.write("t", 0, 10)
    assert range_offsets(cluster, 0, 30) == list(range(30))
    asked = [part.fetch_offset for request in cluster.names("Fetch") for t in request.topics for part in t.partitions]
    assert asked == [0]


def test_what_lies_behind_a_range_is_there_for_the_next_one_if_it_is_wanted_ahead() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    cluster.write("t", 0, 30)
    with range_reader(cluster) as reader:
        reader.begin({T0: (0, 10)}, was_written=True, ahead=True)
        assert offsets_of(reader.poll(1.0, 10)) == list(range(10))
        fetches = len(cluster.names("Fetch"))
        reader.extend(T0, 20)
        assert offsets_of(reader.poll(1.0, 10)) == list(range(10, 20))
        assert reader.position(T0) == 20
        assert len(cluster.names("Fetch")) <= fetches + 1
        reader.begin({T0: (25, 30)}, was_written=True, ahead=True)
        reader.ask()
        assert [record.offset for record in reader.poll_records(1.0, 10)] == list(range(25, 30))


class Backwards:
    """An interceptor that has an order of its own."""

    def on_consume(self, records: ConsumerRecords) -> list[ConsumerRecord]:
        return list(reversed(records))

    def on_commit(self, offsets: Any) -> None: ...


def test_records_come_in_order_whatever_order_interceptors_give_them() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    cluster.write("t", 0, 10)
    with range_reader(cluster, interceptor_classes=[Backwards()]) as reader:
        reader.begin({T0: (0, 10)}, was_written=True)
        assert [record.offset for record in reader.poll_records(1.0, 10)] == list(range(10))


def test_a_fetch_of_before_says_nothing_of_a_range_that_begins() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    cluster.write("t", 0, 10)
    with range_reader(cluster, fetch_max_wait_ms=1) as reader:
        reader.begin({T0: (0, 10)}, was_written=True, ahead=True)
        assert offsets_of(reader.poll(1.0, 10)) == list(range(10))
        # What lies behind was asked for, and there was nothing.
        reader.ask()
        cluster.clock.now += 1
        reader.ask()
        cluster.write("t", 0, 10)
        reader.extend(T0, 20)
        began = cluster.clock.now
        assert offsets_of(reader.poll(1.0, 10)) == list(range(10, 20))
        reader.begin({T0: (5, 10)}, was_written=True, ahead=True)
        assert offsets_of(reader.poll(1.0, 5)) == list(range(5, 10))
        # Half a second is how long the cluster holds a fetch; nobody waits before asking beside that.
        assert cluster.clock.now - began < 0.55


def test_a_damaged_batch_behind_a_range_that_is_read_ahead_is_the_next_ones() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    cluster.write("t", 0, 10)
    cluster.write("t", 0, 10)
    base, end, data = cluster.batches[T0][1]
    # Compaction took offsets 10 to 14.
    cluster.batches[T0][1] = (base, end + 5, (15).to_bytes(8, "big") + data[8:-1] + b"!")
    with range_reader(cluster) as reader:
        reader.begin({T0: (0, 12)}, was_written=True, ahead=True)
        assert offsets_of(reader.poll(1.0, 12)) == list(range(10))
        assert reader.poll(0.0, 12) == []
        assert reader.position(T0) == 12
        reader.extend(T0, 24)
        for _ in range(2):
            with pytest.raises(RecordDeserializationError) as caught:
                reader.poll(1.0, 12)
            assert caught.value.offset == 15


def test_what_is_lost_is_passed_over_by_who_reads_ahead() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    for _ in range(3):
        cluster.write("t", 0, 10)
    cut_off(cluster, 20)
    with range_reader(cluster) as reader:
        reader.begin({T0: (0, 10)}, on_loss=pass_loss, was_written=True, ahead=True)
        assert reader.poll(5.0, 10) == []
        assert reader.position(T0) == 10
        reader.extend(T0, 30)
        assert offsets_of(reader.poll(5.0, 20)) == list(range(20, 30))
        # And where the log has lost its end.
        cluster.epoch_ends[T0] = (0, 30)
        reader.extend(T0, 40)
        while reader.position(T0) < 40:
            assert reader.poll(1.0, 10) == []


def test_a_session_is_kept_and_given_back() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    for _ in range(3):
        cluster.write("t", 0, 10)
    with range_reader(cluster) as reader:
        for start in (0, 10, 20):
            assert offsets_of(reader.read({T0: (start, start + 10)})) == list(range(start, start + 10))
    epochs = [(request.session_id, request.session_epoch) for request in cluster.names("Fetch")]
    assert epochs[:3] == [(0, 0), (77, 1), (77, 2)]


def test_batches_are_read_as_they_lie_in_the_log() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    for _ in range(3):
        cluster.write("t", 0, 10)
    with range_reader(cluster) as reader:
        found = [(header.base_offset, header.next_offset) for _, header in reader.read_batches({T0: (5, 15)})]
        assert found == [(0, 10), (10, 20)]
        # A batch that cannot be told from noise ends what can be read; behind a range it is nobody's here.
        base, end, data = cluster.batches[T0][2]
        cluster.batches[T0][2] = (base, end, data[:16] + b"\x09" + data[17:])
        assert len(list(reader.read_batches({T0: (0, 20)}))) == 2
        with pytest.raises(RecordDeserializationError):
            list(reader.read_batches({T0: (0, 21)}))
        cluster.batches[T0] = [(0, 1, message(0, b"a", magic=1))]
        with pytest.raises(UnsupportedForMessageFormatError, match="format before"):
            list(reader.read_batches({T0: (0, 1)}))


def test_a_topic_that_is_not_there_is_waited_for_and_said() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"other": 1})
    with pytest.raises(RequestTimedOutError, match="has no leader, or does not exist"):
        range_offsets(cluster, 0, 10, timeout=5)


def test_a_read_that_was_replaced_says_so_and_leaves_the_new_one_alone() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 2})
    for _ in range(3):
        for partition in (0, 1):
            cluster.write("t", partition, 10)
    with range_reader(cluster) as reader:
        first = reader.read({T0: (0, 30)}, rows_max=10)
        second = reader.read({TopicPartition("t", 1): (0, 30)}, rows_max=10)
        assert offsets_of([next(first)]) == list(range(10))
        assert offsets_of([next(second)]) == list(range(10))
        with pytest.raises(IllegalStateError, match="another read of this range reader has begun since"):
            next(first)
        assert offsets_of(second) == list(range(10, 30))
        third = reader.read({T0: (0, 30)}, rows_max=10)
        next(third)
        fourth = reader.read({TopicPartition("t", 1): (0, 30)}, rows_max=10)
        next(fourth)
        third.close()  # type: ignore[attr-defined]  # as when it is dropped
        assert offsets_of(fourth) == list(range(10, 30))
        assert offsets_of(reader.read({T0: (0, 30)})) == list(range(30))


@pytest.mark.parametrize("call", ["read", "poll"])
def test_another_thread_in_the_middle_of_a_read_is_refused(call: str) -> None:
    """It took the ranges away, or was given what the first one asked for: rows went missing without an error."""
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 2})
    for partition in (0, 0, 1, 1):
        cluster.write("t", partition, 10)
    cut_off(cluster, 10)
    refused: list[BaseException] = []

    def use(reader: RangeReader) -> None:
        try:
            if call == "read":
                next(reader.read({TopicPartition("t", 1): (0, 20)}))
            else:
                reader.poll(0.0)
        except ConcurrentAccessError as error:
            refused.append(error)

    def disturb(_: Loss) -> None:
        thread = Thread(target=use, args=(reader,))
        thread.start()
        thread.join()

    with range_reader(cluster) as reader:
        assert offsets_of(reader.read({T0: (0, 20)}, on_loss=disturb)) == list(range(10, 20))
        assert len(refused) == 1
        assert offsets_of(reader.read({TopicPartition("t", 1): (0, 20)})) == list(range(20))
