"""Which part of a compacted log may be compacted now, and which of several logs is due first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.log.compaction_job import CleaningLimits, CleanJob, LastRecord, SourceSegment, levels_of
from headrace.log.log import Log
from headrace.log.segment import OFFSET_INDEX, TIME_INDEX, Segment
from headrace.log.view import View
from headrace.runtime import Disk, FileMissingError


@dataclass(slots=True, frozen=True)
class Candidate:
    """A log's ended, decided and committed segments, as they were when they were looked at."""

    log: Log
    directory: str
    segments: tuple[Segment, ...]
    ends: tuple[int, ...]
    """Where each segment's successor begins."""
    first_dirty_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    """By how much `max.compaction.lag.ms` is exceeded; 0 when it is not."""
    cut_count: int
    right_checkpoint: int | None
    """What the checkpoint should say that is behind the log's end, or an offset that the log was cut to."""

    @property
    def ratio(self) -> float:
        """The uncompacted share."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def due(self) -> bool:
        if not self.dirty_bytes:
            return False
        return self.overdue_ms > 0 or self.ratio > self.log.config.min_cleanable_dirty_ratio

    @property
    def end_offset(self) -> int:
        return self.ends[-1] if self.ends else self.first_dirty_offset

    def still_holds(self, pending: Sequence[Segment]) -> bool:
        """Whether the log is in use, was not cut meanwhile, and still has the segments `pending`."""
        log = self.log
        if log.failure is not None or log.directory != self.directory or log.cut_count != self.cut_count:
            return False
        present = set(map(id, log.segments))
        return all(id(segment) in present and not segment.active for segment in pending)


def first_dirty_offset(view: View, checkpoint: int | None, cuts_known: int = 0) -> tuple[int, int | None]:
    """The first offset that was never compacted, and what the checkpoint should say of it if it is wrong.

    `cuts_known` is how often the log had been cut when the checkpoint was known to be right. That records were deleted
    does not make it wrong: they may be there again after a crash, and a segment among them that is lost then must not
    pass for compacted.
    """
    right = None
    if checkpoint is not None and checkpoint > view.end_offset:
        checkpoint = right = 0
    elif checkpoint is not None and view.cuts != cuts_known and view.cut_to < checkpoint:
        checkpoint = right = view.cut_to
    return max(checkpoint or 0, view.start_offset), right


def cleanable(log: Log, now_ms: int, checkpoint: int | None, cuts_known: int = 0) -> Candidate | None:
    """What of the log may be compacted; None when it is not a compacted one, or out of service. May read the disk.

    `checkpoint` is where the last compaction ended. Not to be touched are the active segment, what is not committed or
    belongs to an open transaction (from the last stable offset on), and what is younger than `min.compaction.lag.ms`.
    """
    config = log.config
    if not config.compact or log.failure is not None:
        return None
    # Before the view, which has then every segment up to there.
    stable = log.last_stable_offset
    view = log.view
    segments, bases = view.segments, view.bases
    first_dirty, right_checkpoint = first_dirty_offset(view, checkpoint, cuts_known)
    limit = min(stable, bases[-1])
    dirty_segments = [segments[at] for at in range(len(segments) - 1) if bases[at + 1] > first_dirty]
    if config.min_compaction_lag_ms > 0:
        youngest_ms = now_ms - config.min_compaction_lag_ms
        young = next((s for s in dirty_segments if s.largest_timestamp_ms() > youngest_ms), None)
        if young is not None:
            limit = min(limit, young.base_offset)
    count = sum(base <= limit for base in bases[1:])
    sources, ends = segments[:count], tuple(bases[1 : count + 1])
    return Candidate(
        log,
        log.directory,
        sources,
        ends,
        first_dirty,
        clean_bytes=sum(segment.size for segment, end in zip(sources, ends) if end <= first_dirty),
        dirty_bytes=sum(segment.size for segment, end in zip(sources, ends) if end > first_dirty),
        overdue_ms=_overdue_ms(dirty_segments, now_ms, config.max_compaction_lag_ms),
        cut_count=view.cuts,
        right_checkpoint=right_checkpoint,
    )


def _overdue_ms(dirty: Sequence[Segment], now_ms: int, lag_ms_max: int) -> int:
    latest_ms = now_ms - lag_ms_max
    if latest_ms <= 0:
        return 0  # as by default: no record is that old, so none has to be looked at
    first_times = [time for segment in dirty if (time := segment.first_timestamp()) > 0]
    return max(latest_ms - min(first_times), 0) if first_times else 0


def job_for(candidate: Candidate, disk: Disk, now_ms: int, limits: CleaningLimits) -> CleanJob:
    """All that a compaction needs to know. Reads the disk."""
    log, config = candidate.log, candidate.log.config
    producers = list(log.producers.producers.values())
    return CleanJob(
        directory=candidate.directory,
        sources=[
            SourceSegment(
                segment.base_offset,
                end,
                segment.size,
                _size(disk, segment.path(OFFSET_INDEX)),
                _size(disk, segment.path(TIME_INDEX)),
            )
            for segment, end in zip(candidate.segments, candidate.ends)
        ],
        first_dirty_offset=candidate.first_dirty_offset,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        levels=levels_of(config),
        last_records=[
            LastRecord(p.producer_id, p.batches[-1].last_offset if p.batches else -1, p.epoch) for p in producers
        ],
        # Those of later segments too: a transaction's end may lie in one while its data lies here.
        aborted=[
            entry
            for segment in log.segments
            for entry in list(segment.aborted())
            if entry.first_offset < candidate.end_offset
        ],
        limits=limits,
    )


def _size(disk: Disk, path: str) -> int:
    try:
        return disk.size(path)
    except FileMissingError:
        return 0
