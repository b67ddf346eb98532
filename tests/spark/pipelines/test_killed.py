"""`mirror`, `replay` and `redrive` whose driver is killed (SIGKILL) in the middle: started again, all is there once."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.spark.pipelines.reading import everything
from tests.spark.prove import QUICK_JVM
from tests.spark.topics import make_topic

from headrace.client.producer.blocking import Producer
from headrace.spark.pipelines.audit import audit
from headrace.spark.pipelines.declaring import parsed
from headrace.testing import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.long]

COUNT, PER_STEP = 300, 100
POINTS = ("task acknowledged", "before EndTxn", "sent EndTxn", "answered EndTxn")
"""With rows written and nothing decided, with the decision under way, and with it made and not noted."""


def through_kills(spark: Any, name: str, options: dict[str, Any]) -> Any:
    """Run a pipeline whose driver is killed at every point; then to its end. What its last run says of itself."""
    for point in POINTS:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.spark.pipelines.killed_job", name, point, json.dumps(options)],
            env={"SPARK_SUBMIT_OPTS": QUICK_JVM, **os.environ},
            capture_output=True,
            timeout=240,
            check=False,
        )
        assert ended.returncode == -signal.SIGKILL, (point, ended.stderr.decode()[-3000:])
    pipeline = importlib.import_module(f"headrace.spark.pipelines.{name}")
    return pipeline.run(parsed(pipeline.OPTIONS, {**options, "master": None}), spark).document


def values(servers: str, topic: str) -> list[bytes]:
    return sorted(record.value for record in everything(servers, topic))


@pytest.mark.timeout(900)
def test_a_mirror_has_every_record_once_and_in_order(spark: Any, kafka: BrokerProcess, other: BrokerProcess) -> None:
    make_topic(kafka.address, "killed.orders", partitions=2)
    with Producer({"bootstrap.servers": kafka.address}) as producer:
        for number in range(COUNT):
            producer.send("killed.orders", b"%d" % number, b"k%d" % (number % 7), partition=number % 2)
    options = {"servers": kafka.address, "to": other.address, "topics": "killed.orders", "max_per_batch": PER_STEP}
    done = through_kills(spark, "mirror", {**options, "master": "local[2,4]"})
    assert 0 < done["mirrored"] < COUNT  # a killed run's step that was decided is not done again
    sides = {"source": "killed.orders", "against": "killed.orders", "against_servers": other.address, "match": "value"}
    found = audit(session=spark, servers=kafka.address, **sides)
    assert not found.has_findings, found.lines
    assert found.lines[2].strip() == f"in {COUNT} · out {COUNT} · lost 0 · duplicated 0 · out of order 0"

    # The audit does look at the other cluster.
    with Producer({"bootstrap.servers": other.address}) as producer:
        producer.send("killed.orders", b"7", b"k0", partition=1)
    again = audit(session=spark, servers=kafka.address, **sides)
    assert (again.has_findings, again.document["duplicated"]) == (True, 1)


@pytest.mark.timeout(900)
def test_a_replay_has_every_row_once_and_in_order(spark: Any, kafka: BrokerProcess, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    rows = spark.range(COUNT).selectExpr(
        "cast(id as string) value", "cast(0 as int) partition", "id offset", "timestamp_millis(id) timestamp"
    )
    rows.repartition(3).write.parquet(table)
    make_topic(kafka.address, "killed.replay", partitions=1, **{"retention.ms": "-1"})
    options = {"servers": kafka.address, "path": table, "topic": "killed.replay", "keep_partitions": True}
    done = through_kills(spark, "replay", {**options, "rate": PER_STEP * 10, "tick": 0.1, "master": "local[2,4]"})
    assert done["before"] > 0
    assert [record.value for record in everything(kafka.address, "killed.replay")] == [
        b"%d" % number for number in range(COUNT)
    ]


@pytest.mark.timeout(900)
def test_letters_are_put_back_once(spark: Any, kafka: BrokerProcess) -> None:
    dead = make_topic(kafka.address, "killed.dead", partitions=2)
    make_topic(kafka.address, "killed.jobs")
    with Producer({"bootstrap.servers": kafka.address}) as producer:
        for number in range(COUNT):
            headers = [("headrace.reason", b"failed"), ("headrace.origin-topic", b"killed.jobs")]
            producer.send(dead, b"%d" % number, headers=headers, partition=number % 2)
    options = {"servers": kafka.address, "topic": dead, "everything": True, "per_step": PER_STEP}
    done = through_kills(spark, "redrive", {**options, "master": "local[2,4]"})
    assert 0 < done["put_back"] < COUNT
    assert values(kafka.address, "killed.jobs") == sorted(b"%d" % number for number in range(COUNT))


@pytest.mark.timeout(900)
def test_records_of_an_evolving_schema_are_clean_or_dead_once(spark: Any, kafka: BrokerProcess, tmp_path: Path) -> None:
    from tests.spark.test_schemas import CLICK

    import headrace.testing
    from headrace.schemas.avro import AvroDeserializer, AvroSerializer

    source = make_topic(kafka.address, "killed.shaped", partitions=2)
    newer = {**CLICK, "fields": [*CLICK["fields"], {"name": "page", "type": "string", "default": "/"}]}
    with headrace.testing.registry() as schemas:
        for schema, numbers in ((CLICK, range(COUNT // 2)), (newer, range(COUNT // 2, COUNT))):
            serializer = AvroSerializer(schema, schemas.url)
            with Producer({"bootstrap.servers": kafka.address}) as producer:
                for number in numbers:
                    click = {"id": str(number), "at": 1_760_000_000_000, "event": "click", "page": f"/{number}"}
                    value = b"junk" if number % 50 == 49 else serializer.serialize(source, click)
                    producer.send(source, value, b"%d" % number, partition=number % 2)
        options = {
            "servers": kafka.address,
            "source": source,
            "registry": schemas.url,
            "counts": "none",
            "checkpoint": str(tmp_path / "run"),
            "max_per_batch": PER_STEP,
            "master": "local[2,4]",
        }
        through_kills(spark, "activity", options)
        sides = {"source": source, "against": f"{source}-clean,{source}-dead", "match": "key"}
        found = audit(session=spark, servers=kafka.address, **sides)
        assert not found.has_findings, found.lines
        reader = AvroDeserializer(registry=schemas.url)
        clean = [reader.deserialize(source, value) for value in values(kafka.address, f"{source}-clean")]
        assert values(kafka.address, f"{source}-dead") == [b"junk"] * (COUNT // 50)
    pages = {int(row["id"]): row["page"] for row in clean}
    kept = [number for number in range(COUNT) if number % 50 != 49]
    assert pages == {number: "/" if number < COUNT // 2 else f"/{number}" for number in kept}
