"""The steps of `once.run_batch`, done with Kafka and Spark: rows, groups' offsets and a marker in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.client.blocking import BlockingClient
from headrace.errors import HeadraceError
from headrace.runtime.real import RealClock
from headrace.spark.cluster import Cluster
from headrace.spark.columns import Shape
from headrace.spark.connections import make_client
from headrace.spark.first_cause import first_cause, job_ids
from headrace.spark.lanes import Lanes
from headrace.spark.markers import Marker
from headrace.spark.once import Identity, WriteFailed
from headrace.spark.transaction import CommittedOffsets, Transaction
from headrace.spark.writing import WriteJob, needs_routing, run_job
from headrace.topics import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("headrace.spark")


class Link:
    """The driver's connections for one transactional id."""

    def __init__(self, kafka: Mapping[str, Any], name: str, progress_topic: str | None, timeout_ms: int) -> None:
        self.kafka = kafka
        self.client: BlockingClient = make_client(kafka)
        self.cluster = Cluster(kafka)
        self.transaction = Transaction(
            self.client, self.cluster, kafka, name, progress_topic=progress_topic, timeout_ms=timeout_ms
        )

    def close(self) -> None:
        self.client.close()
        self.cluster.close()


@dataclass(frozen=True, slots=True)
class Work:
    """What one batch writes. `partitions`: those that rows go to, if that is known; else all of the topics."""

    rows: DataFrame
    shape: Shape
    topics: Sequence[str]
    marker: Marker
    """As far as it is known before: how many records there are, and when, is filled in."""
    offsets: Sequence[tuple[str, CommittedOffsets]] = ()
    partitions: Sequence[TopicPartition] | None = None


class BatchSteps:
    """The steps for one batch."""

    def __init__(self, link: Link, work: Work) -> None:
        self.records = 0
        self._link = link
        self._transaction = link.transaction
        self._work = work
        self._lanes: Lanes | None = None

    def fence(self) -> Identity:
        return self._transaction.fence()

    def last_committed(self) -> int | None:
        marker = self._transaction.last_marker()
        return None if marker is None else marker.batch

    def enlist(self, identity: Identity) -> None:
        self._lanes = Lanes.of(self._link.cluster.partition_counts(self._work.topics))
        self._transaction.enlist(identity, list(self._work.partitions or self._lanes.partitions()))

    def write(self, identity: Identity) -> None:
        assert self._lanes is not None
        rows, shape = self._work.rows, self._work.shape
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
            raise WriteFailed(_with_cause(str(error), first_cause(spark, before))) from error

    def mark(self, identity: Identity) -> None:
        for group, offsets in self._work.offsets:
            self._transaction.commit_offsets(identity, group, offsets)
        marker = replace(self._work.marker, records=self.records, at_ms=RealClock().now_ms())
        self._transaction.mark(identity, marker)

    def commit(self, identity: Identity) -> None:
        self._transaction.commit(identity)

    def release(self) -> None:
        try:
            self._transaction.fence()
        except HeadraceError as error:
            log.warning(
                "the open transaction of %s could not be aborted (%s): it ends by itself after its time-out",
                self._transaction.transactional_id,
                error,
            )


def _with_cause(text: str, cause: str | None) -> str:
    return text if cause is None or cause in text else f"{cause} (then: {text.splitlines()[0][:300]})"


def _job_errors() -> tuple[type[Exception], ...]:
    """What a job that failed raises: here, or in Spark."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return (WriteFailed, PySparkException, Py4JJavaError)
