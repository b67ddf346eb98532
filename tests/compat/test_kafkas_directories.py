"""A data directory of Apache Kafka is taken over as it is; every client reads from it what Kafka's own broker told."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import OffsetSpec

from headrace.testing import BrokerProcess

from .clients import PYTHON_CLIENTS, TIMEOUT_S, Message, confluent_admin, confluent_consumer, poll_confluent

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "reference" / "golden"
UNREADABLE_IN_GROUPS = -1001


@pytest.fixture(scope="module", params=["clean", "unclean"])
def adopted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """The address of a broker on a copy of Kafka's directory, and what Kafka said about it."""
    name = request.param
    directory = tmp_path_factory.mktemp(name) / "data"
    shutil.copytree(GOLDEN / name / "data", directory)
    expected = json.loads((GOLDEN / name / "expected.json").read_text())
    with BrokerProcess(directory) as process:
        yield process.address, expected


def records_of(part: dict[str, Any], *, committed: bool) -> list[Any]:
    """Key, value, headers, timestamp and offset of the records a reader gets."""
    aborted = part["aborted_transactions"] if committed else []
    found = []
    for entry in part["batches"]:
        if entry["control"]:
            continue
        if committed and entry["base_offset"] >= part["last_stable_offset"]:
            break
        if entry["transactional"] and any(_is_part_of(entry, one) for one in aborted):
            continue
        found += [
            (
                _bytes(record["key"]),
                _bytes(record["value"]),
                [(name, _bytes(value)) for name, value in record["headers"]],
                record["timestamp"],
                record["offset"],
            )
            for record in entry["records"]
        ]
    return found


def _is_part_of(entry: dict[str, Any], aborted: Any) -> bool:
    producer_id, first, last = aborted["producer_id"], aborted["first_offset"], aborted["last_offset"]
    return bool(entry["producer_id"] == producer_id and first <= entry["base_offset"] <= last)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def read(address: str, topic: str, partition: int, count: int, isolation: str) -> list[Any]:
    consumer = confluent_consumer(address, "reader", **{"isolation.level": isolation})
    consumer.list_topics(topic, timeout=TIMEOUT_S)
    consumer.assign([TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)])
    try:
        return [
            (message.key(), message.value(), message.headers() or [], message.timestamp()[1], message.offset())
            for message in poll_confluent(consumer, count)
        ]
    finally:
        consumer.close()


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_every_record_is_read(adopted: tuple[str, Any], isolation: str) -> None:
    address, expected = adopted
    for name, part in expected["partitions"].items():
        topic, _, index = name.rpartition("-")
        wanted = records_of(part, committed=isolation == "read_committed")
        if wanted:
            assert read(address, topic, int(index), len(wanted), isolation) == wanted, name


def test_offsets_are_as_kafka_told_them(adopted: tuple[str, Any]) -> None:
    address, expected = adopted
    admin = confluent_admin(address)
    for name, told in expected["partitions"].items():
        topic, _, index = name.rpartition("-")
        part = TopicPartition(topic, int(index))

        def ask(spec: OffsetSpec, part: TopicPartition = part) -> tuple[int, int]:
            found = admin.list_offsets({part: spec})[part].result(TIMEOUT_S)
            return found.offset, found.timestamp

        assert ask(OffsetSpec.earliest())[0] == told["log_start_offset"], name
        assert ask(OffsetSpec.latest())[0] == told["high_watermark"], name
        most = told["max_timestamp"]
        assert ask(OffsetSpec.max_timestamp()) == (most["offset"], most["timestamp"]), name
        for timestamp, (offset, found_ms, _) in told.get("offsets_for_times", {}).items():
            assert ask(OffsetSpec.for_timestamp(int(timestamp))) == (offset, found_ms), (name, timestamp)


def test_groups_have_the_offsets_they_committed(adopted: tuple[str, Any]) -> None:
    address, expected = adopted
    admin = confluent_admin(address)
    for group, told in expected["groups"].items():
        wanted = {}
        for name, (offset, _, _) in told["offsets"].items():
            topic, _, index = name.rpartition("-")
            wanted[topic, int(index)] = offset
        asked = ConsumerGroupTopicPartitions(group)
        found = admin.list_consumer_group_offsets([asked])[group].result(TIMEOUT_S)
        assert {(part.topic, part.partition): part.offset for part in found.topic_partitions} == wanted, group


def test_it_is_written_on(adopted: tuple[str, Any]) -> None:
    address, expected = adopted
    end = expected["partitions"]["g-none-0"]["log_end_offset"]
    PYTHON_CLIENTS[0].produce(address, "g-none", [Message(b"new", b"record", 1_700_000_000_000)], "zstd")
    consumer = confluent_consumer(address, "writer")
    consumer.list_topics("g-none", timeout=TIMEOUT_S)
    consumer.assign([TopicPartition("g-none", 0, end)])
    try:
        message = poll_confluent(consumer, 1)[0]
        assert (message.offset(), message.key()) == (end, b"new")
    finally:
        consumer.close()
