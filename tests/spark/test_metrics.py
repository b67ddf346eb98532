"""What Prometheus sees of Spark's queries."""

from __future__ import annotations

from types import SimpleNamespace

from headrace.metrics import text
from headrace.spark.metrics import SparkQueries, records_left
from headrace.spark.planning import SourceOffsets
from headrace.topics import TopicPartition


def _offsets(*ends: int) -> dict[str, object]:
    return SourceOffsets({TopicPartition("clicks", index): end for index, end in enumerate(ends)}, "cluster").to_json()


def test_rates_lag_and_times_of_every_query_are_told() -> None:
    progress = {
        "batchId": 7,
        "inputRowsPerSecond": 120.5,
        "processedRowsPerSecond": 118.0,
        "numInputRows": 600,
        "durationMs": {"triggerExecution": 1500},
        "sources": [{"endOffset": _offsets(10, 20), "latestOffset": _offsets(15, 20)}],
    }
    query = SimpleNamespace(name="clicks", id="1", lastProgress=progress)
    new = SimpleNamespace(name=None, id="2", lastProgress=None)
    spark = SimpleNamespace(streams=SimpleNamespace(active=[query, new]))
    told = text(SparkQueries(spark))
    assert "headrace_spark_queries 2.0" in told
    assert 'headrace_spark_query_batch{query="clicks"} 7.0' in told
    assert 'headrace_spark_query_duration_seconds{phase="triggerExecution",query="clicks"} 1.5' in told
    assert 'headrace_spark_query_lag_records{query="clicks",source="0"} 5.0' in told


def test_a_source_that_is_not_ours_has_no_lag_here() -> None:
    assert records_left({"endOffset": {"clicks": {"0": 5}}, "latestOffset": {"clicks": {"0": 9}}}) is None
    assert records_left({"endOffset": "not json", "latestOffset": None}) is None
