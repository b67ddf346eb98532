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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

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


def landed(spark: Any, format: str, path: str) -> list[dict[str, Any]]:
    """The rows of a table, as readers of its format see them."""
    if format == "delta":
        deltalake = pytest.importorskip("deltalake", reason="pip install 'headrace[lake]'")
        return list(deltalake.DeltaTable(path).to_pyarrow_table().to_pylist())
    if format == "iceberg":
        catalogs = pytest.importorskip("pyiceberg.catalog", reason="pip install 'headrace[lake]'")
        catalog = catalogs.load_catalog("headrace", type="sql", uri=f"sqlite:///{path}/catalog.db", warehouse=path)
        return list(catalog.load_table("headrace.landed").scan().to_arrow().to_pylist())
    rows = spark.read.option("mergeSchema", "true").parquet(path).collect()
    return [row.asDict(recursive=True) for row in rows]


@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_a_landed_table_has_the_columns_of_the_topics_schema(
    kafka: BrokerProcess, schemas: EmbeddedRegistry, spark: Any, tmp_path: Path, format: str
) -> None:
    from headrace.spark.pipelines.declaring import parsed
    from headrace.spark.pipelines.land import OPTIONS, run

    table, topic = str(tmp_path / "table"), f"landed-{format}"
    given = {"path": table, "topics": topic, "servers": kafka.address, "registry": schemas.url, "format": format}
    own = {"checkpoint": str(tmp_path / "checkpoint"), "compact_every": 0}
    options = parsed(OPTIONS, {**given, **own})
    write(kafka, schemas, topic, OLD, range(30))
    run(options, spark)
    write(kafka, schemas, topic, NEW, range(30, 60), note="new")
    damage(kafka, topic, b"junk")
    run(options, spark)

    def check() -> None:
        rows = landed(spark, format, table)
        found = [row["value"] for row in rows if row["value"] is not None]
        assert sorted(value["id"] for value in found) == list(range(60))
        notes = {value["id"]: value["note"] for value in found if value["note"] is not None}
        assert notes == dict.fromkeys(range(30, 60), "new")
        assert [row["value_raw"] for row in rows if row["value"] is None] == [b"junk"]
        assert len(rows) == 61

    check()
    done = run(parsed(OPTIONS, {**given, **own, "compact": True, "small_files": 2}), spark).document
    assert done["files_joined"] > done["files_made"] > 0
    check()


def test_a_column_of_another_type_is_widened_or_refused_with_its_name(
    kafka: BrokerProcess, schemas: EmbeddedRegistry, spark: Any, tmp_path: Path
) -> None:
    from headrace.spark.pipelines.declaring import PipelineError, parsed
    from headrace.spark.pipelines.land import OPTIONS, run

    long_tags = {"type": "map", "values": "long"}
    fields = [{**one, "type": long_tags} if one["name"] == "tags" else one for one in OLD["fields"]]
    write(kafka, schemas, "widened", OLD, range(10))
    tables = {
        format: parsed(
            OPTIONS,
            {
                "path": str(tmp_path / format),
                "topics": "widened",
                "servers": kafka.address,
                "registry": schemas.url,
                "format": format,
                "checkpoint": str(tmp_path / f"{format}.checkpoint"),
            },
        )
        for format in ("delta", "iceberg")
    }
    for options in tables.values():
        run(options, spark)
    write(kafka, schemas, "widened", {**OLD, "fields": fields}, range(10, 20))
    with pytest.raises(PipelineError, match=r"column value\.tags\{\} is integer, and the topic's schema says long now"):
        run(tables["delta"], spark)
    run(tables["iceberg"], spark)
    rows = landed(spark, "iceberg", str(tmp_path / "iceberg"))
    assert sorted(row["value"]["id"] for row in rows) == list(range(20))


CLICK = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "event", "type": "string"},
        {"name": "took", "type": ["null", "string"], "default": None},
    ],
}


def test_activity_cleans_records_with_a_schema_and_gives_the_clean_ones_one(
    kafka: BrokerProcess, schemas: EmbeddedRegistry, spark: Any, tmp_path: Path
) -> None:
    from headrace.spark.pipelines.activity import activity
    from headrace.spark.pipelines.declaring import WrongOptionError

    at_ms = 1_760_000_000_000
    with headrace.Producer(
        bootstrap_servers=kafka.address, schema_registry_url=schemas.url, value_serializer=AvroSerializer(CLICK)
    ) as producer:
        for number in range(30):
            took = "soon" if number == 7 else str(number)
            producer.send("shaped", {"id": str(number), "at": at_ms, "event": "click", "took": took})
    damage(kafka, "shaped", b"junk")
    given = {"servers": kafka.address, "source": "shaped", "registry": schemas.url}
    whole = activity(session=spark, **given, target="as-is", checkpoint=str(tmp_path / "whole")).document
    assert (whole["clean"]["rows"], whole["dead_letters"]["rows"]) == (30, 1)
    cast = activity(
        session=spark,
        **given,
        schema="id BIGINT NOT NULL, at TIMESTAMP NOT NULL, event STRING, took BIGINT",
        target="cast",
        dead_letters="cast-dead",
        counts="none",
        checkpoint=str(tmp_path / "cast"),
    ).document
    assert (cast["clean"]["rows"], cast["dead_letters"]["rows"]) == (29, 2)

    reader = AvroDeserializer(registry=schemas.url)
    as_is = [reader.deserialize("as-is", value) for _, _, value in read_topic(kafka.address, "as-is")]
    assert sorted(int(one["id"]) for one in as_is) == list(range(30))
    typed = [reader.deserialize("cast", value) for _, _, value in read_topic(kafka.address, "cast")]
    assert sorted(one["id"] for one in typed) == sorted(one["took"] for one in typed)
    assert {one["at"].timestamp() for one in typed} == {at_ms / 1000}
    # Dead letters are as they came, and say why.
    letters = [value for _, _, value in read_topic(kafka.address, "cast-dead")]
    assert letters[-1] == b"junk"
    assert reader.deserialize("shaped", letters[0])["took"] == "soon"
    with headrace.Consumer(
        bootstrap_servers=kafka.address, group_id="letters", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe(["cast-dead"])
        found: list[Any] = []
        while len(found) < 2:
            found += consumer.poll(5)
    reasons = [str(dict(one.headers)) for one in found]
    assert "took is not a bigint: soon" in reasons[0]
    assert "was not written with a schema registry" in reasons[1]
    counts = [json.loads(value) for _, _, value in read_topic(kafka.address, "shaped-counts")]
    assert counts[-1]["count"] == 30
    with pytest.raises(WrongOptionError, match="names even, which the schema of shaped has not; did you mean event"):
        activity(
            session=spark, **given, schema="at TIMESTAMP, event STRING, even STRING", checkpoint=str(tmp_path / "x")
        )


@pytest.mark.parametrize("kind", ["json-schema", "protobuf"])
def test_records_of_every_kind_of_schema_have_typed_columns(
    kafka: BrokerProcess, schemas: EmbeddedRegistry, spark: Any, tmp_path: Path, kind: str
) -> None:
    from headrace.schemas.json_schema import JsonSchemaSerializer
    from headrace.schemas.protobuf import ProtobufSerializer, message_named
    from headrace.schemas.schema import PROTOBUF, Schema

    topic = f"of-{kind}"
    serializer: Any
    if kind == "protobuf":
        text = 'syntax = "proto3"; message Other { string x = 1; } message Row { int64 id = 1; uint64 large = 2; }'
        made = message_named(Schema(text, PROTOBUF), None, "Row")
        serializer, values = ProtobufSerializer(), [made(id=number, large=2**63) for number in range(20)]
    else:
        properties = {"id": {"type": "integer"}, "large": {"type": "number"}}
        serializer = JsonSchemaSerializer({"type": "object", "properties": properties})
        values = [{"id": number, "large": float(2**63)} for number in range(20)]
    with headrace.Producer(
        bootstrap_servers=kafka.address, schema_registry_url=schemas.url, value_serializer=serializer
    ) as producer:
        for value in values:
            producer.send(topic, value)
    damage(kafka, topic, b"junk")

    def rows() -> list[Any]:
        source = (
            spark.read.format("headrace")
            .option("kafka.bootstrap.servers", kafka.address)
            .option("subscribe", topic)
            .option("value.schema.registry", schemas.url)
            .option("value.schema.location", str(tmp_path / "checkpoint"))
        )
        if kind == "protobuf":
            source = source.option("value.schema.message", "Row")
        return list(source.load().select("value.id", "value.large", "value_error", "value_raw").collect())

    for _ in range(2):
        found = rows()
        assert sorted(row.id for row in found if row.value_error is None) == list(range(20))
        assert {int(row.large) for row in found if row.large is not None} == {2**63}
        assert [bytes(row.value_raw) for row in found if row.value_error is not None] == [b"junk"]


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
