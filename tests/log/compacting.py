"""Compacted logs with random content over a simulated disk, compacted step by step, and read as consumers read them."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable
from typing import Any

from tests.log.making import append_one

from headrace.log import Caches, Log, LogConfig, Origin
from headrace.log.cleaner import Cleaner, CleanReport
from headrace.log.compaction_job import CleaningLimits
from headrace.records import Batch, Codec, ControlType, Record, build_batch, control_batch, read_control, split
from headrace.records.read import read_records
from headrace.runtime import Runtime
from headrace.runtime.simulated import Host, simulated_host
from headrace.topics import TopicPartition

PARTITION = TopicPartition("c", 0)
DIRECTORY = "/data/c-0"
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
FOREVER_MS = 2**62

COMPACT = LogConfig(
    compact=True, delete=False, segment_bytes=2_000, index_interval_bytes=200, min_cleanable_dirty_ratio=0
)


class _Pool:
    """Does the work at once: a test that crashes at each operation wants no order but one."""

    def submit(self, fn: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        try:
            future.set_result(fn(*args))
        except BaseException as error:  # noqa: BLE001 - the waiter's, as on a thread
            future.set_exception(error)
        return future

    offload = submit

    def pool(self, name: str, threads: int, *, queued_max: int = 10_000) -> _Pool:
        return self

    async def close(self) -> None:
        return


class FixedClock:
    """Stands where it is put."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


def inline_runtime(runtime: Runtime, clock: FixedClock) -> Runtime:
    return dataclasses.replace(runtime, workers=_Pool(), clock=clock)


class Table:
    """A compacted log, and a clock that the test moves."""

    def __init__(self, seed: int = 1, config: LogConfig = COMPACT, host: Host | None = None) -> None:
        self.host = host or simulated_host(seed)
        self.clock = FixedClock()
        self.config = config
        self.limits = CleaningLimits()
        self.boot()

    def boot(self, *, clean: bool = False, recovery_point: int = 0, start_offset: int = 0) -> None:
        """Open the log, as after a start of the broker."""
        self.runtime = inline_runtime(self.host.runtime, self.clock)
        self.log = Log.open(
            self.runtime,
            DIRECTORY,
            PARTITION,
            self.config,
            clean=clean,
            recovery_point=recovery_point,
            start_offset=start_offset,
            producer_expiration_ms=FOREVER_MS,
            caches=Caches(self.runtime.disk, open_files_max=4),
        )
        self.log.update_high_watermark(self.log.end_offset)
        self.cleaner = Cleaner(self.runtime, self.limits)

    def reboot(self) -> None:
        self.log.close()
        self.boot(clean=True)

    def append(self, batch: bytearray, origin: Origin = Origin.CLIENT) -> int:
        appended = append_one(self.log, batch, leader_epoch=0, origin=origin, now_ms=self.clock.ms)
        self.log.update_high_watermark(self.log.end_offset)
        return appended.base_offset

    def put(self, *pairs: tuple[bytes | None, bytes | None], **options: Any) -> int:
        """One batch."""
        records = [(self.clock.ms, key, value, []) for key, value in pairs]
        return self.append(build_batch(records, **options))

    def end(self, producer_id: int, *, commit: bool, epoch: int = 0) -> int:
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        marker = control_batch(
            kind, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0, timestamp=self.clock.ms
        )
        return self.append(marker, Origin.COORDINATOR)

    def clean(self) -> CleanReport | None:
        """Compact what is due, once."""
        return asyncio.run(self.cleaner.clean_once([self.log]))

    def roll_and_clean(self) -> CleanReport | None:
        self.log.roll()
        return self.clean()

    def files(self, suffix: str) -> list[str]:
        return [name for name in self.host.disk.listdir(DIRECTORY) if name.endswith(suffix)]


def batches_of(log: Log) -> list[Batch]:
    """Every batch from the log's start on, as fetches give them."""
    batches: list[Batch] = []
    offset = log.start_offset
    while offset < log.end_offset:
        found = log.locate(offset, 1_000_000, limit=log.end_offset, at_least_one=True)
        if not found.length:
            break
        batches += split(found.file.read(found.position, found.length))
        offset = batches[-1].next_offset
    return batches


def consume(log: Log, *, committed: bool) -> list[Record]:
    """The data records that a consumer sees from the log's start on, by the rules that consumers follow."""
    records: list[Record] = []
    offset = log.start_offset
    limit = log.last_stable_offset if committed else log.high_watermark
    while offset < limit:
        found = log.locate(offset, 700, limit=limit, at_least_one=True)
        if not found.length:
            break
        waiting = sorted(log.aborted_transactions(offset, found), key=lambda entry: entry.first_offset)
        aborted: set[int] = set()
        for batch in split(found.file.read(found.position, found.length)):
            header = batch.header()
            while committed and waiting and waiting[0].first_offset <= header.last_offset:
                aborted.add(waiting.pop(0).producer_id)
            if header.is_control:
                if header.count > 0 and read_control(read_records(batch)[0]).control_type == 0:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                records += [record for record in read_records(batch) if record.offset >= offset]
            offset = max(offset, header.next_offset)
    return records


def newest(records: list[Record]) -> dict[bytes, Record]:
    """The last record of each key; a key whose last value is null is deleted."""
    latest = {record.key: record for record in records if record.key is not None}
    return {key: record for key, record in latest.items() if record.value is not None}


class RandomWriter:
    """Writes what several producers might: plain, idempotent and transactional batches, some of them aborted."""

    def __init__(self, table: Table, seed: int) -> None:
        self.table = table
        self.rng = random.Random(seed)
        self.keys = [b"k%d" % n for n in range(self.rng.randint(2, 12))]
        self.keys += [b"long key " + bytes(40) + b"%d" % n for n in range(self.rng.randint(0, 3))]
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.open: set[int] = set()

    def write(self, steps: int) -> None:
        for _ in range(steps):
            self.table.clock.ms += self.rng.randint(0, 2_000)
            choice = self.rng.random()
            if choice < 0.1 and self.open:
                self.end_one()
            elif choice < 0.13:
                self.table.log.roll()
            else:
                self.write_batch()

    def end_one(self) -> None:
        producer_id = self.rng.choice(sorted(self.open))
        self.open.discard(producer_id)
        self.table.end(producer_id, commit=self.rng.random() < 0.6, epoch=self.epochs.get(producer_id, 0))

    def end_all(self) -> None:
        while self.open:
            self.end_one()

    def write_batch(self) -> None:
        rng = self.rng
        pairs = [
            (rng.choice(self.keys), None if rng.random() < 0.15 else rng.randbytes(rng.choice([1, 20, 200])))
            for _ in range(rng.choice([1, 1, 2, 5]))
        ]
        options: dict[str, Any] = {"codec": rng.choice([Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD])}
        producer_id = rng.choice([-1, -1, 1, 2, 11, 12])
        if producer_id > 0:
            if producer_id not in self.open and rng.random() < 0.05:
                self.epochs[producer_id] = self.epochs.get(producer_id, 0) + 1
                self.sequences[producer_id] = 0
            sequence = self.sequences.get(producer_id, 0)
            self.sequences[producer_id] = sequence + len(pairs)
            options.update(
                producer_id=producer_id, producer_epoch=self.epochs.get(producer_id, 0), base_sequence=sequence
            )
            if producer_id > 10:
                options["transactional"] = True
                self.open.add(producer_id)
        self.table.put(*pairs, **options)


def pairs(table: Table) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in consume(table.log, committed=False)]
