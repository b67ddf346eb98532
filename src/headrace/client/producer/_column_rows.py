"""Records that are columns already, on their way into batches: which rows go to which partition. Needs numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from headrace.client.producer._rows import RECORD_OVERHEAD_BYTES, ColumnRows
from headrace.client.producer._unpacked import Unpacked
from headrace.client.producer.delivery import BatchDelivery
from headrace.records import kernels
from headrace.records.columns import BytesColumn, Columns

Plan = Iterable[tuple[int | None, Columns | Unpacked, Any]]


def view(numbers: Any) -> memoryview:
    """A numpy array as the typed memoryview that columns are made of."""
    return memoryview(numbers)


def packed_rows(
    delivery: BatchDelivery, topic: str, keys: BytesColumn, values: BytesColumn, ignore_keys: bool, now_ms: int
) -> ColumnRows:
    """Keys and values, all with one timestamp."""
    count = len(values)
    columns = Columns(view(np.arange(count, dtype=np.int64)), view(np.full(count, now_ms, np.int64)), keys, values)
    return ColumnRows(delivery, topic, columns, planner(columns, None, ignore_keys), len(keys.data) + len(values.data))


def planner(columns: Columns, fixed: Any, ignore_keys: bool) -> Callable[[int], Plan]:
    """Which rows go to which partition: `fixed` (-1 where none is given), by key, or wherever it sticks."""
    lengths = np.asarray(columns.values.lengths).clip(0) + np.asarray(columns.keys.lengths).clip(0)
    sizes = lengths.astype(np.int64) + RECORD_OVERHEAD_BYTES
    if columns.headers is not None:
        sizes += np.asarray(columns.headers.lengths)

    def plan(partition_count: int) -> Plan:
        chosen = _choose(columns, fixed, ignore_keys, partition_count)
        if chosen is None:
            yield None, columns, np.cumsum(sizes)
            return
        order = np.argsort(chosen, kind="stable")
        bounds = np.flatnonzero(np.diff(chosen[order])) + 1
        for rows in np.split(order, bounds):
            partition = int(chosen[rows[0]])
            whole = len(rows) == len(order)
            yield (
                None if partition < 0 else partition,
                columns if whole else _take(columns, rows),
                np.cumsum(sizes[rows]),
            )

    return plan


def _choose(columns: Columns, fixed: Any, ignore_keys: bool, partition_count: int) -> Any:
    """Partition per row (-1: sticky), or None when every row sticks."""
    key_lengths = np.asarray(columns.keys.lengths)
    keyed = key_lengths >= 0
    if ignore_keys or not keyed.any():
        return fixed
    hashes = np.asarray(kernels.choose(len(columns)).murmur2_column(columns.keys)).astype(np.int64)
    by_key = np.where(keyed, (hashes & 0x7FFFFFFF) % partition_count, -1)
    return by_key if fixed is None else np.where(fixed >= 0, fixed, by_key)


def _take(columns: Columns, rows: Any) -> Columns:
    def pick(column: BytesColumn) -> BytesColumn:
        starts, lengths = np.asarray(column.starts)[rows], np.asarray(column.lengths)[rows]
        return BytesColumn(column.data, view(starts), view(lengths))

    return Columns(
        columns.offsets[: len(rows)],
        view(np.asarray(columns.timestamps)[rows]),
        pick(columns.keys),
        pick(columns.values),
        None if columns.headers is None else pick(columns.headers),
    )
