"""One partition's log: append, find, cut, sync, and what of it is visible to whom."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from headrace.errors import (
    CorruptMessageError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    RecordListTooLargeError,
)
from headrace.log import partition_metadata, reading, retention
from headrace.log.appended import Appended, UnexpectedOffsetError
from headrace.log.config import LogConfig
from headrace.log.leader_epochs import LeaderEpochs
from headrace.log.log_files import LogFiles
from headrace.log.ownership import by_writer
from headrace.log.producer_loading import load_snapshot, recall, replay
from headrace.log.producer_state import DEFAULT_EXPIRATION_MS, EndMarker, LogProducers, Origin, Verification
from headrace.log.reading import Slice, TimeAndOffset
from headrace.log.recovery import Loaded, LogLoader
from headrace.log.scanning import check_whole
from headrace.log.segment import Caches, Segment, indexed_timestamp
from headrace.log.state import LogState
from headrace.log.transaction_index import AbortedTransaction
from headrace.log.validation import Checked, read_marker, validate, writable
from headrace.log.view import View
from headrace.records import Batch, BatchHeader, CorruptBatchError, assign, split
from headrace.runtime import Buffer, DiskError, Runtime
from headrace.topics import TopicPartition

_new_tuple = tuple.__new__


class Log(LogState):
    """Synchronous and blocking. After a disk error it is failed for good and answers KAFKA_STORAGE_ERROR.

    `LogState` says who may do what beside whom.
    """

    __slots__ = (
        "_clock",
        "_rng",
        "config",
        "last_sync_ms",
        "recovery",
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
        With `each_synced` (see `LogLoader.load`) only a torn last batch is cut off, whatever the recovery point.
        """
        disk = runtime.disk
        caches = caches or Caches(disk)
        if not disk.is_dir(directory):
            disk.makedirs(directory)
            clean = True
        topic_id = partition_metadata.ensure(disk, directory, topic_id)
        loader = LogLoader(caches, directory, partition, config, runtime.clock.now_ms(), producer_expiration_ms)
        try:
            loaded = loader.load(
                recovery_point=recovery_point, start_offset=start_offset, clean=clean, each_synced=each_synced
            )
        except CorruptBatchError as error:
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
        files = LogFiles(caches, directory, loaded.segments, loaded.snapshots)
        super().__init__(
            partition,
            files,
            loaded.producers,
            loaded.epochs,
            loaded.start_offset,
            loaded.end_offset,
            recovery_point,
            on_failure,
        )
        self._clock = runtime.clock
        self._rng = runtime.rng
        self.topic_id = topic_id
        self.config = config
        self.files.active.jitter_ms = config.jitter_ms(runtime.rng)
        self.recovery = loaded.report
        if not loaded.epochs_changed:
            self.files.epochs_synced = loaded.epochs
        self.last_sync_ms = runtime.clock.now_ms()
        report = loaded.report
        self.files.changed = not report.clean or report.eventful or not loaded.found
        self.files.directory_changed = self.files.changed or bool(report.removed)
        self.files.never_synced = not report.clean or not loaded.found

    # ---- append --------------------------------------------------------------------------------------------------

    def check(self, records: Buffer, origin: Origin = Origin.CLIENT, *, short: bool = False) -> Checked:
        """See `validate`: a batch that `append` need not check again. It touches nothing of the log."""
        return validate(writable(records), self.config, origin, self.partition, self._clock.now_ms(), short=short)

    @by_writer
    def append(
        self,
        records: Buffer,
        leader_epoch: int,
        origin: Origin = Origin.CLIENT,
        now_ms: int | None = None,
        verification: Verification | None = None,
        transaction_version: int = 0,
        checked: Checked | None = None,
    ) -> Appended:
        """Append a leader's one batch: check it, give it offsets and epoch in place, write it.

        `checked` is what `check` has said of it, `transaction_version` that of the transaction which a marker ends.
        Pass a bytearray, or a view of one: its bytes are patched, not copied. Raises a KafkaError when the batch is
        refused and a DiskError when the disk fails; then nothing of it is readable, now or after a restart.
        """
        if self.failure is not None:
            raise self._failed()
        if now_ms is None:
            now_ms = self._clock.now_ms()
        config, producers = self.config, self.producers
        if checked is None:
            checked = validate(writable(records), config, origin, self.partition, now_ms)
        header = checked.header
        base_offset = self.view.end_offset
        marker = None
        if header.producer_id >= 0:
            if header.is_control:
                marker = read_marker(Batch(checked.view))
                if marker is not None:
                    producers.check_marker(header, marker, base_offset, transaction_version)
            else:
                if origin is Origin.CLIENT:
                    duplicate = producers.find_duplicate(header)
                    if duplicate is None and producers.loaded_at >= 0 and producers.may_be_older(header):
                        self._recall(producers)
                        duplicate = producers.find_duplicate(header)
                    if duplicate is not None:
                        return Appended(
                            duplicate.first_offset,
                            duplicate.last_offset,
                            duplicate.timestamp_ms,
                            self.view.start_offset,
                            duplicate=True,
                        )
                producers.check(header, origin, base_offset, verification)
        data = checked.view
        size = len(data)
        if size > config.segment_bytes:
            raise RecordListTooLargeError(
                f"{self.partition}: a batch of {size} bytes does not fit a segment ({config.segment_bytes} bytes)"
            )
        last_offset = base_offset + header.last_offset_delta
        max_timestamp_ms, flush_messages = checked.max_timestamp_ms, config.flush_messages
        try:
            rolled = self.files.active.full_for(size, last_offset, max_timestamp_ms, now_ms, config)
            if rolled:
                self._roll(now_ms)
            assign(data, base_offset, leader_epoch)
            self.files.active.write((data,))
        except DiskError as error:
            if not self._survives(error):
                self._fail(error)
            raise
        new_epoch = self._note(
            header, base_offset, size, max_timestamp_ms, leader_epoch, marker, config.index_interval_bytes
        )
        return _new_tuple(
            Appended,
            (
                base_offset,
                last_offset,
                checked.append_time_ms,
                self.view.start_offset,
                False,
                new_epoch,
                last_offset >= flush_messages - 1 and last_offset + 1 - self.recovery_point >= flush_messages,
                rolled,
            ),
        )

    def _recall(self, producers: LogProducers) -> None:
        """Look up what producers wrote before the snapshot that their state was loaded from."""
        try:
            recall(producers, self.files.segments)
        except DiskError as error:
            self._fail(error)
            raise

    def _note(
        self,
        header: BatchHeader,
        base_offset: int,
        size: int,
        max_timestamp_ms: int,
        leader_epoch: int,
        marker: EndMarker | None,
        index_interval_bytes: int,
    ) -> bool:
        """Take in one batch whose bytes are at the end of the file, and let everyone see it; whether its epoch is new.

        The bytes are there now: whatever goes wrong from here on, no other batch may be given their offsets.
        """
        segments, bases, _, start_offset, _, undecided, ended, epochs, cuts, cut_to = self.view
        last_offset = base_offset + header.last_offset_delta
        active = segments[-1]
        try:
            producers = self.producers
            if header.producer_id >= 0:
                if not header.is_control:
                    producers.apply_batch(header, base_offset, max_timestamp_ms)
                elif marker is not None:
                    aborted = producers.apply_marker(header, base_offset, marker)
                    if aborted is not None:
                        active.note_aborted(aborted)
                if ended:
                    producers.committed_up_to(self.high_watermark)
                undecided, ended = producers.undecided, producers.ended
            new_epoch = leader_epoch != epochs.latest and leader_epoch >= 0
            if new_epoch:
                epochs = epochs.copy()
                epochs.assign(leader_epoch, base_offset)
            active.note(size, last_offset, max_timestamp_ms, index_interval_bytes)
            self.files.changed = True
            producers.end_offset = last_offset + 1
            self.view = _new_tuple(
                View,
                (
                    segments,
                    bases,
                    active.size,
                    start_offset,
                    last_offset + 1,
                    undecided,
                    ended,
                    epochs,
                    cuts,
                    cut_to,
                ),
            )
        except BaseException as error:
            raise self._lost_track(error) from error
        return new_epoch

    @by_writer
    def append_replica(self, records: Buffer) -> Appended:
        """Append a follower's batches as the leader made them, offsets and epochs too. A cut last one is dropped."""
        if self.failure is not None:
            raise self._failed()
        try:
            batches = list(split(records if type(records) is memoryview else memoryview(records)))
            headers = [check_whole(batch) for batch in batches]
        except CorruptBatchError as error:
            raise CorruptMessageError(f"{self.partition}: {error}") from error
        expected = self.view.end_offset
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
        config = self.config
        marker = read_marker(batch) if header.is_control and header.producer_id >= 0 else None
        timestamp_ms = indexed_timestamp(header)
        rolled = self.active.full_for(size, header.last_offset, header.max_timestamp, now_ms, config)
        if rolled:
            self._roll(now_ms)
        self.active.write((batch.buffer,))
        self._note(
            header, header.base_offset, size, timestamp_ms, header.leader_epoch, marker, config.index_interval_bytes
        )
        return rolled

    def start_verification(self, producer_id: int, sequence: int, epoch: int) -> Verification | None:
        """See `LogProducers.start_verification`: a guard to pass to `append`, or None when the transaction is open."""
        return self.producers.start_verification(producer_id, sequence, epoch, self._clock.now_ms())

    def is_verifying(self, guard: Verification) -> bool:
        """See `LogProducers.is_verifying`."""
        return self.producers.is_verifying(guard)

    @by_writer
    def begin_epoch(self, leader_epoch: int) -> None:
        """This broker leads with `leader_epoch` from now on: what is appended next belongs to it."""
        if leader_epoch > self.view.epochs.latest:
            epochs = self.view.epochs.copy()
            epochs.assign(leader_epoch, self.view.end_offset)
            self._publish(epochs=epochs)

    # ---- segments ------------------------------------------------------------------------------------------------

    @by_writer
    def roll(self) -> None:
        """End the active segment now, unless it is empty."""
        self._check_usable()
        if self.active.size:
            with self._failing(outlasts_shortage=True):
                self._roll(self._clock.now_ms())

    @by_writer
    def roll_if_due(self, now_ms: int) -> bool:
        """End a compacted log's active segment when its first record waits longer than `max.compaction.lag.ms`."""
        if not self.config.compact or not self.active.size:
            return False
        first = self.active.first_timestamp()
        if first < 0 or now_ms - first <= self.config.max_compaction_lag_ms - self.active.jitter_ms:
            return False
        self.roll()
        return True

    def _roll(self, now_ms: int) -> None:
        # At the log's end also where a compacted leader's batch leaves a gap: segments then follow one another.
        self.files.roll(self.view.end_offset, now_ms, self.producers, self.config.jitter_ms(self._rng))
        self._publish()

    # ---- find ----------------------------------------------------------------------------------------------------

    def locate(self, offset: int, max_bytes: int, *, limit: int, at_least_one: bool, nowait: bool = False) -> Slice:
        """Where the batches from `offset` on are, up to `limit` (exclusive) and about `max_bytes`; of one segment only.

        The first batch may begin before `offset`; the last may be cut by `max_bytes`, never by `limit`. With
        `at_least_one` the first is whole even when it is larger than `max_bytes`. A length of 0 is an empty answer.
        With `nowait`, WouldBlockError is raised when the disk is needed: call again, without, off the loop.
        """
        if self.failure is not None:
            raise self._failed()
        view = self.view
        end_offset = view.end_offset
        if not view.start_offset <= offset <= end_offset:
            raise OffsetOutOfRangeError(
                f"{self.partition}: offset {offset} is not between {view.start_offset} and {end_offset}"
            )
        limit = min(limit, end_offset)
        if offset >= limit:
            return reading.nothing(view, offset)
        return reading.locate(view, offset, max_bytes, limit, at_least_one=at_least_one, nowait=nowait)

    def aborted_transactions(self, start: int, slice_: Slice, *, nowait: bool = False) -> list[AbortedTransaction]:
        """What a reader of this slice from offset `start` on must skip; perhaps more than it has, as in Kafka."""
        return reading.aborted_in(start, slice_, nowait=nowait)

    def find_by_time(self, timestamp_ms: int) -> TimeAndOffset | None:
        """The first record whose timestamp is not below this one; it may be a control record. Reads from disk."""
        return reading.first_at_or_after(self.view, timestamp_ms)

    def max_timestamp(self) -> TimeAndOffset:
        """The record with the greatest timestamp; all -1 when there is none. Reads from disk."""
        return reading.newest(self.view)

    def end_offset_for(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the greatest epoch up to the one asked for; (-1, -1) when it is unknown."""
        view = self.view
        return view.epochs.end_offset_for(leader_epoch, view.end_offset)

    # ---- cut -----------------------------------------------------------------------------------------------------

    @by_writer
    def truncate_to(self, offset: int) -> None:
        """Drop every batch that ends at or after `offset`: a follower's log is cut to what its leader has."""
        self._check_usable()
        view = self.view
        epochs = view.epochs.copy()
        if offset >= view.end_offset:
            if epochs.truncate_end(view.end_offset):
                self._publish(epochs=epochs)
            return
        if offset < view.bases[0]:
            self.start_at(offset)
            return
        with self._failing():
            place = view.place_of(offset)
            found = view.segments[place].translate(offset)
            epochs.truncate_end(offset)
            # Readers are told first: none of them begins to read what is about to go.
            self.view = view._replace(
                segments=view.segments[: place + 1],
                bases=view.bases[: place + 1],
                size=view.size_of(place) if found is None else found[0],
                start_offset=min(view.start_offset, offset),
                end_offset=offset,
                epochs=epochs if len(epochs) != len(view.epochs) else view.epochs,
                cuts=view.cuts + 1,
                cut_to=min(view.cut_to, offset),
            )
            self.files.cut(offset, self._clock.now_ms(), self.config.file_delete_delay_ms)
            self._reload_producers(offset)
            self._publish()
            # Durable at once: what was cut must not come back behind what is written in its place.
            self.active.file.sync()
            self.files.sync_directory()

    @by_writer
    def start_at(self, offset: int) -> None:
        """Drop everything; what comes next has `offset`: a follower whose leader no longer has what it has."""
        self._check_usable()
        view = self.view
        with self._failing():
            self.files.start_over(offset, self._clock.now_ms())
        self.producers = LogProducers(self.partition, self.producers.expiration_ms)
        self.producers.end_offset = offset
        self._publish(
            start_offset=offset,
            end_offset=offset,
            epochs=LeaderEpochs(),
            cuts=view.cuts + 1,
            cut_to=min(view.cut_to, offset),
        )

    def _reload_producers(self, offset: int) -> None:
        self.files.snapshots.drop_after(offset)
        known = self.producers
        # Another state takes the place of this one when it is complete: others may be looking.
        state = LogProducers(self.partition, known.expiration_ms)
        if known.producers or known.ended:
            segments = self.files.segments
            load_snapshot(state, self.files.snapshots, offset, segments[0].base_offset, self._clock.now_ms())
            replay(state, segments, offset)
        state.end_offset = offset
        state.committed_up_to(self.high_watermark)
        self.producers = state

    @by_writer
    def delete_records(self, before: int) -> int:
        """Make offsets below `before` unreadable; their segments go with the next `apply_retention`. The new start."""
        self._check_usable()
        high_watermark = self.high_watermark
        if not 0 <= before <= high_watermark:
            raise OffsetOutOfRangeError(
                f"{self.partition}: records cannot be deleted before {before}, "
                f"which is not between 0 and the high watermark {high_watermark}"
            )
        self._advance_start(before)
        return self.view.start_offset

    def _advance_start(self, offset: int) -> None:
        view = self.view
        epochs = view.epochs
        if offset > view.start_offset:
            self.files.changed = True
            truncated = epochs.copy()
            if truncated.truncate_start(offset):
                epochs = truncated
        self._publish(start_offset=max(offset, view.start_offset), epochs=epochs)

    @by_writer
    def apply_retention(self, now_ms: int) -> list[Segment]:
        """Delete the segments that are before the log's start, over its size or over its age; which they were."""
        self._check_usable()
        with contextlib.suppress(DiskError):
            # Without them the log works as before: a disk that has no room for them is no reason to give it up.
            self.files.restore_indexes()
        doomed = retention.expired(self, now_ms)
        if not doomed:
            return []
        with self._failing(outlasts_shortage=True):
            if len(doomed) == len(self.files.segments):
                self._roll(now_ms)
            dropped = self.files.drop_first(len(doomed))
            # Before their files are renamed, so that nobody begins to read them any more.
            self._advance_start(self.files.bases[0])
            self.files.discard_first(dropped, self._clock.now_ms() + self.config.file_delete_delay_ms)
        return doomed

    @by_writer
    def remove_discarded(self, now_ms: int) -> int:
        """Remove the files of segments whose `file.delete.delay.ms` is over; how many segments that were."""
        with self._failing():
            return self.files.remove_discarded(now_ms)

    @by_writer
    def replace_segments(self, new: Sequence[Segment], old: Sequence[Segment]) -> None:
        """Put compacted segments (with the suffix .cleaned, written, sealed and synced) in the place of `old` ones.

        A crash leaves either the old or the new: once all are renamed to .swap, opening the log finishes the rest.
        """
        self._check_usable()
        if self.active in old:
            raise ValueError(f"{self.partition}: the active segment cannot be compacted")
        with self._failing():
            self.files.replace(new, old, self._clock.now_ms() + self.config.file_delete_delay_ms)
            self._publish()

    # ---- durability ----------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make everything appended so far durable, then move the recovery point there. May run beside appends."""
        self._check_usable()
        view = self.view
        try:
            with self._failing(outlasts_shortage=True):
                self.files.sync(view, self.recovery_point)
        except DiskError:
            # Nothing of it counts, and all of it is due at the next sync.
            self.files.directory_changed = True
            raise
        known_offset, known_cuts = self.synced
        if view.cuts > known_cuts or (view.cuts == known_cuts and view.end_offset > known_offset):
            self.synced = (view.end_offset, view.cuts)
        self.last_sync_ms = self._clock.now_ms()

    @property
    def durable_end(self) -> int:
        """Up to where the log is as durable as its topic wants (`flush.messages`)."""
        return self.end_offset if self.unsynced < self.config.flush_messages else self.recovery_point

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
