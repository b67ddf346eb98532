"""Byte strings that become a column only when their batch is encoded: until then they are not copied anywhere.

Laid end to end when they are given, they would need as much fresh memory as there is under way; batch by batch, just
before it is encoded, the same megabyte serves for all of them, and is still in the processor's cache when it is read.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.records.buffers import SCRATCH
from headrace.records.columns import BytesColumn, Columns


class UnpackedColumn(BytesColumn):
    """Rows as they were given, none of them null, with their lengths. `packed` makes the column."""

    __slots__ = ("_source", "_start")

    def __init__(self, source: Sequence[bytes], lengths: memoryview, start: int = 0) -> None:
        super().__init__(b"", lengths[:0], lengths)
        self._source = source
        self._start = start

    def rows(self, start: int, end: int) -> UnpackedColumn:
        # The list is not cut before its time: every touch of a row that left the cache costs as much as encoding it.
        return UnpackedColumn(self._source, self.lengths[start:end], self._start + start)

    def packed(self) -> BytesColumn:
        import numpy as np  # loaded by whoever made this column

        ends = np.cumsum(self.lengths, dtype=np.int64)
        # A batch at most, which has far less than the 2 GB that the positions could say.
        starts = (ends - np.asarray(self.lengths)).astype(np.int32)
        data = SCRATCH.join(self._source[self._start : self._start + len(self.lengths)], int(ends[-1]))
        return BytesColumn(data, memoryview(starts), self.lengths, is_ordered=True)


def packed_columns(columns: Columns) -> Columns:
    """The same, with values that can be read."""
    values = columns.values
    if not isinstance(values, UnpackedColumn):
        return columns
    return Columns(columns.offsets, columns.timestamps, columns.keys, values.packed(), columns.headers)
