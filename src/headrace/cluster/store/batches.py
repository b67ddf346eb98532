"""Metadata records as they are written down: batches of Kafka's own format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, overload

from headrace.cluster.image import InconsistentMetadataError
from headrace.cluster.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
    Unknown,
    decode_record,
    encode_record,
)
from headrace.protocol.wire import MalformedMessageError
from headrace.records import (
    Batch,
    Buffer,
    CorruptBatchError,
    MalformedRecordError,
    build_batch_of,
    check,
    read_records,
    split,
)

_SNAPSHOT_BATCH_RECORDS: Final = 1000
# More than what a batch's header and the lengths, times and offsets of a record ever take.
_BATCH_OVERHEAD_BYTES: Final = 100
_RECORD_OVERHEAD_BYTES: Final = 32


class RecordGroup(Sequence[MetadataRecord]):
    """Records that are written together, encoded once for all who write them down or send them."""

    __slots__ = ("_records", "_values")

    def __init__(self, records: Sequence[MetadataRecord]) -> None:
        self._records = records
        self._values: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> MetadataRecord: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[MetadataRecord]: ...

    def __getitem__(self, index: int | slice) -> MetadataRecord | Sequence[MetadataRecord]:
        return self._records[index]

    def __iter__(self) -> Iterator[MetadataRecord]:
        return iter(self._records)

    @property
    def values(self) -> list[bytes]:
        if self._values is None:
            self._values = [encode_record(record) for record in self._records]
        return self._values


def batch_of(records: Iterable[MetadataRecord], now_ms: int) -> bytearray:
    return _batch_of_values([encode_record(record) for record in records], now_ms)


def _batch_of_values(values: Sequence[bytes], now_ms: int) -> bytearray:
    return build_batch_of([now_ms] * len(values), [None] * len(values), values)


def batches_of(records: Iterable[MetadataRecord], now_ms: int) -> Iterator[bytearray]:
    chunk: list[MetadataRecord] = []
    for record in records:
        chunk.append(record)
        if len(chunk) == _SNAPSHOT_BATCH_RECORDS:
            yield batch_of(chunk, now_ms)
            chunk = []
    if chunk:
        yield batch_of(chunk, now_ms)


def batches_within(records: Iterable[MetadataRecord], now_ms: int, bytes_max: int) -> Iterator[bytearray]:
    """Batches that each take up no more than so many bytes; one record that does by itself is a `ValueError`."""
    chunk: list[bytes] = []
    size = 0
    encoded = records.values if isinstance(records, RecordGroup) else map(encode_record, records)
    for value in encoded:
        needed = len(value) + _RECORD_OVERHEAD_BYTES
        if needed + _BATCH_OVERHEAD_BYTES > bytes_max:
            raise ValueError(f"a record of {needed} bytes ({type(decode_record(value)).__name__})")
        if chunk and size + needed + _BATCH_OVERHEAD_BYTES > bytes_max:
            yield _batch_of_values(chunk, now_ms)
            chunk, size = [], 0
        chunk.append(value)
        size += needed
    if chunk:
        yield _batch_of_values(chunk, now_ms)


def checked_batches(data: Buffer, path: str) -> Iterator[Batch]:
    """The batches of a snapshot, which is written as a whole: a cut or damaged one is an error, not an end."""
    size = 0
    try:
        for batch in split(data):
            check(batch)
            size += len(batch.buffer)
            if not batch.header().is_control:  # Apache Kafka writes such at the beginning and at the end
                yield batch
    except CorruptBatchError as error:
        raise InconsistentMetadataError(f"{path}: the snapshot is damaged ({error})") from error
    if size != len(data):
        raise InconsistentMetadataError(f"{path}: the snapshot is cut after {size} of {len(data)} bytes")


def records_of(batch: Batch, where: str) -> Iterator[tuple[int, MetadataRecord]]:
    try:
        for stored in read_records(batch):
            record = decode_record(stored.value or b"")
            if isinstance(record, Unknown):
                raise InconsistentMetadataError(
                    f"{where}: the record at offset {stored.offset} is of type {record.record_type}"
                    f"{'' if record.version is None else f' in version {record.version}'}, which this version of "
                    f"Headrace does not know; start a newer one"
                )
            yield stored.offset, record
    except (MalformedRecordError, MalformedMessageError) as error:
        raise InconsistentMetadataError(f"{where}: a metadata record is damaged ({error})") from error


def settled(entries: Iterable[tuple[int, MetadataRecord]], where: str) -> Iterator[tuple[int, MetadataRecord]]:
    """The records without what an aborted transaction holds. Apache Kafka's controller writes such, ours does not."""
    held: list[tuple[int, MetadataRecord]] | None = None
    for entry in entries:
        match entry[1]:
            case BeginTransactionRecord():
                held = []
            case EndTransactionRecord():
                yield from held or ()
                held = None
            case AbortTransactionRecord():
                held = None
            case _ if held is None:
                yield entry
            case _:
                held.append(entry)
    if held is not None:
        raise InconsistentMetadataError(
            f"{where}: the metadata log ends within a transaction of the controller that wrote it; let that controller "
            "end it first"
        )
