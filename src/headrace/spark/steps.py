"""The steps of `once.run_batch`, done with Kafka and Spark: rows, groups' offsets and a marker in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.client.cluster import BlockingClient
from headrace.client.transactions import ProducerIdentity
from headrace.runtime.real import RealClock
from headrace.spark.cluster import Cluster
from headrace.spark.columns import Shape
from headrace.spark.connections import make_client
from headrace.spark.first_cause import first_cause, job_ids
from headrace.spark.history import judge
from headrace.spark.lanes import OutputPartitions
from headrace.spark.markers import Marker
from headrace.spark.once import MarkerFinding, WriteFailedError
from headrace.spark.transaction import CommittedOffsets, SinkTransaction
from headrace.spark.writing import WriteJob, needs_routing, run_job
from headrace.topics import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Link:
    """The driver's connections for one transactional id."""

    def __init__(self, kafka: Mapping[str, Any], name: str, progress_topic: str | None, timeout_ms: int) -> None:
        self.kafka = kafka
        self.client: BlockingClient = make_client(kafka)
        self.cluster = Cluster(kafka)
        self._progress_topic = progress_topic
        self._timeout_ms = timeout_ms
        self.transaction = self.transaction_of(name)

    def transaction_of(self, name: str) -> SinkTransaction:
        """The transaction of another transactional id, over the same connections."""
        return SinkTransaction(
            self.client,
            self.cluster,
            self.kafka,
            name,
            progress_topic=self._progress_topic,
            timeout_ms=self._timeout_ms,
        )

    def close(self) -> None:
        self.client.close()
        self.cluster.close()


@dataclass(frozen=True, slots=True)
class Work:
    """What one batch writes. `rows`: None writes only the marker.

    `partitions`: those that rows go to, if that is known; else all of the topics.
    """

    rows: DataFrame | None
    shape: Shape
    topics: Sequence[str]
    marker: Marker
    """As far as it is known before: how many records there are, and when, is filled in."""
    offsets: Sequence[tuple[str, CommittedOffsets]] = ()
    partitions: Sequence[TopicPartition] | None = None


class BatchSteps:
    """The steps for one batch."""

    def __init__(self, link: Link, work: Work, *, is_stopped: Callable[[], bool] = lambda: False) -> None:
        self.records = 0
        self.is_stopped = is_stopped
        self._link = link
        self._transaction = link.transaction
        self._work = work
        self._lanes: OutputPartitions | None = None
        self._topic_ids: Mapping[str, str] = {}

    def fence(self) -> ProducerIdentity:
        return self._transaction.fence()

    def look(self) -> MarkerFinding:
        marker = self._transaction.last_marker()
        ours = self._work.marker
        if marker is not None and marker.batch == ours.batch and marker.topics:
            ours = replace(ours, topics=self._link.cluster.topic_ids(self._work.topics))
        return judge(marker, ours)

    def enlist(self, identity: ProducerIdentity) -> None:
        described = self._link.cluster.described(self._work.topics) if self._work.topics else {}
        self._lanes = OutputPartitions.of({name: one.partitions for name, one in described.items()})
        self._topic_ids = {name: one.id for name, one in described.items() if one.id}
        self._transaction.enlist(identity, list(self._work.partitions or self._lanes.partitions()))

    def write(self, identity: ProducerIdentity) -> None:
        assert self._lanes is not None
        rows, shape = self._work.rows, self._work.shape
        if rows is None:
            return
        spark = rows.sparkSession
        owners = None
        if not needs_routing(shape):
            owners = min(len(self._lanes), max(1, spark.sparkContext.defaultParallelism))
        job = WriteJob(
            self._link.kafka,
            shape,
            self._lanes,
            self._transaction.transactional_id,
            identity,
            # Moves on with every batch, so that partitions without keys fill evenly.
            self._work.marker.batch * (owners or 1),
            owners,
        )
        before = job_ids(spark)
        try:
            self.records = run_job(rows, job)
        except _job_errors() as error:
            raise WriteFailedError(_with_cause(str(error), first_cause(spark, before))) from error

    def mark(self, identity: ProducerIdentity) -> None:
        for group, offsets in self._work.offsets:
            self._transaction.commit_offsets(identity, group, offsets)
        now_ms = RealClock().now_ms()
        marker = replace(self._work.marker, records=self.records, at_ms=now_ms, topics=self._topic_ids)
        self._transaction.mark(identity, marker)

    def commit(self, identity: ProducerIdentity) -> None:
        self._transaction.commit(identity)


def _with_cause(text: str, cause: str | None) -> str:
    return text if cause is None or cause in text else f"{cause} (then: {text.splitlines()[0][:300]})"


def _job_errors() -> tuple[type[Exception], ...]:
    """What a job that failed raises: here, or in Spark."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return (WriteFailedError, PySparkException, Py4JJavaError)
