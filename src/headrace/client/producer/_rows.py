"""Many records on their way into batches, in the form that costs least for the way they were given.

| form | given by | why |
|---|---|---|
| `Delivery` (`delivery.py`) | `send` | one object per record, the user's handle too: a second one costs |
| `Rows` | the drain, of deliveries; `send_batch` | lists side by side: whatever may be said of a record |
| `ColumnRows` of `Columns` | `send_arrow`; `send_batch` with keys | buffers with positions: nothing per record |
| `ColumnRows` of `Unpacked` | `send_batch` of values | the list stays where it is, and is read once, into the batch |

`send_batch` gives `Rows` where something has to be looked at row by row (partitions, timestamps, headers, a partitioner
of the user's), where there are too few for batches of their own, and where there are no compiled kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from headrace.client.producer._batch import Handles
from headrace.client.producer._unpacked import Unpacked
from headrace.client.producer.delivery import BatchDelivery, Callbacks, HeaderList
from headrace.records.columns import Columns

RECORD_OVERHEAD_BYTES = 14
"""About what a record takes besides key, value and headers."""

EXTENDED_ROWS_MAX = 8192
"""So many are enough for what is done per `Rows` to cost nothing."""


@dataclass(slots=True)
class Rows:
    """Records as parallel sequences, with whoever wants to know how they fared."""

    handles: Handles
    topic: str
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]
    partitions: Sequence[int | None] | None
    timestamps: Sequence[int | None]
    headers: Sequence[HeaderList | None] | None

    def __len__(self) -> int:
        return len(self.values)

    def extend(self, more: Rows) -> bool:
        """Take in rows that come right behind these, if both are of the plain kind that nobody holds; whether they are.

        What is done per `Rows` on the way into a batch, and the lists that the garbage collector walks over while they
        are young, then come once for many records.
        """
        if len(self) >= EXTENDED_ROWS_MAX or self.topic != more.topic:
            return False
        mine, theirs = self.handles, more.handles
        if not isinstance(mine, Callbacks) or not isinstance(theirs, Callbacks):
            return False
        if self.partitions is not None or more.partitions is not None:
            return False
        if self.headers is not None or more.headers is not None:
            return False
        values, keys, timestamps = self.values, self.keys, self.timestamps
        if not (isinstance(values, list) and isinstance(keys, list) and isinstance(timestamps, list)):
            return False
        values += more.values
        keys += more.keys
        timestamps += more.timestamps
        mine.functions += theirs.functions
        return True

    def truncate(self, rows: int) -> None:
        """Give up what `extend` took in after so many rows, or was about to."""
        if isinstance(self.handles, Callbacks):
            del self.handles.functions[rows:]
        for column in (self.values, self.keys, self.timestamps):
            if isinstance(column, list):
                del column[rows:]

    def take(self, picked: Sequence[int]) -> Rows:
        """These rows, in this order."""
        handles = self.handles
        if isinstance(handles, Callbacks):
            handles = Callbacks([handles.functions[i] for i in picked])
        return Rows(
            [handles[i] for i in picked] if isinstance(handles, list) else handles,
            self.topic,
            [self.values[i] for i in picked],
            [self.keys[i] for i in picked],
            None if self.partitions is None else [self.partitions[i] for i in picked],
            [self.timestamps[i] for i in picked],
            None if self.headers is None else [self.headers[i] for i in picked],
        )


@dataclass(slots=True)
class ColumnRows:
    """Records that are columns already. `plan` picks the rows of each partition, in order."""

    delivery: BatchDelivery
    topic: str
    columns: Columns | Unpacked
    plan: Callable[[int], Iterable[tuple[int | None, Columns | Unpacked, Sequence[int]]]]
    """Given the partition count: (partition or None for sticky, its rows, where each ends in bytes)."""
    payload_bytes: int = 0
    """What counts against `buffer.memory` until it is in batches: nothing where the bytes are the user's own."""

    def __len__(self) -> int:
        return len(self.columns)

    def planned(self, partition: int, columns: Columns | Unpacked, ends: Sequence[int]) -> ColumnRows:
        """Some of the rows, for this partition."""
        return ColumnRows(self.delivery, self.topic, columns, lambda _: [(partition, columns, ends)])


def is_text(name: str) -> bool:
    """Whether it can be written as UTF-8, as it has to be to get to a broker."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def row_sizes(rows: Rows) -> list[int]:
    values, keys = rows.values, rows.keys
    if values.count(None):
        sizes = [RECORD_OVERHEAD_BYTES + (0 if value is None else len(value)) for value in values]
    else:
        sizes = [RECORD_OVERHEAD_BYTES + n for n in map(len, cast("Sequence[bytes]", values))]
    if keys.count(None) != len(keys):
        sizes = [size + (0 if key is None else len(key)) for size, key in zip(sizes, keys)]
    if rows.headers is not None:
        sizes = [size + headers_size(headers) for size, headers in zip(sizes, rows.headers)]
    return sizes


def headers_size(headers: HeaderList | None) -> int:
    """About what a record's headers take."""
    if not headers:
        return 0
    return sum(4 + len(name) + (0 if value is None else len(value)) for name, value in headers)
