"""`python -m tests.hostile.fuzz [--seconds 60] [--seed 1] [--kind KIND …]`: mutated bytes into every decoder.

Requests of every API key and version that is served; every file: logs, indexes, snapshots, checkpoints, as Apache Kafka
wrote them (tests/reference/golden); what the cluster's stores hold. Each takes what it is given or says in its own
words what is wrong with it; anything else is a finding, printed with the input that shows it. Ends with how many inputs
each kind had, and a second.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.log import golden
from tests.protocol.kio_pairs import kio_class, pair

from headrace.broker.dispatch import load_handlers
from headrace.cluster.records import FeatureLevelRecord, MetadataRecord, TopicRecord
from headrace.cluster.store import StoreMember, node_formats
from headrace.cluster.store.batches import batch_of, checked_batches, records_of
from headrace.cluster.store.directory_session import _frame, _frames, _operation
from headrace.errors import HeadraceError
from headrace.log import checkpoints, meta_properties, partition_metadata, snapshots, transaction_index
from headrace.log.offset_index import DamagedIndexError
from headrace.protocol import codec
from headrace.records import Batch, split
from headrace.records.read import read_records
from headrace.records.walk import iter_times, walk_records
from headrace.runtime import real_runtime

from .mutating import mutated, sealed_batches, sealed_frames, sealed_snapshot

KINDS = ("request", "file", "store", "log")
Decode = Callable[[bytes], object]
Reseal = Callable[[bytes], bytes]


class Target(NamedTuple):
    kind: str
    name: str
    seeds: list[bytes]
    decode: Decode
    reseal: Reseal | None = None


def requests(rng: random.Random) -> Iterator[Target]:
    for key, handler in load_handlers().items():
        for version in range(handler.low, handler.high + 1):
            cls = handler.request_class
            seeds = []
            for _ in range(3):
                try:
                    message, _other = pair(
                        cls, kio_class(handler.api_key.name.lower(), version, "request"), version, rng
                    )
                except (KeyError, ModuleNotFoundError):
                    message = cls()
                seeds.append(codec.encode(message, version))

            def decode(data: bytes, cls: type = cls, version: int = version) -> object:
                return codec.decode(cls, version, data)

            yield Target("request", f"{key} {handler.api_key.name} v{version}", seeds, decode)


def _golden(suffix: str) -> list[bytes]:
    found = [path.read_bytes() for path in sorted(golden.GOLDEN.rglob(f"*{suffix}")) if path.is_file()]
    return [data[:100_000] for data in found if data] or [b""]


def batches(data: bytes) -> None:
    for batch in split(data):
        with contextlib.suppress(HeadraceError):
            walk_records(batch, limit_bytes=1 << 22)
        with contextlib.suppress(HeadraceError):
            read_records(batch, 1 << 22)
        with contextlib.suppress(HeadraceError):
            list(iter_times(batch, 1 << 22))


def metadata(data: bytes) -> None:
    for batch in checked_batches(data, "snapshot"):
        list(records_of(batch, "snapshot"))


def journal(data: bytes) -> None:
    for meta, blobs, _ in _frames(data):
        for row in meta.get("operations") or []:
            _operation(row, blobs)


def files() -> Iterator[Target]:
    records: list[MetadataRecord] = [TopicRecord(name="t", topic_id=bytes(15) + b"\7"), FeatureLevelRecord(name="x")]
    member = StoreMember(1, bytes(16), "127.0.0.1", 9092)
    checkpoint = [*_golden("-checkpoint"), b"0\n1\ntopic 0 17\n"]
    yield Target("file", "a log's batches", _golden(".log"), batches, sealed_batches)
    yield Target("file", "checkpoint of offsets", checkpoint, checkpoints.decode_offsets)
    yield Target("file", "partition.metadata", _golden("partition.metadata"), partition_metadata.decode)
    properties = b"#\nversion=1\ncluster.id=abcdefghijklmnopqrstuv\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAw\n"
    yield Target("file", "meta.properties", [properties], lambda data: meta_properties.decode(data, "meta.properties"))
    yield Target("file", "producer snapshot", _golden(".snapshot"), snapshots.decode, sealed_snapshot)
    yield Target("file", "transaction index", _golden(".txnindex"), lambda data: transaction_index.parse(data, 0))
    yield Target("store", "metadata snapshot", [bytes(batch_of(records, 0))], metadata, sealed_batches)
    node = node_formats.encode_log_node(3, bytes(16), True, batch_of(records, 0))
    yield Target("store", "node of the log", [node], lambda data: node_formats.decode_log_node("/log/1", data))
    election = node_formats.encode_election(node_formats.ElectionData(1, 2, b"n"))
    yield Target("store", "election", [election], node_formats.decode_election)
    members = [node_formats.encode_member(member)]
    yield Target("store", "member", members, lambda data: node_formats.decode_member("/brokers/1", data))
    pointer = node_formats.SnapshotPointer("s", 1, 2, 3).encode()
    yield Target("store", "pointer to a snapshot", [pointer], node_formats.SnapshotPointer.decode)
    row = ["create", "/a", 3, False, None]
    yield Target(
        "store", "journal of a shared directory", [_frame({"operations": [row]}, [b"abc"])], journal, sealed_frames
    )


def logs(directory: Path) -> Iterator[Target]:
    """Whole logs, of which one file is damaged: they open, or say why not; what is there can be read."""
    runtime = real_runtime()
    numbers = itertools.count()
    for kind, name in golden.ALL:
        original = directory / f"{kind}-{name}"
        golden.copy_partition(kind, name, original)
        names = sorted(path.name for path in (original / name).iterdir() if path.stat().st_size)
        for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint"):
            for file in [file for file in names if file.endswith(suffix)][:2]:

                def decode(
                    data: bytes, original: Path = original, kind: str = kind, name: str = name, file: str = file
                ) -> None:
                    copy = directory / f"{next(numbers)}"
                    shutil.copytree(original, copy)
                    try:
                        (copy / name / file).write_bytes(data)
                        log = golden.open_log(runtime, copy / name, kind)
                        try:
                            read_through(log)
                        finally:
                            log.close()
                    finally:
                        shutil.rmtree(copy)

                seed = (original / name / file).read_bytes()
                reseal = sealed_batches if suffix == ".log" else sealed_snapshot if suffix == ".snapshot" else None
                yield Target("log", f"{kind} {name} {suffix}", [seed], decode, reseal)


def read_through(log: golden.Log) -> None:
    offset = log.start_offset
    while offset < log.end_offset:
        found = log.locate(offset, 1 << 20, limit=log.end_offset, at_least_one=True)
        data = bytes(found.file.read(found.position, found.length))
        last = offset
        for batch in split(data):
            last = max(
                last, Batch(batch).header().last_offset if not isinstance(batch, Batch) else batch.header().last_offset
            )
        if last < offset or not found.length:
            break
        offset = last + 1
    for when in (0, 1_700_000_000_000, 2**62):
        with contextlib.suppress(HeadraceError):
            log.find_by_time(when)
    with contextlib.suppress(HeadraceError):
        log.max_timestamp()


class Finding(NamedTuple):
    target: Target
    data: bytes
    error: BaseException


def tried(target: Target, rng: random.Random) -> Finding | None:
    data = mutated(rng.choice(target.seeds), rng)
    if target.reseal is not None and rng.random() < 0.7:
        data = target.reseal(data)
    try:
        target.decode(data)
    except (HeadraceError, DamagedIndexError):
        return None
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return Finding(target, data, error)
    return None


def all_targets(directory: Path, rng: random.Random) -> dict[str, list[Target]]:
    found: dict[str, list[Target]] = {}
    for target in itertools.chain(requests(rng), files(), logs(directory)):
        found.setdefault(target.kind, []).append(target)
    return found


def run(
    seconds: float, seed: int, per_target: int | None = None, only: Sequence[str] = KINDS
) -> tuple[Counter[str], list[Finding]]:
    """Every target in turn, each kind for as long as the others, until the time is over."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    findings: dict[str, Finding] = {}
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=base) as directory:
        kinds = all_targets(Path(directory), rng)
        end = time.monotonic() + seconds
        rounds = 0
        with contextlib.suppress(KeyboardInterrupt):  # what was tried until then counts
            while time.monotonic() < end and (per_target is None or rounds < per_target):
                rounds += 1
                for kind, targets in ((kind, targets) for kind, targets in kinds.items() if kind in only):
                    began = time.monotonic()
                    for target in itertools.islice(itertools.cycle(targets), max(len(targets), 200)):
                        finding = tried(target, rng)
                        counts[f"{kind}: {target.name}"] += 1
                        if finding is not None:
                            findings.setdefault(f"{target.kind} {target.name} {type(finding.error).__name__}", finding)
                        if time.monotonic() - began > max(1.0, seconds / 40):
                            rng.shuffle(targets)  # the others next time
                            break
    return counts, list(findings.values())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--kind", choices=KINDS, action="append", help="whole logs take a hundred times as long as others"
    )
    options = parser.parse_args()
    began = time.monotonic()
    kinds = options.kind or KINDS
    counts, findings = run(options.seconds, options.seed, only=kinds)
    took = time.monotonic() - began
    for kind in kinds:
        of_kind = {name: count for name, count in counts.items() if name.startswith(f"{kind}:")}
        print(
            f"{kind}: {len(of_kind)} decoders, {sum(of_kind.values())} inputs, {min(of_kind.values())} at least of each"
        )
    total = sum(counts.values())
    print(f"{total} inputs in {took:.0f} s, {total / took:.0f} a second; {len(findings)} findings")
    for target, data, error in findings:
        print(f"  {target.kind} {target.name}: {error!r:.300}\n    {data[:300].hex()}")
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
