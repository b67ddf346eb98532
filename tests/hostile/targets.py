"""Every decoder that reads what others wrote, with valid inputs to begin from: what `fuzz` and `guided` try."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tests.log import golden
from tests.records.legacy_messages import message, wrapper

from headrace.assignors import decode_assignment, decode_subscription
from headrace.assignors._group import Numbering
from headrace.assignors._sticky_user_data import StickyUserDataReader
from headrace.assignors.partition_list import TopicLayout
from headrace.broker.requests.dispatch import load_handlers
from headrace.cluster.records import FeatureLevelRecord, MetadataRecord, TopicRecord
from headrace.cluster.store import StoreMember, node_formats
from headrace.cluster.store.batches import batch_of, checked_batches, records_of
from headrace.cluster.store.directory_session import SharedTree, _frame
from headrace.errors import HeadraceError
from headrace.log import LogConfig, checkpoints, meta_properties, partition_metadata, snapshots, transaction_index
from headrace.log.leader_epochs import LeaderEpochs
from headrace.log.offset_index import DamagedIndexError, OffsetIndex
from headrace.log.time_index import TimeIndex
from headrace.log.validation import Origin, validate, writable
from headrace.parallel.finished import decode_finished, encode_finished
from headrace.parallel.letters import PART, pack, part_of, unpack
from headrace.protocol import codec
from headrace.protocol.codegen import decoder
from headrace.protocol.stored import consumer_offsets, metadata_records, transaction_state
from headrace.protocol.wire import uvarint
from headrace.records import (
    Batch,
    Codec,
    ControlType,
    TimestampType,
    build_batch,
    control_batch,
    decode_columns,
    decode_legacy,
    decode_stretch,
    is_legacy,
    read_control,
    read_records,
    split,
    survey_stretch,
)
from headrace.records.walk import iter_times, walk_records
from headrace.runtime import real_runtime
from headrace.topics import TopicPartition

from .mutating import sealed_batch, sealed_batches, sealed_frames, sealed_legacy, sealed_snapshot
from .shapes import Kind, MessageShapes, Shape, of_numbers, of_records, of_text

KINDS = ("request", "response", "stored", "batch", "file", "store", "log")
SHAPES = 24
LIMIT_BYTES = 1 << 22
OUR_ERRORS: tuple[type[Exception], ...] = (HeadraceError, DamagedIndexError)
# Who calls the decoder of a message turns these into a `MalformedMessageError`: there is one `try` for all of them.
MESSAGE_ERRORS = (HeadraceError, struct.error, IndexError)


class Target(NamedTuple):
    kind: str
    name: str
    shapes: list[Shape]
    decode: Callable[[Any], object]
    #: Checksums and lengths made right again; random bits say how.
    reseal: Callable[[bytes, int], bytes] | None = None
    errors: tuple[type[Exception], ...] = OUR_ERRORS

    @property
    def title(self) -> str:
        return f"{self.kind}: {self.name}"


def _message(kind: str, name: str, cls: Any, version: int, rng: random.Random) -> Target:
    """Read from a view, as a broker and its clients read it."""
    shapes = MessageShapes(cls, version, rng)
    read = decoder(cls, version)
    small = sorted((shapes.shape() for _ in range(2 * SHAPES)), key=lambda shape: len(shape.parts))
    # The small ones, of which more can be tried, and some of the others.
    chosen = small[:SHAPES] + small[SHAPES::6]
    return Target(kind, name, chosen, lambda data: read(memoryview(data), 0), None, MESSAGE_ERRORS)


def requests(rng: random.Random) -> Iterator[Target]:
    for key, handler in load_handlers().items():
        for version in range(handler.low, handler.high + 1):
            name = f"{key} {handler.api_key.name} v{version}"
            yield _message("request", name, handler.request_class, version, rng)
    header = [
        Shape([b"\0\1\0\x0b", b"\0\0\0\7", b"\0\3", b"abc"], [Kind.INT32, Kind.INT32, Kind.TEXT_LENGTH, Kind.CONTENT])
    ]
    tags = [Kind.UVARINT, Kind.UVARINT, Kind.UVARINT, Kind.CONTENT]
    header.append(Shape([*header[0].parts, b"\1", b"\7", b"\2", b"ab"], [*header[0].kinds, *tags]))

    def read_header(data: bytes) -> object:
        return codec.decode_request_header(memoryview(data), lambda key, version: bool(version & 1))

    yield Target("request", "header", header, read_header)


def responses(rng: random.Random) -> Iterator[Target]:
    for key, handler in load_handlers().items():
        for version in range(handler.low, handler.high + 1):
            name = f"{key} {handler.api_key.name} v{version}"
            yield _message("response", name, handler.response_class, version, rng)


def stored(rng: random.Random) -> Iterator[Target]:
    """What coordinators, the controller and members of groups keep in records."""
    for types in (consumer_offsets.RECORD_TYPES, transaction_state.RECORD_TYPES):
        for record_type, (key_class, value_class) in types.classes.items():
            key = struct.pack(">h", record_type) + MessageShapes(key_class, 0, rng).shape().data
            keys = MessageShapes(key_class, 0, rng)
            begin = [(Kind.VERSION, struct.pack(">h", record_type))]
            name = f"{types.topic} {key_class.__name__}"
            shapes = [keys.shape(begin) for _ in range(SHAPES)]
            yield Target("stored", name, shapes, lambda data, types=types: types.decode(data, None))
            shapes = []
            for version in range(value_class.SCHEMA.versions.low, value_class.SCHEMA.versions.high + 1):
                begin = [(Kind.VERSION, struct.pack(">h", version))]
                values = MessageShapes(value_class, version, rng)
                shapes += [values.shape(begin) for _ in range(SHAPES // 3)]
            name = f"{types.topic} {value_class.__name__}"
            yield Target("stored", name, shapes, lambda data, types=types, key=key: types.decode(key, data))
    for record_type, cls in metadata_records._CLASSES.items():
        shapes = []
        for version in range(cls.SCHEMA.versions.low, cls.SCHEMA.versions.high + 1):
            begin = [(Kind.UVARINT, uvarint(number)) for number in (1, record_type, version)]
            shapes += [MessageShapes(cls, version, rng).shape(begin) for _ in range(SHAPES // 2)]
        yield Target("stored", f"metadata {cls.__name__}", shapes, metadata_records.decode_record)
    strings = [(Kind.COUNT, b"\0\0\0\2"), *[(Kind.TEXT_LENGTH, b"\0\1"), (Kind.CONTENT, b"t")] * 2]
    owned = [(Kind.COUNT, b"\0\0\0\1"), (Kind.TEXT_LENGTH, b"\0\1"), (Kind.CONTENT, b"t")]
    owned += [(Kind.COUNT, b"\0\0\0\2"), (Kind.INT32, bytes(4)), (Kind.INT32, b"\0\0\0\1")]
    user = [(Kind.BYTES_LENGTH, b"\0\0\0\2"), (Kind.CONTENT, b"ab")]
    rest = [(Kind.INT32, b"\0\0\0\7"), (Kind.TEXT_LENGTH, b"\0\1"), (Kind.CONTENT, b"r")]
    subscriptions = [[(Kind.VERSION, bytes((0, version))), *strings, *user, *owned, *rest] for version in range(4)]
    assignment = [(Kind.VERSION, b"\0\3"), *owned, *user]
    for name, rows, read in (
        ("subscription", subscriptions, decode_subscription),
        ("assignment", [assignment], decode_assignment),
    ):
        shapes = [Shape([part for _, part in row], [kind for kind, _ in row]) for row in rows]
        yield Target("stored", f"a member's {name}", shapes, read)
    yield from _notes()


def _notes() -> Iterator[Target]:
    """What clients leave for each other."""
    layout = TopicLayout([f"t{n}" for n in range(12)], [3] * 12)
    shapes = []
    for count in (1, 3, 12):
        rows = [(Kind.COUNT, struct.pack(">i", count))]
        for number in range(count):
            rows += [(Kind.TEXT_LENGTH, struct.pack(">h", len(f"t{number}"))), (Kind.CONTENT, b"t%d" % number)]
            rows += [(Kind.COUNT, b"\0\0\0\1"), (Kind.INT32, b"\0\0\0\2")]
        rows.append((Kind.INT32, b"\0\0\0\7"))
        shapes.append(Shape([part for _, part in rows], [kind for kind, _ in rows]))
    sticky = shapes[-1].data

    def read_sticky(data: bytes) -> object:
        reader = StickyUserDataReader(Numbering(layout))
        reader.read(sticky)  # others are held against the first of their length
        return reader.read(data)

    yield Target("stored", "a sticky member's own", shapes, read_sticky)
    intervals = ([(9, 12), (14, 15)], [(n, n + 1) for n in range(9, 99, 2)])
    notes = [encode_finished(7, some)[0].encode() for some in intervals]

    def read_note(data: bytes) -> object:
        return decode_finished(7, data.decode("utf-8", "surrogateescape"))

    yield Target("stored", "note of finished offsets", [*map(of_text, notes), *map(_whole, notes)], read_note)
    letter = pack(b"key", b"value", [("h", b"x"), ("i", None)])
    kinds = [Kind.BYTES_LENGTH, Kind.CONTENT] * 5 + [Kind.BYTES_LENGTH]
    parts = [letter[start:end] for start, end in pairwise((0, 4, 7, 11, 16, 20, 21, 25, 26, 30, 31, 35))]
    yield Target("stored", "letter in parts", [Shape(parts, kinds)], unpack, errors=(ValueError,))
    parts = [b"1", b"/", b"3"]
    shape = Shape(parts, [Kind.WORD, Kind.MARK, Kind.WORD])
    yield Target("stored", "part of a letter", [shape], lambda data: part_of([(PART, data)]))


_HEADER = (8, 4, 4, 1, 4, 2, 4, 8, 8, 8, 2, 4, 4)
_BATCH_KINDS = [Kind.INT64, Kind.INT32, Kind.INT32, Kind.INT8, Kind.INT32, Kind.VERSION, Kind.INT32]
_BATCH_KINDS += [Kind.INT64, Kind.INT64, Kind.INT64, Kind.INT16, Kind.INT32, Kind.COUNT]


def of_batch(batch: bytes) -> Shape:
    """A batch that is not compressed."""
    ends = list(itertools.accumulate(_HEADER))
    head = [batch[end - size : end] for end, size in zip(ends, _HEADER)]
    return of_records(batch[ends[-1] :], list(zip(_BATCH_KINDS, head)))


def _batch_shapes() -> list[Shape]:
    plain = [
        build_batch([(1_700_000_000_000, b"k", b"v", ())]),
        build_batch([(7 + n, None if n % 2 else b"k%d" % n, b"v" * n, (("h", b"x"), ("i", None))) for n in range(3)]),
        build_batch([(1000 + n, None, b"value", ()) for n in range(12)]),
        build_batch([(n, b"key", b"x" * (n * 7 % 40), ()) for n in range(70)]),
        build_batch([(5, b"k", None, ())], producer_id=7, producer_epoch=1, base_sequence=3, transactional=True),
    ]
    shapes = [of_batch(bytes(batch)) for batch in plain]
    for shape in shapes[:3]:
        for number in range(1, 5):
            parts = shape.parts.copy()
            parts[5] = struct.pack(">h", number)  # `sealed_batch` compresses it
            shapes.append(Shape(parts, shape.kinds, enclosed=shape.enclosed))
    return shapes


def _each(read: Callable[[Batch], object]) -> Callable[[bytes], None]:
    def decode(data: bytes) -> None:
        for batch in split(data):
            read(batch)

    return decode


def fetched(data: bytes) -> None:
    """As a client reads what it has fetched: all of it at once, or batch by batch where that does not go."""
    stretch = survey_stretch(data, 0, 1 << 24)
    if stretch is not None:
        columns = decode_stretch(data, stretch, check_crcs=False)
        if columns is not None:
            return
    decode_columns(list(split(data)), LIMIT_BYTES)


_ANY_TIME = LogConfig()
_COMPACTED = LogConfig(compact=True, timestamp_type=TimestampType.LOG_APPEND_TIME)


def produced(data: bytes) -> None:
    for config in (_ANY_TIME, _COMPACTED):
        validate(writable(bytearray(data)), config, Origin.CLIENT, TopicPartition("t", 0), 1_700_000_000_000)


def batches() -> Iterator[Target]:
    shapes = _batch_shapes()
    for name, read in (
        ("walked", _each(lambda batch: walk_records(batch, limit_bytes=LIMIT_BYTES))),
        ("read", _each(lambda batch: read_records(batch, LIMIT_BYTES))),
        ("as columns", _each(lambda batch: decode_columns(batch, LIMIT_BYTES))),
        ("its times", _each(lambda batch: list(iter_times(batch, LIMIT_BYTES)))),
        ("fetched", fetched),
        ("produced", produced),
    ):
        yield Target("batch", name, shapes, read, sealed_batch)
    markers = []
    for control_type in ControlType:
        marker = control_batch(control_type, producer_id=7, producer_epoch=1, coordinator_epoch=3, timestamp=5)
        markers.append(of_batch(bytes(marker)))

    def read_markers(data: bytes) -> None:
        for batch in split(data):
            for record in read_records(batch, LIMIT_BYTES):
                read_control(record)

    yield Target("batch", "control", markers, read_markers, sealed_batch)
    legacy = [_of_legacy(message(3, b"value", key=b"k", magic=magic)) for magic in (0, 1)]
    for magic, attributes in itertools.product((0, 1), (1, 2, 3, 9)):
        inner = [_of_legacy(message(n, b"value", magic=magic)) for n in range(2)]
        # `sealed_legacy` compresses what stands in its value.
        outer = _of_legacy(message(9, b"".join(shape.data for shape in inner), magic=magic, attributes=attributes))
        parts = [*outer.parts[:-1], *inner[0].parts, *inner[1].parts]
        legacy.append(Shape(parts, [*outer.kinds[:-1], *inner[0].kinds, *inner[1].kinds]))
    legacy += [_whole(wrapper(9, [message(0, b"v")], kind)) for kind in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)]

    def read_legacy(data: bytes) -> None:
        decode_legacy(filter(is_legacy, split(data)), check_crcs=True, limit_bytes=LIMIT_BYTES)

    yield Target("batch", "of formats 0 and 1", legacy, read_legacy, sealed_legacy)


def _of_legacy(data: bytes) -> Shape:
    """A message of format 0 or 1."""
    sizes, kinds = [8, 4, 4, 1, 1], [Kind.INT64, Kind.INT32, Kind.INT32, Kind.INT8, Kind.INT8]
    if data[16]:
        sizes.append(8)
        kinds.append(Kind.INT64)
    for _ in range(2):
        at = sum(sizes)
        (size,) = struct.unpack_from(">i", data, at)
        sizes += [4] if size < 0 else [4, size]
        kinds += [Kind.BYTES_LENGTH] if size < 0 else [Kind.BYTES_LENGTH, Kind.CONTENT]
    ends = itertools.accumulate(sizes)
    return Shape([data[end - size : end] for end, size in zip(ends, sizes)], kinds)


def _files_of(suffix: str, bytes_max: int = 20_000) -> list[bytes]:
    found = [path.read_bytes() for path in sorted(golden.GOLDEN.rglob(f"*{suffix}")) if path.is_file()]
    return sorted({data for data in found if 0 < len(data) < bytes_max}, key=len)[:SHAPES]


def _whole(data: bytes) -> Shape:
    """Of which nothing is known."""
    return Shape([data], [Kind.CONTENT])


def metadata(data: bytes) -> None:
    for batch in checked_batches(data, "snapshot"):
        list(records_of(batch, "snapshot"))


_ROWS = [["create", "/a", 3, False, None], ["write", "/a", 3, 0, None], ["check", "/a", 0, 1, None]]
_ROWS += [["create", "/a/b", 3, True, None], ["delete", "/a/b", 0, -1, None]]
_JOURNAL = [_frame({"session": "s", "operations": _ROWS[:n]}, [b"abc"] * n) for n in (1, 3, 5)]
_TREE = [["/", 0, 0, None], ["/a", 3, 2, None], ["/a/b", 3, 0, "s"]]
_JOURNAL += [_frame({"tree": _TREE, "over": ["r"]}, [b"abc"] * 3), _frame({"expired": "s"}, [])]


class _OneFile:
    """As much of a disk as it takes to read the nodes of a shared directory."""

    def __init__(self, current: bytes, changes: bytes) -> None:
        self.current, self.changes = current, changes

    def makedirs(self, path: str) -> None: ...

    def read_file(self, path: str) -> bytes:
        return self.current

    def exists(self, path: str) -> bool:
        return True

    def size(self, path: str) -> int:
        return len(self.changes)

    def open(self, path: str) -> _OneFile:
        return self

    def read(self, position: int, length: int) -> bytes:
        return self.changes[position : position + length]

    def close(self) -> None: ...


def journal(data: bytes) -> None:
    SharedTree(_OneFile(b"1", data), "/d", 1).refresh()  # type: ignore[arg-type]  # it has what is asked for


def _crash_wanted(data: bytes) -> None:
    """A test of the fuzzer itself."""
    os.abort()


def current(data: bytes) -> None:
    SharedTree(_OneFile(data, _JOURNAL[0]), "/d", 1).refresh()  # type: ignore[arg-type]  # it has what is asked for


def files() -> Iterator[Target]:
    yield Target("file", "log", [_whole(data) for data in _files_of(".log", 4000)], _each(_looked_into), sealed_batches)
    texts = [*_files_of("-checkpoint"), b"0\n1\ntopic 0 17\n", b"0\n3\na 0 17\na 1 5\nb-c.d 12 9000000000\n"]
    yield Target("file", "checkpoint of offsets", [*map(of_text, texts)], checkpoints.decode_offsets)
    texts = [b"0\n2\n0 0\n5 100\n", b"0\n0\n", *_files_of("leader-epoch-checkpoint")]
    yield Target("file", "checkpoint of leader epochs", [*map(of_text, texts)], LeaderEpochs.from_bytes)
    texts = _files_of("partition.metadata")
    yield Target("file", "partition.metadata", [*map(of_text, texts)], partition_metadata.decode)
    properties = b"#\nversion=1\ncluster.id=abcdefghijklmnopqrstuv\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAw\n"
    texts = [properties, b"version=0\nbroker.id=1\n", b"version : 1\nnode.id\t1\n!x\ncluster.id = a\\\nb\n"]
    found = [*map(of_text, texts)]
    yield Target("file", "meta.properties", found, lambda data: meta_properties.decode(data, "meta.properties"))
    found = [of_numbers("qhiqiqiq", data, "hIi") for data in _files_of(".snapshot", 1000)]
    yield Target("file", "producer snapshot", found, snapshots.decode, sealed_snapshot)
    entries = [_files_of(".txnindex")[0][:34], *_files_of(".txnindex")]
    found = [of_numbers("hqqqq", data) for data in entries]
    yield Target("file", "transaction index", found, lambda data: transaction_index.parse(data, 0))
    entries = [struct.pack(">iiii", 3, 0, 9, 4096), struct.pack(">iiii", 3, 10, 9, 20) + bytes(16), bytes(64)]
    found = [of_numbers("ii", data) for data in (*entries, *_files_of(".index", 200))]
    yield Target("file", "offset index", found, lambda data: OffsetIndex.from_bytes(data, 0, 100_000).entries())
    entries = [struct.pack(">qiqi", 3, 0, 9, 4096), struct.pack(">qiqi", 3, 1, 2**41, 2) + bytes(24), bytes(60)]
    found = [of_numbers("qi", data) for data in (*entries, *_files_of(".timeindex", 200))]
    yield Target("file", "time index", found, lambda data: TimeIndex.from_bytes(data, 0).entries())


def _looked_into(batch: Batch) -> None:
    walk_records(batch, limit_bytes=LIMIT_BYTES)
    read_records(batch, LIMIT_BYTES)


def store() -> Iterator[Target]:
    records: list[MetadataRecord] = [TopicRecord(name="t", topic_id=bytes(15) + b"\7"), FeatureLevelRecord(name="x")]
    found = [of_batch(bytes(batch_of(some, 0))) for some in (records, records[:1], records * 4)]
    yield Target("store", "metadata snapshot", found, metadata, sealed_batch)
    node = node_formats.encode_log_node(3, bytes(16), True, batch_of(records, 0))
    found = [_whole(node), of_numbers("b", node[:40])]
    yield Target("store", "node of the log", found, lambda data: node_formats.decode_log_node("/log/1", data))
    election = node_formats.encode_election(node_formats.ElectionData(1, 2, b"n"))
    yield Target("store", "election", [of_text(election)], node_formats.decode_election)
    member = node_formats.encode_member(StoreMember(1, bytes(16), "127.0.0.1", 9092))
    yield Target("store", "member", [of_text(member)], lambda data: node_formats.decode_member("/brokers/1", data))
    yield Target("store", "seat", [of_text(member), of_text(election)], node_formats.decode_seat)
    pointer = node_formats.SnapshotPointer("s", 1, 2, 3).encode()
    yield Target("store", "pointer to a snapshot", [of_text(pointer)], node_formats.SnapshotPointer.decode)
    found = [
        Shape([data[:8], data[8:12], *text.parts], [Kind.INT64, Kind.INT32, *text.kinds])
        for data in _JOURNAL
        for text in [of_text(data[12:])]
    ]
    yield Target("store", "journal of a shared directory", found, journal, sealed_frames)
    if "HEADRACE_FUZZ_CRASH" in os.environ:
        yield Target("store", "crash", [_whole(b"x")], _crash_wanted)
    yield Target("store", "current journal of a shared directory", [of_text(b"7\n"), of_text(b"0\n")], current)


class _Kept:
    """A directory and what is in it: it is so again when it was changed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = {path.name: path.read_bytes() for path in directory.iterdir()}
        self._stamps: dict[str, tuple[int, ...]] = {}

    def restore(self) -> None:
        found = {entry.name: entry for entry in os.scandir(self.directory)}
        for name in found.keys() - self.files.keys():
            os.unlink(found[name])
        for name, data in self.files.items():
            if name not in found or _stamp(found[name].stat()) != self._stamps.get(name):
                path = self.directory / name
                path.write_bytes(data)
                self._stamps[name] = _stamp(path.stat())


def _stamp(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def logs(directory: Path) -> Iterator[Target]:
    """Whole logs, of which one file is damaged: they open, or say why not; what is there can be read."""
    runtime = real_runtime()
    for kind, name in golden.ALL:
        original = directory / f"{kind}-{name}"
        golden.copy_partition(kind, name, original)
        kept = _Kept(original / name)
        names = sorted(name for name, data in kept.files.items() if data)
        for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint"):
            for file in [file for file in names if file.endswith(suffix)][:2]:

                def decode(data: bytes, kept: _Kept = kept, kind: str = kind, file: str = file) -> None:
                    kept.restore()
                    (kept.directory / file).write_bytes(data)
                    log = golden.open_log(runtime, kept.directory, kind)
                    try:
                        read_through(log)
                    finally:
                        log.close()

                seed = kept.files[file]
                reseal = sealed_batches if suffix == ".log" else sealed_snapshot if suffix == ".snapshot" else None
                yield Target("log", f"{kind} {name} {file}", [_of_file(suffix, seed)], decode, reseal)


def _of_file(suffix: str, data: bytes) -> Shape:
    layouts = {".index": ("ii", ""), ".timeindex": ("qi", ""), ".txnindex": ("hqqqq", "")}
    layouts[".snapshot"] = ("qhiqiqiq", "hIi")
    if suffix in layouts:
        return of_numbers(*layouts[suffix][:1], data, layouts[suffix][1])
    return _whole(data) if suffix == ".log" else of_text(data)


def read_through(log: golden.Log) -> None:
    offset = log.start_offset
    while offset < log.end_offset:
        found = log.locate(offset, 1 << 20, limit=log.end_offset, at_least_one=True)
        data = bytes(found.file.read(found.position, found.length))
        last = max([offset, *(batch.header().last_offset for batch in split(data))])
        if last < offset or not found.length:
            break
        offset = last + 1
    for when in (0, 1_700_000_000_000, 2**62):
        with contextlib.suppress(HeadraceError):
            log.find_by_time(when)
    with contextlib.suppress(HeadraceError):
        log.max_timestamp()


def all_targets(directory: Path | None, seed: int, only: Sequence[str] = KINDS) -> list[Target]:
    """Those of these kinds, in the same order every time; whole logs need a directory."""
    rng = random.Random(seed)
    made: dict[str, Callable[[], Iterator[Target]]] = {
        "request": lambda: requests(rng),
        "response": lambda: responses(rng),
        "stored": lambda: stored(rng),
        "batch": batches,
        "file": files,
        "store": store,
        "log": lambda: logs(directory) if directory is not None else iter(()),
    }
    return [target for kind in KINDS if kind in only for target in made[kind]()]
