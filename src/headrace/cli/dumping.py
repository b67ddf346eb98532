"""What the files of a data directory say, as rows: batches, records, index entries, snapshots, checkpoints.

Only reads, and only with read permission: a copy of another machine's directory is fine, and so is Apache Kafka's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from headrace.cli.output import CommandError, id_text
from headrace.cluster.broker_config import is_secret
from headrace.config import parse_properties
from headrace.errors import HeadraceError
from headrace.log import checkpoints, partition_metadata, snapshots, transaction_index
from headrace.log.leader_epochs import FILE_NAME as EPOCHS_NAME
from headrace.log.leader_epochs import LeaderEpochs
from headrace.log.offset_index import DamagedIndexError, OffsetIndex
from headrace.log.scanning import check_whole, scan_batches, scan_headers
from headrace.log.time_index import TimeIndex
from headrace.protocol.stored import consumer_offsets, metadata_records, transaction_state
from headrace.protocol.stored.coordinator import KeyAndValue, Unknown
from headrace.protocol.wire import MalformedMessageError
from headrace.records import (
    Batch,
    BatchHeader,
    CorruptBatchError,
    MalformedRecordError,
    Record,
    read_control,
    read_records,
)

Row = dict[str, Any]
_PARTITION_DIRECTORY = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)(?:\.[0-9a-f]{32}-(?:delete|future|stray))?")
_HIDDEN = "[hidden]"
_CONTROL_NAMES = {0: "ABORT", 1: "COMMIT", 2: "LEADER_CHANGE", 3: "SNAPSHOT_HEADER", 4: "SNAPSHOT_FOOTER"}
_METADATA_TOPIC = "__cluster_metadata"
_CHUNK_BYTES = 1024 * 1024


class _File:
    """A file opened for reading only, as the log's scanners want it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")

    @property
    def path(self) -> str:
        return str(self._path)

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def read(self, position: int, length: int) -> bytes:
        return os.pread(self._file.fileno(), length, position)

    def read_nowait(self, position: int, length: int) -> bytearray | None:
        return bytearray(self.read(position, length))

    def has_data_from(self, position: int) -> bool:
        """Whether anything but zeros follows: room that was preallocated reads as zeros, a torn write does not."""
        return any(any(self.read(at, _CHUNK_BYTES)) for at in range(position, self.size, _CHUNK_BYTES))

    def close(self) -> None:
        self._file.close()


def partition_of(directory: Path) -> tuple[str, int] | None:
    """Topic and partition that a directory's name says."""
    match = _PARTITION_DIRECTORY.fullmatch(directory.name)
    return None if match is None else (match["topic"], int(match["partition"]))


def base_offset_of(path: Path) -> int:
    """The offset in a segment file's name."""
    digits = path.name.split(".")[0].split("-")[0]
    return int(digits) if digits.isdigit() else 0


# --- logs -------------------------------------------------------------------------------------------------------------


def batch_rows(path: Path) -> Iterator[Row]:
    """Every batch of a segment; the last row has an `error` when the file does not end with a whole, sound batch."""
    for position, batch, problem in _batches(path):
        if batch is None:
            yield {"position": position, "error": problem}
            return
        header = batch.header()
        yield {"position": position, **_header_row(header), "error": problem}


def _batches(path: Path) -> Iterator[tuple[int, Batch | None, str | None]]:
    file = _File(path)
    end = 0
    try:
        for position, batch in scan_batches(file, 0, file.size):
            end = position + batch.size
            try:
                check_whole(batch)
            except CorruptBatchError as error:
                yield position, batch, str(error)
                continue
            yield position, batch, None
        if file.has_data_from(end):
            yield end, None, f"{file.size - end} bytes after the last whole batch"
    except CorruptBatchError as error:
        if file.has_data_from(end):
            yield end, None, str(error)
    finally:
        file.close()


def _header_row(header: BatchHeader) -> Row:
    kind = ["control"] if header.is_control else []
    kind += ["transactional"] if header.is_transactional else []
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.count,
        "size_bytes": header.size,
        "codec": header.codec.kafka_name,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": header.timestamp_type.name,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id if header.producer_id >= 0 else None,
        "producer_epoch": header.producer_epoch if header.producer_id >= 0 else None,
        "base_sequence": header.base_sequence if header.base_sequence >= 0 else None,
        "kind": " ".join(kind) or "data",
    }


def record_rows(path: Path) -> Iterator[Row]:
    """Every record of a segment; those of Kafka's own topics are decoded."""
    partition = partition_of(path.resolve().parent)
    describe = _DECODERS.get(partition[0] if partition else "")
    for position, batch, problem in _batches(path):
        if batch is None or problem is not None:
            yield {"position": position, "error": problem}
            continue
        try:
            records = read_records(batch)
        except (CorruptBatchError, MalformedRecordError) as error:
            yield {"position": position, "error": str(error)}
            continue
        for record in records:
            yield _record_row(record, batch.is_control, describe)


def _record_row(record: Record, is_control: bool, describe: Callable[[Record], Row] | None) -> Row:
    row: Row = {"offset": record.offset, "timestamp": record.timestamp}
    if is_control:
        marker = read_control(record)
        name = _CONTROL_NAMES.get(marker.control_type, str(marker.control_type))
        return row | {"control": name, "coordinator_epoch": marker.coordinator_epoch}
    if describe is not None:
        try:
            return row | describe(record)
        except MalformedMessageError as error:
            return row | {"error": f"cannot be decoded: {error}"}
    row |= {"key": _text(record.key), "value": _text(record.value)}
    if record.headers:
        row["headers"] = {name: _text(value) for name, value in record.headers}
    return row


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def _coordinator_record(decode: Callable[[Any, Any], KeyAndValue | Unknown], record: Record) -> Row:
    if record.key is None:
        return {"error": "a record without a key"}
    found = decode(record.key, record.value)
    if isinstance(found, Unknown):
        return {"type": found.name or f"type {found.record_type}", "note": "not decoded"}
    value = None if found.value is None else plain(found.value)
    return {"type": _name(found.key), "key": plain(found.key), "value": value}


def _metadata_record(record: Record) -> Row:
    if record.value is None:
        return {"error": "a record without a value"}
    found = metadata_records.decode_record(record.value)
    if isinstance(found, Unknown):
        return {"type": found.name or f"type {found.record_type}", "note": "not decoded"}
    value = plain(found)
    for name in _secrets_in(found):
        value[name] = _HIDDEN
    return {"type": _name(found), "value": value}


def _secrets_in(record: metadata_records.MetadataRecord) -> tuple[str, ...]:
    """What lets whoever reads it log in as somebody, or be a broker."""
    if isinstance(record, metadata_records.UserScramCredentialRecord):
        return "salt", "stored_key", "server_key"
    if isinstance(record, metadata_records.ConfigRecord) and is_secret(record.name):
        return ("value",)
    return ()


_DECODERS: dict[str, Callable[[Record], Row]] = {
    "__consumer_offsets": lambda record: _coordinator_record(consumer_offsets.decode_record, record),
    "__transaction_state": lambda record: _coordinator_record(transaction_state.decode_record, record),
    _METADATA_TOPIC: _metadata_record,
}


def _name(message: Any) -> str:
    return str(message.SCHEMA.name)


def plain(message: Any) -> Any:
    """A message as values that JSON has; ids as Kafka writes them, other bytes as hex."""
    if isinstance(message, (bytes, bytearray, memoryview)):
        raw = bytes(message)
        return id_text(raw) if len(raw) == 16 else raw.hex()
    if isinstance(message, list):
        return [plain(item) for item in message]
    schema = getattr(message, "SCHEMA", None)
    if schema is None:
        return message
    return {field.name: plain(getattr(message, field.name)) for field in schema.fields}


# --- the other files --------------------------------------------------------------------------------------------------


def index_rows(path: Path) -> list[Row]:
    """Entries of a `.index`."""
    log_path = path.with_suffix(".log")
    log_bytes = log_path.stat().st_size if log_path.exists() else 2**31
    found = OffsetIndex.from_bytes(path.read_bytes(), base_offset_of(path), log_bytes)
    return [{"offset": offset, "position": position} for offset, position in found.entries()]


def time_index_rows(path: Path) -> list[Row]:
    """Entries of a `.timeindex`."""
    found = TimeIndex.from_bytes(path.read_bytes(), base_offset_of(path))
    return [{"timestamp": timestamp, "offset": offset} for timestamp, offset in found.entries()]


def transaction_rows(path: Path) -> list[Row]:
    """Aborted transactions in a `.txnindex`."""
    return [
        {
            "producer_id": entry.producer_id,
            "first_offset": entry.first_offset,
            "last_offset": entry.last_offset,
            "last_stable_offset": entry.last_stable_offset,
        }
        for entry in transaction_index.parse(path.read_bytes(), base_offset_of(path))
    ]


def snapshot_rows(path: Path) -> list[Row]:
    """Producers in a `.snapshot`."""
    return [
        {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "last_sequence": producer.last_sequence,
            "last_offset": producer.batches[-1].last_offset if producer.batches else None,
            "last_timestamp": producer.last_timestamp_ms,
            "coordinator_epoch": producer.coordinator_epoch,
            "transaction_start": producer.txn_first_offset if producer.txn_first_offset >= 0 else None,
        }
        for producer in snapshots.decode(path.read_bytes())
    ]


def epoch_rows(path: Path) -> list[Row]:
    """Leader epochs."""
    found = LeaderEpochs.from_bytes(path.read_bytes())
    return [{"leader_epoch": entry.epoch, "start_offset": entry.start_offset} for entry in found.entries]


def checkpoint_rows(path: Path) -> list[Row]:
    """Offsets of partitions in a checkpoint file."""
    found = checkpoints.decode_offsets(path.read_bytes())
    return [{"topic": tp.topic, "partition": tp.partition, "offset": offset} for tp, offset in sorted(found.items())]


def property_rows(path: Path) -> list[Row]:
    """Keys of `meta.properties` or `partition.metadata`."""
    return [{"key": key, "value": value} for key, value in parse_properties(path.read_text("utf-8")).items()]


class FileKind(NamedTuple):
    """What a file is, by its name, and how to read it."""

    title: str
    rows: Callable[[Path], Any]


def kind_of(path: Path, *, records: bool) -> FileKind:
    """How a file is read, by its name."""
    name = path.name
    if name == EPOCHS_NAME:
        return FileKind("leader epochs", epoch_rows)
    if name in (partition_metadata.FILE_NAME, "meta.properties"):
        return FileKind("properties", property_rows)
    if re.fullmatch(r"\d{20}-\d{10}\.checkpoint", name):
        return FileKind("metadata snapshot", record_rows if records else batch_rows)
    if name.endswith("-checkpoint"):
        return FileKind("checkpoint", checkpoint_rows)
    kinds: dict[str, FileKind] = {
        ".log": FileKind("records", record_rows) if records else FileKind("batches", batch_rows),
        ".index": FileKind("offset index", index_rows),
        ".timeindex": FileKind("time index", time_index_rows),
        ".txnindex": FileKind("aborted transactions", transaction_rows),
        ".snapshot": FileKind("producers", snapshot_rows),
    }
    # A file about to be deleted keeps its kind: 00000000000000000000.log.deleted.
    suffix = Path(name.removesuffix(".deleted").removesuffix(".cleaned").removesuffix(".swap")).suffix
    if suffix not in kinds:
        raise CommandError(f"{path} is no file of a log that is known here")
    return kinds[suffix]


def read_rows(path: Path, kind: FileKind) -> Iterator[Row]:
    """The rows of a file; damage becomes a row with an `error`."""
    try:
        yield from kind.rows(path)
    except (HeadraceError, DamagedIndexError, ValueError) as error:
        yield {"error": f"{path.name}: {error}"}


# --- directories ------------------------------------------------------------------------------------------------------


def segment_rows(directory: Path) -> list[Row]:
    """The segments of a partition, from the headers of their batches."""
    rows = []
    for path in sorted(directory.glob("*.log")):
        row: Row = {"segment": path.name, "base_offset": base_offset_of(path), "size_bytes": path.stat().st_size}
        first: BatchHeader | None = None
        last: BatchHeader | None = None
        batches = records = end = 0
        newest = -1
        problem: str | None = None
        file = _File(path)
        try:
            for position, header in scan_headers(file, 0, file.size):
                end = position + header.size
                first = first or header
                last = header
                batches += 1
                records += header.count
                newest = max(newest, header.max_timestamp)
        except CorruptBatchError as error:
            problem = str(error) if file.has_data_from(end) else None
        finally:
            file.close()
        rows.append(
            row
            | {
                "next_offset": row["base_offset"] if last is None else last.next_offset,
                "batches": batches,
                "records": records,
                "first_timestamp": first.base_timestamp if first is not None else None,
                "max_timestamp": newest if newest >= 0 else None,
                "error": problem,
            }
        )
    return rows


def partition_rows(directory: Path) -> list[Row]:
    """The partitions in a log directory."""
    rows = []
    for path in sorted(directory.iterdir()):
        partition = partition_of(path) if path.is_dir() else None
        if partition is None:
            continue
        segments = segment_rows(path)
        rows.append(
            {
                "directory": path.name,
                "topic": partition[0],
                "partition": partition[1],
                "segments": len(segments),
                "first_offset": segments[0]["base_offset"] if segments else None,
                "next_offset": segments[-1]["next_offset"] if segments else None,
                "records": sum(row["records"] for row in segments),
                "size_bytes": sum(row["size_bytes"] for row in segments),
                "error": next((row["error"] for row in segments if row["error"]), None),
            }
        )
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))
