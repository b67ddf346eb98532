"""The queries of a Spark session, for Prometheus: `headrace.metrics.serve(9404, SparkQueries(spark))`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headrace.spark.planning import Offsets, SourceOffsets, is_ours

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from pyspark.sql import SparkSession

_GAUGES = (
    ("batch", "The last batch.", "batchId"),
    ("input_rows_per_second", "Rows that came, per second.", "inputRowsPerSecond"),
    ("processed_rows_per_second", "Rows that were handled, per second.", "processedRowsPerSecond"),
    ("input_rows", "Rows of the last batch.", "numInputRows"),
)


class SparkQueries:
    """What every running query of the session said of its last batch: its rates, how long it took, what is left."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def collect(self) -> Iterator[Metric]:
        """As prometheus-client wants it."""
        from prometheus_client.core import GaugeMetricFamily

        queries = [(query, query.lastProgress) for query in self._spark.streams.active]
        found = [(query.name or str(query.id), _plain(progress)) for query, progress in queries if progress is not None]
        active = GaugeMetricFamily("headrace_spark_queries", "Streaming queries that run.")
        active.add_metric([], len(queries))
        yield active
        for name, text, key in _GAUGES:
            family = GaugeMetricFamily(f"headrace_spark_query_{name}", text, labels=["query"])
            for query, progress in found:
                family.add_metric([query], float(progress.get(key) or 0))
            yield family
        phases = GaugeMetricFamily(
            "headrace_spark_query_duration_seconds", "What the last batch took.", labels=["query", "phase"]
        )
        behind = GaugeMetricFamily(
            "headrace_spark_query_lag_records",
            "Records between a source's end and its topic's.",
            labels=["query", "source"],
        )
        for query, progress in found:
            for phase, took_ms in sorted((progress.get("durationMs") or {}).items()):
                phases.add_metric([query, phase], took_ms / 1000)
            for number, source in enumerate(progress.get("sources") or ()):
                left = records_left(source)
                if left is not None:
                    behind.add_metric([query, str(number)], left)
        yield phases
        yield behind


def _plain(progress: Any) -> Mapping[str, Any]:
    """Spark's report as a dict, whichever version of it this is."""
    return progress if isinstance(progress, dict) else json.loads(progress.json)


def records_left(source: Mapping[str, Any]) -> int | None:
    """How many records are in the topics of a source of ours that it has yet to read; None where that is not said."""
    end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if end is None or latest is None:
        return None
    return sum(max(0, offset - end.get(partition, offset)) for partition, offset in latest.items())


def _offsets(given: Any) -> Offsets | None:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except json.JSONDecodeError:
            return None
    return SourceOffsets.from_json(given).offsets if is_ours(given) else None
