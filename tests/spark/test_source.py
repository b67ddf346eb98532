"""The source and the at-least-once sink in a real Spark, against a real broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.spark.auditing import read_topic
from tests.spark.topics import fill, make_topic, numbers, reader, stream, values_of
from tests.waiting import eventually

from headrace.client.admin import Admin, NewPartitions
from headrace.client.producer.blocking import Producer
from headrace.errors import HeadraceError
from headrace.testing import BrokerProcess
from headrace.topics import TopicPartition

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def served(kafka: BrokerProcess) -> str:
    """A topic with ten records in each of three partitions, a second apart, every other one with a header."""
    make_topic(kafka.address, "served")
    with Producer({"bootstrap.servers": kafka.address}) as producer:
        for number in range(30):
            producer.send(
                "served",
                b"%02d" % number,
                key=b"k%d" % (number % 4) if number % 5 else None,
                partition=number % 3,
                timestamp=1_700_000_000_000 + 1000 * (number // 3),
                headers=[("n", b"%d" % number), ("n", None)] if number % 2 else None,
            )
    return "served"


def offsets(**by_partition: int) -> str:
    return json.dumps({"served": {name.removeprefix("p"): offset for name, offset in by_partition.items()}})


ALL = {(number % 3, number // 3) for number in range(30)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ALL),
        ({"startingOffsets": offsets(p0=8, p1=-2, p2=10)}, {p for p in ALL if p[0] == 1 or (p[0] == 0 and p[1] >= 8)}),
        ({"endingOffsets": offsets(p0=2, p1=0, p2=-1)}, {p for p in ALL if p[0] == 2 or (p[0] == 0 and p[1] < 2)}),
        ({"startingTimestamp": "1700000007000"}, {p for p in ALL if p[1] >= 7}),
        ({"startingTimestamp": "1700000006500"}, {p for p in ALL if p[1] >= 7}),
        ({"endingTimestamp": "1700000003000"}, {p for p in ALL if p[1] < 3}),
        (
            {"startingOffsetsByTimestamp": '{"served":{"0":1700000009000,"1":1700000008000,"2":0}}'},
            {p for p in ALL if p[0] == 2 or (p[0] == 0 and p[1] >= 9) or (p[0] == 1 and p[1] >= 8)},
        ),
        ({"startingTimestamp": "1800000000000", "startingOffsetsByTimestampStrategy": "latest"}, set()),
        ({"minPartitions": "7"}, ALL),
        ({"maxRecordsPerPartition": "3", "kafka__isolation__level": "read_committed"}, ALL),
        ({"kafka__max__partition__fetch__bytes": "100"}, ALL),
    ],
)
def test_a_batch_reads_exactly_what_its_options_say(
    spark: Any, kafka: BrokerProcess, served: str, options: dict[str, str], expected: set[tuple[int, int]]
) -> None:
    rows = reader(spark, kafka.address, served, **options).select("partition", "offset").collect()
    assert len(rows) == len(expected)
    assert {(row.partition, row.offset) for row in rows} == expected


def test_rows_have_sparks_columns_and_values(spark: Any, kafka: BrokerProcess, served: str) -> None:
    frame = reader(spark, kafka.address, served, includeHeaders="true")
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema.fields] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    rows = {bytes(row.value): row for row in frame.withColumn("ms", frame.timestamp.cast("double")).collect()}
    row = rows[b"07"]
    assert (bytes(row.key), row.topic, row.partition, row.offset) == (b"k3", "served", 1, 2)
    assert (row.ms, row.timestampType) == (1_700_000_002.0, 0)
    assert [(header.key, header.value) for header in row.headers] == [("n", b"7"), ("n", None)]
    assert rows[b"06"].headers is None
    assert rows[b"05"].key is None


def test_what_cannot_be_read_says_why(spark: Any, kafka: BrokerProcess, served: str) -> None:
    for options, why in (
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"startingTimestamp": "1800000000000"}, "startingOffsetsByTimestampStrategy"),
        ({"startingOffsets": offsets(p0=1)}, "leaves out served-1, served-2"),
        ({"endingOffsets": offsets(p0=99, p1=0, p2=0)}, "ends at offset 10"),
    ):
        with pytest.raises(Exception, match=why):  # whatever Spark wraps it in
            reader(spark, kafka.address, served, **options).count()
    with pytest.raises(Exception, match="nowhere"):
        reader(spark, kafka.address, "nowhere").count()


def test_deleted_records_stop_a_read_unless_it_may_go_on(spark: Any, kafka: BrokerProcess) -> None:
    topic = make_topic(kafka.address, "deleted", 1)
    fill(kafka.address, topic, numbers(20))
    with Admin({"bootstrap.servers": kafka.address}) as admin:
        admin.delete_records({TopicPartition(topic, 0): 15}).all()
    start = '{"deleted":{"0":5}}'
    with pytest.raises(Exception, match="offsets 5 to 14 of deleted-0 were deleted"):
        reader(spark, kafka.address, topic, startingOffsets=start).count()
    left = reader(spark, kafka.address, topic, startingOffsets=start, failOnDataLoss="false")
    assert values_of(left) == numbers(5, 15)


def test_aborted_records_and_markers_are_gaps(spark: Any, kafka: BrokerProcess) -> None:
    import confluent_kafka

    topic = make_topic(kafka.address, "gaps", 1)
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.address, "transactional.id": "gaps"})
    producer.init_transactions(30)
    for number, commit in enumerate((True, False, True, False)):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        producer.flush()
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    committed = reader(spark, kafka.address, topic, kafka__isolation__level="read_committed", minPartitions="8")
    assert values_of(committed) == [b"0", b"2"]
    assert values_of(reader(spark, kafka.address, topic)) == [b"0", b"1", b"2", b"3"]


def test_a_batch_written_is_read_back(spark: Any, kafka: BrokerProcess, served: str) -> None:
    topic = make_topic(kafka.address, "copied")
    frame = reader(spark, kafka.address, served, includeHeaders="true")
    writer = frame.write.format("headrace").mode("append").option("kafka.bootstrap.servers", kafka.address)
    writer.option("topic", topic).option("includeTimestamp", "true").save()
    columns = ("key", "value", "partition", "timestamp", "headers")
    again = reader(spark, kafka.address, topic, includeHeaders="true")
    assert sorted(map(str, again.select(*columns).collect())) == sorted(map(str, frame.select(*columns).collect()))
    with pytest.raises(Exception, match="the column value is int"):
        spark.range(1).selectExpr("cast(1 as int) as value").write.format("headrace").mode("append").option(
            "kafka.bootstrap.servers", kafka.address
        ).option("topic", topic).save()


def available_now(rows: Any, servers: str, topic: str, checkpoint: str) -> list[Any]:
    query = (
        rows.writeStream.format("headrace")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(300)
    return [progress["numInputRows"] for progress in query.recentProgress]


def test_available_now_takes_what_is_there_and_goes_on_with_what_came(
    spark: Any, kafka: BrokerProcess, checkpoint: str
) -> None:
    source, sink = make_topic(kafka.address, "flow", 2), make_topic(kafka.address, "flown", 2)
    fill(kafka.address, source, numbers(100))
    limited = {"maxOffsetsPerTrigger": "40", "kafka.group.id": "flow-group"}
    rows = stream(spark, kafka.address, source, **limited).select("key", "value")
    counts = available_now(rows, kafka.address, sink, checkpoint)
    assert sum(counts) == 100
    assert max(counts) <= 41
    # More records, in a partition that is new too; and a second run from the same checkpoint.
    with Admin({"bootstrap.servers": kafka.address}) as admin:
        admin.create_partitions({source: NewPartitions(3)}).all()
    fill(kafka.address, source, numbers(30, 100), partition=2)
    fill(kafka.address, source, numbers(5, 130), partition=0)
    assert sum(available_now(rows, kafka.address, sink, checkpoint)) == 35
    assert sorted(value for _, _, value in read_topic(kafka.address, sink) if value) == numbers(135)
    # The group that the user named shows that nothing is left.
    partitions = [TopicPartition(source, number) for number in range(3)]
    with Admin({"bootstrap.servers": kafka.address}) as admin:
        committed = admin.list_partition_offsets("flow-group", partitions)
    assert sum(one.offset for one in committed.values()) == 135


def test_a_stream_notices_topics_that_match_later(spark: Any, kafka: BrokerProcess, checkpoint: str) -> None:
    sink = make_topic(kafka.address, "gathered", 1)
    fill(kafka.address, make_topic(kafka.address, "match-a", 1), numbers(10))
    rows = stream(spark, kafka.address, "", subscribePattern="match-.*").select("value")
    assert sum(available_now(rows, kafka.address, sink, checkpoint)) == 10
    fill(kafka.address, make_topic(kafka.address, "match-b", 1), numbers(10, 10))
    assert sum(available_now(rows, kafka.address, sink, checkpoint)) == 10
    assert sorted(value for _, _, value in read_topic(kafka.address, sink) if value) == numbers(20)


def test_a_listener_shows_the_lag_of_a_named_query(spark: Any, kafka: BrokerProcess, checkpoint: str) -> None:
    from headrace.spark import track_lag

    topic = make_topic(kafka.address, "lagging", 1)
    fill(kafka.address, topic, numbers(50))
    listener = track_lag(spark, kafka.address)
    try:
        query = (
            stream(spark, kafka.address, topic)
            .writeStream.format("noop")
            .queryName("shown")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(300)
        wait_for_group(kafka.address, "headrace-spark-shown", TopicPartition(topic, 0), 50)
    finally:
        spark.streams.removeListener(listener)
        listener.close()


def wait_for_group(servers: str, group: str, partition: TopicPartition, offset: int) -> None:
    """Listeners are told a moment after the query is done."""
    with Admin({"bootstrap.servers": servers}) as admin:

        def is_there() -> bool:
            try:
                found = admin.list_partition_offsets(group, [partition]).get(partition)
            except HeadraceError:
                return False
            return found is not None and found.offset == offset

        eventually(is_there, f"offset {offset} of group {group}")
