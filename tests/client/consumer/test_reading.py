"""Reading without a group: assign, poll, seek, pause, offsets, columns, deserializers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.client.consumer.conftest import Cluster, read

from headrace import Consumer, NoOffsetForPartitionError, Producer, RangeReader, WakeupError
from headrace.client.consumer.config import parse_duration_ms
from headrace.client.consumer.errors import (
    IllegalStateError,
    OffsetOutOfRangeError,
    RecordDeserializationError,
)
from headrace.config import ConfigError
from headrace.errors import RequestTimedOutError
from headrace.topics import TopicPartition

pytestmark = pytest.mark.slow


def values(count: int, start: int = 0) -> list[bytes]:
    return [b"v%d" % i for i in range(start, start + count)]


def test_every_record_comes_once_and_in_order(kafka: Cluster) -> None:
    topic = kafka.topic(2)
    kafka.produce(topic, values(1200), 0)
    kafka.produce(topic, values(700), 1, **{"compression.type": "lz4"})
    with Consumer(kafka.config()) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        found = read(consumer, 1900)
        assert consumer.position((topic, 0)) == 1200
        assert consumer.current_lag((topic, 1)) == 0
        assert consumer.highwater((topic, 0)) == 1200
    for partition, count in ((0, 1200), (1, 700)):
        mine = [record for record in found if record.partition == partition]
        assert [record.value for record in mine] == values(count)
        assert [record.offset for record in mine] == list(range(count))


def test_a_poll_gives_at_most_max_poll_records(kafka: Cluster) -> None:
    topic = kafka.topic()
    kafka.produce(topic, values(30))
    with Consumer(kafka.config(max_poll_records=7)) as consumer:
        consumer.assign([(topic, 0)])
        sizes = []
        while sum(sizes) < 30:
            sizes.append(len(consumer.poll(60.0)))
    assert max(sizes) == 7


def test_keys_headers_and_timestamps_arrive(kafka: Cluster) -> None:
    from confluent_kafka import Producer

    topic = kafka.topic()
    producer = Producer({"bootstrap.servers": kafka.address})
    producer.produce(topic, None, b"key", timestamp=1_700_000_000_123, headers=[("a", b"1"), ("b", None)])
    producer.produce(topic, b"value")
    producer.flush(30)
    with Consumer(kafka.config()) as consumer:
        consumer.assign([(topic, 0)])
        first, second = read(consumer, 2)
    assert (first.key, first.value, first.timestamp) == (b"key", None, 1_700_000_000_123)
    assert first.headers == (("a", b"1"), ("b", None))
    assert (second.key, second.value, second.headers) == (None, b"value", ())


def test_seek_and_its_relatives_decide_what_comes_next(kafka: Cluster) -> None:
    topic = kafka.topic()
    kafka.produce(topic, values(100))
    with Consumer(kafka.config()) as consumer:
        consumer.assign([(topic, 0)])
        assert read(consumer, 100)[0].offset == 0
        consumer.seek((topic, 0), 42)
        assert consumer.position((topic, 0)) == 42
        assert read(consumer, 58)[0].offset == 42
        consumer.seek_to_beginning()
        assert read(consumer, 100)[0].offset == 0
        consumer.seek_to_end([(topic, 0)])
        assert consumer.position((topic, 0)) == 100
        assert not consumer.poll(0.1)
        kafka.produce(topic, [b"new"])
        assert [record.value for record in read(consumer, 1)] == [b"new"]


def test_a_seek_between_two_polls_drops_what_was_prefetched(kafka: Cluster) -> None:
    topic = kafka.topic()
    kafka.produce(topic, values(100))
    with Consumer(kafka.config(max_poll_records=10)) as consumer:
        consumer.assign([(topic, 0)])
        assert read(consumer, 10)[-1].offset == 9
        consumer.seek((topic, 0), 90)
        assert [record.offset for record in read(consumer, 10)] == list(range(90, 100))


def test_paused_partitions_give_nothing_until_resumed(kafka: Cluster) -> None:
    topic = kafka.topic(2)
    for partition in (0, 1):
        kafka.produce(topic, values(50), partition)
    with Consumer(kafka.config()) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        consumer.pause([(topic, 1)])
        assert consumer.paused() == {TopicPartition(topic, 1)}
        assert {record.partition for record in read(consumer, 50)} == {0}
        assert not consumer.poll(0.2)
        consumer.resume([(topic, 1)])
        assert {record.partition for record in read(consumer, 50)} == {1}


@pytest.mark.parametrize(("policy", "expected"), [("earliest", 0), ("latest", 10), ("by_duration:PT1H", 0)])
def test_the_reset_policy_decides_where_reading_begins(kafka: Cluster, policy: str, expected: int) -> None:
    topic = kafka.topic()
    kafka.produce(topic, values(10))
    with Consumer(kafka.config(auto_offset_reset=policy)) as consumer:
        consumer.assign([(topic, 0)])
        assert consumer.position((topic, 0)) == expected


def test_without_a_policy_a_missing_offset_is_an_error_with_its_partitions(kafka: Cluster) -> None:
    topic = kafka.topic()
    with Consumer(kafka.config(auto_offset_reset="none", group_id=kafka.group())) as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(NoOffsetForPartitionError) as caught:
            consumer.poll(60.0)
        assert caught.value.partitions == [TopicPartition(topic, 0)]
        consumer.seek((topic, 0), 0)
        assert not consumer.poll(0.1)


def test_a_position_out_of_range_is_reset_by_the_policy(kafka: Cluster) -> None:
    topic = kafka.topic()
    kafka.produce(topic, values(10))
    with Consumer(kafka.config()) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 5000)
        assert read(consumer, 10)[0].offset == 0


def test_a_position_out_of_range_without_a_policy_is_an_error(kafka: Cluster) -> None:
    topic = kafka.topic()
    kafka.produce(topic, values(10))
    with Consumer(kafka.config(auto_offset_reset="none")) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 5000)
        with pytest.raises(OffsetOutOfRangeError) as caught:
            consumer.poll(60.0)
        assert caught.value.offsets == {TopicPartition(topic, 0): 5000}


def test_offsets_by_time_and_bounds(kafka: Cluster) -> None:
    from confluent_kafka import Producer

    topic = kafka.topic(2)
    producer = Producer({"bootstrap.servers": kafka.address})
    base = 1_700_000_000_000
    for i in range(10):
        producer.produce(topic, b"x", partition=0, timestamp=base + i * 1000)
    producer.flush(30)
    parts = [(topic, 0), (topic, 1)]
    with Consumer(kafka.config()) as consumer:
        assert consumer.beginning_offsets(parts) == {parts[0]: 0, parts[1]: 0}
        assert consumer.end_offsets(parts) == {parts[0]: 10, parts[1]: 0}
        found = consumer.offsets_for_times({parts[0]: base + 2500, parts[1]: base})
        first = found[TopicPartition(topic, 0)]
        assert first is not None
        assert (first.offset, first.timestamp) == (3, base + 3000)
        assert found[TopicPartition(topic, 1)] is None
        assert consumer.offsets_for_times({parts[0]: base + 10**9}) == {parts[0]: None}


def test_topics_and_partitions_can_be_asked_for(kafka: Cluster) -> None:
    topic = kafka.topic(3)
    with Consumer(kafka.config(allow_auto_create_topics=False)) as consumer:
        assert [view.index for view in consumer.partitions_for(topic)] == [0, 1, 2]
        assert len(consumer.list_topics()[topic]) == 3
        assert consumer.partitions_for("there-is-no-such-topic") == []


def test_columns_and_arrow_hold_the_same_records(kafka: Cluster) -> None:
    topic = kafka.topic(2)
    for partition in (0, 1):
        kafka.produce(topic, values(600), partition, **{"compression.type": "zstd"})
    with Consumer(kafka.config()) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        read_values: dict[int, list[Any]] = {0: [], 1: []}
        while sum(map(len, read_values.values())) < 1200:
            for piece in consumer.poll_columns(60.0):
                read_values[piece.partition].extend(piece.columns.values.to_list())
        assert read_values == {0: values(600), 1: values(600)}
        consumer.seek_to_beginning()
        rows: list[Any] = []
        while len(rows) < 1200:
            batch = consumer.poll_arrow(60.0, headers=True)
            rows.extend(batch.to_pylist())
        assert [row["value"] for row in rows if row["partition"] == 1] == values(600)
        assert {row["topic"] for row in rows} == {topic}
        assert [row["offset"] for row in rows if row["partition"] == 0] == list(range(600))


def test_arrow_lays_several_partitions_and_topics_end_to_end(kafka: Cluster) -> None:
    topics = [kafka.topic(2), kafka.topic(1)]
    wanted = {}
    with Producer(bootstrap_servers=kafka.address) as producer:
        for topic, partition in ((topics[0], 0), (topics[0], 1), (topics[1], 0)):
            for n in range(50):
                key, value = (b"k%d" % n if n % 3 else None), (b"%d" % n * n if n % 7 else None)
                producer.send(topic, value, key, partition=partition, headers=[("h", b"%d" % n)] if n % 5 == 0 else ())
                headers = [{"key": "h", "value": b"%d" % n}] if n % 5 == 0 else []
                wanted[topic, partition, n] = (key, value, headers)
    with Consumer(kafka.config()) as consumer:
        consumer.assign([(topic, partition) for topic, partition, offset in wanted if offset == 0])
        deadline = time.monotonic() + 60
        rows: list[Any] = []
        # Until all are fetched, so that one poll brings several partitions.
        while len(rows) < len(wanted):
            assert time.monotonic() < deadline
            rows += consumer.poll_arrow(1.0, headers=True).to_pylist()
    found = {(r["topic"], r["partition"], r["offset"]): (r["key"], r["value"], r["headers"]) for r in rows}
    assert found == wanted


@pytest.mark.parametrize("call", ["poll_columns", "poll_arrow"])
def test_columns_of_one_poll_are_bounded_by_what_they_unpack_to(kafka: Cluster, call: str) -> None:
    """A fetch of 2 MB whose values had 2 GiB was refused by Arrow, again at each poll."""
    topic = kafka.topic()
    value = bytes(100 << 20)
    with Producer(
        bootstrap_servers=kafka.address, compression_type="zstd", max_request_size=len(value) + 1000
    ) as producer:
        for _ in range(3):
            producer.send(topic, value).result()
    with Consumer(kafka.config()) as consumer:
        consumer.assign([(topic, 0)])
        counts = []
        while sum(counts) < 3:
            found = getattr(consumer, call)(60.0)
            counts.append(found.num_rows if call == "poll_arrow" else sum(map(len, found)))
        # All of it came with one fetch.
        assert counts == [2, 1]
        assert consumer.position((topic, 0)) == 3


def test_what_is_asked_for_between_two_polls_of_one_fetch_counts_at_once(kafka: Cluster) -> None:
    topic = kafka.topic()
    kafka.produce(topic, values(100))
    with Consumer(kafka.config(max_poll_records=5)) as consumer:
        part = TopicPartition(topic, 0)
        consumer.assign([part])
        assert [record.offset for record in read(consumer, 10)] == list(range(10))
        consumer.pause([part])
        assert not consumer.poll(0)
        consumer.resume([part])
        assert consumer.poll(60.0)[0].offset == 10
        consumer.seek(part, 50)
        assert [record.offset for record in read(consumer, 10)] == list(range(50, 60))
        consumer.wakeup()
        with pytest.raises(WakeupError):
            consumer.poll(0)
        consumer.unsubscribe()
        with pytest.raises(IllegalStateError):
            consumer.poll(0)


def test_iteration_moves_the_position_record_by_record(kafka: Cluster) -> None:
    topic = kafka.topic()
    kafka.produce(topic, values(100))
    with Consumer(kafka.config()) as consumer:
        consumer.assign([(topic, 0)])
        for record in consumer:
            assert consumer.position((topic, 0)) == record.offset + 1
            if record.offset == 9:
                break
        assert [record.offset for record in read(consumer, 90)] == list(range(10, 100))
        consumer.seek_to_beginning()
        seen = []
        for record in consumer:
            seen.append(record.offset)
            if len(seen) == 5:
                consumer.seek((topic, 0), 50)
            if len(seen) == 10:
                break
        assert seen == [0, 1, 2, 3, 4, 50, 51, 52, 53, 54]


def test_deserializers_make_the_values_and_an_error_says_where(kafka: Cluster) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b'{"a":1}', b"[2]", b"{broken", b"3"])
    with Consumer(kafka.config(value_deserializer="json")) as consumer:
        consumer.assign([(topic, 0)])
        assert [record.value for record in read(consumer, 2)] == [{"a": 1}, [2]]
        for _ in range(2):
            with pytest.raises(RecordDeserializationError) as caught:
                consumer.poll(60.0)
            assert (caught.value.offset, caught.value.part) == (2, "value")
        assert consumer.position((topic, 0)) == 2
        consumer.seek((topic, 0), 3)
        assert read(consumer, 1)[0].value == 3


def test_interceptors_see_records_and_commits(kafka: Cluster) -> None:
    class Upper:
        def __init__(self) -> None:
            self.commits: list[Any] = []

        def on_consume(self, records: Any) -> Any:
            return [record._replace(value=record.value.upper()) for record in records]

        def on_commit(self, offsets: Any) -> None:
            self.commits.append(offsets)

    topic = kafka.topic()
    kafka.produce(topic, [b"a"])
    interceptor = Upper()
    config = kafka.config(interceptor_classes=[interceptor], group_id=kafka.group(), enable_auto_commit=False)
    with Consumer(config) as consumer:
        consumer.assign([(topic, 0)])
        assert read(consumer, 1)[0].value == b"A"
        consumer.commit_sync()
    assert [{partition: one.offset for partition, one in found.items()} for found in interceptor.commits] == [
        {TopicPartition(topic, 0): 1}
    ]


def test_a_large_record_comes_through_a_small_fetch(kafka: Cluster) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"x" * 300_000, b"y"])
    with Consumer(kafka.config(fetch_max_bytes=100, max_partition_fetch_bytes=100)) as consumer:
        consumer.assign([(topic, 0)])
        assert [len(record.value) for record in read(consumer, 2)] == [300_000, 1]


def test_a_range_is_read_whole_and_no_more(kafka: Cluster) -> None:
    topic = kafka.topic(2)
    for partition in (0, 1):
        kafka.produce(topic, values(500), partition)
    with RangeReader({"bootstrap.servers": kafka.address}) as reader:
        found = list(reader.read_records({(topic, 0): (100, 300), (topic, 1): (499, None)}))
        assert [record.offset for record in found if record.partition == 0] == list(range(100, 300))
        assert [record.offset for record in found if record.partition == 1] == [499]
        assert list(reader.read({(topic, 0): (10, 10)})) == []
        rows = sum(batch.num_rows for batch in reader.read_arrow({(topic, 0): (0, 500)}))
        assert rows == 500
        with pytest.raises(RequestTimedOutError, match=r"read up to \d+ of 501"):
            list(reader.read({(topic, 0): (0, 501)}, timeout=0.7))
        with pytest.raises(OffsetOutOfRangeError):
            list(reader.read({(topic, 0): (900, 901)}, timeout=1.5))


def test_a_range_whose_beginning_was_deleted_is_an_error_or_a_warning(
    kafka: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka import TopicPartition as Named

    topic = kafka.topic()
    kafka.produce(topic, values(100))
    for future in kafka.admin.delete_records([Named(topic, 0, 40)]).values():
        future.result(30)
    with RangeReader({"bootstrap.servers": kafka.address}) as reader:
        with pytest.raises(OffsetOutOfRangeError):
            list(reader.read({(topic, 0): (10, 50)}, timeout=60))
        found = list(reader.read_records({(topic, 0): (10, 50)}, timeout=60, fail_on_data_loss=False))
        assert [record.offset for record in found] == list(range(40, 50))
        assert "offsets 10 to 39" in caplog.text


def test_a_wakeup_ends_a_poll_and_the_next_one_works(kafka: Cluster) -> None:
    import threading

    topic = kafka.topic()
    with Consumer(kafka.config()) as consumer:
        consumer.assign([(topic, 0)])
        consumer.poll(0.1)
        timer = threading.Timer(0.2, consumer.wakeup)
        timer.start()
        start = time.monotonic()
        with pytest.raises(WakeupError):
            consumer.poll(100.0)
        assert time.monotonic() - start < 60
        timer.join()
        kafka.produce(topic, [b"x"])
        assert len(read(consumer, 1)) == 1


def test_what_does_not_fit_is_refused_with_words(kafka: Cluster) -> None:
    topic = kafka.topic()
    with Consumer(kafka.config(group_id=kafka.group())) as consumer:
        with pytest.raises(IllegalStateError, match="subscribe"):
            consumer.poll(0)
        consumer.assign([(topic, 0)])
        with pytest.raises(IllegalStateError, match="unsubscribe"):
            consumer.subscribe([topic])
        with pytest.raises(IllegalStateError, match="not assigned"):
            consumer.seek((topic, 7), 0)
        with pytest.raises(ValueError, match="an offset is a whole number"):
            consumer.seek((topic, 0), -1)
        consumer.unsubscribe()
        with pytest.raises(TypeError, match="list"):
            consumer.subscribe("oops")
    with pytest.raises(ConfigError, match=r"auto\.offset\.reset"):
        Consumer(kafka.config(auto_offset_reset="by_duration:later"))
    with pytest.raises(ConfigError, match=r"group\.protocol=consumer: the broker decides"):
        Consumer(kafka.config(group_protocol="consumer"))
    with pytest.warns(UserWarning, match="did you mean group.id"):
        Consumer(kafka.config(), group__id="x")


def test_durations_are_read_as_in_iso_8601() -> None:
    assert parse_duration_ms("PT1H30M") == 5_400_000
    assert parse_duration_ms("P1DT0.5S") == 86_400_500
    assert [parse_duration_ms(text) for text in ("P", "PT", "1H", "PT-1H", "")] == [None] * 5
