"""Random work on a follower's log, which is cut, begun anew and deleted from as well, with power losses in it."""

from __future__ import annotations

import contextlib
import itertools
import random

from tests.log.making import append_copies

from headrace.log import Caches, Log, LogConfig
from headrace.records import (
    Batch,
    BatchHeader,
    ControlType,
    assign,
    build_batch,
    control_batch,
    read_control,
    read_records,
    split,
)
from headrace.runtime.simulated import CrashModel, SimulatedCrash, simulated_host

from .crashes import DIRECTORY, NOW_MS, PARTITION, Powered, stored

IDEMPOTENT, TRANSACTIONAL = 1, 2
Course = dict[int, bytes]
"""The batches that a leader has sent, by their offsets, whether or not they were deleted since."""


def header_of(batch: bytes) -> BatchHeader:
    return next(iter(split(batch))).header()


class FollowerWorld(Powered):
    """One log, what it has copied, how far that was promised to last, and what its directory's checkpoints say."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.host = simulated_host(seed)
        self.config = LogConfig(
            segment_bytes=self.rng.choice([1500, 4000, 12_000]),
            index_interval_bytes=self.rng.choice([0, 200, 4096]),
            retention_bytes=self.rng.choice([-1, 5000]),
            retention_ms=-1,
            file_delete_delay_ms=0,
        )
        self.model = self.rng.choice([CrashModel.HARSH, CrashModel.ORDERED])
        self.course: Course = {}
        # What it was before a cut that is under way: a power loss leaves the one or the other.
        self.before: Course | None = None
        self.promised = self.recovery_point = self.start_offset = self.high_watermark = self.epoch = 0
        self.log = self.open()

    def open(self) -> Log:
        runtime = self.host.runtime
        self.log = Log.open(
            runtime,
            DIRECTORY,
            PARTITION,
            self.config,
            recovery_point=self.recovery_point,
            start_offset=self.start_offset,
            producer_expiration_ms=2**62,
            caches=Caches(runtime.disk, open_files_max=self.rng.choice([1, 2, 64])),
        )
        self.log.update_high_watermark(self.high_watermark)
        return self.log

    # ---- work ----------------------------------------------------------------------------------------------------

    def work(self, steps: int) -> None:
        kinds = {
            self._copy: 62,
            self._cut: 8,
            self._start_anew: 2,
            self._delete: 6,
            self._retain: 4,
            self._roll: 2,
            self._sync: 9,
            self._checkpoint: 4,
            self._lead: 3,
        }
        for step in self.rng.choices(list(kinds), list(kinds.values()), k=steps):
            step()

    def work_until_crash(self, steps: int) -> None:
        try:
            self.work(steps)
        except AssertionError as error:
            # Between two changes everything has to agree, which is checked in tests, and here it need not any more.
            if not isinstance(error.__context__, SimulatedCrash):
                raise

    def _copy(self) -> None:
        rng, log = self.rng, self.log
        self.epoch += rng.choice([0, 0, 0, 0, 0, 1, 2])
        last = header_of(self.course[max(self.course)]).leader_epoch if self.course else 0
        self.epoch = max(self.epoch, log.leader_epoch, last)
        offset, batches = log.end_offset, []
        for _ in range(rng.randint(1, 4)):
            batch = self._batch(offset)
            batches.append(batch)
            self.course[offset] = batch
            offset = header_of(batch).next_offset
            self.epoch += rng.random() < 0.1
        append_copies(log, b"".join(batches))
        if rng.random() < 0.6:
            log.update_high_watermark(rng.randint(log.high_watermark, log.end_offset))

    def _batch(self, offset: int) -> bytes:
        rng = self.rng
        records = [
            (NOW_MS + rng.randint(0, 1000), b"k", rng.randbytes(rng.choice([1, 50, 300])), [])
            for _ in range(rng.randint(1, 4))
        ]
        producer = rng.choice([-1, -1, IDEMPOTENT, TRANSACTIONAL])
        if producer < 0:
            batch = build_batch(records)
        elif producer == TRANSACTIONAL and rng.random() < 0.4:
            kind = rng.choice([ControlType.COMMIT, ControlType.ABORT])
            batch = control_batch(kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=NOW_MS)
        else:
            batch = build_batch(
                records,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=rng.randrange(1000),
                transactional=producer == TRANSACTIONAL,
            )
        assign(batch, offset, self.epoch)
        return bytes(batch)

    def _cut(self) -> None:
        """Its leader has another log from there on, perhaps of older epochs than those that are cut off."""
        left = [offset for offset in self.course if offset >= self.log.start_offset]
        if left:
            # Perhaps within a batch, which is dropped whole.
            offset = self.log.end_after_cut(self.rng.choice(left[-6:]) + self.rng.choice([0, 0, 1]))
            self._drop(offset, offset)
            self.log.truncate_to(offset)
            self._dropped()

    def _start_anew(self) -> None:
        end = self.log.end_offset
        offset = self.rng.choice([end + self.rng.randint(0, 10), self.rng.randint(0, end)])
        self._drop(0, 0)
        self.start_offset = 0
        self.log.start_at(offset)
        self._dropped()
        batch = self._batch(max(offset - self.rng.randint(0, 2), 0))
        header = header_of(batch)
        if header.base_offset < offset < header.next_offset:
            # Its leader's log starts within a batch.
            self.course[header.base_offset] = batch
            self.log.begin_with(batch)
            assert (self.log.start_offset, self.log.end_offset) == (offset, header.next_offset)

    def _drop(self, offset: int, durable_max: int) -> None:
        """Before a cut it is written down that nothing behind it is durable (`LogDirectories.begin_cut`)."""
        self.recovery_point = min(self.recovery_point, durable_max)
        self.promised = min(self.promised, offset)
        self.before, self.course = self.course, {at: data for at, data in self.course.items() if at < offset}

    def _dropped(self) -> None:
        self.before = None
        self.epoch = max(self.log.leader_epoch, self.epoch - self.rng.randint(0, 3), 0)

    def _delete(self) -> None:
        self.log.delete_records(self.rng.randint(self.log.start_offset, self.log.high_watermark))

    def _retain(self) -> None:
        self.log.apply_retention(NOW_MS)
        self.log.remove_discarded(NOW_MS + 1)

    def _roll(self) -> None:
        self.log.roll()

    def _sync(self) -> None:
        self.log.sync()
        self.promised = self.log.end_offset

    def _checkpoint(self) -> None:
        log = self.log
        self.recovery_point, self.high_watermark = log.recovery_point, log.high_watermark
        self.start_offset = log.start_offset if log.start_offset > log.segments[0].base_offset else 0

    def _lead(self) -> None:
        """For a while, in which nothing is written."""
        self.epoch += 1
        self.log.begin_epoch(self.epoch)

    def check(self) -> None:
        """What is there was sent, all that was promised is, and epochs and producers are those of its batches."""
        log, kept = self.log, stored(self.log)
        courses = [self.course] if self.before is None else [self.course, self.before]
        if self.before is not None and log.end_offset in {header_of(b).next_offset for b in self.before.values()}:
            courses.reverse()  # without a record, what is known of producers tells which of the two it is
        course = next((one for one in courses if all(one.get(header_of(b).base_offset) == b for b in kept)), None)
        assert course is not None, f"{log} has what it was never sent, or what was cut off: {log.recovery}"
        assert log.end_offset >= self.promised, f"lost offsets {log.end_offset}..{self.promised}: {log.recovery}"
        headers = [header_of(batch) for batch in kept]
        for one, following in itertools.pairwise(headers):
            assert one.next_offset == following.base_offset
        if headers:
            assert log.end_offset == headers[-1].next_offset
            assert log.leader_epoch == headers[-1].leader_epoch
        self._check_epochs(headers)
        self._check_producers(headers, [header_of(course[offset]) for offset in sorted(course)])
        self._check_aborted(kept)
        self.course = {at: data for at, data in course.items() if header_of(data).next_offset <= log.end_offset}
        self.before, self.promised = None, min(self.promised, log.end_offset)
        self.epoch = max(log.leader_epoch, self.rng.choice([0, self.epoch]))

    def _check_epochs(self, headers: list[BatchHeader]) -> None:
        log = self.log
        for header in headers:
            offset, earliest = max(header.base_offset, log.start_offset), log.epochs.earliest
            # What was deleted may come back, and the epochs of it are forgotten.
            if earliest is None or offset >= earliest.start_offset or header.leader_epoch > earliest.epoch:
                assert log.leader_epoch_at(offset) == header.leader_epoch, f"offset {offset}: {log.epochs.entries}"

    def _check_producers(self, headers: list[BatchHeader], sent: list[BatchHeader]) -> None:
        known = self.log.producers.producers
        for header in headers:
            if header.producer_id >= 0 and not header.is_control:
                last = [h for h in headers if h.producer_id == header.producer_id and not h.is_control][-1]
                assert known[header.producer_id].last_sequence == last.last_sequence
        is_open = TRANSACTIONAL in known and known[TRANSACTIONAL].in_transaction
        below = [header for header in sent if header.next_offset <= self.log.end_offset]
        assert _leaves_open(headers) <= is_open <= max(_leaves_open(below), _leaves_open(headers))

    def _check_aborted(self, kept: list[bytes]) -> None:
        """Whoever reads records of a transaction that was aborted is told so."""
        known = {entry.last_offset for segment in self.log.segments for entry in segment.aborted()}
        is_open = False
        for batch in (Batch(memoryview(data)) for data in kept):
            header = batch.header()
            if header.producer_id != TRANSACTIONAL:
                continue
            if header.is_control and read_control(read_records(batch)[0]).control_type == ControlType.ABORT:
                assert not is_open or header.base_offset in known, f"{self.log} has forgotten an end: {known}"
            is_open = not header.is_control


def _leaves_open(headers: list[BatchHeader]) -> bool:
    of_it = [header for header in headers if header.producer_id == TRANSACTIONAL]
    return bool(of_it) and not of_it[-1].is_control


def run_follower_seed(seed: int) -> None:
    """Four lives of one log, as in `crashes.run_seed`."""
    world = FollowerWorld(seed)
    rng = world.rng
    for _ in range(4):
        world.lose_power_after(rng.randint(0, 400))
        with contextlib.suppress(SimulatedCrash):
            world.work_until_crash(rng.randint(1, 60))
        world.crash()
        for _ in range(rng.choice([0, 0, 1])):
            world.lose_power_after(rng.randint(0, 20))
            with contextlib.suppress(SimulatedCrash):
                world.open()
            world.crash()
        world.open()
        world.check()
