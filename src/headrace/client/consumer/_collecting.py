"""Records taken out of what was fetched, in the form that the application asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from headrace.client.consumer._chunks import FetchedChunk
from headrace.client.consumer._fetching import Fetcher
from headrace.client.consumer._subscription import TopicPartitionState
from headrace.client.consumer.records import (
    EMPTY,
    ConsumerRecord,
    ConsumerRecords,
    Deserializers,
    PartitionColumns,
    make_records,
)
from headrace.errors import HeadraceError
from headrace.records import DEFAULT_LIMIT_BYTES
from headrace.topics import TopicPartition

K = TypeVar("K")
Piece: TypeAlias = tuple[TopicPartition, PartitionColumns | list[ConsumerRecord]]

COLUMNS_ROWS_MAX = 2**31 - 1
#: What columns handed out together may hold: the fetch that they come from may unpack to more than a column of Arrow's
#: can (2 GiB), or than there is memory for. As much as one batch may unpack to.
_COLUMNS_BYTES_MAX = DEFAULT_LIMIT_BYTES


class RecordCollector:
    """Takes fetched records out of a `Fetcher`, which moves the positions behind them."""

    def __init__(self, fetcher: Fetcher, deserializers: Deserializers, iteration_rows_max: int) -> None:
        self._fetcher = fetcher
        self._deserializers = deserializers
        self._iteration_rows_max = iteration_rows_max

    def collect(self, rows_max: int) -> ConsumerRecords:
        """Up to that many records, from as many partitions as it takes. The position moves behind them; whoever hands
        them out tells the fetcher when that is done (see `Fetcher.marks`)."""
        pieces = self._collect(rows_max, _keep_whole if self._deserializers.is_plain else self._convert)
        return ConsumerRecords(pieces) if pieces else EMPTY

    def collect_columns(self, rows_max: int) -> list[PartitionColumns]:
        """What is there, as columns; handed out as those of `collect` are."""
        left = _COLUMNS_BYTES_MAX

        def keep(piece: PartitionColumns, pieces: list[PartitionColumns]) -> int:
            nonlocal left
            left -= piece.columns.bytes_max
            if left < 0 and pieces:
                return 0
            pieces.append(piece)
            return len(piece)

        return self._collect(rows_max, keep)

    def _collect(self, rows_max: int, keep: Callable[[PartitionColumns, list[K]], int]) -> list[K]:
        """`keep` puts what it makes of a piece into the list, and says of how many of its records that is; none: it is
        left for later."""
        pieces: list[K] = []
        left = rows_max
        self._fetcher.marks = []
        try:
            self._fetcher.raise_errors()
            while left > 0:
                found = self._fetcher.next_piece(left)
                if found is None:
                    break
                state, chunk, piece = found
                taken = keep(piece, pieces)
                if not taken:
                    break
                self._fetcher.take(state, chunk, taken)
                left -= taken
        except HeadraceError:
            # What came before the error is handed out first; the error comes again at the next poll.
            if not pieces:
                raise
        return pieces

    def _convert(self, piece: PartitionColumns, pieces: list[Piece]) -> int:
        made, failure = self._deserializers.convert(make_records(piece))
        if made:
            pieces.append((piece.topic_partition, made))
        elif failure is not None:
            raise failure
        return len(made)

    def next_for_iteration(self) -> tuple[TopicPartitionState, FetchedChunk, list[ConsumerRecord]] | None:
        """Records to be handed out one by one; each is taken when it is given to the application."""
        self._fetcher.marks = None
        self._fetcher.raise_errors()
        found = self._fetcher.next_piece(self._iteration_rows_max)
        if found is None:
            return None
        state, chunk, piece = found
        records = make_records(piece)
        if not self._deserializers.is_plain:
            records, failure = self._deserializers.convert(records)
            if not records and failure is not None:
                raise failure
        return state, chunk, records


def _keep_whole(piece: PartitionColumns, pieces: list[Piece]) -> int:
    pieces.append((piece.topic_partition, piece))
    return len(piece)
