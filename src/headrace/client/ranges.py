"""Reads given ranges of offsets, whole, with no group and no thread: for tasks that are told what to read.

    with RangeReader({"bootstrap.servers": "localhost:9092"}) as reader:
        for columns in reader.read({("orders", 0): (100, 2_000)}):
            ...

A range is [start, end). Offsets in it that hold no record (transaction markers, aborted records for read_committed,
what compaction removed) are passed over; offsets that the log does not have any more are an error. What it does not
have yet is waited for: after an election, a leader may not know for a while how much is committed.

Whoever reads ranges (Spark's tasks, parallel consuming, the command line) reads them with this.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from threading import get_ident
from typing import Any, TypeVar, Unpack

from headrace.client.arguments import partitions_of
from headrace.client.cluster.drivers import BlockingClient
from headrace.client.compiled import begin_loading
from headrace.client.configs import check_config
from headrace.client.consumer._base import ConsumerSetup, to_arrow
from headrace.client.consumer._ranges import Loss as Loss
from headrace.client.consumer._ranges import LostOffsetsError as LostOffsetsError
from headrace.client.consumer._ranges import OnLoss as OnLoss
from headrace.client.consumer._ranges import RangeCore, Ranges, pass_loss, refuse_loss
from headrace.client.consumer.config import (
    CONSUMER_CONFIGS,
    CONSUMER_KEYS,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ConsumerSettings,
)
from headrace.client.consumer.errors import ConcurrentAccessError, ConsumerForkedError, IllegalStateError
from headrace.client.consumer.keywords import ConsumerKeywords
from headrace.client.consumer.records import BY_OFFSET, ConsumerRecord, ConsumerRecords, PartitionColumns, make_records
from headrace.client.errors import ClientClosedError
from headrace.client.forks import ignore_forks, watch_forks
from headrace.config import ConfigError
from headrace.errors import HeadraceError, RequestTimedOutError
from headrace.records import Batch, BatchHeader
from headrace.records.arrow import need_arrow
from headrace.runtime import Clock
from headrace.runtime.real import RealClock
from headrace.topics import TopicPartition

T = TypeVar("T")

ROWS_MAX = 1 << 20
"""Rows of one piece, at most."""
_READING = (
    "check.crcs",
    "client.rack",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "isolation.level",
    "max.partition.fetch.bytes",
    "metadata.max.age.ms",
    "request.timeout.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
)
_OF_GROUPS = ("group.id", "group.instance.id", "auto.offset.reset", "enable.auto.commit")


class RangeReader:
    """Takes the consumer's configuration, but for groups. For one thread at a time; may be used for many reads, one
    after the other: a read that another has replaced raises `IllegalStateError` when it is gone on with, and a second
    thread that comes in between `ConcurrentAccessError`."""

    #: The thread that is within a read or a poll.
    _user: int | None = None

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        /,
        *,
        clock: Clock | None = None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None:
        check_config(config)
        given = dict(config or {})
        refused = [name for name in _OF_GROUPS if name in given or name.replace(".", "_") in keywords]
        if refused:
            raise ConfigError(
                {name: f"{name} means nothing to a range reader: it is told what to read" for name in refused}
            )
        given["auto.offset.reset"] = "none"
        self._setup: ConsumerSetup | None = ConsumerSetup(given, keywords)
        self._settings = self._setup.settings
        self._clock = clock or RealClock()
        self._core: RangeCore | None = None
        self._reads = 0
        self._closed = False
        self._pid = os.getpid()
        watch_forks(self)

    @classmethod
    def over(cls, client: BlockingClient, settings: ConsumerSettings) -> RangeReader:
        """Over a client that somebody else made and closes, for few reads: no broker keeps a session for it."""
        reader = cls.__new__(cls)
        reader._setup = None
        reader._settings = settings
        reader._clock = client.core.clock
        reader._core = RangeCore(client, settings, keeps_sessions=False)
        reader._reads = 0
        reader._closed = False
        reader._pid = os.getpid()
        return reader

    # --- whole ranges -----------------------------------------------------------------------------------------------

    def read(
        self,
        ranges: Ranges,
        *,
        timeout: float | None = None,
        fail_on_data_loss: bool = True,
        on_loss: OnLoss | None = None,
        was_written: bool = False,
        follow: bool = False,
        rows_max: int = ROWS_MAX,
    ) -> Iterator[PartitionColumns]:
        """The records of the ranges as columns, a piece at a time; each partition's in order. A range whose end is None
        ends where the log does when reading begins, or, with `follow`, never.

        Ends when every range is read. `RequestTimedOutError` when nothing comes for `timeout` seconds
        (`default.api.timeout.ms`) of ranges that have an end. Where the log has lost the beginning of a range,
        `LostOffsetsError`, or, without `fail_on_data_loss`, a warning, and reading begins with what is left; `on_loss`
        is told instead, and may raise. With `was_written`, the ranges could be read before: a log that ends within one
        has lost the rest.
        """
        if self._setup is not None:
            # Who asks for columns wants many: the kernels are there when the first records are, or soon after.
            begin_loading()
        on_loss = on_loss or (refuse_loss if fail_on_data_loss else pass_loss)
        take = partial(_next_piece, rows_max)
        return self._alone(self._read(take, ranges, timeout, on_loss, was_written, follow))

    def read_batches(
        self,
        ranges: Ranges,
        *,
        timeout: float | None = None,
        on_loss: OnLoss = refuse_loss,
        was_written: bool = False,
    ) -> Iterator[tuple[Batch, BatchHeader]]:
        """Like `read`, as batches that lie in the log, markers and all: each that reaches into a range, in order."""
        steps = self._read(RangeCore.next_batches, ranges, timeout, on_loss, was_written, False)
        for batches in self._alone(steps):
            yield from batches

    def read_arrow(
        self,
        ranges: Ranges,
        *,
        headers: bool = False,
        timeout: float | None = None,
        fail_on_data_loss: bool = True,
    ) -> Iterator[Any]:
        """Like `read`, as Arrow record batches (the columns of `Consumer.poll_arrow`). Needs `headrace[fast]`."""
        need_arrow()
        for piece in self.read(ranges, timeout=timeout, fail_on_data_loss=fail_on_data_loss):
            yield to_arrow([piece], headers=headers)

    def read_records(
        self, ranges: Ranges, *, timeout: float | None = None, fail_on_data_loss: bool = True
    ) -> Iterator[ConsumerRecord]:
        """Like `read`, record by record; keys and values are bytes."""
        for piece in self.read(ranges, timeout=timeout, fail_on_data_loss=fail_on_data_loss):
            yield from make_records(piece)

    def _read(
        self,
        take: Callable[[RangeCore], T | None],
        ranges: Ranges,
        timeout: float | None,
        on_loss: OnLoss,
        was_written: bool,
        follow: bool,
    ) -> Generator[T, None, None]:
        wait_s = self._settings.api_timeout_s if timeout is None else timeout
        self.begin(self._resolve(ranges, timeout, follow), on_loss=on_loss, was_written=was_written)
        core, mine = self._use(), self._reads
        now = self._clock.monotonic
        deadline = now() + wait_s
        try:
            while core.has_left():
                before = core.places()
                due = core.advance()
                while (taken := take(core)) is not None:
                    core.prefetch()
                    yield taken
                    if mine != self._reads:
                        raise IllegalStateError(
                            "another read of this range reader has begun since, which ended this one: go through a "
                            "read before the next one begins, or give each a RangeReader of its own"
                        )
                    # Whoever had it may have taken long: that was no time without an answer.
                    deadline = now() + wait_s
                if before != core.places():
                    deadline, core.missing = now() + wait_s, None
                elif not core.ends:
                    core.client.poll_for_news(max(0.0, min(due - now(), wait_s)))
                elif now() < deadline:
                    core.client.poll_for_news(max(0.0, min(deadline, due) - now()))
                else:
                    raise core.missing or core.late(wait_s)
        finally:
            if mine == self._reads:
                core.subscriptions.assign_by_hand([])

    def _alone(self, steps: Generator[T, None, None]) -> Iterator[T]:
        """Go through a read, no step of which another thread disturbs: it would be given what that one reads."""
        try:
            while True:
                is_first = self._enter()
                try:
                    found = next(steps, None)
                finally:
                    if is_first:
                        self._user = None
                if found is None:
                    return
                yield found
        finally:
            steps.close()

    def _enter(self) -> bool:
        """Whether this thread was not within this reader already; refuses all others meanwhile."""
        me, user = get_ident(), self._user
        if user is not None and user != me:
            raise ConcurrentAccessError(
                "this range reader is in use by another thread: it is for one at a time. Give each a RangeReader of "
                "its own"
            )
        self._user = me
        return user is None

    def _resolve(
        self, ranges: Ranges, timeout: float | None, follow: bool
    ) -> dict[TopicPartition, tuple[int, int | None]]:
        named = {TopicPartition(*partition): bounds for partition, bounds in ranges.items()}
        open_ended = [partition for partition, (_, end) in named.items() if end is None]
        ends: dict[TopicPartition, int] = self.end_offsets(open_ended, timeout) if open_ended and not follow else {}
        made: dict[TopicPartition, tuple[int, int | None]] = {}
        for partition, (start, given) in named.items():
            end = ends.get(partition) if given is None else given
            if start < 0 or (end is not None and end < 0):
                raise ValueError(f"the range {start} to {end} of {partition} has a negative offset")
            if end is None or start < end:
                made[partition] = (start, end)
        return made

    def beginning_offsets(self, partitions: Any, timeout: float | None = None) -> dict[TopicPartition, int]:
        """The first offset there is."""
        return self._bounds(partitions, EARLIEST_TIMESTAMP, timeout)

    def end_offsets(self, partitions: Any, timeout: float | None = None) -> dict[TopicPartition, int]:
        """The end of what may be read: the high watermark, or the last stable offset for read_committed."""
        return self._bounds(partitions, LATEST_TIMESTAMP, timeout)

    def _bounds(self, partitions: Any, which: int, timeout: float | None) -> dict[TopicPartition, int]:
        call = "beginning_offsets" if which == EARLIEST_TIMESTAMP else "end_offsets"
        wanted = dict.fromkeys(partitions_of(partitions, call), which)
        core = self._use()
        seconds = self._settings.api_timeout_s if timeout is None else timeout
        found = core.run(core.readable.lookup(wanted), seconds)
        if found is None:
            late = core.client.core
            raise RequestTimedOutError(
                f"looking up offsets did not end within {seconds} s.{late.why_late}"
            ) from late.trouble
        return {partition: one.offset for partition, one in found.items() if one is not None}

    # --- step by step -----------------------------------------------------------------------------------------------

    def begin(
        self, ranges: Ranges, *, on_loss: OnLoss = refuse_loss, was_written: bool = False, ahead: bool = False
    ) -> None:
        """Read these from now on, and nothing else; one whose end is None has none. `poll` gives what comes.

        `ahead` has what lies behind the ends fetched and given too: `extend` goes on there. What is known of a
        partition that was read before (which replica to ask, sessions) stays.
        """
        core = self._use()
        self._reads += 1
        if self._setup is not None:
            # What is known of a topic stays known: who reads one range after the other begins often.
            known = core.client.core.topics or set()
            core.client.core.topics = known & {topic for topic, _ in ranges}
        core.begin(ranges, on_loss=on_loss, was_written=was_written, ahead=ahead)

    def extend(self, partition: TopicPartition, end: int) -> None:
        """Go on to this end, where a range that was begun `ahead` has been read to its own."""
        self._use().extend(partition, end)

    def ask(self) -> None:
        """Have what was begun fetched, and do not wait for it."""
        core = self._use()
        core.advance()
        core.client.poll_for_news(0.0)

    def poll(self, timeout: float, rows_max: int = ROWS_MAX) -> list[PartitionColumns]:
        """What is there of the ranges that were begun, or comes within that many seconds. Once a range is read to its
        end, no more comes of it.

        Of a batch that cannot be read, `RecordDeserializationError`: `begin` goes on behind it.
        """
        is_first = self._enter()
        try:
            return self._poll(timeout, rows_max)
        finally:
            if is_first:
                self._user = None

    def _poll(self, timeout: float, rows_max: int) -> list[PartitionColumns]:
        core = self._use()
        now = self._clock.monotonic
        deadline = now() + max(0.0, timeout)
        pieces: list[PartitionColumns] = []
        is_first = True
        while True:
            due = core.advance()
            left = rows_max
            try:
                while left > 0 and (piece := core.next_piece(left)) is not None:
                    pieces.append(piece)
                    left -= len(piece)
            except HeadraceError:
                # What came before the error is handed out first; the error comes again at the next poll.
                if not pieces:
                    raise
            if pieces:
                core.prefetch()
                return pieces
            if (now() >= deadline and not is_first) or core.is_read():
                return pieces
            is_first = False
            core.client.poll_for_news(max(0.0, min(deadline, due) - now()))

    def poll_records(self, timeout: float, records_max: int) -> list[ConsumerRecord]:
        """Like `poll`, as records, each partition's in order; keys and values are bytes. Interceptors see them, as a
        consumer's do."""
        pieces = self.poll(timeout, records_max)
        setup = self._setup
        if pieces and setup is not None and setup.interceptors:
            left = list(setup.on_consume(ConsumerRecords([(one.topic_partition, one) for one in pieces])))
            # They may give them in any order.
            return sorted(left, key=BY_OFFSET)
        if len(pieces) == 1:
            return make_records(pieces[0])
        return [record for piece in pieces for record in make_records(piece)]

    def position(self, partition: TopicPartition) -> int:
        """The next offset of a partition that was begun."""
        return self._use().subscriptions.state(partition).position or 0

    # --- beginning and end ------------------------------------------------------------------------------------------

    def _use(self) -> RangeCore:
        if self._closed:
            raise ClientClosedError("the range reader is closed: make a new one")
        if self._pid != os.getpid():
            raise ConsumerForkedError(
                f"this range reader was in use in process {self._pid} before the fork, and its connections belong "
                "there. Make a new one in this process"
            )
        core = self._core
        if core is None:
            assert self._setup is not None
            client = BlockingClient(self._setup.connection, clock=self._clock)
            # Whoever is told what to read creates nothing.
            client.core.allow_auto_topic_creation = False
            core = self._core = RangeCore(client, self._settings, keeps_sessions=True)
        return core

    def _after_fork(self) -> None:
        """In a child: nothing that was in use is ours. What was not used yet is."""
        if self._core is None:
            self._pid = os.getpid()
        else:
            self._core.client.abandon()

    def close(self) -> None:
        """Close every connection. Idempotent."""
        if self._closed:
            return
        self._closed = True
        setup, core = self._setup, self._core
        if setup is None:
            return
        if core is not None and self._pid == os.getpid():
            core.fetcher.close_sessions()
            core.client.close()
        setup.close()
        ignore_forks(self)

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.close()


def _next_piece(rows_max: int, core: RangeCore) -> PartitionColumns | None:
    return core.next_piece(rows_max)


def without_group(config: Mapping[str, Any]) -> dict[str, Any]:
    """A consumer's configuration as a `RangeReader` takes it."""
    return {name: value for name, value in config.items() if name not in _OF_GROUPS}


def range_settings(given: Mapping[str, Any]) -> ConsumerSettings:
    """For `RangeReader.over`: what a configuration says of reading; the rest of it is for whoever made the client."""
    defaults = {key.name: key.default for key in CONSUMER_KEYS}
    wanted = {name: value for name, value in given.items() if name in _READING}
    return ConsumerSettings.of({**defaults, **CONSUMER_CONFIGS.parse_given(wanted), "auto.offset.reset": "none"})


__all__ = [
    "Loss",
    "LostOffsetsError",
    "OnLoss",
    "RangeReader",
    "Ranges",
    "pass_loss",
    "range_settings",
    "refuse_loss",
    "without_group",
]
