"""Typed columns from topics with schemas: versions that change under a query, broken records, and writing back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.auditing import read_topic

import headrace
import headrace.testing
from headrace import Admin, NewTopic
from headrace.schemas.avro import AvroDeserializer, AvroSerializer
from headrace.schemas.registry_client import RegistryClient
from headrace.testing import BrokerProcess, EmbeddedRegistry

pytestmark = pytest.mark.slow

OLD = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        {"name": "tags", "type": {"type": "map", "values": "int"}, "default": {}},
    ],
}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}


@pytest.fixture(scope="module")
def schemas() -> Iterator[EmbeddedRegistry]:
    with headrace.testing.registry() as running:
        yield running


def write(kafka: BrokerProcess, schemas: EmbeddedRegistry, topic: str, schema: Any, ids: range, **more: Any) -> None:
    serializer = AvroSerializer(schema)
    with headrace.Producer(
        bootstrap_servers=kafka.address, schema_registry_url=schemas.url, value_serializer=serializer
    ) as producer:
        for number in ids:
            value = {"id": number, "at": 1_700_000_000_000 + number, "tags": {"n": number}, **more}
            producer.send(topic, value, key=str(number).encode())


def damage(kafka: BrokerProcess, topic: str, value: bytes) -> None:
    with headrace.Producer(bootstrap_servers=kafka.address) as producer:
        producer.send(topic, value, key=b"broken").result()


def test_an_evolving_topic_is_read_as_the_schema_that_the_query_began_with(
    kafka: BrokerProcess, schemas: EmbeddedRegistry, spark: Any, tmp_path: Path
) -> None:
    from headrace.spark import dead_letters, exactly_once, to_registry

    with Admin(bootstrap_servers=kafka.address) as admin:
        topics = [NewTopic("orders", 2), NewTopic("clean", 2), NewTopic("dead", 1)]
        admin.create_topics(topics).all()
    checkpoint = str(tmp_path / "checkpoint")

    def run() -> list[str]:
        rows = (
            spark.readStream.format("headrace")
            .option("kafka.bootstrap.servers", kafka.address)
            .option("subscribe", "orders")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "40")
            .option("value.schema.registry", schemas.url)
            .option("value.schema.location", checkpoint)
            .load()
        )
        sink = exactly_once(["clean", "dead"], kafka.address)

        def split(batch: Any, number: int) -> None:
            good = batch.where("value_error is null").select("key", "value.*")
            value = to_registry(good, schemas.url, "clean-value", [name for name in good.columns if name != "key"])
            clean = good.selectExpr("'clean' as topic", "key", "*").withColumn("value", value)
            letters = dead_letters(batch, "dead").select("topic", "key", "value")
            sink(clean.select("topic", "key", "value").unionAll(letters), number)

        query = rows.writeStream.foreachBatch(split).option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).start().awaitTermination()
        return list(rows.schema["value"].dataType.names)

    write(kafka, schemas, "orders", OLD, range(50))
    damage(kafka, "orders", b"no schema at all")
    assert run() == ["id", "at", "tags"]
    # The topic goes on with another version; the query, started again, has the schema it began with.
    write(kafka, schemas, "orders", NEW, range(50, 100), note="new")
    damage(kafka, "orders", b"\x00\x00\x00\xff\xff")
    assert run() == ["id", "at", "tags"]

    reader = AvroDeserializer(registry=schemas.url)
    values = [reader.deserialize("clean", value) for _, _, value in read_topic(kafka.address, "clean")]
    assert sorted(value["id"] for value in values) == list(range(100))
    assert all(value["tags"] == {"n": value["id"]} for value in values)
    assert [value for _, _, value in read_topic(kafka.address, "dead")] == [
        b"no schema at all",
        b"\x00\x00\x00\xff\xff",
    ]
    client = RegistryClient(schemas.url)
    assert client.versions("clean-value") == [1]
    client.close()


def test_functions_read_and_write_columns_of_any_source(
    kafka: BrokerProcess, schemas: EmbeddedRegistry, spark: Any, tmp_path: Path
) -> None:
    from headrace.spark import from_registry, to_registry

    write(kafka, schemas, "plain", NEW, range(20), note=None)
    damage(kafka, "plain", b"x")
    rows = spark.read.format("headrace").option("kafka.bootstrap.servers", kafka.address).option("subscribe", "plain")
    decoded = rows.load().select(from_registry("value", schemas.url, subject="plain-value").alias("r"))
    found = decoded.select("r.value.id", "r.value.note", "r.error", "r.raw").collect()
    assert sorted(row.id for row in found if row.error is None) == list(range(20))
    ((error, raw),) = [(row.error, row.raw) for row in found if row.error is not None]
    assert "was not written with a schema registry" in error
    assert raw == b"x"
    good = decoded.where("r.error is null").select("r.value.*")
    written = good.select(to_registry(good, schemas.url, "written-value").alias("value")).collect()
    reader = AvroDeserializer(registry=schemas.url)
    values = [reader.deserialize("written", row.value) for row in written]
    assert sorted(value["id"] for value in values) == list(range(20))
    assert values[0]["tags"] == {"n": values[0]["id"]}


def test_a_landed_table_has_the_columns_of_the_topics_schema(
    kafka: BrokerProcess, schemas: EmbeddedRegistry, spark: Any, tmp_path: Path
) -> None:
    import pyarrow.dataset as ds

    from headrace.spark.pipelines.declaring import parsed
    from headrace.spark.pipelines.land import OPTIONS, run

    table = str(tmp_path / "table")
    given = {"path": table, "topics": "landed", "servers": kafka.address, "registry": schemas.url}
    own = {"checkpoint": str(tmp_path / "checkpoint"), "compact_every": 0}
    options = parsed(OPTIONS, {**given, **own})
    write(kafka, schemas, "landed", OLD, range(30))
    run(options, spark)
    write(kafka, schemas, "landed", NEW, range(30, 60), note="new")
    damage(kafka, "landed", b"junk")
    run(options, spark)

    def rows() -> list[Any]:
        return [row["value"] for row in spark.read.option("mergeSchema", "true").parquet(table).collect()]

    def check() -> None:
        found = [row for row in rows() if row is not None]
        assert sorted(row.id for row in found) == list(range(60))
        assert {row.id: row.note for row in found if row.note is not None} == dict.fromkeys(range(30, 60), "new")
        assert len(rows()) == 61

    check()
    run(parsed(OPTIONS, {**given, **own, "compact": True, "small_files": 2}), spark)
    check()
    assert len(list(Path(table).glob("date=*/*.parquet"))) == len(
        {one.parent for one in Path(table).glob("date=*/*.parquet")}
    )
    assert ds.dataset(table, partitioning="hive", format="parquet").to_table(columns=["value_raw"]).num_rows == 61


def test_what_cannot_be_typed_is_refused_when_the_frame_is_made(
    kafka: BrokerProcess, schemas: EmbeddedRegistry, spark: Any
) -> None:
    from headrace.spark import to_registry

    source = spark.read.format("headrace").option("kafka.bootstrap.servers", kafka.address)
    with pytest.raises(Exception, match="Subject 'nothing-value' not found"):
        source.option("subscribe", "nothing").option("value.schema.registry", schemas.url).load().collect()
    source = spark.read.format("headrace").option("kafka.bootstrap.servers", kafka.address)
    with pytest.raises(Exception, match="is needed where several topics are read"):
        source.option("subscribe", "a,b").option("value.schema.registry", schemas.url).load().collect()
    client = RegistryClient(schemas.url)
    from headrace.schemas.schema import Schema

    client.register("narrow-value", Schema(json.dumps(OLD)))
    client.close()
    frame = spark.createDataFrame([(1,)], "other INT")
    with pytest.raises(Exception, match="incompatible with an earlier schema"):
        to_registry(frame, schemas.url, "narrow-value")
