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
from headrace.log.appended import Appended, Outcome, UnexpectedOffsetError
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
from headrace.log.validation import Checked, plain_record, read_marker, validate, writable
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

    def check(
        self,
        records: Buffer,
        origin: Origin = Origin.CLIENT,
        *,
        short: bool = False,
        verification: Verification | None = None,
        transaction_version: int = 0,
        now_ms: int | None = None,
    ) -> Checked:
        """What `append` takes, of a leader's one batch: see `validate`. It touches nothing of the log.

        Pass a bytearray, or a view of one: its bytes are patched, not copied.
        """
        if now_ms is None:
            now_ms = self._clock.now_ms()
        checked = validate(writable(records), self.config, origin, self.partition, now_ms, short=short)
        if checked.header.attributes & _WITH_TRANSACTIONS:
            return checked._replace(verification=verification, transaction_version=transaction_version)
        return checked

    def check_each(self, batches: Sequence[memoryview]) -> list[Checked | Exception]:
        """As `check`, of small clients' batches, none in a transaction: what is raised of each is given instead."""
        now_ms, config = self._clock.now_ms(), self.config
        takes_as_is = config.takes_as_is
        found: list[Checked | Exception] = []
        for records in batches:
            checked: Checked | Exception | None = plain_record(records, config, now_ms) if takes_as_is else None
            if checked is None:
                try:
                    checked = self.check(records, short=True, verification=UNVERIFIED)
                except Exception as error:  # noqa: BLE001 - also a defect: the others are none the worse for it
                    checked = error
            found.append(checked)
        return found

    @by_writer
    def append(self, batches: Sequence[Checked], leader_epoch: int = -1, now_ms: int | None = None) -> list[Outcome]:
        """Append batches in their order, with as few writes as can be; for each what became of it.

        A leader's get their offsets and epoch here, and one that is refused does not hinder the others. Copies
        (`copies`) have theirs: the first that cannot be written ends it. Nothing of a batch that failed is readable,
        now or after a restart.
        """
        if self.failure is not None:
            return [self._failed() for _ in batches]
        if now_ms is None:
            now_ms = self._clock.now_ms()
        if len(batches) == 1 and batches[0].origin is not Origin.REPLICATION:
            return [self._append_alone(batches[0], leader_epoch, now_ms)]
        if batches and batches[0].origin is Origin.REPLICATION:
            return self._append_copies(batches, now_ms)
        return self._append_together(batches, leader_epoch, now_ms)

    def _append_alone(self, checked: Checked, leader_epoch: int, now_ms: int) -> Outcome:
        try:
            return self._append_one(checked, leader_epoch, now_ms)
        except (KafkaError, DiskError) as error:
            return error

    def _append_one(self, checked: Checked, leader_epoch: int, now_ms: int) -> Appended:
        """Raises a KafkaError when the batch is refused and a DiskError when the disk fails."""
        if self.failure is not None:
            raise self._failed()
        config, producers = self.config, self.producers
        data, header, max_timestamp_ms, append_time_ms, origin, verification, transaction_version = checked
        view, active = self.view, self.files.active
        base_offset = view.end_offset
        marker = None
        if header.producer_id >= 0:
            if header.is_control:
                marker = read_marker(Batch(data))
                if marker is not None:
                    producers.check_marker(header, marker, base_offset, transaction_version)
            else:
                if origin is Origin.CLIENT:
                    duplicate = self._duplicate_of(header)
                    if duplicate is not None:
                        return duplicate
                producers.check(header, origin, base_offset, verification)
        size = len(data)
        if size > config.segment_bytes:
            raise RecordListTooLargeError(
                f"{self.partition}: a batch of {size} bytes does not fit a segment ({config.segment_bytes} bytes)"
            )
        last_offset = base_offset + header.last_offset_delta
        flush_messages = config.flush_messages
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
                append_time_ms,
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

    def _append_together(self, batches: Sequence[Checked], leader_epoch: int, now_ms: int) -> list[Outcome]:
        config, producers = self.config, self.producers
        start_offset, known_epoch = self.view.start_offset, self.view.epochs.latest
        # The first that has to be synced; a sync beside this may raise it, and then one more is harmless.
        due_from = self.recovery_point + config.flush_messages - 1
        outcomes: list[Outcome] = []
        run = self._new_run_together(now_ms)
        for checked in batches:
            data, header, max_timestamp_ms, append_time_ms, _, _, _ = checked
            base_offset, size, producer_id = run.end_offset, len(data), header.producer_id
            last_offset = base_offset + header.last_offset_delta
            if (
                header.attributes & _WITH_TRANSACTIONS
                or (producer_id >= 0 and producer_id in run.producers)
                or not run.has_room(size, last_offset, max_timestamp_ms)
            ):
                # It needs more than room behind the others: it is written when they are.
                self._write_run(run, outcomes)
                outcomes.append(self._append_alone(checked, leader_epoch, now_ms))
                run = self._new_run_together(now_ms)
                continue
            if producer_id >= 0:
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
                run.producers.add(producer_id)
            pack_place(data, 0, base_offset, size - PREFIX_BYTES, leader_epoch)
            run.places.append(len(outcomes))
            run.add(
                data, _new_tuple(AppendedBatch, (header, base_offset, size, max_timestamp_ms, leader_epoch, None)), size
            )
            run.end_offset = last_offset + 1
            new_epoch = len(run.batches) == 1 and leader_epoch != known_epoch
            outcomes.append(
                _new_tuple(
                    Appended,
                    (
                        base_offset,
                        last_offset,
                        append_time_ms,
                        start_offset,
                        False,
                        new_epoch,
                        last_offset >= due_from,
                        False,
                    ),
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

    def _write_run(self, run: BatchRun, outcomes: list[Outcome]) -> None:
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

    def copies(self, records: Buffer) -> list[Checked]:
        """A leader's batches as it made them, offsets and epochs too, which follow what is here: to be appended in the
        same turn of the writer. A cut last one is dropped. Raises a KafkaError, and then nothing may be appended."""
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
        return [
            _new_tuple(Checked, (batch.buffer, header, indexed_timestamp(header), -1, Origin.REPLICATION, None, 0))
            for batch, header in zip(batches, headers)
        ]

    @by_writer
    def skip_to(self, offset: int) -> None:
        """End at `offset`, as the log does that this is a copy of: compaction has taken the last records before it."""
        if self.failure is not None:
            raise self._failed()
        view = self.view
        if offset > view.end_offset:
            self._grow(offset, view.undecided, view.ended, view.epochs)

    def _append_copies(self, batches: Sequence[Checked], now_ms: int) -> list[Outcome]:
        """What comes behind one that cannot be written is not written either: it would leave a gap."""
        outcomes: list[Outcome] = []
        try:
            self._write_copies(batches, now_ms, outcomes)
        except (KafkaError, DiskError) as error:
            if isinstance(error, DiskError) and not self._survives(error):
                self._fail(error)
                outcomes.clear()  # nothing of this log counts any more
            outcomes += [error] * (len(batches) - len(outcomes))
        return outcomes

    def _write_copies(self, batches: Sequence[Checked], now_ms: int, outcomes: list[Outcome]) -> None:
        config, end_offset, epoch = self.config, self.view.end_offset, self.view.epochs.latest
        run = self._new_run(now_ms)
        rolled = False
        for checked in batches:
            data, header = checked.view, checked.header
            # An older header may have been changed since, by compaction: room is looked for by what it says.
            last_offset, newest_ms, size = header.last_offset, header.max_timestamp, len(data)
            if run.batches and not run.has_room(size, last_offset, newest_ms):
                self._take_copies(run, outcomes, rolled, epoch)
                run, rolled, epoch = self._new_run(now_ms), False, self.view.epochs.latest
            if not run.batches and self.active.full_for(size, last_offset, newest_ms, now_ms, config):
                self._roll(now_ms)
                run, rolled = self._new_run(now_ms), True
            marker = read_marker(Batch(data)) if header.is_control and header.producer_id >= 0 else None
            run.add(
                data,
                AppendedBatch(header, header.base_offset, size, checked.max_timestamp_ms, header.leader_epoch, marker),
                size,
            )
            run.end_offset = end_offset = header.next_offset
        if run.batches:
            self._take_copies(run, outcomes, rolled, epoch)
        assert self.view.end_offset == end_offset

    def _take_copies(self, run: BatchRun, outcomes: list[Outcome], rolled: bool, epoch: int) -> None:
        self._append_run(run)
        due_from = self.recovery_point + self.config.flush_messages - 1
        for one in run.batches:
            last_offset = one.header.last_offset
            is_new = one.leader_epoch > epoch
            epoch = max(one.leader_epoch, epoch)
            outcomes.append(
                Appended(
                    one.base_offset,
                    last_offset,
                    -1,
                    self.start_offset,
                    False,
                    is_new,
                    last_offset >= due_from,
                    rolled,
                )
            )
            rolled = False

    def _roll(self, now_ms: int) -> None:
        # At the log's end also where a compacted leader's batch leaves a gap: segments then follow one another.
        self.files.roll(self.view.end_offset, now_ms, self.producers, self.config.jitter_ms(self._rng))
        self._publish()
