"""Bring a log's producer state to an offset: from the newest usable snapshot, and the batches after it."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.log.producer_state import LogProducers
from headrace.log.segment import Segment
from headrace.log.snapshots import DamagedSnapshotError, SnapshotFiles
from headrace.log.validation import read_marker
from headrace.records import Batch, BatchHeader, CorruptBatchError, MalformedRecordError
from headrace.runtime import FileMissingError


def load_snapshot(state: LogProducers, files: SnapshotFiles, not_after: int, log_start: int, now_ms: int) -> list[str]:
    """Load the newest snapshot up to `not_after`; unusable ones are removed, and named in the answer."""
    damaged = []
    for offset in [known for known in reversed(files.offsets) if known <= not_after]:
        try:
            producers = files.read(offset)
        except (DamagedSnapshotError, FileMissingError) as error:
            damaged.append(f"{files.path(offset)} ({error})")
            files.drop(offset)
            continue
        state.load(producers, offset, now_ms)
        return damaged
    state.clear(log_start)
    return damaged


def replay(state: LogProducers, segments: Sequence[Segment], end: int, noting: Segment | None = None) -> None:
    """Take in the batches from the state's end offset to `end`; `noting` gets its transaction index filled again."""
    for place, segment in enumerate(segments):
        if place + 1 < len(segments) and segments[place + 1].base_offset <= state.end_offset:
            continue
        if segment.base_offset >= end:
            break
        found = segment.translate(state.end_offset)
        if found is None:
            continue
        for position, header in segment.headers(found[0]):
            if header.base_offset >= end:
                break
            if header.producer_id >= 0:
                # Only a marker has to be read whole; of the others the header says everything.
                batch = Batch(segment.file.read(position, header.size)) if header.is_control else None
                apply(state, header, batch, segment if segment is noting else None)
            state.end_offset = max(state.end_offset, header.next_offset)
    state.end_offset = max(state.end_offset, end)


def apply(state: LogProducers, header: BatchHeader, batch: Batch | None, noting: Segment | None) -> None:
    """Take in one batch that is in the log; `batch` is needed only for a control batch."""
    if not header.is_control or batch is None:
        state.apply_batch(header, header.base_offset)
        return
    try:
        marker = read_marker(batch)
    except MalformedRecordError as error:
        raise CorruptBatchError(f"control batch at offset {header.base_offset}: {error}") from error
    if marker is None:
        return
    aborted = state.apply_marker(header, header.base_offset, marker)
    if aborted is not None and noting is not None:
        noting.note_aborted(aborted)
