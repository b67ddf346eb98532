"""What a log is for everyone but its writer: the view that the writer publishes, and the marks of others beside it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace.errors import KafkaStorageError
from headrace.log.invariants import BrokenInvariantError, step_fault, view_fault
from headrace.log.leader_epochs import LeaderEpochs
from headrace.log.log_files import LogFiles
from headrace.log.ownership import by_loop
from headrace.log.producer_state import LogProducers
from headrace.log.segment import Caches, Segment
from headrace.log.view import NEVER, Mark, View
from headrace.runtime import DirectoryWriter, DiskError
from headrace.topics import TopicPartition

logger = logging.getLogger("headrace.log")


_new_tuple = tuple.__new__


class Offsets(NamedTuple):
    start: int
    last_stable: int
    high_watermark: int


class LogState:
    """Who owns what of a log:

    * Its writer changes it, one change at a time: appends, markers, rolls, cuts, retention, compaction's swaps, leader
      epochs. A log that is served has a `DirectoryWriter`, which does so inline on the loop while its disk is quiet and
      on its own thread otherwise; another has whoever opened it. The segments, `files` and `producers` are the
      writer's.
    * Everyone else has the `view`: immutable, and replaced by the writer in one assignment once everything that can
      fail is done. A reader takes it once; what it finds is of that view, and a `Slice` carries it along.
    * The high watermark is the event loop's. It is a mark beside the view, and what depends on both (the last stable
      offset) is derived from one mark and one view, never stored.
    * The recovery point is that of whoever syncs, one at a time, beside the writer: a mark as well.
    * Verifications of transactions have a lock of their own (`LogProducers`).

    `ownership.py` refuses everyone else, in tests. `invariants.py` refuses, always, what no log can be.
    """

    __slots__ = (
        "_on_failure",
        "changing",
        "failure",
        "files",
        "partition",
        "producers",
        "synced",
        "view",
        "watermark",
        "writer",
    )

    def __init__(
        self,
        partition: TopicPartition,
        files: LogFiles,
        producers: LogProducers,
        epochs: LeaderEpochs,
        start_offset: int,
        end_offset: int,
        recovery_point: int,
        on_failure: Callable[[Any, DiskError], None] | None,
    ) -> None:
        """`on_failure` is told of this log, and why, when it has gone out of service; on whichever thread found it."""
        self.partition = partition
        self.files = files
        self.producers = producers
        self.failure: DiskError | None = None
        self._on_failure = on_failure
        # The writer that this log is served with, if it is; and who changes it just now, where that is checked.
        self.writer: DirectoryWriter | None = None
        self.changing = 0
        self.view = View(
            files.segments,
            files.bases,
            files.active.size,
            start_offset,
            end_offset,
            producers.undecided,
            producers.ended,
            epochs,
            cuts=0,
            cut_to=NEVER,
        )
        self.watermark: Mark = (start_offset, 0)
        self.synced: Mark = (recovery_point, 0)

    def __repr__(self) -> str:
        view = self.view
        return f"{type(self).__name__}({self.directory}, offsets {view.start_offset}..{view.end_offset})"

    @property
    def directory(self) -> str:
        """The partition's own directory."""
        return self.files.directory

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self.files.active

    @property
    def start_offset(self) -> int:
        return self.view.start_offset

    @property
    def end_offset(self) -> int:
        return self.view.end_offset

    @property
    def epochs(self) -> LeaderEpochs:
        """To be read only."""
        return self.view.epochs

    @property
    def leader_epoch(self) -> int:
        """The latest epoch that wrote something; -1 for none."""
        return self.view.epochs.latest

    def leader_epoch_at(self, offset: int) -> int:
        """The epoch in which `offset` was or will be written; -1 when it is older than all that is known."""
        return self.view.epochs.epoch_for(offset)

    @property
    def high_watermark(self) -> int:
        mark = self.watermark  # before the view: see `View.valid`
        view = self.view
        offset, cuts = mark
        return offset if cuts == view.cuts and offset >= view.start_offset else view.valid(mark)

    @property
    def last_stable_offset(self) -> int:
        """The high watermark, or the first offset of a transaction that is undecided or may become so."""
        mark = self.watermark
        view = self.view
        high_watermark = view.valid(mark)
        if high_watermark <= view.undecided and not view.ended:
            return high_watermark  # as nearly always
        return view.stable_at(high_watermark)

    def offsets(self) -> Offsets:
        """What readers are told, all of one moment."""
        mark = self.watermark
        view = self.view
        start_offset = view.start_offset
        high_watermark, cuts = mark
        if cuts != view.cuts or high_watermark < start_offset:  # as in `high_watermark`
            high_watermark = view.valid(mark)
        is_stable = high_watermark <= view.undecided and not view.ended
        stable = high_watermark if is_stable else view.stable_at(high_watermark)
        return _new_tuple(Offsets, (start_offset, stable, high_watermark))

    @property
    def recovery_point(self) -> int:
        """Everything below it is durable."""
        mark = self.synced  # before the view, as above
        return self.view.recovered(mark)

    @property
    def cut_count(self) -> int:
        """How often the log's end was cut off since it was opened."""
        return self.view.cuts

    @property
    def cut_to(self) -> int | None:
        """The lowest offset it was cut to."""
        return None if self.view.cut_to == NEVER else self.view.cut_to

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.view.segments

    @property
    def caches(self) -> Caches:
        return self.files.caches

    @property
    def size_bytes(self) -> int:
        view = self.view
        return sum(segment.size for segment in view.segments[:-1]) + view.size

    @property
    def unsynced(self) -> int:
        """How many offsets are not known to be durable."""
        recovery_point = self.recovery_point
        return self.view.end_offset - recovery_point

    @by_loop
    def update_high_watermark(self, offset: int) -> bool:
        """Offsets below it are committed. Kept between the log's start and end; whether it changed."""
        known, known_cuts = self.watermark
        view = self.view
        if offset > view.end_offset:
            offset = view.end_offset
        if offset < view.start_offset:
            offset = view.start_offset
        cuts = view.cuts
        if offset == (known if cuts == known_cuts else view.valid(self.watermark)):
            return False
        self.watermark = (offset, cuts)
        return True

    def _publish(self, **changes: Any) -> None:
        """Let everyone see what the writer has done."""
        files, producers, before = self.files, self.producers, self.view
        view = before._replace(
            segments=files.segments,
            bases=files.bases,
            size=files.active.size,
            undecided=producers.undecided,
            ended=producers.ended,
            **changes,
        )
        wrong = view_fault(view, self.watermark) or step_fault(before, view)
        if wrong is not None:
            raise self._broken("change", wrong)
        self.view = view

    # ---- failure -------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self.failure is not None:
            raise self._failed()

    @contextlib.contextmanager
    def _failing(self, *, outlasts_shortage: bool = False) -> Iterator[None]:
        """Around every change on disk: a DiskError takes the log out of service before it goes on to the caller.

        `outlasts_shortage` is for changes that can be made again later when descriptors were short.
        """
        try:
            yield
        except DiskError as error:
            if not (outlasts_shortage and self._survives(error)):
                self._fail(error)
            raise

    def _survives(self, error: DiskError) -> bool:
        """Whether nothing is wrong with the disk, nor half done: the same can be tried again."""
        return error.is_shortage and error.rolled_back and self.files.active.active

    def fail(self, error: DiskError) -> None:
        """The disk below failed, found out elsewhere: nothing is read or written here any more."""
        if self.failure is None:
            self.failure = error

    def _fail(self, error: DiskError) -> None:
        if self.failure is None:
            self.failure = error
            if self._on_failure is not None:
                self._on_failure(self, error)

    def _broken(self, operation: str, wrong: str) -> BrokenInvariantError:
        """This log contradicts itself: it alone goes out of service, since nothing is wrong with its disk."""
        return self._taken_out(BrokenInvariantError(operation, self.directory, wrong))

    def _taken_out(self, error: BrokenInvariantError) -> BrokenInvariantError:
        logger.error("%s is offline: %s", self.partition, error)
        self._fail(error)
        return error

    def _failed(self) -> KafkaStorageError:
        error = KafkaStorageError(f"{self.partition}: the log is offline since its disk failed: {self.failure}")
        error.__cause__ = self.failure
        return error

    def _lost_track(self, error: BaseException) -> BaseException:
        """A batch is on disk of which only a part was noted: nothing may be written behind it before a restart."""
        if self.failure is None:
            self._broken("append", f"a batch could not be taken in ({error!r})")
        return self._failed() if isinstance(error, Exception) else error
