"""Random work on a log over a simulated disk, a power loss somewhere in it, and what must hold afterwards."""

from __future__ import annotations

import contextlib
import random

from tests.log.making import append_one

from headrace.log import Caches, Log, LogConfig, Origin
from headrace.records import BatchHeader, Codec, ControlType, build_batch, control_batch, split
from headrace.records.batch import HEADER_BYTES
from headrace.runtime.simulated import CrashModel, Host, SimulatedCrash, simulated_host
from headrace.topics import TopicPartition

PARTITION = TopicPartition("t", 0)
DIRECTORY = "/data/t-0"
NOW_MS = 1_700_000_000_000


class Powered:
    """A world on one machine, whose power may go."""

    host: Host
    model: CrashModel

    def lose_power_after(self, operations: int) -> None:
        """Let the disk die at the operation after so many more. What was not synced is then lost by `crash`."""
        self.host.disk.on_crash = None
        self.host.disk.crash_after(operations)

    def crash(self) -> None:
        self.host.kill(power_loss=True, model=self.model)
        self.host.restart()


class World(Powered):
    """One log, what was written to it, and how far that was promised to last."""

    def __init__(self, seed: int, *, synced_acks: bool) -> None:
        self.rng = random.Random(seed)
        self.host = simulated_host(seed)
        self.config = LogConfig(
            segment_bytes=self.rng.choice([6_000, 12_000, 40_000]),
            index_interval_bytes=self.rng.choice([0, 200, 4096]),
            flush_messages=1 if synced_acks else 2**63 - 1,
        )
        self.model = self.rng.choice([CrashModel.HARSH, CrashModel.ORDERED])
        self.batches: list[bytes] = []
        self.promised = 0
        self.recovery_point = 0
        self.sequences: dict[int, int] = {}
        self.open_transactions: set[int] = set()
        self.log: Log | None = None

    def open(self, *, clean: bool = False) -> Log:
        runtime = self.host.runtime
        self.log = Log.open(
            runtime,
            DIRECTORY,
            PARTITION,
            self.config,
            recovery_point=self.recovery_point,
            clean=clean,
            producer_expiration_ms=2**62,
            caches=Caches(runtime.disk, open_files_max=self.rng.choice([1, 2, 64])),
        )
        return self.log

    # ---- work ----------------------------------------------------------------------------------------------------

    def work(self, steps: int) -> None:
        for _ in range(steps):
            assert self.log is not None
            choice = self.rng.random()
            if choice < 0.80:
                self._append()
            elif choice < 0.88:
                self._end_transaction()
            elif choice < 0.94:
                self.log.sync()
                self._promise()
            else:
                # A broker writes the recovery point down from time to time.
                self.recovery_point = self.log.recovery_point

    def _append(self) -> None:
        assert self.log is not None
        count = self.rng.randint(1, 5)
        producer = self.rng.choice([-1, 1, 2, 3])
        records = [
            (NOW_MS + self.rng.randint(0, 1000), b"k", self.rng.randbytes(self.rng.choice([1, 50, 900])), [])
            for _ in range(count)
        ]
        codec = self.rng.choice([Codec.NONE, Codec.GZIP])
        if producer < 0:
            batch = build_batch(records, codec=codec)
        else:
            sequence = self.sequences.get(producer, 0)
            transactional = producer == 3
            batch = build_batch(
                records,
                codec=codec,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=transactional,
            )
            self.sequences[producer] = sequence + count
            if transactional:
                self.open_transactions.add(producer)
        # Before the append: a crash inside it may or may not leave the batch.
        self.batches.append(bytes(batch))
        appended = append_one(self.log, batch, leader_epoch=0, now_ms=NOW_MS)
        self.batches[-1] = bytes(batch)
        if appended.sync_due:
            self.log.sync()
            self._promise()

    def _end_transaction(self) -> None:
        assert self.log is not None
        if not self.open_transactions:
            return
        producer = self.open_transactions.pop()
        kind = self.rng.choice([ControlType.COMMIT, ControlType.ABORT])
        marker = control_batch(kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=NOW_MS)
        self.batches.append(bytes(marker))
        append_one(self.log, marker, leader_epoch=0, origin=Origin.COORDINATOR, now_ms=NOW_MS)
        self.batches[-1] = bytes(marker)

    def _promise(self) -> None:
        assert self.log is not None
        self.promised = self.log.end_offset

    def check(self) -> None:
        """The log is a prefix of what was written, with all that was promised, and its state is that of its batches."""
        assert self.log is not None
        log = self.log
        kept = stored(log)
        assert len(kept) <= len(self.batches)
        for at, (ours, theirs) in enumerate(zip(kept, self.batches)):
            if at == len(self.batches) - 1:
                # The batch under way when the power went: its offset was given, the test did not learn of it.
                assert ours[HEADER_BYTES:] == theirs[HEADER_BYTES:]
            else:
                assert ours == theirs, f"batch {at} of {len(kept)} differs"
        assert log.end_offset >= self.promised, f"lost offsets {log.end_offset}..{self.promised}: {log.recovery}"
        self._check_state(kept)

    def _check_state(self, kept: list[bytes]) -> None:
        """Continue the story from what was kept: sequences, open transactions, end offset."""
        assert self.log is not None
        sequences: dict[int, int] = {}
        in_transaction: set[int] = set()
        end = 0
        for data in kept:
            header = next(iter(split(data))).header()
            end = header.next_offset
            _follow(header, sequences, in_transaction)
        assert self.log.end_offset == end
        for producer_id, next_sequence in sequences.items():
            assert self.log.producers.producers[producer_id].last_sequence == next_sequence - 1
        open_now = {p.producer_id for p in self.log.producers.producers.values() if p.in_transaction}
        assert open_now == in_transaction
        self.batches, self.sequences, self.open_transactions = kept, sequences, in_transaction
        self.promised = min(self.promised, end)


def _follow(header: BatchHeader, sequences: dict[int, int], in_transaction: set[int]) -> None:
    if header.producer_id < 0:
        return
    if header.is_control:
        in_transaction.discard(header.producer_id)
        return
    sequences[header.producer_id] = header.base_sequence + header.count
    if header.is_transactional:
        in_transaction.add(header.producer_id)


def stored(log: Log) -> list[bytes]:
    """Every batch that the log gives to a reader."""
    batches: list[bytes] = []
    offset = log.start_offset
    while offset < log.end_offset:
        found = log.locate(offset, 1 << 20, limit=log.end_offset, at_least_one=True)
        whole = list(split(found.file.read(found.position, found.length)))
        assert whole, f"nothing at offset {offset} of {log}"
        batches.extend(bytes(batch.buffer) for batch in whole)
        offset = whole[-1].next_offset
    return batches


def run_seed(seed: int) -> None:
    """Three lives of one log: each works, loses power at a random moment (also while recovering), and is checked."""
    world = World(seed, synced_acks=seed % 2 == 0)
    rng = world.rng
    world.open()
    for _ in range(3):
        world.lose_power_after(rng.randint(0, 300))
        with contextlib.suppress(SimulatedCrash):
            world.work(rng.randint(1, 60))
        world.crash()
        for _ in range(rng.choice([0, 0, 1, 2])):
            world.lose_power_after(rng.randint(0, 20))
            with contextlib.suppress(SimulatedCrash):
                world.open()
            world.crash()
        world.open()
        world.check()
