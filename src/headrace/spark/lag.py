"""A query's progress as a consumer group, so that every Kafka tool shows its lag.

A source with the option `kafka.group.id` commits to that group by itself. For all others a listener does it, with a
group named after the query; it also commits the last batch of a query that ends.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace.errors import HeadraceError
from headrace.spark.cluster import Cluster
from headrace.spark.planning import Offsets, SourceOffsets, group_of, is_ours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("headrace.spark")


def offsets_of(end_offset: str | None, cluster: str | None) -> SourceOffsets | None:
    """A source's end offsets in Spark's report, if they are ours and of this cluster."""
    try:
        given = json.loads(end_offset or "null")
    except json.JSONDecodeError:
        return None
    if not is_ours(given):
        return None
    progress = SourceOffsets.from_json(given)
    return progress if progress.cluster in (None, cluster) else None


class LagListener(StreamingQueryListener):
    """Commits the end of every batch of every query that reads from this cluster."""

    def __init__(self, kafka: Mapping[str, Any]) -> None:
        self._kafka = dict(kafka)
        self._cluster: Cluster | None = None
        self._committed: dict[str, Offsets] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        return None

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        report = event.progress
        for source in report.sources:
            try:
                self._commit(str(report.id), report.name, source.endOffset)
            except HeadraceError as error:
                # A listener that raises is only a line in Spark's log; the query goes on either way.
                log.warning("the progress of query %s could not be committed: %s", report.name or report.id, error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        return None

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        return None

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _commit(self, query_id: str, query_name: str | None, end_offset: str | None) -> None:
        if self._cluster is None:
            self._cluster = Cluster(self._kafka)
        progress = offsets_of(end_offset, self._cluster.id)
        if progress is None:
            return
        group = group_of(query_id, query_name, progress)
        if self._committed.get(group) != progress.offsets:
            self._cluster.commit(group, progress.offsets)
            self._committed[group] = progress.offsets


def track_lag(
    spark: SparkSession, servers: str | None = None, *, config: Mapping[str, Any] | None = None
) -> LagListener:
    """Show the progress of this session's queries as consumer groups; `spark.streams.removeListener` ends it.

    The group is the source's `kafka.group.id`, or `headrace-spark-` and the query's name (or its id).
    """
    listener = LagListener({**({"bootstrap.servers": servers} if servers else {}), **(config or {})})
    spark.streams.addListener(listener)
    return listener
