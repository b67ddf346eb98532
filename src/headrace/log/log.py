"""One partition's log: append, find, cut, sync, and what of it is visible to whom."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence

from headrace.errors import KafkaStorageError, OffsetOutOfRangeError
from headrace.log import partition_metadata, reading, retention
from headrace.log.appended import Outcome
from headrace.log.appending import AppendableLog
from headrace.log.config import LogConfig
from headrace.log.invariants import SPAN_BYTES, BrokenInvariantError, read_fault, read_span, view_fault
from headrace.log.leader_epochs import LeaderEpochs
from headrace.log.log_files import LogFiles
from headrace.log.offset_index import DamagedIndexError
from headrace.log.ownership import by_writer
from headrace.log.producer_loading import load_snapshot, replay
from headrace.log.producer_state import DEFAULT_EXPIRATION_MS, LogProducers, ProducerEntry, Verification
from headrace.log.reading import Slice, TimeAndOffset
from headrace.log.recovery import Loaded, LogLoader
from headrace.log.segment import TEMPORARY, TXN_INDEX, Caches, Segment
from headrace.log.transaction_index import AbortedTransaction
from headrace.records import CorruptBatchError
from headrace.runtime import Buffer, DiskError, Runtime
from headrace.topics import TopicPartition


class Log(AppendableLog):
    """Synchronous and blocking. After a disk error it is failed for good and answers KAFKA_STORAGE_ERROR.

    `LogState` says who may do what beside whom.
    """

    __slots__ = ("last_sync_ms", "recovery", "topic_id")

    @classmethod
    def open(
        cls,
        runtime: Runtime,
        directory: str,
        partition: TopicPartition,
        config: LogConfig,
        *,
        topic_id: bytes | None = None,
        id_is_read: bool = False,
        recovery_point: int = 0,
        cleaned_to: int = 0,
        start_offset: int = 0,
        clean: bool = False,
        each_synced: bool = False,
        producer_expiration_ms: int = DEFAULT_EXPIRATION_MS,
        caches: Caches | None = None,
        on_failure: Callable[[Log, DiskError], None] | None = None,
    ) -> Log:
        """Open the log in `directory` (the partition's own), or make it when there is none.

        `clean` says that the last process stopped in order; otherwise everything from the recovery point on is checked.
        Up to `cleaned_to` it was compacted.
        With `each_synced` (see `LogLoader.load`) only a torn last batch is cut off, whatever the recovery point.
        `id_is_read` says that `topic_id` is what the directory itself says.
        """
        disk = runtime.disk
        caches = caches or Caches(disk)
        if not disk.is_dir(directory):
            disk.makedirs(directory)
            clean = True
            # There is nothing to look for.
            names: list[str] = []
            partition_metadata.write(disk, directory, topic_id)
        else:
            topic_id = topic_id if id_is_read else partition_metadata.ensure(disk, directory, topic_id)
            names = disk.listdir(directory)
        loader = LogLoader(caches, directory, partition, config, runtime.clock.now_ms(), producer_expiration_ms)
        try:
            loaded = loader.load(
                names,
                recovery_point=recovery_point,
                cleaned_to=cleaned_to,
                start_offset=start_offset,
                clean=clean,
                each_synced=each_synced,
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
        wrong = view_fault(self.view, self.watermark)
        if wrong is not None:
            files.release()
            raise KafkaStorageError(f"{partition}: {wrong}; restore the directory {directory}, or move it away")
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
        self.files.never_synced = not report.clean or not loaded.found or loaded.is_bare
        # Of a bare log nothing can be lost: a stop leaves it as it is, and its first sync comes with its first record.
        self.files.changed = report.eventful or (self.files.never_synced and not loaded.is_bare)
        self.files.directory_changed = self.files.never_synced or self.files.changed or bool(report.removed)
        # Whoever stopped cleanly, or synced a record, had synced the id before.
        self.files.id_synced = loaded.found and (report.clean or recovery_point > 0)

    # ---- producers and epochs --------------------------------------------------------------------------------------

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, *, from_zero: bool = False
    ) -> Verification | None:
        """See `LogProducers.start_verification`: a guard to pass to `append`, or None when the transaction is open."""
        now_ms = self._clock.now_ms()
        return self.producers.start_verification(producer_id, sequence, epoch, now_ms, from_zero=from_zero)

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
        if limit > end_offset:
            limit = end_offset
        if offset >= limit:
            return reading.nothing(view, offset)
        try:
            return reading.locate(view, offset, max_bytes, limit, at_least_one, nowait)
        except BrokenInvariantError as error:
            if self.view.cuts != view.cuts:
                return reading.nothing(view, offset)  # what was cut off meanwhile may be overwritten: ask again
            self._taken_out(error)
            raise

    def check_read(self, found: Slice, data: Buffer) -> None:
        """After a slice was read: whether what is there is what was looked for; CorruptBatchError when it is not."""
        if len(data) < SPAN_BYTES:
            return
        base_offset, last_offset_delta = read_span(data)
        if base_offset <= found.base_offset <= base_offset + last_offset_delta:
            return  # as nearly always
        wrong = read_fault(found, base_offset, base_offset + last_offset_delta)
        # What was cut off since may be overwritten. The reader gets what is there now, and asks on from where it was.
        if wrong is not None and self.view.cuts == found.view.cuts:
            raise CorruptBatchError(f"{found.file.path} at byte {found.position}: {wrong}")

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
    def end_after_cut(self, offset: int) -> int:
        """Where the log will end when it is cut to `offset` (`truncate_to`): at or before that."""
        self._check_usable()
        view = self.view
        if not view.bases[0] <= offset < view.end_offset:
            return min(offset, view.end_offset)
        with self._failing(outlasts_shortage=True):
            return reading.batch_start(view.segments[view.place_of(offset)], offset)

    @by_writer
    def truncate_to(self, offset: int) -> None:
        """Drop every batch that ends after `offset`: a follower's log is cut to what its leader has.

        It ends where a batch begins that `offset` lies within: a follower that went on at `offset` would never ask for
        what its leader has before that.
        """
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
        place = view.place_of(offset)
        kept, now_ms = view.segments[place], self._clock.now_ms()
        with contextlib.ExitStack() as held:
            with self._failing(outlasts_shortage=True):
                # All that needs a descriptor comes before anything is changed: until then it can be tried again.
                offset = reading.batch_start(kept, offset)
                try:
                    cut = kept.cut_at(offset, now_ms)
                except DamagedIndexError as error:
                    raise CorruptBatchError(f"{kept.path(TXN_INDEX)}: {error}; a restart makes it again") from error
                producers = self._producers_at(offset, (*view.segments[:place], cut))
                for segment in view.segments[place:]:
                    segment.load_aborted()
                file = held.enter_context(self.files.hold_file(kept))
                directory = held.enter_context(self.files.hold_directory())
            with self._failing():
                epochs.truncate_end(offset)
                # Readers are told first: none of them begins to read what is about to go.
                cut_view = view._replace(
                    segments=view.segments[: place + 1],
                    bases=view.bases[: place + 1],
                    size=cut.size,
                    start_offset=min(view.start_offset, offset),
                    end_offset=offset,
                    epochs=epochs if len(epochs) != len(view.epochs) else view.epochs,
                    cuts=view.cuts + 1,
                    cut_to=min(view.cut_to, offset),
                )
                wrong = view_fault(cut_view, self.watermark)
                if wrong is not None:
                    raise self._broken("cut", wrong)
                self.producers = producers  # before the view: who sees that it was cut sees of producers what is left
                self.view = cut_view
                self.files.cut(place, cut, file, now_ms + self.config.file_delete_delay_ms)
                self.files.snapshots.drop_after(offset)
                producers.committed_up_to(self.high_watermark)
                self._publish()
                # Durable at once: what was cut must not come back behind what is written in its place.
                file.sync()
                directory.sync()

    @by_writer
    def start_at(self, offset: int, producers: Sequence[ProducerEntry] = ()) -> None:
        """Drop everything; what comes next has `offset`: a follower whose leader no longer has what it has.

        A copy is told what `producers` did before that.
        """
        self._check_usable()
        view = self.view
        with contextlib.ExitStack() as held:
            with self._failing(outlasts_shortage=True):
                # As in `truncate_to`: nothing is changed yet.
                directory = held.enter_context(self.files.hold_directory())
                first = Segment.create(self.caches, self.directory, offset, self._clock.now_ms(), TEMPORARY)
            with self._failing():
                self.files.start_over(first, directory)
                state = LogProducers(self.partition, self.producers.expiration_ms)
                state.load(list(producers), offset, self._clock.now_ms())
                if state.producers:
                    # Durable, as nothing in the log could replace it.
                    self.files.snapshots.take(state)
                    self.files.snapshots.sync(offset)
        self.producers = state
        self._publish(
            start_offset=offset,
            end_offset=offset,
            epochs=LeaderEpochs(),
            cuts=view.cuts + 1,
            cut_to=min(view.cut_to, offset),
        )

    @by_writer
    def begin_with(self, records: Buffer) -> list[Outcome]:
        """Append copies to a log without records, also where the first batch begins before the log's start.

        What is before that was deleted where they come from, and it is so here.
        """
        start_offset, first_offset = self.view.start_offset, int.from_bytes(records[:8], "big")
        if first_offset >= start_offset:
            return self.append(self.copies(records))
        self.start_at(first_offset)
        outcomes = self.append(self.copies(records))
        self._advance_start(min(start_offset, self.view.end_offset))
        return outcomes

    def _producers_at(self, offset: int, segments: Sequence[Segment]) -> LogProducers:
        """What is known of producers where the log ends at `offset`, with these segments."""
        known = self.producers
        # Another state takes the place of this one when it is complete: others may be looking.
        state = LogProducers(self.partition, known.expiration_ms)
        if known.producers or known.ended:
            load_snapshot(state, self.files.snapshots, offset, segments[0].base_offset, self._clock.now_ms())
            replay(state, segments, offset)
            # A snapshot does not have the ends that may still be lost: what they end is unstable as before.
            kept = [one for one in known.ended if one.marker_offset < offset]
            state.ended = tuple(sorted({*kept, *state.ended}, key=lambda one: one.marker_offset))
        state.end_offset = offset
        return state

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
    def apply_retention(self, now_ms: int, at_most: int | None = None) -> list[Segment]:
        """Delete the segments that are before the log's start, over its size or over its age, the oldest so many of
        them; which they were."""
        self._check_usable()
        with contextlib.suppress(DiskError):
            # Without them the log works as before: a disk that has no room for them is no reason to give it up.
            self.files.restore_indexes()
        doomed = retention.expired(self, now_ms)[:at_most]
        if not doomed:
            return []
        with self._failing(outlasts_shortage=True):
            if len(doomed) == len(self.files.segments):
                self._roll(now_ms)
            due_ms = self._clock.now_ms() + self.config.file_delete_delay_ms
            with self.files.hold_directory() as directory:
                for segment in doomed:
                    # One by one, and all that has to be opened first: where descriptors are short the others stay.
                    segment.load_aborted()
                    self._keep_producers(self.files.bases[1])
                    self.files.drop_first(directory)
                    # Before its files are renamed, so that nobody begins to read them any more.
                    self._advance_start(self.files.bases[0])
                    self.files.discard_first(segment, due_ms, directory)
        return doomed

    def _keep_producers(self, offset: int) -> None:
        """Have what producers did before `offset` in a durable snapshot: what else tells of it is about to go."""
        snapshots = self.files.snapshots
        if not self.producers.producers:
            return
        try:
            if not snapshots.is_whole(offset):
                # That of when the segment began was torn by a power loss.
                snapshots.take(self._producers_at(offset, self.files.segments))
            snapshots.sync(offset)
        except CorruptBatchError:
            return  # what is deleted is damaged
        except DiskError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # What is deleted gives the room that there is none of.

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
        with contextlib.ExitStack() as held:
            with self._failing(outlasts_shortage=True):
                # Before anything is changed: where descriptors are short now, it is compacted another time.
                for segment in old:
                    segment.load_aborted()
                directory = held.enter_context(self.files.hold_directory())
            with self._failing():
                self.files.replace(new, old, self._clock.now_ms() + self.config.file_delete_delay_ms, directory)
                self._publish()

    # ---- durability ----------------------------------------------------------------------------------------------

    def sync_id(self) -> None:
        """Make durable whose log this is, if it is not.

        To be done before anything is written: records without an id could be those of an earlier topic of the name.
        """
        self._check_usable()
        if not self.files.id_synced:
            with self._failing(outlasts_shortage=True):
                self.files.sync_id()

    def sync(self, *, with_parent: bool = True) -> None:
        """Make everything appended so far durable, then move the recovery point there. May run beside appends.

        Without the parent, the name of a new log's own directory is left to whoever syncs many of them.
        """
        self._check_usable()
        view = self.view
        try:
            with self._failing(outlasts_shortage=True):
                self.files.sync(view, self.recovery_point, with_parent=with_parent)
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
        mark = self.synced
        view = self.view  # one for all of it: the writer may append beside this
        recovery_point = view.recovered(mark)
        return view.end_offset if view.end_offset - recovery_point < self.config.flush_messages else recovery_point

    def sync_due(self, now_ms: int) -> bool:
        """Whether `flush.ms` is over for something that was appended."""
        return self.unsynced > 0 and now_ms - self.last_sync_ms >= self.config.flush_ms

    def close(self, *, with_parent: bool = True) -> None:
        """Write indexes and producer state, sync, let go of everything. Idempotent; a failed log is only let go of.

        `with_parent` as for `sync`.
        """
        if self.failure is None and self.files.changed:
            try:
                self.active.write_indexes()
                self.files.take_snapshot(self.producers)
                self.files.directory_changed = True
                # Ended, so that its indexes are synced with it.
                self.active.active = False
                self.sync(with_parent=with_parent)
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
