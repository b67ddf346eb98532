"""Copy a batch without some of its records, as log compaction does: offsets, producer state and markers stay."""

from __future__ import annotations

from collections.abc import Callable, Container
from enum import Enum

from headrace.records.batch import Batch, Buffer, Codec, TimestampType
from headrace.records.build import build_batch_from_columns, empty_batch
from headrace.records.columns import BytesColumn, Columns, bytes_column, decode_headers, encode_headers
from headrace.records.compression import DEFAULT_LIMIT_BYTES
from headrace.records.read import decode_columns


class Retention(Enum):
    """What becomes of a batch as a whole."""

    DELETE = "DELETE"
    """Goes, whatever its records are."""
    DELETE_EMPTY = "DELETE_EMPTY"
    """Goes when no record is left."""
    RETAIN_EMPTY = "RETAIN_EMPTY"
    """Stays without records when none is left: it carries a producer's last sequence number."""


Keep = Callable[[Columns], list[int]]
"""Which rows of a batch to keep, in order."""


def keep_offsets(offsets: Container[int]) -> Keep:
    """Keep the records with these offsets."""
    return lambda columns: [row for row, offset in enumerate(columns.offsets.tolist()) if offset in offsets]


def filter_batch(
    batch: Batch,
    keep: Keep,
    retention: Retention,
    *,
    delete_horizon_ms: int,
    holds_marker_of_empty_transaction: bool = False,
    level: int | None = None,
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
) -> Buffer | None:
    """The batch with only the rows that `keep` names, or None when nothing of it stays.

    Base and last offset, producer id, epoch, sequence and codec stay, so that a producer's state can be rebuilt from
    what is left. A batch that keeps tombstones (or the marker of a transaction of which no data is left) and has no
    delete horizon yet gets `delete_horizon_ms` (now + delete.retention.ms). A batch that need not change is given back
    as it is.
    """
    if retention is Retention.DELETE:
        return None
    header = batch.header()
    columns = decode_columns(batch, limit_bytes)
    rows = keep(columns)
    if not rows:
        if retention is Retention.DELETE_EMPTY:
            return None
        return empty_batch(
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            max_timestamp=header.max_timestamp,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            leader_epoch=header.leader_epoch,
            timestamp_type=header.timestamp_type,
            transactional=header.is_transactional,
            control=header.is_control,
        )
    kept = columns if len(rows) == len(columns) else columns.take(rows)
    holds_tombstones = min(kept.values.lengths.tolist()) < 0
    sets_horizon = (holds_tombstones or holds_marker_of_empty_transaction) and not header.has_delete_horizon
    if kept is columns and not sets_horizon:
        return batch.buffer
    stamped = header.is_log_append_time
    return build_batch_from_columns(
        Columns(kept.offsets, kept.timestamps, kept.keys, kept.values, _rewritten(kept.headers)),
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        codec=header.codec,
        level=level if header.codec is not Codec.NONE else None,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        leader_epoch=header.leader_epoch,
        timestamp_type=TimestampType.LOG_APPEND_TIME if stamped else TimestampType.CREATE_TIME,
        log_append_time=header.max_timestamp if stamped else None,
        delete_horizon=delete_horizon_ms if sets_horizon else header.delete_horizon_ms,
    )


def _rewritten(headers: BytesColumn | None) -> BytesColumn | None:
    """Header sections encoded anew: long varints and bad UTF-8 do not survive compaction in Java either."""
    if headers is None or max(headers.lengths.tolist(), default=1) <= 1:
        return None
    return bytes_column(
        [
            b"\0" if length <= 1 else encode_headers(decode_headers(headers.data, start))
            for start, length in zip(headers.starts.tolist(), headers.lengths.tolist())
        ]
    )
