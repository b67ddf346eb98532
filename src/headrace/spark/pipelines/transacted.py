"""Steps of a pipeline without a checkpoint: rows, where the next begins, and groups' offsets in one transaction.

Where a step ended is a record of the progress topic of the cluster that is written to. So a pipeline that is started
again, on whatever machine, goes on exactly where the last committed step ended.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.runtime.real import RealClock
from headrace.spark.columns import Shape, shape_of
from headrace.spark.foreach_batch import ATTEMPTS, TRANSACTION_TIMEOUT_S, check_spark
from headrace.spark.markers import Marker
from headrace.spark.once import MarkerFinding, TakenOverError, WrongHistoryError, run_batch
from headrace.spark.options import read_sink_options
from headrace.spark.steps import BatchSteps, Link, Work
from headrace.spark.transaction import PROGRESS_TOPIC, CommittedOffsets
from headrace.topics import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("headrace.spark")


@dataclass(frozen=True, slots=True)
class StepMarker(Marker):
    """What is written with a step: a marker, and where the next one begins."""

    position: Mapping[str, Any] = field(default_factory=dict)


class Transacted:
    """One pipeline's steps under one transactional id. Close it, or use it in a `with` block."""

    def __init__(
        self,
        kafka: Mapping[str, Any],
        name: str,
        *,
        progress_topic: str = PROGRESS_TOPIC,
        timeout_ms: int = round(TRANSACTION_TIMEOUT_S * 1000),
        attempts: int = ATTEMPTS,
        on_retry: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.kafka = read_sink_options({f"kafka.{key}": str(value) for key, value in kafka.items()}).kafka
        self.name = name
        self.run_id = uuid.uuid4().hex
        self.last: StepMarker | None = None
        self._timeout_ms = timeout_ms
        self._attempts = attempts
        self._on_retry = on_retry
        self._link = Link(self.kafka, name, progress_topic, timeout_ms)
        self.cluster = self._link.cluster

    def __enter__(self) -> Transacted:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._link.close()

    def resume(self) -> Mapping[str, Any]:
        """Where the last committed step ended ({}: there is none). Ends whatever an older run left open."""
        self._link.transaction.fence()
        self.last = self.last_step()
        if self.last is not None and self.last.cluster and self.last.cluster != self.cluster.id:
            raise WrongHistoryError(
                f"where {self.name} is was written to the cluster {self.last.cluster}, but this is {self.cluster.id}: "
                "the progress topic was copied from there. Give another --name, which begins anew"
            )
        return {} if self.last is None else self.last.position

    def last_step(self) -> StepMarker | None:
        """The last committed step. Only right after the transaction was fenced."""
        written = self._link.transaction.last_written()
        return None if written is None else StepMarker.from_bytes(written)

    def write(
        self,
        rows: DataFrame | None,
        topics: Iterable[str],
        position: Mapping[str, Any],
        *,
        topic: str | None = None,
        partitions: Sequence[TopicPartition] | None = None,
        offsets: Mapping[str, CommittedOffsets] | None = None,
        include_timestamp: bool = False,
    ) -> int:
        """Write one step; how many records. `rows`: None only notes the position. `topic`: where all rows go (else
        their column says).

        `partitions`: those that rows go to, if that is known; else all of the topics take part in the transaction.
        """
        number = 0 if self.last is None else self.last.batch + 1
        step = StepMarker(
            number,
            query=self.name,
            cluster=self.cluster.id or "",
            run=self.run_id,
            call=uuid.uuid4().hex,
            position=dict(position),
        )
        shape = Shape((), topic)
        if rows is not None:
            check_spark(dict(rows.sparkSession.sparkContext.getConf().getAll()))
            shape = shape_of(rows.schema, topic, include_timestamp=include_timestamp)
        groups = list((offsets or {}).items())
        steps = _OnlySteps(self, self._link, Work(rows, shape, sorted(set(topics)), step, groups, partitions))
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

    def check_alone(self, found: StepMarker | None) -> None:
        """Raise when a step was committed by somebody else since this run began."""
        before = None if self.last is None else self.last.batch
        if found is not None and found.run != self.run_id and found.batch != before:
            raise TakenOverError(f"another run of {self.name} has begun and written: only one may run at a time")


class _OnlySteps(BatchSteps):
    """Steps of a run that is the only one: it stops where another has written."""

    def __init__(self, owner: Transacted, link: Link, work: Work) -> None:
        super().__init__(link, work)
        self._owner = owner

    def look(self) -> MarkerFinding:
        self._owner.check_alone(self._owner.last_step())
        return super().look()
