"""The files of one log: its segments in order, its snapshots, what is being deleted, and what of it is durable."""

from __future__ import annotations

import os
from collections.abc import Sequence

from headrace.log import leader_epochs, partition_metadata
from headrace.log.leader_epochs import LeaderEpochs
from headrace.log.producer_state import ProducerState
from headrace.log.reading import place_of
from headrace.log.segment import DELETED, SWAP, Caches, Segment
from headrace.log.snapshots import SnapshotFiles
from headrace.runtime import DiskError


class LogFiles:
    """Every change on disk that a log makes, but for appends, which go straight to the active segment.

    Nothing here knows offsets' meaning; `Log` decides, and takes a DiskError from here as the end of the log's service.
    """

    __slots__ = (
        "active",
        "caches",
        "changed",
        "directory",
        "directory_changed",
        "discarded",
        "disk",
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
        # Names in the directory, and the directory's own name and identity, that may not be durable yet.
        self.directory_changed = False
        self.never_synced = False
        self.set_segments(segments)

    def set_segments(self, segments: list[Segment]) -> None:
        # Both lists are made anew and put in place at once: a reader on another thread keeps those it has.
        self.segments = (segments, [segment.base_offset for segment in segments])
        self.active = segments[-1]

    def sync_directory(self) -> None:
        self.disk.sync_dir(self.directory)

    # ---- beginning and ending segments ---------------------------------------------------------------------------

    def roll(self, base_offset: int, now_ms: int, producers: ProducerState, jitter_ms: int) -> None:
        """End the active segment; the next one begins at `base_offset`."""
        if self.active.size == 0 and self.active.base_offset < base_offset:
            # Nothing is in it: the new one simply takes its place.
            self.active.remove()
            kept = self.segments[0][:-1]
        else:
            self.active.seal()
            kept = self.segments[0]
        try:
            if self.never_synced:
                # Once in a log's life: were its first segment's name lost and the next one's kept, it would begin
                # there.
                self.sync_directory()
            producers.end_offset = base_offset
            self.take_snapshot(producers)
            segment = Segment.create(self.caches, self.directory, base_offset, now_ms)
        except DiskError as error:
            if error.is_shortage and len(kept) == len(self.segments[0]):
                self.active.resume(base_offset)  # it goes on, and ends when there are descriptors again
            else:
                self.active.active = False
            raise
        segment.jitter_ms = jitter_ms
        self.changed = self.directory_changed = True
        self.set_segments([*kept, segment])

    def take_snapshot(self, producers: ProducerState) -> None:
        """Keep the producers' state, unless it is kept already or nothing was ever written."""
        latest = self.snapshots.latest
        if producers.end_offset > (self.segments[0][0].base_offset if latest is None else latest):
            self.snapshots.take(producers)
            self.directory_changed = True

    def start_over(self, base_offset: int, now_ms: int) -> None:
        """Drop everything; one empty segment begins at `base_offset`."""
        for segment in reversed(self.segments[0]):
            segment.remove()
        self.snapshots.drop_after(-1)
        self.set_segments([Segment.create(self.caches, self.directory, base_offset, now_ms)])
        self.sync_directory()
        self.changed = self.directory_changed = True

    def cut(self, offset: int, now_ms: int, delay_ms: int) -> None:
        """Drop every batch that ends at or after `offset`, which the first segment's base is not above."""
        segments, bases = self.segments
        keep = place_of(bases, offset)
        # From the end, so that a crash half-way leaves a log without gaps.
        for segment in reversed(segments[keep + 1 :]):
            self.discard(segment, now_ms + delay_ms)
        self.set_segments(list(segments[: keep + 1]))
        self.active.truncate_to(offset, now_ms)
        self.changed = self.directory_changed = True

    # ---- deleting and replacing ----------------------------------------------------------------------------------

    def drop_first(self, count: int, due_ms: int) -> list[Segment]:
        """Take the first `count` segments out of use; at least one stays."""
        segments = self.segments[0]
        doomed, kept = segments[:count], segments[count:]
        # The name of the segment that becomes the first must not be lost together with the old ones.
        self.sync_directory()
        self.set_segments(kept)
        for segment in doomed:
            self.discard(segment, due_ms)
            self.snapshots.drop(segment.base_offset)
        return doomed

    def discard(self, segment: Segment, due_ms: int) -> None:
        """Take a segment out of use; its files stay a while under another name, for readers that have a slice of it."""
        segment.rename(DELETED)
        self.discarded.append((due_ms, segment))
        self.changed = self.directory_changed = True

    def remove_discarded(self, now_ms: int) -> int:
        due = [segment for due_ms, segment in self.discarded if due_ms <= now_ms]
        self.discarded = [entry for entry in self.discarded if entry[0] > now_ms]
        for segment in due:
            segment.remove()
        return len(due)

    def replace(self, new: Sequence[Segment], old: Sequence[Segment], due_ms: int) -> None:
        """See `Log.replace_segments`."""
        for segment in new:
            segment.rename(SWAP)
        self.sync_directory()
        kept = [segment for segment in self.segments[0] if segment not in old]
        for segment in old:
            self.discard(segment, due_ms)
        # Before the new ones lose their suffix: nothing would tell any more which old ones they replace.
        self.sync_directory()
        for segment in new:
            segment.rename("")
        self.set_segments(sorted([*kept, *new], key=lambda segment: segment.base_offset))
        self.sync_directory()
        for base_offset in {segment.base_offset for segment in old} - {segment.base_offset for segment in new}:
            self.snapshots.drop(base_offset)

    # ---- durability ----------------------------------------------------------------------------------------------

    def sync(self, recovery_point: int, epochs: LeaderEpochs | None) -> None:
        """Make everything from the recovery point on durable, with all names, and `epochs` if they changed."""
        segments, bases = self.segments
        # The one before, too: it ended where the recovery point is when nothing was appended between a sync and a roll.
        first = max(place_of(bases, recovery_point) - 1, 0)
        for segment in segments[first:]:
            if segment.active or not segment.synced:
                segment.sync()
        if epochs is not None:
            # Last, because this syncs the directory too.
            self.directory_changed = False
            self.disk.replace_file(os.path.join(self.directory, leader_epochs.FILE_NAME), epochs.to_bytes())
        elif self.directory_changed:
            self.directory_changed = False
            self.sync_directory()
        if self.never_synced:
            partition_metadata.sync(self.disk, self.directory)
            self.disk.sync_dir(os.path.dirname(self.directory))
            self.never_synced = False

    def moved_to(self, directory: str) -> None:
        self.directory = self.snapshots.directory = directory
        for segment in self.segments[0]:
            segment.moved_to(directory)

    def release(self) -> None:
        for segment in (*self.segments[0], *(segment for _, segment in self.discarded)):
            segment.close()
