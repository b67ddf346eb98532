"""What a stream reader plans, without Spark: another cluster, a topic made anew, a first batch that comes again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.spark.topics import fill, make_topic, numbers

from headrace.spark.planning import DataLossError
from headrace.testing import EmbeddedBroker, broker

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.types import StructType

from headrace.client.admin import Admin
from headrace.spark.source import CheckpointClusterError, HeadraceSource, StreamReader


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with broker() as running:
        yield running


@pytest.fixture
def readers() -> Iterator[list[StreamReader]]:
    made: list[StreamReader] = []
    yield made
    for one in made:
        one.stop()


def started(readers: list[StreamReader], kafka: EmbeddedBroker, topic: str, **options: str) -> StreamReader:
    given = {"kafka.bootstrap.servers": kafka.address, "subscribe": topic, **options}
    reader = HeadraceSource(given).streamReader(StructType())
    assert isinstance(reader, StreamReader)
    readers.append(reader)
    return reader


def planned(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    return [(one.value.start, one.value.end) for one in reader.partitions(start, end)]


def test_another_cluster_is_noticed_for_a_batch_that_is_planned_again(
    readers: list[StreamReader], kafka: EmbeddedBroker
) -> None:
    fill(kafka.address, make_topic(kafka.address, "moved", 1), numbers(10))
    reader = started(readers, kafka, "moved")

    def at(offset: int) -> dict[str, Any]:
        return {"moved": {"0": offset}, "@headrace": {"cluster": "ANOTHER"}}

    with pytest.raises(CheckpointClusterError, match="ANOTHER"):
        reader.partitions(at(2), at(7))
    with pytest.raises(CheckpointClusterError, match="ANOTHER"):
        reader.latestOffset(at(7), reader.getDefaultReadLimit())


def test_a_first_batch_from_the_end_begins_where_it_began_when_it_comes_again(
    readers: list[StreamReader], kafka: EmbeddedBroker
) -> None:
    topic = make_topic(kafka.address, "from-the-end", 1)
    fill(kafka.address, topic, numbers(10))
    reader = started(readers, kafka, topic, startingOffsets="latest")
    start = reader.initialOffset()
    fill(kafka.address, topic, numbers(5))
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert planned(reader, start, end) == [(10, 15)]
    # The driver is gone before the batch is done, and more has come until it is started again.
    fill(kafka.address, topic, numbers(20))
    heir = started(readers, kafka, topic, startingOffsets="latest")
    assert planned(heir, heir.initialOffset(), end) == [(10, 15)]
    following = heir.latestOffset(end, heir.getDefaultReadLimit())
    assert planned(heir, end, following) == [(15, 35)]
    # What is not new is the same text.
    assert heir.latestOffset(following, heir.getDefaultReadLimit()) == following


@pytest.mark.parametrize("is_logged", [False, True])
def test_a_topic_made_anew_is_a_loss_though_it_is_longer_than_before(
    readers: list[StreamReader], kafka: EmbeddedBroker, is_logged: bool
) -> None:
    topic = make_topic(kafka.address, f"anew-{is_logged}", 1)
    fill(kafka.address, topic, numbers(10))
    reader = started(readers, kafka, topic, startingOffsets="earliest")
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    fill(kafka.address, topic, numbers(2))
    logged = reader.latestOffset(start, reader.getDefaultReadLimit())
    with Admin({"bootstrap.servers": kafka.address}) as admin:
        admin.delete_topics([topic]).all()
    make_topic(kafka.address, topic, 1)
    fill(kafka.address, topic, numbers(30))
    heir = started(readers, kafka, topic, startingOffsets="earliest")
    end = logged if is_logged else heir.latestOffset(start, heir.getDefaultReadLimit())
    with pytest.raises(DataLossError, match="deleted and made anew"):
        heir.partitions(start, end)
    lenient = started(readers, kafka, topic, startingOffsets="earliest", failOnDataLoss="false")
    # The rest of the old one is gone; the new one is read from its beginning, once.
    assert planned(lenient, start, end) == ([] if is_logged else [(0, 30)])
    if is_logged:
        following = lenient.latestOffset(end, lenient.getDefaultReadLimit())
        assert planned(lenient, end, following) == [(0, 30)]
