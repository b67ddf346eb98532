"""A served log under a seed, its loop and its disk threads interleaved: `python -m tests.log.interleaved 1000 [first]`.

Producers, transactions, readers of both isolations, syncs, retention, compaction, lost indexes and new leader epochs at
once; the thread that runs is exchanged between lines, or between instructions, of the log. Sometimes the power is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tests.log.making import append_one

os.environ.setdefault("HEADRACE_CHECK_OWNERS", "1")  # when it is run as a command

from headrace.broker.partitions.leadership import Isolation, Leadership
from headrace.broker.partitions.partition import Partition
from headrace.errors import InvalidTxnStateError, NotLeaderOrFollowerError, OffsetOutOfRangeError
from headrace.log import Appended, Caches, Checked, Log, LogConfig, Origin, Outcome, Slice, WouldBlockError
from headrace.log.cleaner import Cleaner
from headrace.log.segment import OFFSET_INDEX, TIME_INDEX
from headrace.log.transaction_index import AbortedTransaction
from headrace.records import BatchHeader, ControlType, build_batch, control_batch, read_records, split
from headrace.runtime import DirectoryWriter, DiskError, FileMissingError
from headrace.runtime.simulated import CrashModel, HostDiedError, Interleaving, Simulation, WorkModel, run_simulation
from headrace.topics import TopicPartition

PARTITION = TopicPartition("t", 0)
DIRECTORY = "/data/t-0"
TRACED = tuple(
    f"headrace/log/{name}.py"
    for name in (
        "appending",
        "log",
        "runs",
        "state",
        "view",
        "reading",
        "segment",
        "producer_loading",
        "producer_state",
        "log_files",
        "leader_epochs",
        "offset_index",
        "time_index",
        "files",
    )
)
T = TypeVar("T")


class WrongLogError(AssertionError):
    """The log broke a promise."""


class World:
    """One log, what it promised to those who wrote, and what it told those who read."""

    def __init__(self, simulation: Simulation) -> None:
        rng = self.rng = simulation.rng
        self.simulation = simulation
        self.host = simulation.host()
        self.compacts = rng.random() < 0.25
        self.synced_acks = rng.random() < 0.5
        self.config = LogConfig(
            segment_bytes=rng.choice([900, 1_200, 2_500]),
            index_interval_bytes=rng.choice([0, 200]),
            flush_messages=1 if self.synced_acks else 2**63 - 1,
            retention_bytes=rng.choice([-1, 800, 2_000]),
            file_delete_delay_ms=rng.choice([0, 0, 60_000]),
            compact=self.compacts,
            delete=not self.compacts,
            min_cleanable_dirty_ratio=0.01,
        )
        self.values: dict[int, bytes] = {}
        self.acknowledged: dict[int, bytes] = {}
        self.durable: set[int] = set()
        self.outcomes: dict[bytes, bool | None] = {}
        self.count = 0
        self.recovery_point = self.start_checkpoint = self.start_offset = 0
        self.over = False
        self.pause_s = rng.choice([0.0003, 0.004])
        self.sync_pause = rng.choice([0.5, 3.0, 20.0])
        # One kind of care is taken more often than the others, each in its seeds.
        self.kinds = ("retain", "delete", "purge", "roll", "compact", "epoch", "checkpoint")
        self.favourite = rng.choice(self.kinds)
        self.open(clean=True)
        if rng.random() < 0.6:
            self._earlier_life()

    def open(self, *, clean: bool = False) -> None:
        rng, runtime = self.rng, self.host.runtime
        caches = Caches(runtime.disk, open_files_max=rng.choice([6, 64]), index_bytes_max=rng.choice([1, 1 << 20]))
        self.log = log = Log.open(
            runtime,
            DIRECTORY,
            PARTITION,
            self.config,
            clean=clean,
            recovery_point=self.recovery_point,
            start_offset=self.start_checkpoint,
            producer_expiration_ms=2**62,
            caches=caches,
        )
        assert self.simulation.interleaver is not None
        self.simulation.interleaver.locks = lambda: (caches.files._lock, caches.indexes._lock, log.producers._lock)

    def _earlier_life(self) -> None:
        """Segments that were ended by another process: nothing of them is in memory."""
        log = self.log
        for transaction in range(self.rng.randint(3, 9)):
            commit = self.rng.random() < 0.3
            name = f"5-{transaction}"
            self.outcomes[name.encode()] = commit
            value = self._value(name)
            batch = build_batch([(self.host.clock.now_ms(), b"key-0", value, [])], **_in_transaction(5, transaction))
            appended = append_one(log, batch, leader_epoch=0)
            self.acknowledged[appended.base_offset] = self.values[appended.base_offset] = value
            append_one(log, self._marker(5, commit), leader_epoch=0, origin=Origin.COORDINATOR)
            if self.rng.random() < 0.7:
                log.roll()
        log.close()
        self.durable = set(self.acknowledged)
        self.recovery_point = log.end_offset
        self.open(clean=True)
        self.log.update_high_watermark(self.log.end_offset)

    async def serve(self) -> None:
        """All who use the log at once, until the producers are through."""
        rng = self.rng
        self.writer = DirectoryWriter(self.host.runtime, "/data")
        self.partition = Partition(1, PARTITION, self.log, self.writer, Leadership(1, 0, [1], [1]))
        self.cleaner = Cleaner(self.host.runtime, change=self._change, sync=lambda log: self.partition.turns.sync())
        busy = [self._produce(number) for number in (1, 2)]
        busy += [self._transact(number) for number in (3, 4)]
        around = [self._read(isolation) for isolation in Isolation for _ in range(rng.randint(1, 2))]
        around += [self._tend(), self._disturb(), self._sync()]
        others = [asyncio.ensure_future(work) for work in around]
        await asyncio.gather(*busy)
        await asyncio.sleep(0.01)
        self.over = True
        await asyncio.gather(*others)
        await self.partition.turns.sync()
        await self.partition.turns.idle()
        await self.writer.close()

    async def _nap(self, times: float = 1.0) -> None:
        await asyncio.sleep(self.rng.uniform(0, times * self.pause_s))

    # ---- those who write -----------------------------------------------------------------------------------------

    def _value(self, name: str) -> bytes:
        self.count += 1
        return f"{name}:{self.count}:".encode() + b"x" * self.rng.choice([0, 40, 200])

    async def _append(self, values: list[bytes], *, once: bool = False, **options: Any) -> Appended:
        keys = [b"key-%d" % self.rng.randrange(6) for _ in values]
        now_ms = self.host.clock.now_ms()
        batch = build_batch([(now_ms, key, value, []) for key, value in zip(keys, values)], **options)

        def ask() -> Appended | Awaitable[Appended]:
            return self.partition.append(batch, verification=self._guard(options))

        appended = await self._wait(ask()) if once else await self._accepted(ask)
        self._was_acknowledged(values, appended.base_offset)
        return appended

    async def _append_together(self, several: list[list[bytes]]) -> None:
        """As a turn of the loop does with small requests, the bytes of which are used for others afterwards."""
        now_ms = self.host.clock.now_ms()
        batches = [memoryview(build_batch([(now_ms, b"key-0", value, []) for value in values])) for values in several]

        def ask() -> list[Outcome] | Awaitable[list[Outcome]]:
            checked = self.log.check_each([memoryview(bytearray(batch)) for batch in batches])
            good = [one for one in checked if isinstance(one, Checked)]
            assert len(good) == len(batches)
            outcomes = self.partition.append_all(good, are_borrowed=True)
            for one in good:
                one.view[:] = bytes(len(one.view))
            return outcomes

        for values, appended in zip(several, await self._accepted(ask), strict=True):
            assert isinstance(appended, Appended), appended
            self._was_acknowledged(values, appended.base_offset)

    def _was_acknowledged(self, values: list[bytes], base_offset: int) -> None:
        for offset, value in enumerate(values, base_offset):
            if offset in self.acknowledged:
                raise WrongLogError(
                    f"offset {offset} was given to {value!r}, and before to {self.acknowledged[offset]!r}"
                )
            self._saw(offset, value)
            self.acknowledged[offset] = value
            if self.synced_acks:
                self.durable.add(offset)

    def _guard(self, options: dict[str, Any]) -> Any:
        """As the broker does it; here the coordinator always agrees."""
        if not options.get("transactional"):
            return None
        return self.log.start_verification(options["producer_id"], options["base_sequence"], options["producer_epoch"])

    async def _accepted(self, ask: Callable[[], T | Awaitable[T]]) -> T:
        """What waited for its turn while a new leader epoch began was not written, and is asked for again."""
        while True:
            with contextlib.suppress(NotLeaderOrFollowerError):
                return await self._wait(ask())

    async def _wait(self, result: T | Awaitable[T]) -> T:
        if isinstance(result, Awaitable):
            done: T = await result
            return done
        return result

    async def _produce(self, number: int) -> None:
        sequence = 0
        for _ in range(self.rng.randint(2, 7)):
            if number == 1 and self.rng.random() < 0.3:
                several = [[self._value("plain")] for _ in range(self.rng.randint(2, 9))]
                await self._append_together(several)
                continue
            under_way = []
            for _ in range(self.rng.choice([1, 1, 6]) if number == 1 else 1):
                count = self.rng.randint(1, 3)
                options: dict[str, Any] = {}
                if number == 2:
                    options = {"producer_id": number, "producer_epoch": 0, "base_sequence": sequence}
                    sequence += count
                under_way.append(self._append([self._value("plain") for _ in range(count)], **options))
            await asyncio.gather(*under_way)
            await self._nap()

    async def _transact(self, number: int) -> None:
        sequence = 0
        for transaction in range(self.rng.randint(1, 4)):
            name = f"{number}-{transaction}"
            self.outcomes[name.encode()] = None
            for _ in range(self.rng.randint(1, 3)):
                await self._append([self._value(name)], **_in_transaction(number, sequence))
                sequence += 1
                await self._nap()
            commit = self.rng.random() < 0.5
            self.outcomes[name.encode()] = commit
            ending = self.partition.append(self._marker(number, commit), origin=Origin.COORDINATOR)
            late = None
            if self.rng.random() < 0.3 and isinstance(ending, Awaitable):
                late = await self._late(number, sequence, name)
                sequence += late is not None
            try:
                end = await self._wait(ending)
                if late is not None and late.base_offset > end.base_offset:
                    raise WrongLogError(
                        f"a batch was accepted at offset {late.base_offset}, behind its transaction's end"
                    )
            except NotLeaderOrFollowerError:
                # So the late one was in time.
                await self._accepted(
                    lambda commit=commit: self.partition.append(  # type: ignore[misc]  # binds this turn's
                        self._marker(number, commit), origin=Origin.COORDINATOR
                    )
                )
            await self._nap()

    def _marker(self, number: int, commit: bool) -> bytearray:
        return control_batch(
            ControlType.COMMIT if commit else ControlType.ABORT,
            producer_id=number,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=self.host.clock.now_ms(),
        )

    async def _late(self, number: int, sequence: int, name: str) -> Appended | None:
        """A batch of the transaction that arrives when its end is already on the way: to be refused."""
        if self.log.start_verification(number, sequence, 0) is not None:
            return None  # the coordinator would be asked, and knows that the transaction has ended
        try:
            return await self._append([self._value(name)], once=True, **_in_transaction(number, sequence))
        except (InvalidTxnStateError, NotLeaderOrFollowerError):
            # When it is sent again, the coordinator is asked.
            return None

    # ---- those who look after the log ----------------------------------------------------------------------------

    async def _change(self, log: Log, change: Callable[[], None]) -> None:
        await self.partition.turns.change_log(lambda _: change())

    async def _tend(self) -> None:
        rng = self.rng
        epoch = 0
        while not self.over:
            kind = self.favourite if rng.random() < 0.4 else rng.choice(self.kinds)
            if kind == "retain":
                await self.partition.turns.change_log(_retain, self.host.clock.now_ms())
            elif kind == "delete" and not self.compacts:
                await self.partition.turns.change_log(Log.delete_records, rng.randint(0, self.log.high_watermark))
            elif kind == "purge" and not self.compacts:
                await self.partition.turns.change_log(_purge, self.host.clock.now_ms())
            elif kind == "roll":
                await self.partition.turns.change_log(Log.roll)
            elif kind == "compact" and self.compacts:
                await self.cleaner.clean_once([self.log])
            elif kind == "epoch":
                epoch += 1
                self.partition.lead(Leadership(1, epoch, [1], [1]))
            elif kind == "checkpoint":
                self.recovery_point = self.log.recovery_point
                self.start_checkpoint = self.log.start_offset
            await self._nap()

    async def _disturb(self) -> None:
        """Index files get lost, and memory is given back."""
        disk = self.host.disk
        while not self.over:
            segment = self.rng.choice(self.log.segments)
            if not segment.active and not segment.discarded:
                for kind in (OFFSET_INDEX, TIME_INDEX):
                    with contextlib.suppress(FileMissingError):
                        disk.remove(segment.path(kind))
                segment.unload_indexes()
            await self._nap(3.0)

    async def _sync(self) -> None:
        while not self.over:
            written = set(self.acknowledged)
            await self.partition.turns.sync()
            self.durable |= written
            await self._nap(self.sync_pause)

    # ---- those who read ------------------------------------------------------------------------------------------

    async def _read(self, isolation: Isolation) -> None:
        offset = 0
        while not self.over:
            if self.rng.random() < 0.2:
                offset = self.log.start_offset
            try:
                offset = await self._fetch(offset, isolation)
            except OffsetOutOfRangeError:
                offset = self.log.start_offset
            except DiskError as error:
                # Its files are gone for good when `file.delete.delay.ms` is over.
                if self.log.failure is not None or not isinstance(error, FileMissingError):
                    raise WrongLogError(f"a read failed: {error}") from error
                if offset >= self.log.start_offset and not self.compacts:
                    raise WrongLogError(f"offset {offset} is in the log, but its file is gone") from error
            await self._nap(0.5)

    async def _fetch(self, offset: int, isolation: Isolation) -> int:
        max_bytes = self.rng.choice([1, 500, 1 << 20])
        found = await self._nowait_or_off(lambda nowait: self._locate(offset, max_bytes, isolation, nowait))
        if self.rng.random() < 0.5:
            await self._nap(4.0)
        aborted: list[AbortedTransaction] = []
        if isolation is Isolation.READ_COMMITTED:
            log = self.log
            aborted = await self._nowait_or_off(lambda nowait: log.aborted_transactions(offset, found, nowait=nowait))
        if not found.length:
            return offset
        data = await self.host.runtime.offload(found.file.read, found.position, found.length)
        return self._check_read(offset, data, isolation, aborted)

    def _locate(self, offset: int, max_bytes: int, isolation: Isolation, nowait: bool) -> Slice:
        limit = self.partition.end_for(isolation)
        return self.log.locate(offset, max_bytes, limit=limit, at_least_one=True, nowait=nowait)

    async def _nowait_or_off(self, look: Callable[[bool], T]) -> T:
        if self.rng.random() < 0.5:
            with contextlib.suppress(WouldBlockError):
                return look(True)
        return await self.host.runtime.offload(look, False)

    def _check_read(self, offset: int, data: bytes, isolation: Isolation, aborted: list[AbortedTransaction]) -> int:
        end = self.partition.end_for(isolation)
        left = sorted((entry.first_offset, entry.producer_id) for entry in aborted)
        skipped: set[int] = set()
        is_first = True
        for batch in split(data):
            header = batch.header()
            if header.next_offset <= offset and is_first:
                continue  # what a reader gets before where it asked
            follows = header.base_offset <= offset if is_first else header.base_offset == offset
            if not follows and not self.compacts:
                raise WrongLogError(f"a reader at offset {offset} was given {header.base_offset}..{header.last_offset}")
            is_first = False
            if header.next_offset > end:
                raise WrongLogError(f"{isolation.name} read offset {header.last_offset}, but may only read up to {end}")
            while left and left[0][0] < header.next_offset:
                skipped.add(left.pop(0)[1])
            if header.is_control:
                skipped.discard(header.producer_id)
            else:
                self._check_records(batch, header, isolation, header.producer_id in skipped)
            offset = header.next_offset
        return offset

    def _check_records(self, batch: Any, header: BatchHeader, isolation: Isolation, is_skipped: bool) -> None:
        for record in read_records(batch):
            value = bytes(record.value)
            self._saw(record.offset, value)
            if self.synced_acks:
                self.durable.add(record.offset)  # nobody sees what may be lost
            if not header.is_transactional or isolation is Isolation.READ_UNCOMMITTED or is_skipped:
                continue
            outcome = self.outcomes[value.split(b":")[0]]
            if outcome is not True:
                is_what = "aborted" if outcome is False else "open"
                raise WrongLogError(f"READ_COMMITTED was given {value!r} at offset {record.offset}, which is {is_what}")

    def _saw(self, offset: int, value: bytes) -> None:
        if self.values.setdefault(offset, value) != value:
            raise WrongLogError(f"offset {offset} has {value!r} and had {self.values[offset]!r}")

    # ---- in the end ----------------------------------------------------------------------------------------------

    def check(self, *, after_crash: bool) -> None:
        log = self.log
        found: dict[int, bytes] = {}
        offset, expected = log.start_offset, log.start_offset
        while offset < log.end_offset:
            place = log.locate(offset, 1 << 20, limit=log.end_offset, at_least_one=True)
            before = offset
            for batch in split(place.file.read(place.position, place.length)):
                header = batch.header()
                if not self.compacts and header.base_offset > expected:
                    raise WrongLogError(f"nothing is between offset {expected} and {header.base_offset}")
                if not header.is_control:
                    found.update((record.offset, bytes(record.value)) for record in read_records(batch))
                offset = expected = header.next_offset
            if offset == before:
                if self.compacts:
                    break  # what came last was compacted away
                raise WrongLogError(f"nothing can be read at offset {offset} of {log}")
        for at, value in found.items():
            if self.acknowledged.get(at, value) != value:
                raise WrongLogError(f"offset {at} has {value!r}, but {self.acknowledged[at]!r} was acknowledged")
        promised = self.durable if after_crash else set(self.acknowledged)
        lost = [at for at in sorted(promised) if at >= log.start_offset and at not in found]
        if lost and not self.compacts:
            raise WrongLogError(f"acknowledged and lost: {lost} of {log}; {log.recovery}")
        if log.start_offset > self.start_offset:
            raise WrongLogError(f"{log} began at {self.start_offset} before")
        if after_crash:
            return
        if log.producers.ongoing or log.last_stable_offset != log.end_offset:
            raise WrongLogError(
                f"open in the end: {log.producers.ongoing}, stable up to {log.last_stable_offset} of {log}"
            )
        if log.recovery_point != log.end_offset:
            raise WrongLogError(f"synced up to {log.recovery_point} of {log}")


def _in_transaction(producer_id: int, sequence: int) -> dict[str, Any]:
    return {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}


def _purge(log: Log, now_ms: int) -> None:
    log.delete_records(log.high_watermark)
    _retain(log, now_ms)


def _retain(log: Log, now_ms: int) -> None:
    log.apply_retention(now_ms)
    log.remove_discarded(now_ms + 10)  # at once, unless there is a delay: some time has passed since we were asked
    log.roll_if_due(now_ms)
    log.producers.remove_expired(now_ms)


async def story(simulation: Simulation) -> int:
    world = World(simulation)
    host, rng = world.host, world.rng
    serving = host.start(world.serve())
    loses_power = rng.random() < 0.4
    if loses_power:
        await asyncio.wait([serving], timeout=rng.uniform(0.0, 0.08))
    if not loses_power or serving.done():
        await serving
        world.start_offset = world.log.start_offset
        world.check(after_crash=False)
    world.start_offset = world.log.start_offset
    host.kill(power_loss=True, model=rng.choice(list(CrashModel)))
    with contextlib.suppress(HostDiedError):
        await serving
    host.restart()
    world.start_checkpoint = min(world.start_checkpoint, world.start_offset)
    world.open()
    world.check(after_crash=True)
    assert simulation.interleaver is not None
    return simulation.interleaver.handed_over


def how_of(seed: int) -> dict[str, Any]:
    """How a seed is simulated: where and how often threads are exchanged, how long disk work takes."""
    rng = random.Random(seed)
    points, instructions = rng.choice([5, 30, 150]), rng.random() < 0.4
    return {
        "interleaving": Interleaving(
            4 * points if instructions else points,
            TRACED,
            instructions,
            pace=rng.choice([0.02, 0.3, 1.0]),
            sync_pace=rng.choice([1.0, 10.0, 40.0]),
        ),
        "work": WorkModel(usual_s_max=0.0002, slow_s_max=0.002, slow_probability=0.1),
        "steps_max": 500_000,
    }


def run_seed(seed: int) -> int:
    """Run one seed; how often the running thread was exchanged. Raises what went wrong."""
    return run_simulation(story, seed, **how_of(seed)).value


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    failed, handed_over = [], 0
    for seed in range(first, first + count):
        try:
            handed_over += run_seed(seed)
        except Exception:  # noqa: BLE001 - every failing seed is reported, whatever it fails with
            failed.append(seed)
            print(f"seed {seed} failed:", file=sys.stderr)
            traceback.print_exc()
    print(f"{count - len(failed)} of {count} seeds passed, {handed_over} exchanges of the running thread")
    if failed:
        print(f"failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
