"""The files of one log: its segments in order, its snapshots, what is being deleted, and what of it is durable."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager

from headrace.log import leader_epochs, partition_metadata
from headrace.log.leader_epochs import LeaderEpochs
from headrace.log.producer_state import LogProducers
from headrace.log.segment import DELETED, LOG, SWAP, Caches, Segment
from headrace.log.snapshots import SnapshotFiles
from headrace.log.view import View
from headrace.runtime import File, HeldDirectory


class LogFiles:
    """Every change on disk that a log makes, but for appends, which go straight to the active segment.

    All of it is the writer's but for `sync`, which may run beside the writer and uses a view. `segments` are those of
    the next view. Nothing here knows offsets' meaning; `Log` decides, and takes a DiskError from here as the end of the
    log's service.
    """

    __slots__ = (
        "active",
        "bases",
        "caches",
        "changed",
        "directory",
        "directory_changed",
        "discarded",
        "disk",
        "epochs_synced",
        "id_synced",
        "never_synced",
        "segments",
        "snapshots",
    )

    def __init__(self, caches: Caches, directory: str, segments: list[Segment], snapshots: SnapshotFiles) -> None:
        self.caches = caches
        self.disk = caches.disk
        self.directory = directory
        self.snapshots = snapshots
        self.discarded: list[tuple[int, Segment]] = []
        # Whether anything differs from what a clean stop left; if not, closing writes nothing.
        self.changed = False
        # Names in the directory, and the directory's own name, that may not be durable yet.
        self.directory_changed = False
        self.never_synced = False
        # Whether a power loss leaves the id of the topic.
        self.id_synced = False
        # The leader epochs as they are on disk.
        self.epochs_synced: LeaderEpochs | None = None
        self.set_segments(segments)

    def set_segments(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)
        self.bases = tuple(segment.base_offset for segment in segments)
        self.active = segments[-1]

    def hold_directory(self) -> AbstractContextManager[HeldDirectory]:
        """Open the directory: what follows can sync it whatever becomes of descriptors."""
        return contextlib.closing(self.disk.open_dir(self.directory))

    def hold_file(self, segment: Segment) -> AbstractContextManager[File]:
        return contextlib.closing(self.disk.open(segment.file.path))

    def sync_directory(self) -> None:
        self.disk.sync_dir(self.directory)

    # ---- beginning and ending segments ---------------------------------------------------------------------------

    def roll(self, base_offset: int, now_ms: int, producers: LogProducers, jitter_ms: int) -> None:
        """End the active segment; the next one begins at `base_offset`."""
        if self.active.size == 0 and self.active.base_offset < base_offset:
            # Nothing is in it: the new one simply takes its place.
            self.active.end()
            self.active.remove()
            kept = self.segments[:-1]
        else:
            self.active.write_indexes()
            kept = self.segments
        if self.never_synced:
            # Once in a log's life: were its first segment's name lost and the next one's kept, it would begin there.
            self.sync_directory()
        producers.end_offset = base_offset
        self.take_snapshot(producers)
        segment = Segment.create(self.caches, self.directory, base_offset, now_ms)
        # Only now, when nothing can fail any more: until then it goes on where descriptors are short.
        self.active.end()
        segment.jitter_ms = jitter_ms
        self.changed = self.directory_changed = True
        self.set_segments((*kept, segment))

    def take_snapshot(self, producers: LogProducers) -> None:
        """Keep the producers' state, unless it is kept already or nothing was ever written."""
        latest = self.snapshots.latest
        if producers.end_offset > (self.bases[0] if latest is None else latest):
            self.snapshots.take(producers)
            self.directory_changed = True

    def start_over(self, first: Segment, directory: HeldDirectory) -> None:
        """Drop everything; the log is this empty segment, whose file has a temporary name."""
        # For good, before the new segment can be there: it would be taken for one that they are about.
        self.snapshots.drop_after(-1)
        directory.sync()
        for segment in reversed(self.segments):
            segment.remove()
        first.rename("")
        self.set_segments([first])
        directory.sync()
        self.changed = self.directory_changed = True

    def cut(self, place: int, cut: Segment, file: File, due_ms: int) -> None:
        """Let a segment be `cut` (`Segment.cut_at`) and end the log. `file` is the segment's, open."""
        # From the end, so that a crash half-way leaves a log without gaps.
        self.discard(self.segments[:place:-1], due_ms)
        self.segments[place].cut_to(cut, file)
        self.set_segments((*self.segments[:place], cut))
        self.changed = self.directory_changed = True

    # ---- deleting and replacing ----------------------------------------------------------------------------------

    def drop_first(self, directory: HeldDirectory) -> None:
        """Take the first segment out of the log, where at least one stays; to be discarded.

        What was discarded before it is gone for good by then: a power loss leaves no gap. Recovery takes what follows a
        gap for the rest of something lost, and it must not be there to be found.
        """
        # Nor may the name of the segment that becomes the first be lost together with the old one.
        directory.sync()
        self.set_segments(self.segments[1:])

    def discard(self, segments: Sequence[Segment], due_ms: int) -> None:
        """Take segments out of use; their files stay a while under other names, for readers with slices of them."""
        for segment in segments:
            self._give_names_to(segment)
            segment.discard()
            self.discarded.append((due_ms, segment))
            self.changed = self.directory_changed = True

    def _give_names_to(self, segment: Segment) -> None:
        """Before a segment is discarded under the names of one that was discarded before: whoever has a slice of that
        one must not read these files."""
        for _, earlier in self.discarded:
            if earlier.base_offset == segment.base_offset:
                earlier.file.gone = True

    def discard_first(self, segment: Segment, due_ms: int, directory: HeldDirectory) -> None:
        """Discard what `drop_first` took out."""
        if segment.load_aborted():
            self._give_names_to(segment)
            # For good before the rest: found again without its transaction index, it would not tell what was aborted.
            segment.file.rename(segment.path(LOG) + DELETED)
            directory.sync()
        self.discard((segment,), due_ms)
        self.snapshots.drop(segment.base_offset)

    def remove_discarded(self, now_ms: int) -> int:
        due = [segment for due_ms, segment in self.discarded if due_ms <= now_ms]
        self.discarded = [entry for entry in self.discarded if entry[0] > now_ms]
        for segment in due:
            segment.remove()
        return len(due)

    def replace(self, new: Sequence[Segment], old: Sequence[Segment], due_ms: int, directory: HeldDirectory) -> None:
        """See `Log.replace_segments`."""
        for segment in new:
            segment.rename(SWAP)
        directory.sync()
        kept = [segment for segment in self.segments if segment not in old]
        self.discard(old, due_ms)
        # Before the new ones lose their suffix: nothing would tell any more which old ones they replace.
        directory.sync()
        for segment in new:
            segment.rename("")
        self.set_segments(sorted([*kept, *new], key=lambda segment: segment.base_offset))
        directory.sync()
        for base_offset in {segment.base_offset for segment in old} - {segment.base_offset for segment in new}:
            self.snapshots.drop(base_offset)

    def restore_indexes(self) -> None:
        """Write the index files again that readers found missing or damaged."""
        for segment in self.segments[:-1]:
            if segment.indexes_missing:
                segment.restore_indexes()

    # ---- durability ----------------------------------------------------------------------------------------------

    def sync(self, view: View, recovery_point: int, *, with_parent: bool) -> None:
        """Make durable what the view has from the recovery point on, with all names and its epochs."""
        # The one before, too: it ended where the recovery point is when nothing was appended between a sync and a roll.
        first = max(view.place_of(recovery_point) - 1, 0)
        for segment in view.segments[first:]:
            if not segment.synced:
                segment.sync()
        # The flag is taken back before the directory is synced: a name that changes beside this is the next sync's.
        if view.epochs is not self.epochs_synced:
            self.directory_changed = False
            path = os.path.join(self.directory, leader_epochs.FILE_NAME)
            self.disk.replace_file(path, view.epochs.to_bytes())  # and this syncs the directory
            self.epochs_synced = view.epochs
        elif self.directory_changed:
            self.directory_changed = False
            self.sync_directory()
        if self.never_synced:
            partition_metadata.sync(self.disk, self.directory)
            if with_parent:
                self.disk.sync_dir(os.path.dirname(self.directory))
            self.never_synced, self.id_synced = False, True

    def sync_id(self) -> None:
        """Make durable whose log this is."""
        partition_metadata.sync(self.disk, self.directory)
        self.sync_directory()
        self.id_synced = True

    def moved_to(self, directory: str) -> None:
        self.directory = self.snapshots.directory = directory
        for segment in (*self.segments, *(segment for _, segment in self.discarded)):
            segment.moved_to(directory)

    def release(self) -> None:
        for segment in (*self.segments, *(segment for _, segment in self.discarded)):
            segment.close()
