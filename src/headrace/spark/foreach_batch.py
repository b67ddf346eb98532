"""Exactly once from Spark to Kafka: `foreachBatch(exactly_once(topic, servers))` for streams, `write_once` for batches.

One transaction per micro-batch, whose outcome and the batch's marker are one atomic fact (see `once`). Readers with
`isolation.level=read_committed` see every batch once and whole, whatever failed and however often it was tried.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.client.offsets import OffsetAndMetadata
from headrace.runtime.real import RealClock
from headrace.spark.adopting import name_of
from headrace.spark.batches import MicroBatch, running_batch
from headrace.spark.cluster import Cluster
from headrace.spark.columns import shape_of
from headrace.spark.history import DEFAULT_SINK, SinkIdentity, digest_of
from headrace.spark.markers import Marker
from headrace.spark.once import BatchOutcome, ExactlyOnceError, run_batch
from headrace.spark.options import read_producer_config
from headrace.spark.planning import SourceOffsets, group_of
from headrace.spark.steps import BatchSteps, Link, Work
from headrace.spark.transaction import PROGRESS_TOPIC, CommittedOffsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("headrace.spark")

TRANSACTION_TIMEOUT_S = 900.0
"""What Kafka's brokers allow at most unless told otherwise."""

ATTEMPTS = 4
_SETTLED_MAX = 10_000
_ONE = ("spark.stage.maxConsecutiveAttempts", "spark.stage.maxAttempts")


class SameSinkTwiceError(ExactlyOnceError):
    """Two sinks of one query have the same name, or one is called twice for a batch: the second would be skipped."""


class UnsafeSparkError(ExactlyOnceError):
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
        raise UnsafeSparkError(
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
    transaction_timeout_s: float = TRANSACTION_TIMEOUT_S,
    attempts: int = ATTEMPTS,
    include_timestamp: bool = False,
    query_id: str | None = None,
    sink: str = DEFAULT_SINK,
) -> ExactlyOnceSink:
    """For `writeStream.foreachBatch`: every micro-batch is written in one transaction, once.

    `topic`: where rows go; several, and each row's column `topic` says which. `config`: the producer's, by Kafka's
    names. `group_id`: the consumer group that shows the source's progress, committed with the output when source and
    sink are one cluster (default: the source's `kafka.group.id`, or one named after the query). `query_id`: who the
    query is; by default Spark's own id, which lives in the checkpoint. `sink`: a query with several sinks gives each a
    name of its own, and never changes it.

    The topics have to be there: that is asked now, and not found out by a query that fails.
    """
    made = ExactlyOnceSink(
        topic,
        {**({"bootstrap.servers": servers} if servers else {}), **(config or {})},
        group_id=group_id,
        progress_topic=progress_topic,
        transaction_timeout_s=transaction_timeout_s,
        attempts=attempts,
        include_timestamp=include_timestamp,
        query_id=query_id,
        sink=sink,
    )
    made.check_topics()
    return made


class ExactlyOnceSink:
    """The function that `foreachBatch` calls. One query each: it remembers its connection and its last marker."""

    def __init__(
        self,
        topic: str | Sequence[str],
        kafka: Mapping[str, Any],
        *,
        group_id: str | None,
        progress_topic: str,
        transaction_timeout_s: float,
        attempts: int,
        include_timestamp: bool,
        query_id: str | None,
        sink: str = DEFAULT_SINK,
        is_job: bool = False,
        has_past: bool = True,
    ) -> None:
        """`is_job`: one DataFrame, which is batch 0 and the only one. `has_past`: whether it may have run before."""
        if attempts < 1:
            raise ValueError(f"attempts is {attempts}: at least one is needed")
        self._topics = (topic,) if isinstance(topic, str) else tuple(topic)
        self._topic = topic if isinstance(topic, str) else None
        # The same checks as for the sink's options, before anything runs.
        self._kafka = read_producer_config(kafka)
        self._group_id = group_id
        self._progress_topic = progress_topic
        self._timeout_ms = round(transaction_timeout_s * 1000)
        self._attempts = attempts
        self._include_timestamp = include_timestamp
        self._query_id = query_id
        self._sink = sink
        self._is_job = is_job
        self._has_past = has_past
        self._is_checked = False
        self._link: Link | None = None
        self._linked: SinkIdentity | None = None
        # The call that is not known to have ended well: coming again for the same batch, it is the same call.
        self._unsettled: tuple[tuple[str, int], str] | None = None

    def check_topics(self) -> None:
        """Raise when one of the topics does not exist, or the cluster cannot be asked."""
        cluster = Cluster(self._kafka)
        try:
            cluster.check_reachable()
            cluster.described(self._topics)
        finally:
            cluster.close()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        self.write(rows, batch_id)

    def write(self, rows: DataFrame, batch_id: int) -> BatchOutcome:
        """Write one micro-batch; says whether it was written now, or before."""
        spark = rows.sparkSession
        check_spark(dict(spark.sparkContext.getConf().getAll()))
        shape = shape_of(rows.schema, self._topic, include_timestamp=self._include_timestamp)
        batch = None if self._is_job else running_batch(spark, batch_id)
        if batch is None and not self._is_job:
            raise ExactlyOnceError(
                f"these rows are of no streaming query that runs: without its offsets, batch {batch_id} cannot be told "
                "from another of that number. exactly_once(…) is for foreachBatch, with the rows that it gives or what "
                "is made of them; write_once(…) is for all other rows"
            )
        identity = SinkIdentity(self._query_id or ("" if batch is None else batch.query), self._sink)
        if batch is not None and not self._is_checked and not batch.has_checkpoint():
            log.warning(
                "query %s has no checkpoint: begun again, it reads from its beginning and writes all of it once more. "
                "Name a place with .option('checkpointLocation', …)",
                batch.name or identity.query,
            )
        self._is_checked = True
        link = self._connected(identity)
        with once_a_batch((link.cluster.id or "", self._progress_topic, identity), batch):
            marker = self._marker(identity, batch, batch_id, link.cluster)
            work = Work(rows, shape, self._topics, marker, self._source_offsets(batch, link.cluster))
            stopped = (lambda: False) if batch is None else batch.is_stopped
            steps = BatchSteps(link, work, is_stopped=stopped)
            outcome = self._run(steps, batch_id)
        log.info("batch %d of query %s: %s, %d records", batch_id, identity.query, outcome.value, steps.records)
        return outcome

    def _run(self, steps: BatchSteps, batch_id: int) -> BatchOutcome:
        outcome = run_batch(
            steps,
            batch_id,
            attempts_max=self._attempts,
            timeout_ms=self._timeout_ms,
            monotonic=RealClock().monotonic,
            on_retry=lambda attempt, error: log.warning(
                "attempt %d of batch %d failed, and is begun again: %s", attempt, batch_id, error
            ),
        )
        self._unsettled = None
        return outcome

    def _marker(self, identity: SinkIdentity, batch: MicroBatch | None, number: int, cluster: Cluster) -> Marker:
        run = "" if batch is None else batch.run
        if self._unsettled is None or self._unsettled[0] != (run, number):
            self._unsettled = ((run, number), uuid.uuid4().hex)
        marker = Marker(
            number, query=identity.query, sink=identity.sink, cluster=cluster.id or "", call=self._unsettled[1]
        )
        # What tells this history from another: the source's offsets; for a job without any, its topics.
        if batch is not None:
            return marked_with(marker, batch)
        return replace(marker, end=digest_of(["topics", *sorted(self._topics)]) if self._is_job else "")

    def close(self) -> None:
        """Close the connections; the next batch opens them again."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _connected(self, identity: SinkIdentity) -> Link:
        if self._link is None or self._linked != identity:
            self.close()
            link = Link(self._kafka, identity.transactional_id, self._progress_topic, self._timeout_ms)
            try:
                if self._has_past:
                    known = link.transaction.known_keys()
                    name = name_of(identity, self._topics, known, is_job=self._is_job)
                    link.transaction = link.transaction_of(name)
            except BaseException:
                link.close()
                raise
            self._link, self._linked = link, identity
        return self._link

    def _source_offsets(self, batch: MicroBatch | None, cluster: Cluster) -> list[tuple[str, CommittedOffsets]]:
        """The groups and offsets of those sources of the query that read from the sink's own cluster."""
        found: list[tuple[str, CommittedOffsets]] = []
        if batch is None or self._query_id is not None:
            return found
        for given in batch.progress():
            progress = SourceOffsets.from_json(given)
            if progress.cluster is not None and progress.cluster == cluster.id:
                group = self._group_id or group_of(batch.query, batch.name, progress)
                found.append((group, {one: OffsetAndMetadata(offset) for one, offset in progress.offsets.items()}))
        return found


def marked_with(marker: Marker, batch: MicroBatch) -> Marker:
    """The marker with the run and the source's offsets."""
    return replace(
        marker,
        run=batch.run,
        begin=batch.begin_digest,
        end=batch.end.digest,
        offsets=batch.end.starting_offsets(),
    )


Place = tuple[str, str, SinkIdentity]
"""A sink, and where its markers are: the cluster's id and the progress topic."""

_settled: dict[tuple[Place, str], int] = {}
"""The last batch of each sink and run that was written, or found written, in this process. By run, since a run that was
stopped may still be at its last batch when the query was started again."""
_writing: set[tuple[Place, str]] = set()
"""Sinks and runs of which a batch is being written, on whatever thread."""
_settling = threading.Lock()


@contextmanager
def once_a_batch(place: Place, batch: MicroBatch | None) -> Iterator[None]:
    """Refuse a second call for one batch of one run, also while the first is on another thread: it would find the
    marker of the first, and write nothing."""
    identity = place[2]
    if batch is None:
        yield
        return
    run = (place, batch.run)
    with _settling:
        if _settled.get(run) == batch.number or run in _writing:
            raise SameSinkTwiceError(
                f"batch {batch.number} was given to the sink {identity.sink!r} of query {identity.query} already: two "
                "sinks of a query, or two calls for a batch, need names of their own. Leave the first as it is, and "
                "give this one another, which stays: exactly_once(…, sink='…')"
            )
        _writing.add(run)
    is_settled = False
    try:
        yield
        is_settled = True
    finally:
        with _settling:
            _writing.discard(run)
            if is_settled:
                while len(_settled) >= _SETTLED_MAX:
                    del _settled[next(iter(_settled))]
                _settled.pop(run, None)
                _settled[run] = batch.number


# --- batches ----------------------------------------------------------------------------------------------------------


def write_once(
    rows: DataFrame,
    topic: str | Sequence[str],
    servers: str | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    name: str | None = None,
    progress_topic: str = PROGRESS_TOPIC,
    transaction_timeout_s: float = TRANSACTION_TIMEOUT_S,
    attempts: int = ATTEMPTS,
    include_timestamp: bool = False,
) -> BatchOutcome:
    """Write a DataFrame in one transaction: all of it, or nothing, whatever tasks fail on the way.

    With a `name`, running it again does nothing once it was committed (`BatchOutcome.SKIPPED`): a job that was killed
    can be started again without a thought. Without one, every call writes. A name stands for one job: with other topics
    it is refused (`WrongHistoryError`).
    """
    writer = ExactlyOnceSink(
        topic,
        {**({"bootstrap.servers": servers} if servers else {}), **(config or {})},
        group_id=None,
        progress_topic=progress_topic,
        transaction_timeout_s=transaction_timeout_s,
        attempts=attempts,
        include_timestamp=include_timestamp,
        query_id=f"batch-{name if name is not None else uuid.uuid4()}",
        is_job=True,
        has_past=name is not None,
    )
    try:
        return writer.write(rows, 0)
    finally:
        writer.close()


def abort_orphan(
    query_id: str,
    topic: str | Sequence[str],
    servers: str | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    sink: str = DEFAULT_SINK,
) -> None:
    """Abort what a query that is gone for good left open, so that readers are not held up until its time-out.

    A query that is started again does so by itself. One that runs is stopped by this (`TakenOverError`).
    """
    kafka = read_producer_config({**({"bootstrap.servers": servers} if servers else {}), **(config or {})})
    identity = SinkIdentity(query_id, sink)
    topics = (topic,) if isinstance(topic, str) else tuple(topic)
    link = Link(kafka, identity.transactional_id, None, round(TRANSACTION_TIMEOUT_S * 1000))
    try:
        link.transaction.fence()
        link.transaction_of(identity.earlier_id(topics)).fence()
    finally:
        link.close()
