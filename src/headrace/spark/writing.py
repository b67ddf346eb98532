"""What the tasks of a transactional write do, and how the rows reach the task that owns their partition.

A task refuses to be a second attempt: under the same producer epoch a broker would take its batches for repetitions of
the first attempt's, by their numbers, whatever is in them. The driver then begins the batch again with a new epoch.
Instead of failing, a task says in its one row of result what went wrong: so the first cause reaches the driver, and
Spark does not try again what may not be tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.client.errors import ProducerFencedError
from headrace.client.transactions import RECORD_OVERHEAD_BYTES, ProducerIdentity, TransactionalWriter, WriteSettings
from headrace.errors import HeadraceError
from headrace.records.arrow import arrow_to_columns
from headrace.runtime.real import RealClock
from headrace.spark.columns import Shape
from headrace.spark.connections import expect_rows, forget, shared_client
from headrace.spark.lanes import OutputPartitions, route
from headrace.spark.once import WriteFailedError
from headrace.spark.parcels import LANE, PARCELS_DDL, pack, unpack

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

log = logging.getLogger("headrace.spark")

RESULT = "task INT, records BIGINT, fenced BOOLEAN, refused BOOLEAN, error STRING"
_RESULT_SCHEMA = pa.schema(
    [
        ("task", pa.int32()),
        ("records", pa.int64()),
        ("fenced", pa.bool_()),
        ("refused", pa.bool_()),
        ("error", pa.string()),
    ]
)
_TEXT_MAX = 4000


@dataclass(frozen=True, slots=True)
class WriteJob:
    """What every task of a transactional write is told. `owners`: how many tasks share the lanes without a shuffle."""

    kafka: Mapping[str, Any] = field(repr=False)
    shape: Shape
    lanes: OutputPartitions
    transactional_id: str
    identity: ProducerIdentity
    turn: int
    owners: int | None

    @property
    def is_routed(self) -> bool:
        return self.owners is None


def needs_routing(shape: Shape) -> bool:
    """Whether rows say themselves where they belong."""
    return shape.has_key or shape.has_partition or shape.topic is None


def run_job(rows: DataFrame, job: WriteJob) -> int:
    """Run the tasks; how many records they wrote. `ProducerFencedError`, or `WriteFailedError` with the first cause."""
    names = [*job.shape.columns, *(["topic"] if job.shape.topic is None else [])]
    rows = rows.select(*[_column(name, rows.schema) for name in names])
    if job.owners is None:
        rows = rows.mapInArrow(_router(job), PARCELS_DDL).repartitionById(len(job.lanes), LANE)
    else:
        rows = rows.coalesce(job.owners)
    results = rows.mapInArrow(_task(job), RESULT).collect()
    for result in results:
        if result.fenced:
            raise ProducerFencedError(result.error)
    failed = [result for result in results if result.error is not None]
    # A task that refuses only says that an earlier attempt had failed; another task may know more.
    failed.sort(key=lambda result: result.refused)
    if failed:
        raise WriteFailedError(f"task {failed[0].task}: {failed[0].error}")
    return sum(result.records for result in results)


def _column(name: str, schema: StructType) -> Column:
    from pyspark.sql import functions as F

    if name != "headers":
        return F.col(f"`{name}`")
    # Spark looks at a batch's size after every row, which for a list takes longer by each null that ends it: a null per
    # row makes that quadratic. An empty list says the same.
    return F.coalesce(F.col("headers"), F.array().cast(schema["headers"].dataType)).alias("headers")


def _router(job: WriteJob) -> Any:
    def in_parcels(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        turn = job.turn + (0 if context is None else context.partitionId())
        for number, batch in enumerate(batches):
            if batch.num_rows:
                expect_rows(batch.num_rows)
                yield pack(batch, route(batch, job.lanes, job.shape.topic, turn + number))

    return in_parcels


def _task(job: WriteJob) -> Any:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        if attempt > 0:
            yield _result(task, 0, f"attempt {attempt} of the task: an earlier one failed", refused=True)
            return
        try:
            yield _result(task, write_task(batches, job, task), None)
        except ProducerFencedError as error:
            yield _result(task, 0, str(error), fenced=True)
        except HeadraceError as error:
            yield _result(task, 0, f"{type(error).__name__}: {error}")

    return write


def _result(
    task: int, records: int, error: str | None, *, fenced: bool = False, refused: bool = False
) -> pa.RecordBatch:
    row = {
        "task": task,
        "records": records,
        "fenced": fenced,
        "refused": refused,
        "error": None if error is None else error[:_TEXT_MAX],
    }
    return pa.RecordBatch.from_pylist([row], schema=_RESULT_SCHEMA)


def write_task(batches: Iterator[pa.RecordBatch], job: WriteJob, task: int) -> int:
    """Write the rows of one task; how many there were."""
    partitions = job.lanes.partitions()
    owned = [task] if job.owners is None else job.lanes.owned(task, job.owners, job.turn)
    if task >= (len(partitions) if job.owners is None else job.owners):
        raise WriteFailedError(f"Spark made a task {task}, although there are {len(partitions)} partitions to own")
    client = shared_client(job.kafka, {partitions[lane].topic for lane in owned})
    settings = WriteSettings.of(job.kafka)
    writer = TransactionalWriter(client, settings, job.transactional_id, job.identity)
    now_ms = RealClock().now_ms()
    rows = 0
    finished = False
    try:
        for lane, batch in _with_lanes(batches, job, owned, settings.batch_bytes):
            if not batch.num_rows:
                continue
            expect_rows(batch.num_rows)
            columns = arrow_to_columns(batch.select(_record_columns(job.shape)), default_timestamp_ms=now_ms)
            writer.write(partitions[lane], columns)
            rows += batch.num_rows
        writer.finish()
        finished = True
    finally:
        if not finished:
            forget(client)
    return rows


def _record_columns(shape: Shape) -> list[str]:
    return [name for name in shape.columns if name != "partition"]


def _with_lanes(
    batches: Iterator[pa.RecordBatch], job: WriteJob, owned: list[int], batch_bytes: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows, and the lane that they go to. That they were all routed to this task is checked, not believed."""
    if not job.is_routed:
        for number, batch in enumerate(batches):
            yield owned[number % len(owned)], batch
        return
    (ours,) = owned
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for lane, rows in unpack(batch):
            if lane != ours:
                raise WriteFailedError(f"rows of lane {lane} came to the task of lane {ours}: nothing is certain then")
            # A parcel is a part of what a request may carry: several go together.
            more = _record_bytes(rows)
            if waiting and size + more > batch_bytes:
                yield ours, _together(waiting)
                waiting, size = [], 0
            waiting.append(rows)
            size += more
    if waiting:
        yield ours, _together(waiting)


def _record_bytes(rows: pa.RecordBatch) -> int:
    """About how many bytes rows take in a batch. Arrow's columns of ends are about eight bytes of a record."""
    return int(rows.nbytes) + (RECORD_OVERHEAD_BYTES - 8) * int(rows.num_rows)


def _together(rows: list[pa.RecordBatch]) -> pa.RecordBatch:
    (one,) = pa.Table.from_batches(rows).combine_chunks().to_batches()
    return one
