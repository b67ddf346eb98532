"""What a share consumer gives: records, with how often they were delivered; and what can be said of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import chain, repeat
from typing import Any, Generic, NamedTuple

from headrace.client.typed import K, V
from headrace.records import Batch, Buffer, Columns, TimestampType, check, decode_columns, kernels, split
from headrace.records.columns import Headers, decode_headers
from headrace.topics import TopicPartition

_CONTROL_BIT = 0x20
_LOG_APPEND_TIME_BIT = 0x08
_new_tuple = tuple.__new__


class AcknowledgeType(IntEnum):
    """What became of a record, by Kafka's numbers."""

    GAP = 0
    """There is no such record: said of offsets that hold none."""
    ACCEPT = 1
    RELEASE = 2
    """It was not handled: somebody gets it again, unless it was delivered as often as it may be."""
    REJECT = 3
    """It cannot be handled: nobody gets it again."""
    RENEW = 4
    """It is still being handled: its lock begins anew."""


class ShareRecord(NamedTuple, Generic[K, V]):
    """One record. Key and value are bytes, or what the deserializers made of them. Timestamps are milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: K
    value: V
    headers: Headers = ()
    leader_epoch: int = -1
    delivery_count: int = 1


class AcquiredRange(NamedTuple):
    """Offsets that the member has, the last one included."""

    first: int
    last: int
    delivery_count: int


def acquired_records(
    where: TopicPartition, data: Buffer, ranges: Iterable[AcquiredRange], *, check_crcs: bool
) -> tuple[list[ShareRecord[Any, Any]], list[int]]:
    """The records of what came that the member has, in order; and the offsets it has that hold no record."""
    ranges = list(ranges)
    found: list[ShareRecord[Any, Any]] = []
    seen: set[int] = set()
    for batch in split(data):
        if check_crcs:
            check(batch)
        first, last = batch.base_offset, batch.base_offset + batch.last_offset_delta
        ours = [one for one in ranges if one.first <= last and one.last >= first]
        if not ours or batch.attributes & _CONTROL_BIT:
            continue
        records = list(_records(where, batch, ours[0].delivery_count))
        if len(ours) > 1 or ours[0].first > first or ours[0].last < last:
            records = [
                record._replace(delivery_count=one.delivery_count)
                for record in records
                for one in ours
                if one.first <= record.offset <= one.last
            ]
        found += records
        seen.update(record.offset for record in records)
    count = sum(one.last - one.first + 1 for one in ranges)
    if len(seen) == count:
        return found, []
    every = chain.from_iterable(range(one.first, one.last + 1) for one in ranges)
    return found, [offset for offset in every if offset not in seen]


def _records(where: TopicPartition, batch: Batch, delivery_count: int) -> Iterator[ShareRecord[Any, Any]]:
    columns = decode_columns(batch)
    is_append_time = bool(batch.attributes & _LOG_APPEND_TIME_BIT)
    kind = TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME
    to_list = kernels.choose(len(columns)).to_list
    rows = zip(
        repeat(where.topic),
        repeat(where.partition),
        columns.offsets.tolist(),
        columns.timestamps.tolist(),
        repeat(kind),
        to_list(columns.keys),
        to_list(columns.values),
        _headers(columns),
        repeat(batch.leader_epoch),
        repeat(delivery_count),
    )
    return map(_new_tuple, repeat(ShareRecord), rows)


def _headers(columns: Columns) -> Iterable[Headers]:
    section = columns.headers
    if section is None or not columns.has_headers:
        return repeat(())
    return [
        () if length <= 1 else decode_headers(section.data, start)
        for start, length in zip(section.starts.tolist(), section.lengths.tolist())
    ]
