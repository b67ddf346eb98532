"""A driver without Spark: the same steps by the same code against a broker, in a process that costs a moment.

It keeps books as Spark does (a batch is the same rows whenever it is run again; it counts as done once that is noted),
writes rows in another order each time, and dies where it is told to. So it can be killed a thousand times.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.spark.exactly_once_job import Plan
from tests.spark.faults import NEXT, WRITTEN, arm_requests, die
from tests.spark.topics import numbers

from headrace.client.offsets import OffsetAndMetadata
from headrace.client.transactions import ProducerIdentity, TransactionalWriter
from headrace.runtime.real import RealClock
from headrace.spark.cluster import Cluster
from headrace.spark.columns import Shape
from headrace.spark.connections import make_client
from headrace.spark.history import SinkIdentity, digest_of, judge
from headrace.spark.lanes import OutputPartitions, route
from headrace.spark.markers import Marker
from headrace.spark.once import MarkerFinding, run_batch
from headrace.spark.parcels import pack
from headrace.spark.transaction import PROGRESS_TOPIC, SinkTransaction
from headrace.spark.writing import WriteJob, write_task
from headrace.topics import TopicPartition

QUERY, SOURCE_PARTITIONS = "light", 2


class LightSteps:
    """The steps of `once.run_batch` for the rows `start` to `end` of the source."""

    def __init__(
        self, plan: Plan, transaction: SinkTransaction, cluster: Cluster, batch: int, start: int, end: int
    ) -> None:
        self.plan, self.batch, self.end = plan, batch, end
        self.transaction, self.cluster = transaction, cluster
        self.values = numbers(end - start, start)
        self.life = f"{os.getpid()}-{batch}"
        self.fence = transaction.fence
        self.commit = transaction.commit

    def look(self) -> MarkerFinding:
        return judge(self.transaction.last_marker(), self._marker())

    def is_stopped(self) -> bool:
        return False

    def _marker(self) -> Marker:
        return Marker(self.batch, query=QUERY, run=self.life, call=self.life, end=digest_of([str(self.end)]))

    def enlist(self, identity: ProducerIdentity) -> None:
        self.lanes = OutputPartitions.of(self.cluster.partition_counts([self.plan.sink]))
        self.transaction.enlist(identity, self.lanes.partitions())

    def write(self, identity: ProducerIdentity) -> None:
        random.SystemRandom().shuffle(self.values)
        rows = pa.RecordBatch.from_pydict(
            {
                "value": pa.array(self.values, pa.binary()),
                "key": pa.array([value[-2:] for value in self.values], pa.binary()),
            }
        )
        lanes = route(rows, self.lanes, self.plan.sink, 0)
        # Batches of a few rows, so that a task sends more than one.
        kafka, name = {"bootstrap.servers": self.plan.servers, "batch.size": "200"}, self.transaction.transactional_id
        job = WriteJob(kafka, Shape(("value", "key"), self.plan.sink), self.lanes, name, identity, 0, None)
        for lane in range(len(self.lanes)):
            mine = rows.filter(pa.array(lanes == lane))
            parts = [part for part in (mine.slice(0, 5), mine.slice(5)) if part.num_rows]
            write_task((pack(part, [lane] * part.num_rows) for part in parts), job, lane)

    def mark(self, identity: ProducerIdentity) -> None:
        offsets = {
            TopicPartition(self.plan.source, index): OffsetAndMetadata(
                (self.end - index + SOURCE_PARTITIONS - 1) // SOURCE_PARTITIONS
            )
            for index in range(SOURCE_PARTITIONS)
        }
        self.transaction.commit_offsets(identity, self.plan.group, offsets)
        self.transaction.mark(identity, replace(self._marker(), records=len(self.values), at_ms=1))


def arm_task(step: str) -> None:
    """Die at that step of a task, which is part of this process here."""
    plain_init, plain_submit, plain_finish = (
        TransactionalWriter.__init__,
        TransactionalWriter._submit,
        TransactionalWriter.finish,
    )

    def init(self: Any, *arguments: Any) -> None:
        if step == "begun":
            die()
        plain_init(self, *arguments)

    def submit(self: Any, lane: Any, records: Any) -> Any:
        if step == "before send" or (step == "rows" and (lane.unanswered or lane.is_known)):
            die()
        call = plain_submit(self, lane, records)
        if step == "sent":
            die()
        return call

    def finish(self: Any) -> None:
        plain_finish(self)
        if step in ("acknowledged", "result"):
            die()

    for name, double in (("__init__", init), ("_submit", submit), ("finish", finish)):
        setattr(TransactionalWriter, name, double)


def run(given: str, rows: int) -> None:
    """One life of the driver, up to the end of its input or to the point where it dies."""
    plan = Plan(**json.loads(given))
    noted = Path(plan.checkpoint)
    first = done = int(noted.read_text()) if noted.exists() else -1
    kafka = {"bootstrap.servers": plan.servers}
    client, cluster = make_client(kafka), Cluster(kafka)
    name = SinkIdentity(QUERY, plan.sink).transactional_id
    transaction = SinkTransaction(client, cluster, kafka, name, progress_topic=PROGRESS_TOPIC, timeout_ms=60_000)
    if plan.point.startswith("task "):
        arm_task(plan.point.removeprefix("task "))
    elif plan.point not in ("", WRITTEN, NEXT):
        arm_requests(plan.point)
    while (done + 1) * plan.per_batch < rows:
        batch = done + 1
        if plan.point == NEXT and done > first:
            die()
        start, end = batch * plan.per_batch, min((batch + 1) * plan.per_batch, rows)
        steps = LightSteps(plan, transaction, cluster, batch, start, end)
        run_batch(steps, batch, attempts_max=4, timeout_ms=60_000, monotonic=RealClock().monotonic)
        if plan.point == WRITTEN:
            die()
        noted.with_suffix(".new").write_text(str(batch))
        noted.with_suffix(".new").replace(noted)
        done = batch
    client.close()
    cluster.close()
