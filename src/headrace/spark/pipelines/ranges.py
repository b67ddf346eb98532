"""Records between given offsets of given partitions, as a DataFrame with headers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.topics import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_ranges(
    session: SparkSession,
    kafka: Mapping[str, Any],
    ranges: Mapping[TopicPartition, tuple[int, int]],
    *,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """Committed records, from the first offset to before the second. One task a partition, which keeps their order."""
    topics: dict[str, list[int]] = {}
    begins: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for (topic, index), (begin, end) in ranges.items():
        topics.setdefault(topic, []).append(index)
        begins.setdefault(topic, {})[str(index)] = begin
        ends.setdefault(topic, {})[str(index)] = end
    reader = session.read.format("headrace").option("assign", json.dumps(topics)).option("includeHeaders", "true")
    for name, value in kafka.items():
        reader = reader.option(f"kafka.{name}", value)
    reader = reader.option("kafka.isolation.level", "read_committed")
    reader = reader.option("failOnDataLoss", str(fail_on_data_loss).lower())
    return reader.option("startingOffsets", json.dumps(begins)).option("endingOffsets", json.dumps(ends)).load()
