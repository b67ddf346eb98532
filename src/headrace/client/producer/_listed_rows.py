"""What `send_batch` was given, in lists, as columns or left where it is. Needs the compiled kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from headrace.client.producer._column_rows import packed_rows
from headrace.client.producer._rows import RECORD_OVERHEAD_BYTES, ColumnRows
from headrace.client.producer._unpacked import Unpacked
from headrace.client.producer.delivery import BatchDelivery
from headrace.records import cpython
from headrace.records.compiling import no_ints
from headrace.records.kernels_fast import pack, running_sizes_of
from headrace.records.kernels_fast_objects import measure


def listed_rows(
    delivery: BatchDelivery, topic: str, values: list[Any], keys: Sequence[Any] | None, ignore_keys: bool, now_ms: int
) -> ColumnRows | None:
    """All at one time. The list of values is ours: what happens to the caller's is no matter. None when there is
    anything else than bytes and None."""
    measured = measure(values)
    if measured is None:
        return None
    lengths = measured.lengths
    if keys is None and cpython.READS_LISTS and not measured.nulls:
        rows = Unpacked(values, memoryview(lengths), now_ms)

        def plan(_: int) -> Iterable[tuple[int | None, Unpacked, Sequence[int]]]:
            ends, _ = running_sizes_of(no_ints, lengths, RECORD_OVERHEAD_BYTES)
            yield None, rows, ends

        return ColumnRows(delivery, topic, rows, plan, measured.total)
    listed: list[Any] = [None] * len(values) if keys is None else list(keys)
    if measure(listed) is None:
        return None
    return packed_rows(delivery, topic, pack(listed), pack(cast("list[bytes | None]", values)), ignore_keys, now_ms)
