"""The same job with Spark's own connector and with ours: the same rows, columns, tasks, batches and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import confluent_kafka
import pytest
from bench.peers import spark_jars, why_no_spark_jars
from tests.keeping import KEEP_RECORDS
from tests.spark.topics import fill, make_topic, numbers
from tests.waiting import eventually

from headrace.client.admin import Admin, ConfigResource, ResourceType
from headrace.client.producer.blocking import Producer
from headrace.testing import BrokerProcess
from headrace.topics import TopicPartition

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(spark_jars() is None, reason=why_no_spark_jars()),
]

EPOCH = 1_700_000_000_000
COMPACT = {"cleanup.policy": "compact", "segment.bytes": str(1024 * 1024), "min.cleanable.dirty.ratio": "0.01"}
COMMITTED = {"kafka.isolation.level": "read_committed"}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with every kind of topic, and a transaction that stays open."""
    with BrokerProcess(
        tmp_path_factory.mktemp("broker") / "data", {"log.cleaner.backoff.ms": "50", **KEEP_RECORDS}
    ) as running:
        servers = running.address
        _plain(servers)
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            topic = make_topic(servers, f"codec-{codec}", 2)
            with Producer({"bootstrap.servers": servers, "compression.type": codec}) as producer:
                for number in range(40):
                    producer.send(topic, b"%d " % number * 50, key=b"%d" % number, timestamp=EPOCH + number)
        make_topic(servers, "empty", 2)
        fill(servers, make_topic(servers, "stamped", 1, **{"message.timestamp.type": "LogAppendTime"}), numbers(5))
        _deleted(servers)
        _compacted(servers)
        _transactions(servers, "gaps", [True, False, True, True, False])
        still_open = _transactions(servers, "open", [True, False, None])
        yield running
        still_open.abort_transaction(30)


def _plain(servers: str) -> None:
    make_topic(servers, "plain")
    with Producer({"bootstrap.servers": servers}) as producer:
        for number in range(60):
            producer.send(
                "plain",
                None if number % 7 == 0 else b"" if number % 11 == 0 else b"v%d" % number,
                key=b"" if number % 9 == 0 else b"k%d" % number if number % 5 else None,
                partition=0 if number < 30 else number % 3,
                timestamp=EPOCH + 1000 * number,
                headers=[("n", b"%d" % number), ("n", None), ("ü", b"")] if number % 2 else None,
            )


def _deleted(servers: str) -> None:
    fill(servers, make_topic(servers, "deleted", 1), numbers(20))
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.delete_records({TopicPartition("deleted", 0): 15}).all()


def _compacted(servers: str) -> None:
    """Three rounds of the same keys over several segments; wait until the first round is gone."""
    topic = make_topic(servers, "compacted", 1, **COMPACT)
    filler = b"x" * 8000
    for number in range(3):
        with Producer({"bootstrap.servers": servers}) as producer:
            for key in range(200):
                producer.send(topic, filler + b"%d" % number, key=b"k%d" % key, timestamp=EPOCH + number)

    def is_compacted() -> bool:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "look"})
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
            first = consumer.poll(10)
        finally:
            consumer.close()
        return first is not None and first.error() is None and first.offset() > 0

    eventually(is_compacted, "a compaction")
    # Both connectors are to read the same log: no more compaction from here on.
    with Admin({"bootstrap.servers": servers}) as admin:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        admin.incremental_alter_configs({resource: {"cleanup.policy": "delete"}}).all()


def _transactions(servers: str, topic: str, ends: list[bool | None]) -> Any:
    """Transactions of three records each; True commits, False aborts, None leaves one open (it is given back)."""
    make_topic(servers, topic, 2)
    config = {"bootstrap.servers": servers, "transactional.id": topic, "transaction.timeout.ms": 900_000}
    producer = confluent_kafka.Producer(config)
    producer.init_transactions(30)
    for number, commit in enumerate(ends):
        producer.begin_transaction()
        for part in range(3):
            stamp = EPOCH + 1000 * number
            producer.produce(topic, b"%d-%d" % (number, part), partition=part % 2, timestamp=stamp)
        producer.flush()
        if commit is not None:
            producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    return producer


# --- comparing --------------------------------------------------------------------------------------------------------


def with_options(maker: Any, servers: str, options: dict[str, str]) -> Any:
    if not {"subscribe", "assign", "subscribePattern"} & options.keys():
        options = {"subscribe": "plain", **options}
    return maker.options(**{"kafka.bootstrap.servers": servers, **options}).load()


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    found = [
        tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)
        for row in frame.withColumn("timestamp", frame.timestamp.cast("double")).collect()
    ]
    return sorted(found, key=lambda row: row[2:5])


def by_partition(topic: str, *values: int) -> str:
    return json.dumps({topic: {str(number): value for number, value in enumerate(values)}})


BATCHES: dict[str, dict[str, str]] = {
    "everything": {},
    "assign": {"assign": '{"plain":[0,2]}'},
    "pattern, every codec": {"subscribePattern": "codec-.*"},
    "two topics": {"subscribe": "plain, gaps"},
    "earliest to latest": {"startingOffsets": "earliest", "endingOffsets": "latest"},
    "starting offsets": {"startingOffsets": by_partition("plain", 8, -2, 10)},
    "ending offsets": {"endingOffsets": by_partition("plain", 12, 0, -1)},
    "both offsets": {
        "startingOffsets": by_partition("plain", 3, -2, 2),
        "endingOffsets": by_partition("plain", 9, 4, -1),
    },
    "starting time": {"startingTimestamp": str(EPOCH + 40_500)},
    "ending time": {"endingTimestamp": str(EPOCH + 40_500)},
    "both times": {"startingTimestamp": str(EPOCH + 35_000), "endingTimestamp": str(EPOCH + 50_000)},
    "ending time after the end": {"endingTimestamp": str(EPOCH + 10**9)},
    "starting times of partitions": {
        "startingOffsetsByTimestamp": by_partition("plain", EPOCH, EPOCH + 55_000, EPOCH + 40_000)
    },
    "ending times of partitions": {
        "endingOffsetsByTimestamp": by_partition("plain", EPOCH + 9000, EPOCH + 55_000, EPOCH + 10**9)
    },
    "no record that late": {
        "startingTimestamp": str(EPOCH + 58_500),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "a time goes before offsets": {"startingTimestamp": str(EPOCH + 50_000), "startingOffsets": "earliest"},
    "headers": {"includeHeaders": "true"},
    "more tasks": {"minPartitions": "7"},
    "many more tasks": {"minPartitions": "50"},
    "smaller tasks": {"maxRecordsPerPartition": "7"},
    "more and smaller tasks": {"maxRecordsPerPartition": "15", "minPartitions": "11"},
    "transactions": {"subscribe": "gaps"},
    "transactions, committed": {"subscribe": "gaps", **COMMITTED},
    "transactions, committed, in pieces": {"subscribe": "gaps", "minPartitions": "12", **COMMITTED},
    "open transaction": {"subscribe": "open"},
    "open transaction, committed": {"subscribe": "open", **COMMITTED},
    "open transaction, committed, by time": {
        "subscribe": "open",
        "startingTimestamp": str(EPOCH + 1500),
        "startingOffsetsByTimestampStrategy": "latest",
        **COMMITTED,
    },
    "deleted, from the start": {"subscribe": "deleted"},
    "deleted, may be lost": {
        "subscribe": "deleted",
        "startingOffsets": by_partition("deleted", 5),
        "failOnDataLoss": "false",
    },
    "stamped by the broker": {"subscribe": "stamped"},
    "compacted": {"subscribe": "compacted"},
    "compacted, in pieces": {"subscribe": "compacted", "maxRecordsPerPartition": "90"},
    "compacted, from a gap to a gap": {
        "subscribe": "compacted",
        "startingOffsets": by_partition("compacted", 7),
        "endingOffsets": by_partition("compacted", 23),
    },
    "empty": {"subscribe": "empty"},
    "limits of streams": {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "2", "maxTriggerDelay": "1s"},
    "settings of groups": {
        "kafka.group.id": "g",
        "groupIdPrefix": "p",
        "kafka.partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor",
        "kafka.session.timeout.ms": "10000",
        "fetchOffset.numRetries": "2",
    },
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_gives_the_rows_that_sparks_own_gives(spark: Any, kafka: BrokerProcess, name: str) -> None:
    theirs, ours = (
        with_options(spark.read.format(source), kafka.address, BATCHES[name]) for source in ("kafka", "headrace")
    )
    assert ours.schema == theirs.schema
    expected = rows_of(theirs)
    assert rows_of(ours) == expected
    if "minPartitions" in BATCHES[name] and "maxRecordsPerPartition" not in BATCHES[name]:
        # Otherwise Spark's own does not know the sizes of a batch's ranges: it has tasks for empty ones, and may leave
        # one whole that maxRecordsPerPartition would cut.
        assert ours.rdd.getNumPartitions() == theirs.rdd.getNumPartitions()


STREAMS: dict[str, dict[str, str]] = {
    "earliest": {"startingOffsets": "earliest"},
    "what comes": {},
    "assign": {"assign": '{"plain":[1]}', "startingOffsets": "earliest"},
    "pattern, every codec": {"subscribePattern": "codec-.*", "startingOffsets": "earliest"},
    "offsets": {"startingOffsets": by_partition("plain", 8, -2, -1)},
    "time": {"startingTimestamp": str(EPOCH + 40_500)},
    "times of partitions": {
        "startingOffsetsByTimestamp": by_partition("plain", EPOCH, EPOCH + 55_000, EPOCH + 10**9),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "at most": {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "17"},
    "at most, in pieces": {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "25", "minPartitions": "6"},
    "at least": {"startingOffsets": "earliest", "minOffsetsPerTrigger": "1000", "maxTriggerDelay": "1h"},
    "headers": {"startingOffsets": "earliest", "includeHeaders": "true", "maxRecordsPerPartition": "20"},
    "transactions, committed": {"subscribe": "gaps", "startingOffsets": "earliest", **COMMITTED},
    "open transaction, committed": {
        "subscribe": "open",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "3",
        **COMMITTED,
    },
    "deleted, may be lost": {
        "subscribe": "deleted",
        "startingOffsets": by_partition("deleted", 5),
        "failOnDataLoss": "false",
    },
    "compacted": {"subscribe": "compacted", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "130"},
}


def run_stream(spark: Any, frame: Any, checkpoint: str) -> tuple[list[tuple[Any, ...]], list[int]]:
    name = f"seen_{uuid4().hex}"
    writer = frame.writeStream.format("memory").queryName(name).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(300)
    batches = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    return rows_of(spark.table(name)), batches


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_gives_the_rows_that_sparks_own_gives(
    spark: Any, kafka: BrokerProcess, name: str, checkpoint: str
) -> None:
    theirs, ours = (
        with_options(spark.readStream.format(source), kafka.address, STREAMS[name]) for source in ("kafka", "headrace")
    )
    assert ours.schema == theirs.schema
    expected = run_stream(spark, theirs, f"{checkpoint}-theirs")
    assert run_stream(spark, ours, f"{checkpoint}-ours") == expected


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "latest": ({"startingOffsets": "latest"}, "latest"),
    "latest of one": ({"startingOffsets": by_partition("plain", 1, 1, -1)}, "latest"),
    "to earliest": ({"endingOffsets": "earliest"}, "earliest"),
    "a partition left out": ({"startingOffsets": by_partition("plain", 1)}, "leaves out plain-1, plain-2"),
    "a partition too much": ({"startingOffsets": by_partition("plain", 1, 1, 1, 1)}, "plain-3"),
    "no record that late": ({"startingTimestamp": str(EPOCH + 10**9)}, "startingOffsetsByTimestampStrategy"),
    "an end before the start": (
        {"startingOffsets": by_partition("plain", 5, 0, 0), "endingOffsets": by_partition("plain", 4, 1, 1)},
        "starts at offset 5, after its end 4",
    ),
    "a time before the start": (
        {"startingTimestamp": str(EPOCH + 50_000), "endingTimestamp": str(EPOCH + 35_000)},
        "after its end",
    ),
    "deleted": ({"subscribe": "deleted", "startingOffsets": by_partition("deleted", 5)}, "were deleted"),
    "no such topic": ({"subscribe": "nowhere"}, "nowhere"),
    "two ways": ({"subscribe": "plain", "assign": '{"plain":[0]}'}, "one of"),
    "reset": ({"kafka.auto.offset.reset": "latest"}, "startingOffsets"),
    "auto commit": ({"kafka.enable.auto.commit": "true"}, "checkpoint"),
    "deserializer": ({"kafka.value.deserializer": "x"}, "always binary"),
    "interceptors": ({"kafka.interceptor.classes": "x"}, "interceptors"),
    "no tasks": ({"minPartitions": "0"}, "at least 1"),
    "no records": ({"maxRecordsPerPartition": "0"}, "at least 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_sparks_own_refuses_is_refused_with_the_reason(spark: Any, kafka: BrokerProcess, name: str) -> None:
    options, why = REFUSED[name]
    with pytest.raises(Exception):  # noqa: B017  # whatever Spark's own raises
        with_options(spark.read.format("kafka"), kafka.address, options).collect()
    with pytest.raises(Exception, match=why):  # whatever Spark wraps it in
        with_options(spark.read.format("headrace"), kafka.address, options).collect()


@pytest.mark.parametrize("sink", ["kafka", "headrace"])
def test_a_batch_written_is_the_same_to_both(spark: Any, kafka: BrokerProcess, sink: str) -> None:
    topic = make_topic(kafka.address, f"written-{sink}")
    frame = with_options(spark.read.format("kafka"), kafka.address, {"includeHeaders": "true"})
    frame.select("key", "value", "headers", "partition").write.format(sink).mode("append").options(
        **{"kafka.bootstrap.servers": kafka.address, "topic": topic}
    ).save()
    columns = ("key", "value", "partition", "headers")
    read = [
        with_options(spark.read.format(source), kafka.address, {"subscribe": topic, "includeHeaders": "true"})
        for source in ("kafka", "headrace")
    ]
    wanted = sorted(map(str, frame.select(*columns).collect()))
    for again in read:
        assert sorted(map(str, again.select(*columns).collect())) == wanted
