"""Reads given ranges of offsets, whole, with no group and no thread: for tasks that are told what to read.

    with RangeReader({"bootstrap.servers": "localhost:9092"}) as reader:
        for columns in reader.read({("orders", 0): (100, 2_000)}):
            ...

A range is [start, end). Offsets in it that hold no record (transaction markers, aborted records for read_committed,
what compaction removed) are passed over; offsets that the log does not have any more are an error. What it does not
have yet is waited for: after an election, a leader may not know for a while how much is committed.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.client.consumer._base import to_arrow
from headrace.client.consumer.blocking import Consumer
from headrace.client.consumer.errors import LogTruncationError, OffsetsOutOfRangeError, RecordDeserializationError
from headrace.client.consumer.records import ConsumerRecord, PartitionColumns, make_records, slice_columns
from headrace.config import ConfigError
from headrace.errors import RequestTimedOutError
from headrace.runtime import Clock
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.client.ranges")

Ranges = Mapping[Any, tuple[int, int | None]]
"""Partition → first offset, and the offset to stop before (None: the end as it is when reading begins)."""

_NOT_OURS = ("group.id", "group.instance.id", "auto.offset.reset", "enable.auto.commit")


class RangeReader:
    """Takes the consumer's configuration, but for groups. For one thread at a time; may be used for many reads."""

    def __init__(
        self, config: Mapping[str, Any] | None = None, /, *, clock: Clock | None = None, **keywords: Any
    ) -> None:
        given = dict(config or {})
        refused = [name for name in _NOT_OURS if name in given or name.replace(".", "_") in keywords]
        if refused:
            raise ConfigError(
                {name: f"{name} means nothing to a range reader: it is told what to read" for name in refused}
            )
        given["auto.offset.reset"] = "none"
        self._consumer = Consumer(given, clock=clock, **keywords)

    def read(
        self, ranges: Ranges, *, timeout: float | None = None, fail_on_data_loss: bool = True
    ) -> Iterator[PartitionColumns]:
        """The records of the ranges as columns, a piece at a time; each partition's in order.

        Ends when every range is read. `RequestTimedOutError` when nothing comes for `timeout` seconds
        (`default.api.timeout.ms`). Where the log has lost the beginning of a range, `OffsetsOutOfRangeError`, or,
        without `fail_on_data_loss`, a warning, and reading begins with what is left.
        """
        left = self._resolve(ranges, timeout)
        self._consumer.assign(left)
        for partition, (start, _) in left.items():
            self._consumer.seek(partition, start)
        wait_s = self._consumer._setup.settings.api_timeout_s if timeout is None else timeout
        states = self._consumer._use().subscriptions
        now = self._consumer._clock.monotonic
        deadline = now() + wait_s
        missing: OffsetsOutOfRangeError | None = None
        try:
            while left:
                before = {partition: states.state(partition).position for partition in left}
                pieces, out_of_range = self._poll(max(0.0, deadline - now()), left, fail_on_data_loss)
                missing = out_of_range or missing
                for piece in pieces:
                    cut = _cut(piece, left[piece.topic_partition][1])
                    if cut is not None:
                        yield cut
                done = [name for name, (_, end) in left.items() if (states.state(name).position or 0) >= end]
                if done:
                    for partition in done:
                        del left[partition]
                    states.assign_by_hand(left)
                if done or pieces or before != {name: states.state(name).position for name in left}:
                    deadline, missing = now() + wait_s, None
                elif now() >= deadline:
                    raise missing or RequestTimedOutError(self._why_nothing(left, wait_s))
        finally:
            self._consumer.assign([])

    def read_arrow(
        self,
        ranges: Ranges,
        *,
        headers: bool = False,
        timeout: float | None = None,
        fail_on_data_loss: bool = True,
    ) -> Iterator[Any]:
        """Like `read`, as Arrow record batches (the columns of `Consumer.poll_arrow`). Needs `headrace[fast]`."""
        for piece in self.read(ranges, timeout=timeout, fail_on_data_loss=fail_on_data_loss):
            yield to_arrow([piece], headers=headers)

    def read_records(
        self, ranges: Ranges, *, timeout: float | None = None, fail_on_data_loss: bool = True
    ) -> Iterator[ConsumerRecord]:
        """Like `read`, record by record; keys and values are bytes."""
        for piece in self.read(ranges, timeout=timeout, fail_on_data_loss=fail_on_data_loss):
            yield from make_records(piece)

    def beginning_offsets(self, partitions: Any, timeout: float | None = None) -> dict[TopicPartition, int]:
        """The first offset there is."""
        return self._consumer.beginning_offsets(partitions, timeout)

    def end_offsets(self, partitions: Any, timeout: float | None = None) -> dict[TopicPartition, int]:
        """The end of what may be read: the high watermark, or the last stable offset for read_committed."""
        return self._consumer.end_offsets(partitions, timeout)

    def _resolve(self, ranges: Ranges, timeout: float | None) -> dict[TopicPartition, tuple[int, int]]:
        named = {TopicPartition(*partition): bounds for partition, bounds in ranges.items()}
        open_ended = [partition for partition, (_, end) in named.items() if end is None]
        ends = self._consumer.end_offsets(open_ended, timeout) if open_ended else {}
        made: dict[TopicPartition, tuple[int, int]] = {}
        for partition, (start, given) in named.items():
            end = ends[partition] if given is None else given
            if start < 0 or end < 0:
                raise ValueError(f"the range {start} to {end} of {partition} has a negative offset")
            if start < end:
                made[partition] = (start, end)
        return made

    def _poll(
        self, wait_s: float, left: dict[TopicPartition, tuple[int, int]], fail_on_data_loss: bool
    ) -> tuple[list[PartitionColumns], OffsetsOutOfRangeError | None]:
        """What came; or what is to be raised if nothing comes any more."""
        try:
            return self._consumer.poll_columns(wait_s), None
        except RecordDeserializationError as error:
            end = left[error.partition][1]
            if error.offset < end:
                raise
            # Behind what is asked for: that this cannot be read is for those to know who want it.
            self._consumer.seek(error.partition, end)
            return [], None
        except LogTruncationError:
            raise
        except OffsetsOutOfRangeError as error:
            return [], self._pass_over(error, left, fail_on_data_loss)

    def _pass_over(
        self, error: OffsetsOutOfRangeError, left: dict[TopicPartition, tuple[int, int]], fail_on_data_loss: bool
    ) -> OffsetsOutOfRangeError | None:
        """Go on behind what the log has deleted. What it ends before (an error is given back then) may come: the leader
        is new and does not know yet how much is committed, or another broker is about to lead."""
        lost = [partition for partition in error.offsets if partition in left]
        begins = self._consumer.beginning_offsets(lost)
        missing: OffsetsOutOfRangeError | None = None
        for partition in lost:
            position, begin, end = error.offsets[partition], begins[partition], left[partition][1]
            if position >= begin:
                missing = error
            elif fail_on_data_loss:
                raise error
            else:
                log.warning("%s has lost offsets %s to %s", partition, position, min(begin, end) - 1)
                self._consumer.seek(partition, begin)
        return missing

    def _why_nothing(self, left: dict[TopicPartition, tuple[int, int]], wait_s: float) -> str:
        what = []
        for partition, (_, end) in left.items():
            state = self._consumer._use().subscriptions.state(partition)
            known = f"high watermark {state.high_watermark}, last stable offset {state.last_stable_offset}"
            what.append(f"{partition} is read up to {state.position} of {end} ({known})")
        return f"nothing came for {wait_s} s: {'; '.join(what)}. Is the end beyond what was written (and committed)?"

    def close(self) -> None:
        """Close every connection. Idempotent."""
        self._consumer.close(timeout=0)

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.close()


def _cut(piece: PartitionColumns, end: int) -> PartitionColumns | None:
    """The records before `end`; None if there are none."""
    offsets = piece.columns.offsets
    count = len(offsets)
    if count and offsets[count - 1] >= end:
        count = bisect_left(offsets, end)
        columns = slice_columns(piece.columns, 0, count)
        piece = PartitionColumns(
            piece.topic_partition, columns, piece.leader_epoch, piece.timestamp_type, end, piece.leader_epoch
        )
    return piece if count else None
