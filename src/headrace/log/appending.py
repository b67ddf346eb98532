"""Appending to a log: a leader's batches, one or several at once, and a follower's copies."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headrace.errors import (
    CorruptMessageError,
    KafkaError,
    KafkaStorageError,
    RecordListTooLargeError,
)
from headrace.log.appended import Appended, UnexpectedOffsetError
from headrace.log.config import LogConfig
from headrace.log.invariants import append_fault
from headrace.log.leader_epochs import LeaderEpochs
from headrace.log.ownership import by_writer
from headrace.log.producer_loading import recall
from headrace.log.producer_state import UNVERIFIED, EndedTransaction, Origin, Verification
from headrace.log.runs import NO_ROOM, AppendedBatch, BatchRun
from headrace.log.scanning import check_whole
from headrace.log.segment import indexed_timestamp
from headrace.log.state import LogState
from headrace.log.validation import Checked, read_marker, validate, writable
from headrace.log.view import View
from headrace.records import Batch, BatchHeader, CorruptBatchError, assign, split
from headrace.records.batch import CONTROL_BIT, PREFIX_BYTES, TRANSACTIONAL_BIT, pack_place
from headrace.runtime import Buffer, Clock, DiskError

_new_tuple = tuple.__new__
_WITH_TRANSACTIONS = TRANSACTIONAL_BIT | CONTROL_BIT


class AppendableLog(LogState):
    """The part of a log that grows. Every method but `check` is the writer's."""

    __slots__ = ("_clock", "_rng", "config")

    _clock: Clock
    _rng: random.Random
    config: LogConfig

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
        view, active = self.view, self.files.active
        base_offset = view.end_offset
        marker = None
        if header.producer_id >= 0:
            if header.is_control:
                marker = read_marker(Batch(checked.view))
                if marker is not None:
                    producers.check_marker(header, marker, base_offset, transaction_version)
            else:
                if origin is Origin.CLIENT:
                    duplicate = self._duplicate_of(header)
                    if duplicate is not None:
                        return duplicate
                producers.check(header, origin, base_offset, verification)
        data = checked.view
        size = len(data)
        if size > config.segment_bytes:
            raise RecordListTooLargeError(
                f"{self.partition}: a batch of {size} bytes does not fit a segment ({config.segment_bytes} bytes)"
            )
        last_offset = base_offset + header.last_offset_delta
        max_timestamp_ms, flush_messages = checked.max_timestamp_ms, config.flush_messages
        written: AppendedBatch = _new_tuple(
            AppendedBatch, (header, base_offset, size, max_timestamp_ms, leader_epoch, marker)
        )
        if (
            leader_epoch < view.epochs.latest
            or active.size != view.size
            or last_offset < base_offset
            or self.producers.end_offset != base_offset
        ):
            self._check_append(base_offset, leader_epoch, last_offset + 1)
        try:
            rolled = active.full_for(size, last_offset, max_timestamp_ms, now_ms, config)
            if rolled:
                self._roll(now_ms)
                active = self.files.active
            assign(data, base_offset, leader_epoch)
            active.write((data,))
        except DiskError as error:
            if not self._survives(error):
                self._fail(error)
            raise
        new_epoch = self._note((written,), config.index_interval_bytes)
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

    def _duplicate_of(self, header: BatchHeader) -> Appended | None:
        """What was said of a batch that is in the log already; raises where it is one of an earlier transaction."""
        producers = self.producers
        found = producers.find_duplicate(header)
        if found is None and producers.loaded_at >= 0 and producers.may_be_older(header):
            try:
                recall(producers, self.files.segments)
            except DiskError as error:
                if not self._survives(error):
                    self._fail(error)
                raise
            found = producers.find_duplicate(header)
        if found is None:
            return None
        producers.check_duplicate(header, found)
        return Appended(found.first_offset, found.last_offset, found.timestamp_ms, self.view.start_offset, True)

    @by_writer
    def append_together(self, batches: Sequence[Checked], leader_epoch: int) -> list[Appended | KafkaError | DiskError]:
        """As `append`, of a batch each of several clients, none in a transaction: as few writes as can be.

        For each what became of it: one that is refused does not hinder the others.
        """
        now_ms, config, producers = self._clock.now_ms(), self.config, self.producers
        start_offset, known_epoch = self.view.start_offset, self.view.epochs.latest
        synced_to = self.recovery_point  # for all: a sync beside this may raise it, and then one more is harmless
        outcomes: list[Appended | KafkaError | DiskError] = []
        run = self._new_run_together(now_ms)
        for checked in batches:
            header, data = checked.header, checked.view
            base_offset, size = run.end_offset, len(data)
            last_offset = base_offset + header.last_offset_delta
            if (
                header.producer_id in run.producers
                or header.attributes & _WITH_TRANSACTIONS
                or not run.has_room(size, last_offset, checked.max_timestamp_ms)
            ):
                # It needs more than room behind the others: it is written when they are.
                self._write_run(run, outcomes)
                outcomes.append(self._append_alone(checked, leader_epoch, now_ms))
                run = self._new_run_together(now_ms)
                continue
            if header.producer_id >= 0:
                try:
                    duplicate = self._duplicate_of(header)
                    if duplicate is None:
                        producers.check(header, Origin.CLIENT, base_offset, None)
                except (KafkaError, DiskError) as error:
                    outcomes.append(error)
                    continue
                if duplicate is not None:
                    outcomes.append(duplicate)
                    continue
                run.producers.add(header.producer_id)
            assign(data, base_offset, leader_epoch)
            run.places.append(len(outcomes))
            run.add(
                data,
                _new_tuple(AppendedBatch, (header, base_offset, size, checked.max_timestamp_ms, leader_epoch, None)),
            )
            new_epoch = len(run) == 1 and leader_epoch != known_epoch
            sync_due = last_offset + 1 - synced_to >= config.flush_messages
            outcomes.append(
                _new_tuple(
                    Appended,
                    (base_offset, last_offset, checked.append_time_ms, start_offset, False, new_epoch, sync_due, False),
                )
            )
        self._write_run(run, outcomes)
        return outcomes

    def _new_run(self, now_ms: int) -> BatchRun:
        return BatchRun(self.view.end_offset, self.files.active.room(now_ms, self.config))

    def _new_run_together(self, now_ms: int) -> BatchRun:
        """Without room where the disk has to be asked for it, and fails: then each is told so for itself."""
        try:
            return self._new_run(now_ms)
        except DiskError:
            return BatchRun(self.view.end_offset, NO_ROOM)

    def _append_alone(self, checked: Checked, leader_epoch: int, now_ms: int) -> Appended | KafkaError | DiskError:
        try:
            return self.append(checked.view, leader_epoch, Origin.CLIENT, now_ms, UNVERIFIED, 0, checked)
        except (KafkaError, DiskError) as error:
            return error

    def _write_run(self, run: BatchRun, outcomes: list[Appended | KafkaError | DiskError]) -> None:
        """Write what was planned, and where that fails say so in the places of all of it."""
        if not run.batches:
            return
        try:
            self._append_run(run)
        except (KafkaStorageError, DiskError) as error:
            for place in run.places:
                outcomes[place] = error

    def _check_append(self, base_offset: int, leader_epoch: int, end_offset: int) -> None:
        """Before batches are written: whether they follow what is there. `append` asks where that is not plain."""
        known_end = self.producers.end_offset
        wrong = append_fault(self.view, base_offset, leader_epoch, end_offset, self.files.active.size, known_end)
        if wrong is not None:
            raise self._broken("append", wrong)

    def _append_run(self, run: BatchRun) -> None:
        first = run.batches[0]
        self._write_parts(run.parts, first.base_offset, first.leader_epoch, run.end_offset)
        self._note(run.batches, self.config.index_interval_bytes)

    def _write_parts(self, parts: Sequence[Buffer], base_offset: int, leader_epoch: int, end_offset: int) -> None:
        if self.failure is not None:
            raise self._failed()
        self._check_append(base_offset, leader_epoch, end_offset)
        try:
            self.files.active.write(parts)
        except DiskError as error:
            if not self._survives(error):
                self._fail(error)
            raise

    def _note(self, batches: Sequence[AppendedBatch], index_interval_bytes: int) -> bool:
        """Take in batches whose bytes are at the end of the file, and let everyone see them; whether an epoch is new.

        The bytes are there now: whatever goes wrong from here on, no other batch may be given their offsets.
        """
        view = self.view
        active, end_offset, epochs = view.segments[-1], view.end_offset, view.epochs
        undecided, ended = view.undecided, view.ended
        new_epoch = has_producers = False
        try:
            producers = self.producers
            for header, base_offset, size, max_timestamp_ms, leader_epoch, marker in batches:
                if header.producer_id >= 0:
                    has_producers = True
                    if not header.is_control:
                        producers.apply_batch(header, base_offset, max_timestamp_ms)
                    elif marker is not None:
                        aborted = producers.apply_marker(header, base_offset, marker)
                        if aborted is not None:
                            active.note_aborted(aborted)
                if leader_epoch != epochs.latest and leader_epoch >= 0:
                    if not new_epoch:
                        epochs = epochs.copy()
                        new_epoch = True
                    epochs.assign(leader_epoch, base_offset)
                end_offset = base_offset + header.last_offset_delta + 1
                active.note(size, end_offset - 1, max_timestamp_ms, index_interval_bytes)
            if has_producers:
                if ended:
                    producers.committed_up_to(self.high_watermark)
                undecided, ended = producers.undecided, producers.ended
            self._grow(end_offset, undecided, ended, epochs)
        except BaseException as error:
            raise self._lost_track(error) from error
        return new_epoch

    def _grow(self, end_offset: int, undecided: int, ended: tuple[EndedTransaction, ...], epochs: LeaderEpochs) -> None:
        """Let everyone see what was taken in at the end of the active segment."""
        view = self.view
        segments = view.segments
        self.files.changed = True
        self.producers.end_offset = end_offset
        self.view = _new_tuple(
            View,
            (
                segments,
                view.bases,
                segments[-1].size,
                view.start_offset,
                end_offset,
                undecided,
                ended,
                epochs,
                view.cuts,
                view.cut_to,
            ),
        )

    @by_writer
    def append_plain(self, batches: Sequence[memoryview], newest_ms: Sequence[int], leader_epoch: int) -> int | None:
        """As `append_together`, of what most small clients send: see `newest_without_producers`, which gives the times.

        Nothing has to be known of each but its size and its time, so nothing else is made of it. The offset of the
        first, which the others follow one by one; None, having done nothing, where they need more than room behind the
        log's end. Raises as `append` does.
        """
        try:
            room = self.files.active.room(self._clock.now_ms(), self.config)
        except DiskError:
            return None  # each is told so for itself
        first, sizes = self.view.end_offset, list(map(len, batches))
        end_offset = first + len(sizes)
        if (
            len(sizes) > room.batches
            or sum(sizes) > room.nbytes
            or end_offset - 1 > room.last_offset
            or max(newest_ms) > room.timestamp_ms
        ):
            return None
        for offset, data, size in zip(range(first, end_offset), batches, sizes):
            pack_place(data, 0, offset, size - PREFIX_BYTES, leader_epoch)
        self._write_parts(batches, first, leader_epoch, end_offset)
        try:
            view = self.view
            epochs = view.epochs
            if leader_epoch != epochs.latest and leader_epoch >= 0:
                epochs = epochs.copy()
                epochs.assign(leader_epoch, first)
            note, interval_bytes = self.files.active.note, self.config.index_interval_bytes
            for offset, size, timestamp_ms in zip(range(first, end_offset), sizes, newest_ms):
                note(size, offset, timestamp_ms, interval_bytes)
            self._grow(end_offset, view.undecided, view.ended, epochs)
        except BaseException as error:  # as in `_note`: the bytes are there
            raise self._lost_track(error) from error
        return first

    @by_writer
    def append_replica(self, records: Buffer) -> Appended:
        """Append a follower's batches as the leader made them, offsets and epochs too. A cut last one is dropped.

        Where descriptors run short on the way, the first of them are in the log, as the result says; with none, the
        DiskError is raised, and the log is as it was.
        """
        if self.failure is not None:
            raise self._failed()
        try:
            batches = list(split(records if type(records) is memoryview else memoryview(records)))
            headers = [check_whole(batch) for batch in batches]
        except CorruptBatchError as error:
            raise CorruptMessageError(f"{self.partition}: {error}") from error
        expected, epoch = self.view.end_offset, self.view.epochs.latest
        for header in headers:
            if header.base_offset < expected:
                raise UnexpectedOffsetError(
                    f"{self.partition}: the leader sent offset {header.base_offset}, but this log ends at {expected}"
                )
            if 0 <= header.leader_epoch < epoch:
                raise CorruptMessageError(
                    f"{self.partition}: the leader sent offset {header.base_offset} of leader epoch "
                    f"{header.leader_epoch}, but this log has {epoch} already"
                )
            expected, epoch = header.next_offset, max(header.leader_epoch, epoch)
        if not headers:
            return Appended(self.end_offset, self.end_offset - 1, -1, self.start_offset)
        before, end_offset, active = self.epochs.latest, self.end_offset, self.active
        try:
            self._append_copies(batches, headers, self._clock.now_ms())
        except DiskError as error:
            if not self._survives(error):
                self._fail(error)
                raise
            if self.end_offset == end_offset:
                raise
            # What came before it is in the log. The rest is sent again, since the next fetch begins at the log's end.
        return Appended(
            headers[0].base_offset,
            self.end_offset - 1,
            -1,
            self.start_offset,
            False,
            self.epochs.latest != before,
            self.end_offset - self.recovery_point >= self.config.flush_messages,
            self.active is not active,
        )

    @by_writer
    def skip_to(self, offset: int) -> None:
        """End at `offset`, as the log does that this is a copy of: compaction has taken the last records before it."""
        if self.failure is not None:
            raise self._failed()
        view = self.view
        if offset > view.end_offset:
            self._grow(offset, view.undecided, view.ended, view.epochs)

    def _append_copies(self, batches: Sequence[Batch], headers: Sequence[BatchHeader], now_ms: int) -> None:
        """Write a leader's batches with as few calls as can be."""
        config = self.config
        run = self._new_run(now_ms)
        for batch, header in zip(batches, headers):
            data, last_offset, newest_ms = batch.buffer, header.last_offset, header.max_timestamp
            size = len(data)
            if run and not run.has_room(size, last_offset, newest_ms):
                self._append_run(run)
                run = self._new_run(now_ms)
            if not run and self.active.full_for(size, last_offset, newest_ms, now_ms, config):
                self._roll(now_ms)
                run = self._new_run(now_ms)
            marker = read_marker(batch) if header.is_control and header.producer_id >= 0 else None
            timestamp_ms = indexed_timestamp(header)
            run.add(data, AppendedBatch(header, header.base_offset, size, timestamp_ms, header.leader_epoch, marker))
        self._append_run(run)

    def _roll(self, now_ms: int) -> None:
        # At the log's end also where a compacted leader's batch leaves a gap: segments then follow one another.
        self.files.roll(self.view.end_offset, now_ms, self.producers, self.config.jitter_ms(self._rng))
        self._publish()
