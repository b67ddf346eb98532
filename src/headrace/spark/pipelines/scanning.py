"""A partition's batches by their headers alone: what is data, what ends transactions, which offsets are missing.

Runs in Spark's tasks, a partition each, and decodes no record but the markers that say how transactions ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from headrace.records import Batch, BatchHeader, read_control, read_records
from headrace.spark.connections import forget, shared_client
from headrace.spark.planning import OffsetRange
from headrace.spark.reading import RangeFetcher, ReadPlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_ABORT = 0


@dataclass(slots=True)
class Scan:
    """One partition, as it lies in the log."""

    topic: str
    partition: int
    start: int
    end: int
    batches: int = 0
    records: int = 0
    """Data, whether committed or not."""
    commits: int = 0
    aborts: int = 0
    aborted_records: int = 0
    open_records: int = 0
    """Of transactions that have not ended."""
    compacted: int = 0
    """Offsets inside batches that have no record any more."""
    holes: int = 0
    """Offsets between batches that belong to none."""
    hole_runs: int = 0
    largest_hole: int = 0
    bytes: int = 0


class _Tally:
    """Counts batches in order. Transactions are told apart by their producer's id."""

    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self._next = scan.start
        self._pending: dict[int, int] = {}

    def take(self, batch: Batch, header: BatchHeader) -> None:
        scan = self.scan
        gap = header.base_offset - self._next
        if gap > 0:
            self._hole(gap)
        self._next = header.next_offset
        scan.batches += 1
        scan.bytes += header.size
        if header.is_control:
            self._marker(batch, header)
            return
        scan.records += header.count
        scan.compacted += header.next_offset - header.base_offset - header.count
        if header.is_transactional:
            self._pending[header.producer_id] = self._pending.get(header.producer_id, 0) + header.count

    def end(self) -> Scan:
        if self.scan.end > self._next:
            self._hole(self.scan.end - self._next)
        self.scan.open_records = sum(self._pending.values())
        return self.scan

    def _hole(self, size: int) -> None:
        self.scan.holes += size
        self.scan.hole_runs += 1
        self.scan.largest_hole = max(self.scan.largest_hole, size)

    def _marker(self, batch: Batch, header: BatchHeader) -> None:
        records = read_records(batch)
        waiting = self._pending.pop(header.producer_id, 0)
        if records and read_control(records[0]).control_type == _ABORT:
            self.scan.aborts += 1
            self.scan.aborted_records += waiting
        else:
            self.scan.commits += 1


def scan_range(kafka: Mapping[str, str], wanted: OffsetRange) -> Scan:
    """Look at one partition's range, here."""
    tally = _Tally(Scan(*wanted.partition, wanted.start, wanted.end))
    if len(wanted):
        client = shared_client(kafka, [wanted.partition.topic])
        finished = False
        try:
            # What is aborted is counted too: so nothing may be left out by the broker.
            fetcher = RangeFetcher(client, ReadPlan.of(kafka, read_committed=False), wanted)
            for batch, header in fetcher.batches():
                tally.take(batch, header)
            finished = True
        finally:
            if not finished:
                forget(client)
    return tally.end()


def scan(session: SparkSession, kafka: Mapping[str, str], ranges: Sequence[OffsetRange]) -> list[Scan]:
    """Look at partitions, a task of Spark for each."""
    if not ranges:
        return []
    names = [one.name for one in fields(Scan)]
    said = ", ".join(f"`{name}` {'STRING' if name == 'topic' else 'LONG'}" for name in names)
    settings, wanted = dict(kafka), list(ranges)

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        schema = pa.schema([(name, pa.string() if name == "topic" else pa.int64()) for name in names])
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield pa.RecordBatch.from_pylist([asdict(scan_range(settings, wanted[number]))], schema=schema)

    # Numbers, a task each, and what they stand for with the function: a DataFrame of the ranges would take a worker of
    # its own to make.
    numbers = session.range(0, len(wanted), 1, len(wanted))
    found: list[Any] = numbers.mapInArrow(look, said).collect()
    return sorted((Scan(**row.asDict()) for row in found), key=lambda one: (one.topic, one.partition))
