"""What one compaction of a log is given and what it gives back: plain values that can travel to another process."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.log.config import LogConfig
from headrace.log.transaction_index import AbortedTransaction
from headrace.records import Codec

_RELATIVE_OFFSET_MAX = 2**31 - 1
_LEVELLED = (Codec.GZIP, Codec.LZ4, Codec.ZSTD)

DEFAULT_DEDUPE_BYTES = 128 * 1024 * 1024
DEFAULT_LOAD_FACTOR = 0.9


@dataclass(slots=True, frozen=True)
class SourceSegment:
    """One ended segment to be compacted. `end_offset` is where the next segment begins."""

    base_offset: int
    end_offset: int
    size: int
    index_bytes: int
    time_index_bytes: int


@dataclass(slots=True, frozen=True)
class LastRecord:
    """By what a producer's state is known: the last offset of its last batch (-1: only a marker), and its epoch."""

    producer_id: int
    last_offset: int
    epoch: int


@dataclass(slots=True, frozen=True)
class CleaningLimits:
    """What all compactions of a broker have to keep to."""

    dedupe_bytes: int = DEFAULT_DEDUPE_BYTES
    load_factor: float = DEFAULT_LOAD_FACTOR
    io_bytes_per_s: float = float("inf")


@dataclass(slots=True, frozen=True, kw_only=True)
class CleanJob:
    """Compact `sources`, the log's first segments: those from `first_dirty_offset` on for the first time."""

    directory: str
    sources: list[SourceSegment]
    first_dirty_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    levels: dict[int, int]
    """Compression level by codec number."""
    last_records: list[LastRecord]
    aborted: list[AbortedTransaction]
    limits: CleaningLimits = CleaningLimits()

    @property
    def end_offset(self) -> int:
        """The first offset that is not compacted; everything below is decided and committed."""
        return self.sources[-1].end_offset

    @property
    def size(self) -> int:
        return sum(source.size for source in self.sources)

    def to_json(self) -> str:
        values = dataclasses.asdict(self)
        if values["limits"]["io_bytes_per_s"] == float("inf"):
            values["limits"]["io_bytes_per_s"] = None
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str | bytes) -> CleanJob:
        values = json.loads(text)
        limits = values.pop("limits")
        rate = limits.pop("io_bytes_per_s")
        return cls(
            **values
            | {
                "sources": [SourceSegment(**source) for source in values["sources"]],
                "levels": {int(codec): level for codec, level in values["levels"].items()},
                "last_records": [LastRecord(**record) for record in values["last_records"]],
                "aborted": [AbortedTransaction(**entry) for entry in values["aborted"]],
            },
            limits=CleaningLimits(**limits, io_bytes_per_s=float("inf") if rate is None else rate),
        )


@dataclass(slots=True)
class CleanStatistics:
    """What a compaction read and wrote. The map's part was read once more, to find the keys."""

    map_bytes: int = 0
    map_records: int = 0
    map_utilization: float = 0.0
    read_bytes: int = 0
    read_records: int = 0
    written_bytes: int = 0
    written_records: int = 0
    keyless_records: int = 0
    unread_batches: int = 0
    """Kept as they are: their records cannot be read, or are too many to."""
    map_s: float = 0.0
    total_s: float = 0.0

    @property
    def mb_per_s(self) -> float:
        return self.read_bytes / self.total_s / 1e6 if self.total_s > 0 else 0.0

    def summary(self) -> str:
        saved = 1 - self.written_bytes / self.read_bytes if self.read_bytes else 0.0
        unread = f"; {self.unread_batches} batches were kept, as they cannot be read" if self.unread_batches else ""
        return (
            f"{self.read_bytes} bytes ({self.read_records} records) became {self.written_bytes} "
            f"({self.written_records} records), {saved:.1%} less, in {self.total_s:.2f} s ({self.mb_per_s:.1f} MB/s; "
            f"{self.map_s:.2f} s of it for {self.map_records} records' keys, map {self.map_utilization:.1%} full)"
            f"{unread}"
        )


@dataclass(slots=True)
class SegmentGroup:
    """Segments that become one: the first's base offset is the new one's."""

    base_offset: int
    replaces: list[int]
    """Base offsets."""


@dataclass(slots=True)
class CleanResult:
    """The segments written (suffix .cleaned, synced) in order, and the first offset that is still uncompacted."""

    end_offset: int
    groups: list[SegmentGroup]
    statistics: CleanStatistics = field(default_factory=CleanStatistics)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> CleanResult:
        values = json.loads(text)
        groups = [SegmentGroup(**group) for group in values["groups"]]
        return cls(values["end_offset"], groups, CleanStatistics(**values["statistics"]))


def levels_of(config: LogConfig) -> dict[int, int]:
    levels = {int(codec): config.compression_level(codec) for codec in _LEVELLED}
    return {codec: level for codec, level in levels.items() if level is not None}


def grouped(sources: Sequence[SourceSegment], segment_bytes: int, index_bytes: int) -> list[list[SourceSegment]]:
    """Neighbours that are together small enough for one segment, its indexes, and its 32-bit relative offsets."""
    groups: list[list[SourceSegment]] = []
    size = offsets = times = 0
    for source in sources:
        if (
            groups
            and size + source.size <= segment_bytes
            and offsets + source.index_bytes <= index_bytes
            and times + source.time_index_bytes <= index_bytes
            and source.end_offset - 1 - groups[-1][0].base_offset <= _RELATIVE_OFFSET_MAX
        ):
            groups[-1].append(source)
        else:
            groups.append([source])
            size = offsets = times = 0
        size += source.size
        offsets += source.index_bytes
        times += source.time_index_bytes
    return groups
