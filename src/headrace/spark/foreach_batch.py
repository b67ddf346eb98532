"""Exactly once from Spark to Kafka: `foreachBatch(exactly_once(topic, servers))` for streams, `write_once` for batches.

One transaction per micro-batch, whose outcome and the batch's marker are one atomic fact (see `once`). Readers with
`isolation.level=read_committed` see every batch once and whole, whatever failed and however often it was tried.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.client.offsets import OffsetAndMetadata
from headrace.runtime.real import RealClock
from headrace.spark.cluster import Cluster
from headrace.spark.columns import shape_of
from headrace.spark.markers import Marker
from headrace.spark.once import ExactlyOnceError, Outcome, run_batch
from headrace.spark.options import GROUP_PREFIX, read_sink_options
from headrace.spark.planning import Progress, group_of, is_ours
from headrace.spark.steps import BatchSteps, Link, Work
from headrace.spark.transaction import PROGRESS_TOPIC, CommittedOffsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("headrace.spark")

TRANSACTION_TIMEOUT_MS = 900_000
"""What Kafka's brokers allow at most unless told otherwise."""

ATTEMPTS = 4
_QUERY_ID = "sql.streaming.queryId"
_ONE = ("spark.stage.maxConsecutiveAttempts", "spark.stage.maxAttempts")
REQUIRED_CONFIG = dict.fromkeys(_ONE, "1")
"""What Spark has to be started with: see `check_spark`."""


class UnsafeSpark(ExactlyOnceError):
    """Spark is configured so that two attempts of a task could write at once."""


def check_spark(settings: Mapping[str, str]) -> None:
    """Refuse a Spark that may run a task twice without telling it.

    A task knows which attempt of its own it is, but PySpark does not tell it which attempt of its stage; so a stage
    must not be tried again by Spark (the batch is, here, with a new epoch). A speculative copy runs beside the first.
    """
    wrong = [f"{name}=1" for name in _ONE if settings.get(name) != "1"]
    if settings.get("spark.speculation", "false").lower() == "true":
        wrong.append("spark.speculation=false")
    if wrong:
        raise UnsafeSpark(
            f"exactly once needs Spark to be started with {', '.join(wrong)}: otherwise Spark may run a task again "
            "without the task knowing, under the same producer epoch. headrace.spark.session() sets them; a batch "
            "that fails is tried again here"
        )


def exactly_once(
    topic: str | Sequence[str],
    servers: str | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    group_id: str | None = None,
    progress_topic: str = PROGRESS_TOPIC,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    attempts: int = ATTEMPTS,
    include_timestamp: bool = False,
    query_id: str | None = None,
) -> ExactlyOnce:
    """For `writeStream.foreachBatch`: every micro-batch is written in one transaction, once.

    `topic`: where rows go; several, and each row's column `topic` says which. `config`: the producer's, by Kafka's
    names. `group_id`: the consumer group that shows the source's progress, committed with the output when source and
    sink are one cluster (default: the source's `kafka.group.id`, or one named after the query). `query_id`: who the
    query is; by default Spark's own id, which lives in the checkpoint.
    """
    return ExactlyOnce(
        topic,
        {**({"bootstrap.servers": servers} if servers else {}), **(config or {})},
        group_id=group_id,
        progress_topic=progress_topic,
        transaction_timeout_ms=transaction_timeout_ms,
        attempts=attempts,
        include_timestamp=include_timestamp,
        query_id=query_id,
    )


class ExactlyOnce:
    """The function that `foreachBatch` calls. One query each: it remembers its connection and its last marker."""

    def __init__(
        self,
        topic: str | Sequence[str],
        kafka: Mapping[str, Any],
        *,
        group_id: str | None,
        progress_topic: str,
        transaction_timeout_ms: int,
        attempts: int,
        include_timestamp: bool,
        query_id: str | None,
    ) -> None:
        if attempts < 1:
            raise ValueError(f"attempts is {attempts}: at least one is needed")
        self._topics = (topic,) if isinstance(topic, str) else tuple(topic)
        self._topic = topic if isinstance(topic, str) else None
        # The same checks as for the sink's options, before anything runs.
        self._kafka = read_sink_options({f"kafka.{name}": str(value) for name, value in kafka.items()}).kafka
        self._group_id = group_id
        self._progress_topic = progress_topic
        self._timeout_ms = transaction_timeout_ms
        self._attempts = attempts
        self._include_timestamp = include_timestamp
        self._query_id = query_id
        self._sessions = _known_sessions()
        self._link: Link | None = None

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        self.write(rows, batch_id)

    def write(self, rows: DataFrame, batch_id: int) -> Outcome:
        """Write one micro-batch; says whether it was written now, or before."""
        spark = rows.sparkSession
        settings = dict(spark.sparkContext.getConf().getAll())
        check_spark(settings)
        shape = shape_of(rows.schema, self._topic, include_timestamp=self._include_timestamp)
        query_id = self._query_id or spark.sparkContext.getLocalProperty(_QUERY_ID)
        if query_id is None:
            raise ExactlyOnceError("the query's id is not known here: give exactly_once(…, query_id=…) a fixed one")
        link = self._connected(query_id)
        source: list[tuple[str, CommittedOffsets]] = []
        if self._query_id is None:
            source = self._source_offsets(query_id, batch_id, link.cluster)
        steps = BatchSteps(link, Work(rows, shape, self._topics, Marker(batch_id), source))
        clock = RealClock()
        outcome = run_batch(
            steps,
            batch_id,
            attempts_max=self._attempts,
            timeout_ms=self._timeout_ms,
            monotonic=clock.monotonic,
            on_retry=lambda attempt, error: log.warning(
                "attempt %d of batch %d failed, and is begun again: %s", attempt, batch_id, error
            ),
        )
        log.info("batch %d of query %s: %s, %d records", batch_id, query_id, outcome.value, steps.records)
        return outcome

    def close(self) -> None:
        """Close the connections; the next batch opens them again."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _connected(self, query_id: str) -> Link:
        name = transactional_id(query_id, self._topics)
        if self._link is None or self._link.transaction.transactional_id != name:
            self.close()
            self._link = Link(self._kafka, name, self._progress_topic, self._timeout_ms)
        return self._link

    def _source_offsets(self, query_id: str, batch_id: int, cluster: Cluster) -> list[tuple[str, CommittedOffsets]]:
        """The groups and offsets of those sources of the query that read from the sink's own cluster."""
        found: list[tuple[str, CommittedOffsets]] = []
        name, sources = _batch_offsets(self._sessions, query_id, batch_id)
        for given in sources:
            if not is_ours(given):
                continue
            progress = Progress.from_json(given)
            if progress.cluster is not None and progress.cluster == cluster.id:
                group = self._group_id or group_of(query_id, name, progress)
                found.append((group, {one: OffsetAndMetadata(offset) for one, offset in progress.offsets.items()}))
        return found


def transactional_id(query_id: str, topics: Sequence[str]) -> str:
    """By the query's id, not by a name that can be used again; by the topics, so that it may have several sinks."""
    return f"{GROUP_PREFIX}-{query_id}-{'+'.join(sorted(topics))}"


# --- batches ----------------------------------------------------------------------------------------------------------


def write_once(
    rows: DataFrame,
    topic: str | Sequence[str],
    servers: str | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    name: str | None = None,
    progress_topic: str = PROGRESS_TOPIC,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    attempts: int = ATTEMPTS,
    include_timestamp: bool = False,
) -> Outcome:
    """Write a DataFrame in one transaction: all of it, or nothing, whatever tasks fail on the way.

    With a `name`, running it again does nothing once it was committed (`Outcome.SKIPPED`): a job that was killed can be
    started again without a thought. Without one, every call writes.
    """
    run_as = f"batch-{name}" if name is not None else f"batch-{uuid.uuid4()}"
    writer = exactly_once(
        topic,
        servers,
        config=config,
        progress_topic=progress_topic,
        transaction_timeout_ms=transaction_timeout_ms,
        attempts=attempts,
        include_timestamp=include_timestamp,
        query_id=run_as,
    )
    try:
        return writer.write(rows, 0)
    finally:
        writer.close()


def abort_orphan(
    query_id: str, topic: str | Sequence[str], servers: str | None = None, *, config: Mapping[str, Any] | None = None
) -> None:
    """Abort what a query that is gone for good left open, so that readers are not held up until its time-out.

    A query that is started again does so by itself. One that runs is stopped by this (`TookOver`).
    """
    kafka = {**({"bootstrap.servers": servers} if servers else {}), **(config or {})}
    topics = (topic,) if isinstance(topic, str) else tuple(topic)
    link = Link(kafka, transactional_id(query_id, topics), None, TRANSACTION_TIMEOUT_MS)
    try:
        link.transaction.fence()
    finally:
        link.close()


# --- Spark's own records of a batch -----------------------------------------------------------------------------------


def _known_sessions() -> list[SparkSession]:
    """The sessions whose queries can be looked up; `foreachBatch` itself gets a copy that has none."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    return [] if active is None else [active]


def _batch_offsets(sessions: Sequence[SparkSession], query_id: str, batch_id: int) -> tuple[str | None, list[Any]]:
    """The query's name and the end offsets of a batch, as Spark logged them before it began; none when unknown.

    They only feed the consumer group that shows progress, so what is not there is not an error.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    for spark in sessions:
        try:
            query = spark._jsparkSession.streams().get(query_id)
            if query is None:
                continue
            logged = query.streamingQuery().offsetLog().get(batch_id)
            if logged.isEmpty():
                continue
            offsets = logged.get().offsets()
            sources = [offsets.apply(at) for at in range(offsets.size())]
            return query.name(), [json.loads(one.get().json()) for one in sources if one.isDefined()]
        except (PySparkException, Py4JError, AttributeError, TypeError, json.JSONDecodeError) as error:
            log.info("the offsets of batch %d cannot be read from Spark: %s", batch_id, error)
    return None, []
