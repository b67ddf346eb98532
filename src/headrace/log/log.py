"""One partition's log: append, find, cut, sync, and what of it is visible to whom."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from headrace.errors import (
    CorruptMessageError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    RecordListTooLargeError,
)
from headrace.log import partition_metadata, reading, retention
from headrace.log.appended import Appended, UnexpectedOffsetError
from headrace.log.config import LogConfig
from headrace.log.log_files import LogFiles
from headrace.log.producer_loading import load_snapshot, replay
from headrace.log.producer_state import DEFAULT_EXPIRATION_MS, EndMarker, Origin, Verification
from headrace.log.reading import Slice, TimeAndOffset
from headrace.log.recovery import Loaded, Loader
from headrace.log.scanning import check_whole
from headrace.log.segment import Caches, Segment, indexed_timestamp
from headrace.log.transaction_index import AbortedTransaction
from headrace.log.validation import read_marker, validate, writable
from headrace.records import Batch, BatchHeader, CorruptBatch, assign, split
from headrace.runtime import Buffer, DiskError, Runtime
from headrace.topics import TopicPartition


class Log:
    """Synchronous and blocking. One thread at a time may change a log; `locate` and reads may run beside it.

    Bytes are visible only once they are written as a whole: readers are bounded by what the log has noted, not by the
    file's size. After a disk error the log is failed for good and answers KAFKA_STORAGE_ERROR.
    """

    __slots__ = (
        "_clock",
        "_epochs_changed",
        "_first_unstable",
        "_rng",
        "config",
        "cut_count",
        "cut_to",
        "end_offset",
        "epochs",
        "failure",
        "files",
        "high_watermark",
        "last_sync_ms",
        "on_failure",
        "partition",
        "producers",
        "recovery",
        "recovery_point",
        "start_offset",
        "topic_id",
    )

    @classmethod
    def open(
        cls,
        runtime: Runtime,
        directory: str,
        partition: TopicPartition,
        config: LogConfig,
        *,
        topic_id: bytes | None = None,
        recovery_point: int = 0,
        start_offset: int = 0,
        clean: bool = False,
        each_synced: bool = False,
        producer_expiration_ms: int = DEFAULT_EXPIRATION_MS,
        caches: Caches | None = None,
        on_failure: Callable[[Log, DiskError], None] | None = None,
    ) -> Log:
        """Open the log in `directory` (the partition's own), or make it when there is none.

        `clean` says that the last process stopped in order; otherwise everything from the recovery point on is checked.
        With `each_synced` (see `Loader.load`) only a torn last batch is cut off, whatever the recovery point.
        """
        disk = runtime.disk
        caches = caches or Caches(disk)
        if not disk.is_dir(directory):
            disk.makedirs(directory)
            clean = True
        topic_id = partition_metadata.ensure(disk, directory, topic_id)
        loader = Loader(caches, directory, partition, config, runtime.clock.now_ms(), producer_expiration_ms)
        try:
            loaded = loader.load(
                recovery_point=recovery_point, start_offset=start_offset, clean=clean, each_synced=each_synced
            )
        except CorruptBatch as error:
            # Before the recovery point nothing is ever cut off: that was durable, so the disk has lost it since.
            raise KafkaStorageError(
                f"{partition}: what was synced is damaged ({error}); restore the directory, or move it away"
            ) from error
        durable = loaded.end_offset if clean else min(recovery_point, loaded.end_offset)
        return cls(runtime, caches, directory, partition, config, topic_id, loaded, durable, on_failure)

    def __init__(
        self,
        runtime: Runtime,
        caches: Caches,
        directory: str,
        partition: TopicPartition,
        config: LogConfig,
        topic_id: bytes | None,
        loaded: Loaded,
        recovery_point: int,
        on_failure: Callable[[Log, DiskError], None] | None,
    ) -> None:
        """Use `Log.open`."""
        self.files = LogFiles(caches, directory, loaded.segments, loaded.snapshots)
        self._clock = runtime.clock
        self._rng = runtime.rng
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self.on_failure = on_failure
        self.failure: DiskError | None = None
        self.files.active.jitter_ms = config.jitter_ms(runtime.rng)
        self.start_offset = loaded.start_offset
        self.end_offset = loaded.end_offset
        self.recovery_point = recovery_point
        self.epochs = loaded.epochs
        self._epochs_changed = loaded.epochs_changed
        self.producers = loaded.producers
        # How often the log's end was cut off since it was opened, and the lowest offset it was cut to.
        self.cut_count = 0
        self.cut_to: int | None = None
        self.recovery = loaded.report
        self.high_watermark = loaded.start_offset
        self._first_unstable = loaded.producers.first_unstable_offset
        self.last_sync_ms = runtime.clock.now_ms()
        report = loaded.report
        self.files.changed = not report.clean or report.eventful or not loaded.found
        self.files.directory_changed = self.files.changed or bool(report.removed)
        self.files.never_synced = not report.clean or not loaded.found

    def __repr__(self) -> str:
        return f"Log({self.directory}, offsets {self.start_offset}..{self.end_offset})"

    # ---- state ---------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The partition's own directory."""
        return self.files.directory

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self.files.active

    @property
    def leader_epoch(self) -> int:
        """The latest epoch that wrote something; -1 for none."""
        return self.epochs.latest

    def leader_epoch_at(self, offset: int) -> int:
        """The epoch in which `offset` was or will be written; -1 when it is older than all that is known."""
        return self.epochs.epoch_for(offset)

    @property
    def last_stable_offset(self) -> int:
        """The high watermark, or the first offset of a transaction that is undecided or may become so."""
        unstable = self._first_unstable
        return self.high_watermark if unstable is None else min(self.high_watermark, unstable)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self.files.segments[0])

    @property
    def caches(self) -> Caches:
        return self.files.caches

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.files.segments[0])

    @property
    def unsynced(self) -> int:
        """How many offsets are not known to be durable."""
        return self.end_offset - self.recovery_point

    def update_high_watermark(self, offset: int) -> bool:
        """Offsets below it are committed. Kept between the log's start and end; whether it changed."""
        offset = min(max(offset, self.start_offset), self.end_offset)
        if offset == self.high_watermark:
            return False
        self.high_watermark = offset
        if self.producers.unreplicated and self.producers.replicated_up_to(offset):
            self._first_unstable = self.producers.first_unstable_offset
        return True

    def begin_epoch(self, leader_epoch: int) -> None:
        """This broker leads with `leader_epoch` from now on: what is appended next belongs to it."""
        if leader_epoch > self.epochs.latest:
            self._epochs_changed |= self.epochs.assign(leader_epoch, self.end_offset)

    # ---- append --------------------------------------------------------------------------------------------------

    def append(
        self,
        records: Buffer,
        *,
        leader_epoch: int,
        origin: Origin = Origin.CLIENT,
        now_ms: int | None = None,
        verification: Verification | None = None,
        transaction_version: int = 0,
    ) -> Appended:
        """Append a leader's one batch: check it, give it offsets and epoch in place, write it.

        `transaction_version` is that of the transaction which a marker ends.
        Pass a bytearray, or a view of one: its bytes are patched, not copied. Raises a KafkaError when the batch is
        refused and a DiskError when the disk fails; then nothing of it is readable, now or after a restart.
        """
        if self.failure is not None:
            raise self._failed()
        if now_ms is None:
            now_ms = self._clock.now_ms()
        checked = validate(writable(records), self.config, origin, self.partition, now_ms)
        header = checked.header
        base_offset = self.end_offset
        marker = None
        if header.producer_id >= 0:
            if header.is_control:
                marker = read_marker(Batch(checked.view))
                if marker is not None:
                    self.producers.check_marker(header, marker, base_offset, transaction_version)
            else:
                if origin is Origin.CLIENT:
                    duplicate = self.producers.find_duplicate(header)
                    if duplicate is not None:
                        return Appended(
                            duplicate.first_offset,
                            duplicate.last_offset,
                            duplicate.timestamp_ms,
                            self.start_offset,
                            duplicate=True,
                        )
                self.producers.check(header, origin, base_offset, verification)
        view = checked.view
        size = len(view)
        if size > self.config.segment_bytes:
            raise RecordListTooLargeError(
                f"{self.partition}: a batch of {size} bytes does not fit a segment ({self.config.segment_bytes} bytes)"
            )
        last_offset = base_offset + header.last_offset_delta
        try:
            rolled = self._roll_for(size, last_offset, checked.max_timestamp_ms, now_ms)
            assign(view, base_offset, leader_epoch)
            self.files.active.write((view,))
        except DiskError as error:
            if not self._survives(error):
                self._fail(error)
            raise
        new_epoch = leader_epoch != self.epochs.latest and leader_epoch >= 0
        if new_epoch:
            self._epochs_changed |= self.epochs.assign(leader_epoch, base_offset)
        self.files.active.note(size, last_offset, checked.max_timestamp_ms, self.config.index_interval_bytes)
        self.files.changed = True
        if header.producer_id >= 0:
            if header.is_control:
                self._note_marker(header, base_offset, marker)
            else:
                self._note_batch(header, base_offset, checked.max_timestamp_ms)
        self.end_offset = self.producers.end_offset = last_offset + 1
        return Appended(
            base_offset,
            last_offset,
            checked.append_time_ms,
            self.start_offset,
            False,
            new_epoch,
            last_offset + 1 - self.recovery_point >= self.config.flush_messages,
            rolled,
        )

    def _note_batch(self, header: BatchHeader, base_offset: int, timestamp_ms: int) -> None:
        self.producers.apply_batch(header, base_offset, timestamp_ms)
        self._first_unstable = self.producers.first_unstable_offset

    def _note_marker(self, header: BatchHeader, base_offset: int, marker: EndMarker | None) -> None:
        if marker is None:
            return
        aborted = self.producers.apply_marker(header, base_offset, marker)
        if aborted is not None:
            self.active.note_aborted(aborted)
        self._first_unstable = self.producers.first_unstable_offset

    def append_replica(self, records: Buffer) -> Appended:
        """Append a follower's batches as the leader made them, offsets and epochs too. A cut last one is dropped."""
        if self.failure is not None:
            raise self._failed()
        view = records if type(records) is memoryview else memoryview(records)
        try:
            batches = list(split(view))
            headers = [check_whole(batch) for batch in batches]
        except CorruptBatch as error:
            raise CorruptMessageError(f"{self.partition}: {error}") from error
        expected = self.end_offset
        for header in headers:
            if header.base_offset < expected:
                raise UnexpectedOffsetError(
                    f"{self.partition}: the leader sent offset {header.base_offset}, but this log ends at {expected}"
                )
            expected = header.next_offset
        if not headers:
            return Appended(self.end_offset, self.end_offset - 1, -1, self.start_offset)
        before = self.epochs.latest
        rolled = False
        now_ms = self._clock.now_ms()
        try:
            for batch, header in zip(batches, headers):
                rolled |= self._append_one(batch, header, now_ms)
        except DiskError as error:
            self._fail(error)
            raise
        return Appended(
            headers[0].base_offset,
            headers[-1].last_offset,
            -1,
            self.start_offset,
            False,
            self.epochs.latest != before,
            self.end_offset - self.recovery_point >= self.config.flush_messages,
            rolled,
        )

    def _append_one(self, batch: Batch, header: BatchHeader, now_ms: int) -> bool:
        size = len(batch.buffer)
        rolled = self._roll_for(size, header.last_offset, header.max_timestamp, now_ms)
        self.active.write((batch.buffer,))
        if header.leader_epoch >= 0 and header.leader_epoch != self.epochs.latest:
            self._epochs_changed |= self.epochs.assign(header.leader_epoch, header.base_offset)
        self.active.note(size, header.last_offset, indexed_timestamp(header), self.config.index_interval_bytes)
        self.files.changed = True
        if header.producer_id >= 0:
            if header.is_control:
                self._note_marker(header, header.base_offset, read_marker(batch))
            else:
                self._note_batch(header, header.base_offset, header.max_timestamp)
        self.end_offset = self.producers.end_offset = header.next_offset
        return rolled

    def start_verification(self, producer_id: int, sequence: int, epoch: int) -> Verification | None:
        """See `ProducerState.start_verification`: a guard to pass to `append`, or None when the transaction is open."""
        return self.producers.start_verification(producer_id, sequence, epoch, self._clock.now_ms())

    # ---- segments ------------------------------------------------------------------------------------------------

    def _roll_for(self, size: int, last_offset: int, max_timestamp_ms: int, now_ms: int) -> bool:
        if not self.files.active.full_for(size, last_offset, max_timestamp_ms, now_ms, self.config):
            return False
        # At the log's end also where a compacted leader's batch leaves a gap: segments then follow one another.
        self._roll(self.end_offset, now_ms)
        return True

    def roll(self) -> None:
        """End the active segment now, unless it is empty."""
        self._check_usable()
        if self.active.size:
            with self._failing(outlasts_shortage=True):
                self._roll(self.end_offset, self._clock.now_ms())

    def roll_if_due(self, now_ms: int) -> bool:
        """End a compacted log's active segment when its first record waits longer than `max.compaction.lag.ms`."""
        if not self.config.compact or not self.active.size:
            return False
        first = self.active.first_timestamp()
        if first < 0 or now_ms - first <= self.config.max_compaction_lag_ms - self.active.jitter_ms:
            return False
        self.roll()
        return True

    def _roll(self, base_offset: int, now_ms: int) -> None:
        self.files.roll(base_offset, now_ms, self.producers, self.config.jitter_ms(self._rng))

    # ---- find ----------------------------------------------------------------------------------------------------

    def locate(self, offset: int, max_bytes: int, *, limit: int, at_least_one: bool, nowait: bool = False) -> Slice:
        """Where the batches from `offset` on are, up to `limit` (exclusive) and about `max_bytes`; of one segment only.

        The first batch may begin before `offset`; the last may be cut by `max_bytes`, never by `limit`. With
        `at_least_one` the first is whole even when it is larger than `max_bytes`. A length of 0 is an empty answer.
        With `nowait`, WouldBlock is raised when the disk is needed: call again, without, off the loop.
        """
        if self.failure is not None:
            raise self._failed()
        end_offset = self.end_offset
        if not self.start_offset <= offset <= end_offset:
            raise OffsetOutOfRangeError(
                f"{self.partition}: offset {offset} is not between {self.start_offset} and {end_offset}"
            )
        segments, bases = self.files.segments
        limit = min(limit, end_offset)
        if offset >= limit:
            return reading.nothing(segments, offset)
        return reading.locate(
            segments, bases, offset, max_bytes, limit, end_offset, at_least_one=at_least_one, nowait=nowait
        )

    def aborted_transactions(self, start: int, slice_: Slice, *, nowait: bool = False) -> list[AbortedTransaction]:
        """What a reader of this slice from offset `start` on must skip; perhaps more than it has, as in Kafka."""
        segments, bases = self.files.segments
        return reading.aborted_in(segments, bases, start, slice_, self.end_offset, nowait=nowait)

    def find_by_time(self, timestamp_ms: int) -> TimeAndOffset | None:
        """The first record whose timestamp is not below this one; it may be a control record. Reads from disk."""
        return reading.first_at_or_after(self.files.segments[0], timestamp_ms, self.start_offset)

    def max_timestamp(self) -> TimeAndOffset:
        """The record with the greatest timestamp; all -1 when there is none. Reads from disk."""
        return reading.newest(self.files.segments[0])

    def end_offset_for(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the greatest epoch up to the one asked for; (-1, -1) when it is unknown."""
        return self.epochs.end_offset_for(leader_epoch, self.end_offset)

    # ---- cut -----------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Drop every batch that ends at or after `offset`: a follower's log is cut to what its leader has."""
        self._check_usable()
        if offset >= self.end_offset:
            self._epochs_changed |= self.epochs.truncate_end(self.end_offset)
            return
        if offset < self.files.segments[1][0]:
            self.start_at(offset)
            return
        self._note_cut(offset)
        with self._failing():
            self.files.cut(offset, self._clock.now_ms(), self.config.file_delete_delay_ms)
            self.start_offset = min(self.start_offset, offset)
            self._set_end(offset)
            self._reload_producers(offset)
            # Durable at once: what was cut must not come back behind what is written in its place.
            self.active.file.sync()
            self.files.sync_directory()

    def start_at(self, offset: int) -> None:
        """Drop everything; what comes next has `offset`: a follower whose leader no longer has what it has."""
        self._check_usable()
        self._note_cut(offset)
        with self._failing():
            self.files.start_over(offset, self._clock.now_ms())
        self._epochs_changed = True
        self.epochs.clear()
        self.producers.clear(offset)
        self.start_offset = offset
        self._set_end(offset)
        self.high_watermark = offset
        self._first_unstable = None

    def _note_cut(self, offset: int) -> None:
        self.cut_count += 1
        self.cut_to = offset if self.cut_to is None else min(self.cut_to, offset)

    def _set_end(self, offset: int) -> None:
        self.end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.high_watermark = min(max(self.high_watermark, self.start_offset), offset)
        self._epochs_changed |= self.epochs.truncate_end(offset)

    def _reload_producers(self, offset: int) -> None:
        self.files.snapshots.drop_after(offset)
        state = self.producers
        if not state.producers and not state.unreplicated:
            state.end_offset = offset
            return
        segments = self.files.segments[0]
        load_snapshot(state, self.files.snapshots, offset, segments[0].base_offset, self._clock.now_ms())
        replay(state, segments, offset)
        state.end_offset = offset
        state.replicated_up_to(self.high_watermark)
        self._first_unstable = state.first_unstable_offset

    def delete_records(self, before: int) -> int:
        """Make offsets below `before` unreadable; their segments go with the next `apply_retention`. The new start."""
        self._check_usable()
        if not 0 <= before <= self.high_watermark:
            raise OffsetOutOfRangeError(
                f"{self.partition}: records cannot be deleted before {before}, "
                f"which is not between 0 and the high watermark {self.high_watermark}"
            )
        self._advance_start(before)
        return self.start_offset

    def _advance_start(self, offset: int) -> None:
        if offset <= self.start_offset:
            return
        self.start_offset = offset
        self.files.changed = True
        self._epochs_changed |= self.epochs.truncate_start(offset)
        if self.producers.replicated_up_to(offset):
            self._first_unstable = self.producers.first_unstable_offset

    def apply_retention(self, now_ms: int) -> list[Segment]:
        """Delete the segments that are before the log's start, over its size or over its age; which they were."""
        self._check_usable()
        doomed = retention.expired(self, now_ms)
        if not doomed:
            return []
        with self._failing(outlasts_shortage=True):
            if len(doomed) == len(self.files.segments[0]):
                self._roll(self.end_offset, now_ms)
            self._advance_start(self.files.segments[1][len(doomed)])
            return self.files.drop_first(len(doomed), self._clock.now_ms() + self.config.file_delete_delay_ms)

    def remove_discarded(self, now_ms: int) -> int:
        """Remove the files of segments whose `file.delete.delay.ms` is over; how many segments that were."""
        with self._failing():
            return self.files.remove_discarded(now_ms)

    def replace_segments(self, new: Sequence[Segment], old: Sequence[Segment]) -> None:
        """Put compacted segments (with the suffix .cleaned, written, sealed and synced) in the place of `old` ones.

        A crash leaves either the old or the new: once all are renamed to .swap, opening the log finishes the rest.
        """
        self._check_usable()
        if self.active in old:
            raise ValueError(f"{self.partition}: the active segment cannot be compacted")
        with self._failing():
            self.files.replace(new, old, self._clock.now_ms() + self.config.file_delete_delay_ms)

    # ---- durability ----------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make everything appended so far durable, then move the recovery point there. May run beside appends."""
        self._check_usable()
        end = self.end_offset
        # Taken back before the copy is made: a change beside this is then written by the next sync.
        epochs = self.epochs if self._epochs_changed else None
        self._epochs_changed = False
        try:
            with self._failing(outlasts_shortage=True):
                self.files.sync(self.recovery_point, epochs)
        except DiskError:
            # Nothing of it counts, and all of it is due at the next sync.
            self._epochs_changed |= epochs is not None
            self.files.directory_changed = True
            raise
        self.recovery_point = max(self.recovery_point, end)
        self.last_sync_ms = self._clock.now_ms()

    def sync_due(self, now_ms: int) -> bool:
        """Whether `flush.ms` is over for something that was appended."""
        return self.unsynced > 0 and now_ms - self.last_sync_ms >= self.config.flush_ms

    def close(self) -> None:
        """Write indexes and producer state, sync, let go of everything. Idempotent; a failed log is only let go of."""
        if self.failure is None and self.files.changed:
            try:
                self.active.write_indexes()
                self.files.take_snapshot(self.producers)
                self.files.directory_changed = True
                self.sync()
                self.active.active = False
                self.active.sync()
                self.files.changed = False
            except DiskError as error:
                self._fail(error)
                self.files.release()
                raise
        self.files.release()

    def abandon(self) -> None:
        """Let go of everything and write nothing: the log is deleted, failed, or to be checked at the next start."""
        self.files.release()
        if self.failure is None:
            self.failure = DiskError("use", self.directory, None, detail="the log is closed")

    def moved_to(self, directory: str) -> None:
        """The log's directory has another name now."""
        self.files.moved_to(directory)

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
            if self.on_failure is not None:
                self.on_failure(self, error)

    def _failed(self) -> KafkaStorageError:
        error = KafkaStorageError(f"{self.partition}: the log is offline since its disk failed: {self.failure}")
        error.__cause__ = self.failure
        return error
