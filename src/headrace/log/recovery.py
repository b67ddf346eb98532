"""Open a partition's directory: finish what was interrupted, trust a clean stop, check and repair after any other."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from itertools import pairwise

from headrace.log import leader_epochs, partition_metadata, snapshots
from headrace.log.checkpoints import DamagedCheckpointError
from headrace.log.config import LogConfig
from headrace.log.leader_epochs import LeaderEpochs
from headrace.log.offset_index import DamagedIndexError
from headrace.log.producer_loading import apply, load_snapshot, replay
from headrace.log.producer_state import LogProducers
from headrace.log.scanning import check_whole, find_whole_batch, scan_batches, scan_headers
from headrace.log.segment import (
    CLEANED,
    DELETED,
    LOG,
    SUFFIXES,
    SWAP,
    TEMPORARY,
    TXN_INDEX,
    Caches,
    Segment,
    file_name,
    indexed_timestamp,
)
from headrace.log.snapshots import SnapshotFiles
from headrace.log.transaction_index import parse as parse_aborted
from headrace.records import BatchHeader, CorruptBatchError
from headrace.runtime import Disk
from headrace.topics import TopicPartition

_DIGITS = 20
_INCOMPLETE = "the last batch is incomplete"
_AS_MADE = frozenset((partition_metadata.FILE_NAME, file_name(0, LOG)))
"""The files of a log that was made, and nothing more."""


@dataclass(slots=True)
class RecoveryReport:
    """What opening a log checked, rebuilt and cut off."""

    clean: bool
    checked_batches: int = 0
    checked_bytes: int = 0
    cut_bytes: int = 0
    cut_from_offset: int | None = None
    cut_reason: str = ""
    missing: str = ""
    rebuilt: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    @property
    def eventful(self) -> bool:
        """Whether there is something that an operator should read."""
        return bool(self.cut_bytes or self.rebuilt or self.missing)

    def summary(self, partition: TopicPartition) -> str:
        parts = [f"{partition}: opened after {'a clean' if self.clean else 'an unclean'} stop"]
        if self.checked_batches or self.checked_bytes:
            parts.append(f"checked {self.checked_batches} batches ({self.checked_bytes} bytes)")
        if self.cut_bytes:
            parts.append(f"cut off {self.cut_bytes} bytes from offset {self.cut_from_offset} on ({self.cut_reason})")
        if self.missing:
            parts.append(self.missing)
        if self.rebuilt:
            parts.append("rebuilt " + ", ".join(self.rebuilt))
        return "; ".join(parts)


@dataclass(slots=True)
class Loaded:
    """A log as it was found and repaired."""

    segments: list[Segment]
    start_offset: int
    end_offset: int
    epochs: LeaderEpochs
    epochs_changed: bool
    producers: LogProducers
    snapshots: SnapshotFiles
    report: RecoveryReport
    found: bool
    """There was a log before; otherwise it was made."""
    is_bare: bool
    """It is as logs are made: without a record, and without a file that tells of any."""


class LogLoader:
    """Opens one directory. The steps run in order, each on the state that the one before left."""

    def __init__(
        self,
        caches: Caches,
        directory: str,
        partition: TopicPartition,
        config: LogConfig,
        now_ms: int,
        expiration_ms: int,
    ) -> None:
        self._caches = caches
        self._disk: Disk = caches.disk
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        self._segments: list[Segment] = []
        self._snapshots = SnapshotFiles(self._disk, directory, [])
        self._producers = LogProducers(partition, expiration_ms)
        self._epochs = LeaderEpochs()
        self._epochs_known = False
        self._epochs_changed = False
        self._report = RecoveryReport(clean=True)
        self._found = True
        self._is_bare = False
        self._synced_to = self._gaps_to = 0
        self._each_synced = False

    def load(
        self,
        names: list[str],
        *,
        recovery_point: int,
        start_offset: int,
        clean: bool,
        each_synced: bool = False,
        cleaned_to: int = 0,
    ) -> Loaded:
        """`names` are those of the directory's files.

        Nothing below the recovery point is cut off; CorruptBatchError says that something there is damaged.
        `cleaned_to` is up to where it was compacted, so that segments need not follow one another.

        `each_synced` says that every batch was synced before the next was appended: then only the last can be torn,
        and all of them are checked.
        """
        self._report.clean = clean
        self._synced_to = recovery_point
        # Ours goes on at each segment where the one before it ends; Apache Kafka's leaves gaps.
        self._gaps_to = max(cleaned_to, recovery_point if self._config.compact else 0)
        self._each_synced = each_synced
        names = self._finish_interrupted(names)
        self._open_segments(names)
        self._read_epochs(names)
        if not self._segments:
            self._found = False
            self._is_bare = start_offset == 0 and _AS_MADE.issuperset(names)
            self._snapshots.drop_after(-1)
            self._segments.append(Segment.create(self._caches, self._directory, start_offset, self._now_ms))
            return self._loaded(start_offset, start_offset)
        self._is_bare = not self._segments[-1].size and _AS_MADE.issuperset(names)
        self._check_aborted(set(names))
        end: int | None
        if self._is_bare:
            end = 0
            self._segments[0].start_empty()
        elif (end := self._find_end() if clean else None) is None:
            # A clean stop leaves whole batches only; what does not end with one was not left by a clean stop.
            all_of_it = each_synced or (clean and recovery_point >= self._segments[-1].base_offset)
            end = self._recover(0 if all_of_it else recovery_point)
        else:
            self._load_producers(end)
        if end < recovery_point:
            end = self._check_all_of_short_log(end, recovery_point)
        start = max(start_offset, self._segments[0].base_offset)
        if start > end:
            end = self._start_over_at(start)
        if self._report.removed or self._snapshots.dropped:
            # Files of another course of events must not come back: a later log could take them for its own.
            self._disk.sync_dir(self._directory)
        return self._loaded(start, end)

    def _loaded(self, start: int, end: int) -> Loaded:
        if self._epochs.truncate_end(end):
            self._epochs_changed = True
        if self._epochs.entries and self._epochs.entries[0].start_offset < start and self._epochs.truncate_start(start):
            self._epochs_changed = True
        self._producers.end_offset = end
        self._snapshots.drop_strays([segment.base_offset for segment in self._segments])
        self._segments[-1].resume(end)
        return Loaded(
            self._segments,
            start,
            end,
            self._epochs,
            self._epochs_changed,
            self._producers,
            self._snapshots,
            self._report,
            self._found,
            self._is_bare and end == 0,
        )

    # ---- what the directory holds --------------------------------------------------------------------------------

    def _finish_interrupted(self, names: list[str]) -> list[str]:
        """Deletions are finished, half-made files go, and a compaction that was done is put in place."""
        kept = []
        swaps = []
        names = self._drop_partly_renamed(names)
        for name in names:
            if name.endswith((DELETED, CLEANED, TEMPORARY)):
                self._remove(name)
            elif name.endswith(SWAP) and _is_segment_file(name.removesuffix(SWAP)):
                swaps.append(name)
            else:
                kept.append(name)
        if swaps:
            kept = self._finish_swap(swaps, kept)
        return kept

    def _drop_partly_renamed(self, names: list[str]) -> list[str]:
        """A compacted segment of which some files are still .cleaned: those it was made from are all there yet."""
        unfinished = {name[:_DIGITS] for name in names if name.endswith(CLEANED)}
        dropped = [name for name in names if name.endswith(SWAP) and name[:_DIGITS] in unfinished]
        if not dropped:
            return names
        for name in dropped:
            self._remove(name)
        # Before the .cleaned ones go, which tell that the others must not be used.
        self._disk.sync_dir(self._directory)
        return [name for name in names if name not in dropped]

    def _finish_swap(self, swaps: list[str], kept: list[str]) -> list[str]:
        """Compacted segments take the place of those they were made from."""
        for name in (n for n in swaps if n.endswith(LOG + SWAP)):
            base = int(name[:_DIGITS])
            end = base
            file = self._disk.open(os.path.join(self._directory, name))
            try:
                for _, header in scan_headers(file, 0, file.size()):
                    end = header.next_offset
            finally:
                file.close()
            for old in [n for n in kept if _is_segment_file(n) and base <= int(n[:_DIGITS]) < max(end, base + 1)]:
                self._remove(old)
                kept.remove(old)
        # Those replaced must be gone for good before nothing tells any more that they are.
        self._disk.sync_dir(self._directory)
        for name in swaps:
            target = name.removesuffix(SWAP)
            self._disk.rename(os.path.join(self._directory, name), os.path.join(self._directory, target))
            kept.append(target)
        self._report.rebuilt.append("the result of an interrupted compaction")
        return sorted(set(kept))

    def _open_segments(self, names: list[str]) -> None:
        logs = {name.removesuffix(LOG) for name in names if name.endswith(LOG) and _is_segment_file(name)}
        for name in names:
            if name.endswith(snapshots.SUFFIX) and _is_offset(name[:_DIGITS]):
                self._snapshots.offsets.append(int(name[:_DIGITS]))
            elif _is_segment_file(name) and name[:_DIGITS] not in logs:
                self._remove(name)
        for base in sorted(map(int, logs)):
            size = self._disk.size(os.path.join(self._directory, file_name(base, LOG)))
            self._segments.append(Segment(self._caches, self._directory, base, size, self._now_ms))
        self._snapshots.offsets.sort()

    def _read_epochs(self, names: list[str]) -> None:
        if leader_epochs.FILE_NAME not in names:
            return
        try:
            data = self._disk.read_file(os.path.join(self._directory, leader_epochs.FILE_NAME))
            self._epochs = LeaderEpochs.from_bytes(data)
            self._epochs_known = True
        except DamagedCheckpointError as error:
            self._report.rebuilt.append(f"{leader_epochs.FILE_NAME} ({error})")

    def _remove(self, name: str) -> None:
        self._disk.remove(os.path.join(self._directory, name))
        self._report.removed.append(name)

    # ---- after a clean stop --------------------------------------------------------------------------------------

    def _find_end(self) -> int | None:
        """The offset after the last batch; None when the file does not end with a whole one."""
        active = self._segments[-1]
        self._load_indexes(active)
        _, start = active.offset_index().last()
        end, position = active.base_offset, start
        try:
            for position, header in active.headers(start):
                end = header.next_offset
                position += header.size
        except CorruptBatchError:
            return None
        if position != active.size:
            return None
        if not self._epochs_known and active.size:
            self._rebuild_epochs(len(self._segments))
        return end

    def _load_indexes(self, segment: Segment) -> None:
        reason = segment.load_indexes()
        if reason is not None:
            self._report.rebuilt.append(reason)
        try:
            segment.aborted()
        except DamagedIndexError as error:
            self._rebuild_aborted(segment, str(error))

    def _check_aborted(self, names: set[str]) -> None:
        """Look at the transaction indexes of segments that nothing else is made again of."""
        for segment, following in pairwise(self._segments):
            if following.base_offset >= self._synced_to or file_name(segment.base_offset, TXN_INDEX) not in names:
                continue
            try:
                parse_aborted(self._disk.read_file(segment.path(TXN_INDEX)), segment.base_offset)
            except DamagedIndexError as error:
                with contextlib.suppress(CorruptBatchError):  # whoever reads there is told so
                    self._rebuild_aborted(segment, str(error))

    def _rebuild_aborted(self, segment: Segment, reason: str) -> None:
        """Make a transaction index again: from the state before the segment, over its batches."""
        segment.set_aborted([])
        try:
            self._load_snapshot(segment.base_offset)
            replay(self._producers, self._segments, self._end_of(segment), segment)
        except CorruptBatchError:
            segment.set_aborted(None)  # it is not as empty as it is by now
            raise
        self._report.rebuilt.append(f"{file_name(segment.base_offset, TXN_INDEX)} ({reason})")
        # Whole and durable at once, as it may lie before the recovery point: one that is missing says that there is
        # nothing in it.
        self._disk.replace_file(segment.path(TXN_INDEX), b"".join(entry.to_bytes() for entry in segment.aborted()))

    def _end_of(self, segment: Segment) -> int:
        end = segment.base_offset
        for _, header in segment.headers():
            end = header.next_offset
        return end

    def _load_producers(self, end: int) -> None:
        """From the newest snapshot, and what was written after it."""
        self._snapshots.drop_after(end)
        self._load_snapshot(end)
        if self._producers.end_offset < end:
            self._replay(end)

    def _load_snapshot(self, not_after: int) -> None:
        start = self._segments[0].base_offset
        damaged = load_snapshot(self._producers, self._snapshots, not_after, start, self._now_ms)
        self._report.rebuilt.extend(os.path.relpath(name, self._directory) for name in damaged)

    def _replay(self, end: int) -> None:
        replay(self._producers, self._segments, end)

    def _rebuild_epochs(self, count: int) -> None:
        """From the headers of the first `count` segments."""
        for segment in self._segments[:count]:
            for _, header in segment.headers():
                self._note_epoch(header)

    def _note_epoch(self, header: BatchHeader) -> None:
        epochs, epoch = self._epochs, header.leader_epoch
        known = epochs.epoch_for(header.base_offset)
        if epoch == leader_epochs.UNDEFINED or known == epoch == epochs.epoch_for(header.last_offset):
            return
        if known > epoch:
            # The file is from before a cut. What was written there since is of a leader that never knew those epochs.
            epochs.truncate_above(epoch)
        # None begins in the middle of a batch; those that began later are found with their own.
        epochs.truncate_end(header.base_offset + 1)
        epochs.assign(epoch, header.base_offset)
        self._epochs_changed = True

    # ---- after any other stop ------------------------------------------------------------------------------------

    def _check_all_of_short_log(self, end: int, recovery_point: int) -> int:
        """The log ends before what was synced: it is an older copy, or lost files. So nothing of it is trusted."""
        self._report.missing = f"it ends at offset {end}, although it was synced up to {recovery_point}"
        self._synced_to = 0
        if self._config.compact:
            self._gaps_to = max(self._gaps_to, self._segments[-1].base_offset)
        self._epochs_known = False
        self._epochs.clear()
        self._producers.clear(self._segments[0].base_offset)
        return self._recover(0)

    def _recover(self, recovery_point: int) -> int:
        """Check every batch from the recovery point's segment on; the offset after the last good one."""
        first = 0
        for at, segment in enumerate(self._segments):
            # Not the one that begins at the recovery point: when the last sync came, the one before was active, and
            # its indexes were not on disk.
            if segment.base_offset < recovery_point:
                first = at
        if not self._epochs_known:
            self._rebuild_epochs(first)
        self._load_snapshot(self._segments[first].base_offset)
        if self._producers.end_offset < self._segments[first].base_offset:
            self._replay(self._segments[first].base_offset)
        end = self._segments[first].base_offset
        for at in range(first, len(self._segments)):
            segment = self._segments[at]
            if at > first and self._out_of_place(segment, end):
                reason = f"{file_name(segment.base_offset, LOG)} does not continue where the one before it ends"
                self._check_may_cut(self._segments[at - 1], self._segments[at - 1].size, end, reason)
                self._cut_segments(at, end, reason)
                break
            end, whole = self._recover_segment(segment)
            if not whole:
                self._cut_segments(at + 1, end, self._report.cut_reason)
                break
            if at + 1 < len(self._segments):
                segment.seal()
        self._snapshots.drop_after(end)
        return end

    def _out_of_place(self, segment: Segment, end: int) -> bool:
        """Whether the segment cannot follow offset `end`: it overlaps, or what was before it in its place is lost.

        Files reach the disk in any order, so a segment may be whole while the end of the one before it is not. Only
        Apache Kafka's compaction leaves such gaps on purpose.
        """
        return not end <= segment.base_offset <= max(end, self._gaps_to)

    def _recover_segment(self, segment: Segment) -> tuple[int, bool]:
        """Check one segment, make its indexes again, cut it at the first bad batch. (next offset, nothing was cut)."""
        size, segment.size = segment.size, 0
        segment.start_empty()
        end = segment.base_offset
        reason = _INCOMPLETE
        try:
            for _, batch in scan_batches(segment.file, 0, size):
                header = check_whole(batch)
                if header.base_offset < end:
                    raise CorruptBatchError(f"offset {header.base_offset} comes after offset {end - 1}")
                if header.producer_id >= 0:
                    apply(self._producers, header, batch, segment)
                self._note_epoch(header)
                segment.note(
                    header.size, header.last_offset, indexed_timestamp(header), self._config.index_interval_bytes
                )
                self._report.checked_batches += 1
                end = header.next_offset
                self._producers.end_offset = end
        except CorruptBatchError as error:
            reason = str(error)
        self._report.checked_bytes += size
        if segment.size == size:
            return end, True
        self._check_may_cut(segment, size, end, reason)
        self._note_cut(size - segment.size, end, reason)
        segment.file.truncate(segment.size)
        # Durable at once: were the cut undone by another crash, what follows it could pass for a continuation.
        segment.file.sync()
        return end, False

    def _check_may_cut(self, segment: Segment, size: int, end: int, reason: str) -> None:
        """Only a write that a crash tore may be cut off: that is the end of the file, or what was never synced.

        All else is damage to what was durable, and what follows it may be whole: that is for a person to decide.
        """
        if end >= self._synced_to and not self._each_synced:
            return
        rest = segment.file.read(segment.size, size - segment.size)
        if segment is not self._segments[-1] or find_whole_batch(rest, end) is not None:
            raise CorruptBatchError(
                f"{segment.path(LOG)} at byte {segment.size}, offset {end}: {reason}; whole batches follow it"
            )
        if end < self._synced_to and reason != _INCOMPLETE:
            raise CorruptBatchError(
                f"{segment.path(LOG)} at byte {segment.size}, offset {end}: {reason}; "
                f"it was synced up to offset {self._synced_to}"
            )

    def _note_cut(self, cut_bytes: int, from_offset: int, reason: str) -> None:
        self._report.cut_bytes += cut_bytes
        if self._report.cut_from_offset is None:
            self._report.cut_from_offset, self._report.cut_reason = from_offset, reason

    def _cut_segments(self, at: int, end: int, reason: str) -> None:
        """Everything after a gap goes: it would otherwise be read as if nothing were missing."""
        for segment in self._segments[at:]:
            self._note_cut(segment.size, end, reason)
            segment.remove()
            self._report.removed.append(file_name(segment.base_offset, LOG))
        del self._segments[at:]

    def _start_over_at(self, start: int) -> int:
        """All that is here lies before the log's start: begin anew there."""
        for segment in self._segments:
            segment.remove()
            self._report.removed.append(file_name(segment.base_offset, LOG))
        self._snapshots.drop_after(-1)
        self._segments = [Segment.create(self._caches, self._directory, start, self._now_ms)]
        self._producers.clear(start)
        self._epochs.clear()
        self._epochs_changed = True
        return start


def _is_segment_file(name: str) -> bool:
    return _is_offset(name[:_DIGITS]) and name[_DIGITS:] in SUFFIXES


def _is_offset(digits: str) -> bool:
    """Others count as digits, too (²), but make no number."""
    return digits.isascii() and digits.isdigit()
