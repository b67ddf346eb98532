"""Steps of a pipeline without a checkpoint: rows, where the next begins, and groups' offsets in one transaction.

Where a step ended is a record of the progress topic of the cluster that is written to. So a pipeline that is started
again, on whatever machine, goes on exactly where the last committed step ended.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.client.offsets import OffsetAndMetadata
from headrace.errors import ErrorCode, HeadraceError
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.runtime.real import RealClock
from headrace.spark.cluster import Cluster
from headrace.spark.columns import Shape, shape_of
from headrace.spark.connections import make_client
from headrace.spark.first_cause import first_cause, job_ids
from headrace.spark.foreach_batch import ATTEMPTS, TRANSACTION_TIMEOUT_MS, check_spark
from headrace.spark.lanes import Lanes
from headrace.spark.markers import Marker
from headrace.spark.once import Fenced, Identity, TookOver, WriteFailed, run_batch
from headrace.spark.options import read_sink_options
from headrace.spark.transaction import PROGRESS_TOPIC, Coordinators, Transaction
from headrace.spark.writing import WriteJob, needs_routing, run_job
from headrace.topics import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("headrace.spark")

GroupOffsets = Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]]
_TRANSACTION, _GROUP = 1, 0
# The last versions before KIP-890's second part, as in `transaction`.
_OFFSETS_VERSION_MAX = 3
_API_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class Step(Marker):
    """What is written with a step: which run made it, and where the next one begins."""

    run: str = ""
    position: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_bytes(cls, value: bytes) -> Step:
        given = json.loads(value)
        return cls(
            int(given["batch"]),
            int(given.get("records", -1)),
            int(given.get("at_ms", -1)),
            str(given.get("run", "")),
            dict(given.get("position", {})),
        )


class _Ledger(Transaction):
    """A transaction whose markers are steps."""

    def last_step(self) -> Step | None:
        if self._progress is None:
            return None
        self._make_progress_topic()
        for value in self._markers_from(self._progress):
            self._marker = Step.from_bytes(value)
        return self._marker if isinstance(self._marker, Step) else None


class Transacted:
    """One pipeline's steps under one transactional id. Close it, or use it in a `with` block."""

    def __init__(
        self,
        kafka: Mapping[str, Any],
        name: str,
        *,
        progress_topic: str = PROGRESS_TOPIC,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        attempts: int = ATTEMPTS,
        on_retry: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.kafka = read_sink_options({f"kafka.{key}": str(value) for key, value in kafka.items()}).kafka
        self.name = name
        self.cluster = Cluster(self.kafka)
        self.run_id = uuid.uuid4().hex
        self.last: Step | None = None
        self._client = make_client(self.kafka)
        self._timeout_ms = timeout_ms
        self._attempts = attempts
        self._on_retry = on_retry
        self._coordinators = Coordinators(self._client, _API_TIMEOUT_MS)
        self._transaction = _Ledger(
            self._client, self.cluster, self.kafka, name, progress_topic=progress_topic, timeout_ms=timeout_ms
        )

    def __enter__(self) -> Transacted:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()
        self.cluster.close()

    def resume(self) -> Mapping[str, Any]:
        """Where the last committed step ended ({}: there is none). Ends whatever an older run left open."""
        self._transaction.fence()
        self.last = self._transaction.last_step()
        return {} if self.last is None else self.last.position

    def write(
        self,
        rows: DataFrame,
        topics: Iterable[str],
        position: Mapping[str, Any],
        *,
        topic: str | None = None,
        partitions: Sequence[TopicPartition] | None = None,
        offsets: GroupOffsets | None = None,
        include_timestamp: bool = False,
    ) -> int:
        """Write one step; how many records. `topic`: where all rows go (else their column says).

        `partitions`: those that rows go to, if that is known; else all of the topics take part in the transaction.
        """
        check_spark(dict(rows.sparkSession.sparkContext.getConf().getAll()))
        step = Step(
            0 if self.last is None else self.last.batch + 1, 0, RealClock().now_ms(), self.run_id, dict(position)
        )
        shape = shape_of(rows.schema, topic, include_timestamp=include_timestamp)
        steps = _Steps(self, rows, shape, sorted(set(topics)), partitions, step, offsets or {})
        run_batch(
            steps,
            step.batch,
            attempts_max=self._attempts,
            timeout_ms=self._timeout_ms,
            monotonic=RealClock().monotonic,
            on_retry=self._retried,
        )
        self.last = step
        return steps.records

    def _retried(self, attempt: int, error: HeadraceError) -> None:
        log.warning("attempt %d of a step of %s failed, and is begun again: %s", attempt, self.name, error)
        self._on_retry(str(error))

    def check_alone(self, found: Step | None) -> None:
        """Raise when a step was committed by somebody else since this run began."""
        before = None if self.last is None else self.last.batch
        if found is not None and found.run != self.run_id and found.batch != before:
            raise TookOver(f"another run of {self.name} has begun and written: only one may run at a time")

    def commit_offsets(
        self, identity: Identity, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """A group's offsets with their notes, in the transaction."""
        added = AddOffsetsToTxnRequest(
            transactional_id=self.name, producer_id=identity.producer_id, producer_epoch=identity.epoch, group_id=group
        )
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for (name, index), wanted in offsets.items():
            topics.setdefault(name, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=index, committed_offset=wanted.offset, committed_metadata=wanted.metadata
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            member_id="",
            topics=[TxnOffsetCommitRequestTopic(name=one, partitions=parts) for one, parts in topics.items()],
        )
        try:
            self._coordinators.ask(
                _TRANSACTION, self.name, added, lambda r: int(r.error_code), version_max=_OFFSETS_VERSION_MAX
            )
            self._coordinators.ask(_GROUP, group, request, _first_code, version_max=_OFFSETS_VERSION_MAX)
        except Fenced:
            raise
        except HeadraceError as error:
            raise WriteFailed(f"the offsets of group {group} could not be written: {error}") from error


def _first_code(response: Any) -> int:
    codes = [int(one.error_code) for topic in response.topics for one in topic.partitions]
    return next((code for code in codes if code != ErrorCode.NONE), int(ErrorCode.NONE))


class _Steps:
    """The steps of `once.run_batch` for one step of a pipeline."""

    def __init__(
        self,
        owner: Transacted,
        rows: DataFrame,
        shape: Shape,
        topics: Sequence[str],
        partitions: Sequence[TopicPartition] | None,
        step: Step,
        offsets: GroupOffsets,
    ) -> None:
        self.records = 0
        self._owner = owner
        self._transaction = owner._transaction
        self._rows = rows
        self._shape = shape
        self._topics = topics
        self._partitions = partitions
        self._step = step
        self._offsets = offsets
        self._lanes: Lanes | None = None

    def fence(self) -> Identity:
        return self._transaction.fence()

    def last_committed(self) -> int | None:
        found = self._transaction.last_step()
        self._owner.check_alone(found)
        return None if found is None else found.batch

    def enlist(self, identity: Identity) -> None:
        self._lanes = Lanes.of(self._owner.cluster.partition_counts(self._topics))
        self._transaction.enlist(identity, list(self._partitions or self._lanes.partitions()))

    def write(self, identity: Identity) -> None:
        assert self._lanes is not None
        spark = self._rows.sparkSession
        owners = None
        if not needs_routing(self._shape):
            owners = min(len(self._lanes), max(1, spark.sparkContext.defaultParallelism))
        job = WriteJob(
            self._owner.kafka,
            self._shape,
            self._lanes,
            self._owner.name,
            identity,
            self._step.batch * (owners or 1),
            owners,
        )
        before = job_ids(spark)
        try:
            self.records = run_job(self._rows, job)
        except _job_errors() as error:
            cause = first_cause(spark, before)
            text = str(error)
            raise WriteFailed(text if cause is None or cause in text else f"{cause} (then: {text[:300]})") from error

    def mark(self, identity: Identity) -> None:
        for group, offsets in self._offsets.items():
            self._owner.commit_offsets(identity, group, offsets)
        step = self._step
        self._transaction.mark(identity, Step(step.batch, self.records, step.at_ms, step.run, step.position))

    def commit(self, identity: Identity) -> None:
        self._transaction.commit(identity)

    def release(self) -> None:
        try:
            self._transaction.fence()
        except HeadraceError as error:
            log.warning("the open transaction of %s ends only with its time-out: %s", self._owner.name, error)


def _job_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return (WriteFailed, PySparkException, Py4JJavaError)
