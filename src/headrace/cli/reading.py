"""What `headrace consume` reads: ranges of partitions, or a member's share of a group's topics; both may end or go on.

Both give records as columns. What was given and used is what may be committed: nothing is handed out ahead of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from headrace.client.consumer.blocking import Consumer
from headrace.client.ranges import RangeReader
from headrace.errors import RequestTimedOutError
from headrace.records import Columns
from headrace.topics import TopicPartition

_POLL_S = 0.5
_ROWS_MAX = 10_000

Piece = tuple[TopicPartition, Columns]


@dataclass(frozen=True, slots=True)
class PrintedRange:
    """From an offset to before another (None: without end)."""

    start: int
    end: int | None

    @property
    def is_empty(self) -> bool:
        return self.end is not None and self.start >= self.end


def read_ranges(
    reader: RangeReader, ranges: Mapping[TopicPartition, PrintedRange], timeout_s: float
) -> Iterator[Piece]:
    """The records of ranges, in the order in which they arrive; ends when all are read.

    `RequestTimedOutError` when ranges that have an end bring nothing for that long.
    """
    wanted = {partition: (one.start, one.end) for partition, one in ranges.items() if not one.is_empty}
    for piece in reader.read(wanted, timeout=timeout_s, follow=True, rows_max=_ROWS_MAX):
        yield piece.topic_partition, piece.columns


class GroupShare:
    """Reads topics as a member of the consumer's group."""

    def __init__(self, consumer: Consumer, topics: list[str], on_revoked: Callable[[], None]) -> None:
        self._consumer = consumer
        self._on_revoked = on_revoked
        self.has_assignment = False
        consumer.subscribe(topics, self)

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.has_assignment = True

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        # Whoever gets them goes on where this member stopped.
        self._on_revoked()

    def read(
        self, ends: Mapping[TopicPartition, int] | None, rows_max: Callable[[], int], timeout_s: float
    ) -> Iterator[Piece]:
        """The records of this member's partitions; with `ends`, until it has read its partitions up to them.

        With `ends`, `RequestTimedOutError` when nothing comes for that long (four times as long for the assignment:
        the other members have to come back first).
        """
        moved_at = time.monotonic()
        while ends is None or not self._is_done(ends):
            pieces = self._consumer.poll_columns(_POLL_S, min(_ROWS_MAX, rows_max()))
            for piece in pieces:
                yield piece.topic_partition, piece.columns
            patience_s = timeout_s if self.has_assignment else 4 * timeout_s
            if pieces:
                moved_at = time.monotonic()
            elif ends is not None and time.monotonic() - moved_at > patience_s:
                what = "nothing came" if self.has_assignment else "the group assigned nothing"
                raise RequestTimedOutError(f"{what} within {patience_s:.0f} s; --timeout says how long to wait")

    def _is_done(self, ends: Mapping[TopicPartition, int]) -> bool:
        if not self.has_assignment:
            return False
        assigned = self._consumer.assignment()
        return all(self._consumer.position(partition) >= ends.get(partition, 0) for partition in assigned)
