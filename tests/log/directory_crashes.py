"""Random work on several log directories, with power losses and a shortage of descriptors in it.

Logs are made, deleted, made again under the same name, moved, cut, and closed in order. Afterwards each is there with
all that was promised to last, and with nothing of another.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.log.making import append_copies

from headrace.errors import HeadraceError
from headrace.log import Log, LogConfig, LogCut, LogDirectories, LogFate, Move
from headrace.records import ControlType, assign, build_batch, control_batch
from headrace.records.batch import NO_PRODUCER_ID
from headrace.runtime.simulated import CrashModel, DiskFault, SimulatedCrash, simulated_host
from headrace.topics import TopicPartition

from .crashes import NOW_MS, Powered, stored
from .follower_crashes import Course, header_of

PATHS = ["/data/a", "/data/b"]
NAMES = [TopicPartition("t", number) for number in range(3)]
MAY_RUN_SHORT = ["open", "open", "sync_dir", "open_dir", "rename"]
LATER_MS = 2**60


@dataclass
class Expected:
    """What a partition's log was sent, and how far that was promised to last."""

    topic_id: bytes
    course: Course = field(default_factory=dict)
    before: Course | None = None
    """What it was before a cut that is under way: a power loss leaves the one or the other."""
    promised: int = 0
    start_offset: int = 0
    start_offset_max: int = 0

    def cut(self, offset: int) -> None:
        self.before, self.course = self.course, {at: batch for at, batch in self.course.items() if at < offset}
        self.promised = min(self.promised, offset)

    def take(self, log: Log) -> None:
        """Go on from what is in the log, which has to be one of those that it may be."""
        kept = {header_of(batch).base_offset: batch for batch in stored(log)}
        # The longer one first: where nothing is to be read, deleted records may come back.
        courses = [self.course] if self.before is None else [self.before, self.course]
        course = next((one for one in courses if kept.items() <= one.items()), None)
        assert course is not None, f"{log} has what it was never sent, or what was cut off: {log.recovery}"
        assert log.end_offset >= self.promised, f"{log} was promised up to {self.promised}: {log.recovery}"
        self.course = {at: batch for at, batch in course.items() if at < log.end_offset}
        if self.before is None:
            assert log.start_offset <= self.start_offset_max, f"{log} has lost records that nobody has deleted"
        self.before, self.start_offset_max = None, max(log.start_offset, self.start_offset_max)
        log.update_high_watermark(log.end_offset)


class DirectoriesWorld(Powered):
    """Two directories, the logs that should be in them, and the moves that are under way."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.host = simulated_host(seed)
        self.config = LogConfig(
            segment_bytes=self.rng.choice([800, 3000]),
            index_interval_bytes=100,
            file_delete_delay_ms=0,
            retention_ms=-1,
        )
        self.model = self.rng.choice([CrashModel.HARSH, CrashModel.ORDERED])
        self.expected: dict[TopicPartition, Expected] = {}
        self.deleted: set[bytes] = set()
        self.moves: dict[TopicPartition, Move] = {}
        self.cut: LogCut | None = None
        self.topics = 0
        self.directories = self.open()

    def open(self) -> LogDirectories:
        """As a broker does: logs that are missing are made, those that lost the id of their topic are given it."""
        self.moves.clear()
        self.cut = None
        directories = self.directories = LogDirectories.open(self.host.runtime, PATHS, producer_expiration_ms=2**62)
        logs = directories.open_logs(lambda topic: self.config, self._fate_of, bring_back=True)
        assert not directories.unopened
        assert logs.keys() <= self.expected.keys()
        for partition, expected in self.expected.items():
            log = logs.get(partition)
            if log is None:
                assert expected.promised == 0, f"{partition} is lost"
                expected.course, expected.start_offset, expected.start_offset_max = {}, 0, 0
                log = directories.create(partition, self.config, expected.topic_id)
            elif log.topic_id is None:
                directories.identify(log, expected.topic_id)
            expected.take(log)
            assert log.start_offset >= expected.start_offset, f"{log} has deleted records"
        return directories

    def _fate_of(self, partition: TopicPartition, topic_id: bytes | None) -> LogFate:
        expected = self.expected.get(partition)
        if expected is not None and topic_id in (None, expected.topic_id):
            return LogFate.OPENED
        return LogFate.DELETED if topic_id in self.deleted else LogFate.SET_ASIDE

    # ---- work ----------------------------------------------------------------------------------------------------

    def work(self, steps: int) -> None:
        kinds: dict[Callable[[], None], int] = {
            self._create: 8,
            self._delete: 3,
            self._append: 50,
            self._sync: 10,
            self._checkpoint: 8,
            self._cut: 10,
            self._start_anew: 3,
            self._delete_records: 5,
            self._retain: 3,
            self._begin_move: 6,
            self._step: 16,
            self._finish_move: 8,
            self._stop: 4,
        }
        for step in self.rng.choices(list(kinds), list(kinds.values()), k=steps):
            if step != self._stop and self.rng.random() < 0.15:
                self._run_short(step)
            else:
                step()

    def _run_short(self, step: Callable[[], None]) -> None:
        """Once within a step there is no descriptor: that step may come to nothing, and everything else goes on."""
        operation, skip = self.rng.choice(MAY_RUN_SHORT), self.rng.choice([0, 0, 1, 2, 3, 5, 8])
        self.host.disk.inject(DiskFault(operation, errno.EMFILE, skip=skip))
        try:
            step()
        except HeadraceError:
            self._end_cut()
            for partition, expected in self.expected.items():
                log = self.directories.get(partition)
                if log is not None and log.failure is None:
                    expected.take(log)
        finally:
            self.host.disk.heal()
        assert self.directories.online_paths == PATHS

    def _any_log(self) -> tuple[Expected, Log] | None:
        logs = [self.directories.get(partition) for partition in self.expected]
        served = [log for log in logs if log is not None and log.failure is None]
        if not served:
            return None
        log = self.rng.choice(served)
        return self.expected[log.partition], log

    def _create(self) -> None:
        partition = self.rng.choice(NAMES)
        if partition not in self.expected:
            self.topics += 1
            self.expected[partition] = Expected(self.topics.to_bytes(16, "big"))
        if self.directories.get(partition) is None:
            log = self.directories.create(partition, self.config, self.expected[partition].topic_id)
            assert (log.start_offset, log.end_offset, log.recovery_point) == (0, 0, 0)

    def _delete(self) -> None:
        gone = self.rng.sample(list(self.expected), min(self.rng.choice([1, 1, 3]), len(self.expected)))
        for partition in gone:
            self.deleted.add(self.expected.pop(partition).topic_id)
            self.moves.pop(partition, None)
        self.directories.delete(*gone)
        if self.rng.random() < 0.5:
            self.directories.clean_up(LATER_MS)

    def _append(self) -> None:
        if (found := self._any_log()) is None:
            return
        expected, log = found
        # A cut below the log's start leaves batches whose epochs were forgotten with those before them.
        last = header_of(expected.course[max(expected.course)]).leader_epoch if expected.course else 0
        epoch, offset, batches = max(log.leader_epoch, last) + self.rng.choice([0, 0, 0, 1]), log.end_offset, []
        for _ in range(self.rng.randint(1, 4)):
            batch = self._batch()
            assign(batch, offset, epoch)
            batches.append(bytes(batch))
            expected.course[offset] = batches[-1]
            offset = header_of(batches[-1]).next_offset
        append_copies(log, b"".join(batches))
        # Where descriptors run short between two segments, the rest is left to the next answer of the leader.
        expected.course = {at: batch for at, batch in expected.course.items() if at < log.end_offset}
        log.update_high_watermark(log.end_offset)

    def _batch(self) -> bytearray:
        rng = self.rng
        producer = rng.choice([NO_PRODUCER_ID, NO_PRODUCER_ID, 1, 2, 3])
        if producer > 1 and rng.random() < 0.4:
            kind = rng.choice([ControlType.COMMIT, ControlType.ABORT])
            return control_batch(kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=NOW_MS)
        values = [rng.randbytes(rng.choice([4, 90])) for _ in range(rng.randint(1, 3))]
        records = [(NOW_MS, b"k", value, []) for value in values]
        if producer == NO_PRODUCER_ID:
            return build_batch(records)
        return build_batch(
            records,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=rng.randrange(1000),
            transactional=producer > 1,
        )

    def _sync(self) -> None:
        if (found := self._any_log()) is not None:
            expected, log = found
            log.sync()
            expected.promised = log.end_offset

    def _checkpoint(self) -> None:
        self.directories.checkpoint()
        for partition, log in self.directories.logs.items():
            if partition in self.expected:
                self.expected[partition].start_offset = log.start_offset

    def _cut(self) -> None:
        if (found := self._any_log()) is None:
            return
        expected, log = found
        partition = log.partition
        left = [offset for offset in expected.course if offset >= log.start_offset - self.rng.choice([0, 0, 0, 5])]
        if not left:
            return
        # Perhaps within a batch, which is dropped whole.
        offset = log.end_after_cut(self.rng.choice(left[-8:]) + self.rng.choice([0, 0, 1, 2]))
        if self._begin_cut(expected, partition, offset):
            if partition in self.moves and self.rng.random() < 0.5:
                log = self._exchange(partition)
            self._write_cut()
        if self.rng.random() < 0.3:
            self.directories.checkpoint()
        expected.cut(offset)
        log.truncate_to(offset)
        self._was_cut(expected, log)

    def _start_anew(self) -> None:
        if (found := self._any_log()) is None:
            return
        expected, log = found
        offset = self.rng.choice([log.end_offset + self.rng.randint(0, 9), self.rng.randint(0, log.end_offset)])
        if self._begin_cut(expected, log.partition, 0):
            self._write_cut()
        expected.cut(0)
        log.start_at(offset)
        self._was_cut(expected, log)

    def _begin_cut(self, expected: Expected, partition: TopicPartition, offset: int) -> bool:
        expected.start_offset = min(expected.start_offset, offset)
        self.cut = LogCut(partition, offset)
        return self.directories.begin_cut(self.cut)

    def _write_cut(self) -> None:
        assert self.cut is not None
        self.directories.write_cut(self.cut)

    def _was_cut(self, expected: Expected, log: Log) -> None:
        expected.before, expected.start_offset_max = None, log.start_offset
        self._end_cut()

    def _end_cut(self) -> None:
        if self.cut is not None:
            self.directories.end_cut(self.cut)
            self.cut = None

    def _delete_records(self) -> None:
        if (found := self._any_log()) is not None:
            expected, log = found
            expected.start_offset_max = self.rng.randint(log.start_offset, log.high_watermark)
            log.delete_records(expected.start_offset_max)

    def _retain(self) -> None:
        if (found := self._any_log()) is not None:
            _, log = found
            log.apply_retention(NOW_MS)
            log.remove_discarded(LATER_MS)

    # ---- moves and stops -----------------------------------------------------------------------------------------

    def _begin_move(self) -> None:
        if (found := self._any_log()) is not None:
            _, log = found
            here = self.directories.directory_of(log)
            self.moves.pop(log.partition, None)
            elsewhere = next(path for path in PATHS if path != here)
            self.moves[log.partition] = self.directories.start_move(log.partition, elsewhere)

    def _step(self) -> None:
        for partition, move in list(self.moves.items()):
            if move.current.failure is not None or move.future.failure is not None:
                self._cancel_move(partition)  # a shortage in the middle of a change has taken it out of service
                continue
            try:
                move.step(self.rng.choice([300, 5000]))
            except HeadraceError:
                self._cancel_move(partition)
                raise

    def _finish_move(self) -> None:
        served = [partition for partition, move in self.moves.items() if move.current.failure is None]
        if served:
            self._exchange(self.rng.choice(served))

    def _exchange(self, partition: TopicPartition) -> Log:
        move = self.moves[partition]
        try:
            while move.step():
                pass
            moved = self.directories.finish_move(partition)
        except HeadraceError:
            self._cancel_move(partition)
            raise
        del self.moves[partition]
        current = move.current
        assert (moved.start_offset, moved.end_offset) == (current.start_offset, current.end_offset)
        assert known_of(moved) == known_of(current)
        moved.update_high_watermark(moved.end_offset)
        self.expected[partition].promised = moved.end_offset
        return moved

    def _cancel_move(self, partition: TopicPartition) -> None:
        del self.moves[partition]
        self.directories.cancel_move(partition)

    def _stop(self) -> None:
        """In order; the power may go before the next start."""
        logs = self.directories.logs
        if logs.keys() != self.expected.keys() or any(log.failure for log in logs.values()):
            return
        self.directories.close()
        for partition, log in logs.items():
            self.expected[partition].promised = log.end_offset
            self.expected[partition].start_offset = log.start_offset
        if self.rng.random() < 0.4:
            self.crash()
        self.open()


def known_of(log: Log) -> tuple[set[int], dict[int, tuple[bool, int]]]:
    """Which transactions are open, where their first records are there; and each producer's last sequence."""
    producers = log.producers.producers.values()
    first_offsets = {offset for offset in log.producers.ongoing if offset >= log.start_offset}
    return first_offsets, {entry.producer_id: (entry.in_transaction, entry.last_sequence) for entry in producers}


def run_directories_seed(seed: int) -> None:
    """Four lives of two directories."""
    world = DirectoriesWorld(seed)
    rng = world.rng
    for _ in range(4):
        world.lose_power_after(rng.randint(0, 900))
        try:
            world.work(rng.randint(1, 90))
        except SimulatedCrash:
            pass
        except AssertionError as error:
            # As in `FollowerWorld.work_until_crash`.
            if not isinstance(error.__context__, SimulatedCrash):
                raise
        world.crash()
        world.open()
