"""Bring a log's producer state to an offset: from the newest usable snapshot, and the batches after it.

A snapshot has only the last batch of each producer. A producer may have five under way, and send each of them again:
the four before it are looked up in the log, once, when a batch comes that could be one of them (`recall`). Apache Kafka
does not: there it is out of order, and a producer that sends it with a new epoch has it written twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from headrace.log.producer_state import LogProducers, WrittenBatch
from headrace.log.segment import Segment
from headrace.log.snapshots import DamagedSnapshotError, SnapshotFiles
from headrace.log.validation import read_marker
from headrace.records import Batch, BatchHeader, CorruptBatchError, MalformedRecordError
from headrace.runtime import FileMissingError


def load_snapshot(state: LogProducers, files: SnapshotFiles, not_after: int, log_start: int, now_ms: int) -> list[str]:
    """Load the newest snapshot up to `not_after`; unusable ones are removed, and named in the answer.

    None from before `log_start`, where the first segment begins: what came after it, ends of transactions say, is gone.
    """
    damaged = []
    for offset in [known for known in reversed(files.offsets) if log_start <= known <= not_after]:
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


#: As many bytes before a snapshot are looked through: more than the largest batches that one producer has under way.
_RECALLED_BYTES = 8 << 20


def recall(state: LogProducers, segments: Sequence[Segment]) -> None:
    """Find in the log what the snapshot did not hold of each producer."""
    # Where the log is damaged nothing is found; whoever reads there is told so.
    with contextlib.suppress(CorruptBatchError):
        state.recall(_written_before(segments, state.loaded_at))
    # Not before: where the disk could not be read it is looked up again.
    state.loaded_at = -1


def _written_before(segments: Sequence[Segment], end: int) -> Iterator[tuple[BatchHeader, WrittenBatch]]:
    places: list[tuple[Segment, int]] = []
    left = _RECALLED_BYTES
    for segment in reversed(segments):
        if segment.base_offset < end and left > 0:
            found = segment.translate(end)
            size = segment.size if found is None else found[0]
            places.append((segment, segment.offset_index().position_before(size - left) if size > left else 0))
            left -= size
    for segment, position in reversed(places):
        for _, header in segment.headers(position):
            if header.base_offset >= end:
                return
            if header.producer_id >= 0 and not header.is_control:
                last = header.base_offset + header.last_offset_delta
                yield header, WrittenBatch(header.last_sequence, last, header.last_offset_delta, header.max_timestamp)


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
