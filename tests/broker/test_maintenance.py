"""A broker's periodic duties go on whatever goes wrong in them, and what goes wrong is to be seen."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.log.making import append_one
from tests.waiting import becomes

from headrace.broker.broker import Broker
from headrace.broker.partitions.maintenance import Maintenance
from headrace.broker.replication.copying import StaleAnswerError
from headrace.errors import KafkaStorageError
from headrace.log import Appended, Log, checkpoints
from headrace.log.directory import OFFSETS
from headrace.protocol.messages.create_topics import CreatableTopic
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.runtime.simulated import DiskFault, SimulatedDisk, Simulation, run_simulation

from . import raw
from .sim import SimulatedBroker


class UnexpectedError(Exception):
    """Of no kind that anyone provided for."""


def on_a_broker(test: Callable[[Broker], Coroutine[Any, Any, None]], settings: dict[str, str] | None = None) -> None:
    async def main(simulation: Simulation) -> None:
        machine = SimulatedBroker(simulation, settings)
        await machine.start()
        assert machine.broker is not None
        await machine.host.start(test(machine.broker))
        await machine.stop()

    run_simulation(main, 1, time_max_s=36_000.0)


ERRORS = [UnexpectedError("a defect"), KafkaStorageError("a broken disk"), asyncio.CancelledError()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_duty_that_fails_has_its_next_turn(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    turns = []

    async def checkpoint(self: Maintenance) -> None:
        turns.append(len(self.failing))
        if len(turns) <= 2:
            raise error

    monkeypatch.setattr(Maintenance, "_checkpoint", checkpoint)

    async def test(broker: Broker) -> None:
        await asyncio.sleep(25)
        assert list(broker.maintenance.failing) == ["checkpoint"]
        await asyncio.sleep(10)
        assert turns == [0, 1, 1]
        assert broker.maintenance.failing == {}

    on_a_broker(test, {"log.flush.offset.checkpoint.interval.ms": "10000"})
    assert "checkpoint failed" in caplog.text


@pytest.mark.parametrize("duty", ["retention", "flush"])
def test_a_log_that_fails_keeps_no_other_waiting(duty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: set[str] = set()

    def broken(self: Log, *_: object) -> list[Any]:
        looked_at.add(str(self.partition))
        if str(self.partition) == "t-0":
            raise UnexpectedError
        return []

    async def test(broker: Broker) -> None:
        await broker.metadata.create(CreatableTopic(name="t", num_partitions=3, replication_factor=1))
        for key, partition in broker.replicas.partitions.items():
            if key[0] == "t":
                partition.log.config = dataclasses.replace(partition.log.config, flush_ms=1)
        name = "apply_retention" if duty == "retention" else "sync"
        with monkeypatch.context() as patched:
            patched.setattr(Log, name, broken)
            patched.setattr(Log, "sync_due", lambda self, now_ms: duty == "flush")
            await asyncio.sleep(70)
            assert looked_at == {"t-0", "t-1", "t-2"}
            assert broker.maintenance.failing == {f"{duty} of t-0": "UnexpectedError"}
        await asyncio.sleep(70)
        if duty == "retention":
            assert broker.maintenance.failing == {}

    on_a_broker(test, {"log.retention.check.interval.ms": "60000", "log.cleaner.enable": "false"})


def test_others_have_their_turn_while_many_segments_are_deleted() -> None:
    """Each costs some syncs, and reads and syncs a snapshot of its producers: in one piece it took seconds."""

    async def test(broker: Broker) -> None:
        await broker.metadata.create(CreatableTopic(name="t", num_partitions=1, replication_factor=1))
        turns, seen = broker.partition("t", 0).turns, []

        def fill(log: Log) -> None:
            for _ in range(100):
                append_one(log, raw.batch([b"one"]), leader_epoch=0, now_ms=broker.runtime.clock.now_ms())
                log.roll()

        await turns.change_log(fill)
        turns.log.update_high_watermark(100)
        await turns.change_log(lambda log: log.delete_records(100))
        retention = asyncio.ensure_future(broker.maintenance._retain())
        while not retention.done():
            await turns.change_log(lambda log: seen.append(len(log.segments)))
        assert seen[-1] == 1
        assert max(before - after for before, after in itertools.pairwise([101, *seen])) <= 10

    on_a_broker(test, {"log.cleaner.enable": "false"})


def test_a_log_that_was_moved_is_in_the_checkpoints_of_its_new_directory() -> None:
    """Also where nothing of it has changed: after a crash all of it would be checked, and nothing be committed."""

    async def test(broker: Broker) -> None:
        await broker.metadata.create(CreatableTopic(name="t", num_partitions=1, replication_factor=1))
        partition = broker.partition("t", 0)
        appended = partition.append(raw.batch([b"one"]))
        assert isinstance(appended, Appended)
        await partition.sync()
        await asyncio.sleep(25)
        here = broker.directories.directory_of(partition.log)
        there = next(path for path in broker.directories.paths if path != here)
        await broker.replicas.move("t", 0, there)
        await asyncio.sleep(25)
        assert broker.directories.directory_of(partition.log) == there
        for name in (checkpoints.RECOVERY_POINT, checkpoints.HIGH_WATERMARK):
            written = checkpoints.read_offsets(broker.runtime.disk, f"{there}/{name}")
            assert written == {partition.key: 1}, name

    settings = {"log.dirs": "/data/one,/data/two", "log.flush.offset.checkpoint.interval.ms": "10000"}
    on_a_broker(test, settings)


def test_checkpoints_that_could_not_be_written_for_want_of_descriptors_are_written_later() -> None:
    async def test(broker: Broker) -> None:
        disk = broker.runtime.disk
        assert isinstance(disk, SimulatedDisk)
        await asyncio.sleep(15)
        await broker.metadata.create(CreatableTopic(name="t", num_partitions=1, replication_factor=1))
        disk.inject(DiskFault("open", errno.EMFILE, under=f"/data/{checkpoints.HIGH_WATERMARK}.tmp"))
        await asyncio.sleep(10)
        assert list(broker.maintenance.failing) == ["checkpoint"]
        await asyncio.sleep(10)
        assert broker.maintenance.failing == {}
        written = checkpoints.read_offsets(disk, f"/data/{checkpoints.HIGH_WATERMARK}")
        assert written == {("t", 0): 0}

    settings = {"log.dirs": "/data", "log.flush.offset.checkpoint.interval.ms": "10000"}
    on_a_broker(test, settings)


def test_a_log_is_not_cut_where_that_cannot_be_written_down() -> None:
    async def test(broker: Broker) -> None:
        disk = broker.runtime.disk
        assert isinstance(disk, SimulatedDisk)
        await broker.metadata.create(CreatableTopic(name="t", num_partitions=1, replication_factor=1))
        partition = broker.partition("t", 0)
        partition.append(raw.batch([b"one"]))
        await partition.sync()
        broker.directories.checkpoint()
        disk.inject(DiskFault("open", errno.EMFILE, under=f"/data/{checkpoints.RECOVERY_POINT}.tmp"))
        with pytest.raises(KafkaStorageError):
            async with broker.replication.cutting(partition, 0):
                raise AssertionError("it would be cut now")
        assert not partition.is_offline

    on_a_broker(test, {"log.dirs": "/data"})


def test_what_was_written_down_for_a_cut_that_is_not_made_is_taken_back() -> None:
    """Of a log that nobody used since, a crash at any later time brought deleted records back."""

    async def test(broker: Broker) -> None:
        await broker.metadata.create(CreatableTopic(name="t", num_partitions=1, replication_factor=1))
        partition = broker.partition("t", 0)
        partition.append(raw.batch([b"one", b"two"]))
        await partition.sync()
        await partition.turns.change_log(Log.delete_records, 1)
        await asyncio.sleep(15)
        with pytest.raises(StaleAnswerError):
            async with broker.replication.cutting(partition, 0):
                raise StaleAnswerError
        await asyncio.sleep(15)
        written = [checkpoints.read_offsets(broker.runtime.disk, f"/data/{name}") for name in OFFSETS]
        assert written == [{partition.key: 2}, {partition.key: 1}, {partition.key: 2}]

    on_a_broker(test, {"log.dirs": "/data", "log.flush.offset.checkpoint.interval.ms": "10000"})


def test_the_files_of_a_deleted_topic_keep_no_other_topic_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """To remove thousands of them may take minutes; while others wait, so does all that comes later in the metadata."""
    removed: list[str] = []
    rmtree = SimulatedDisk.rmtree

    def counted(disk: SimulatedDisk, path: str) -> None:
        removed.append(path)
        rmtree(disk, path)

    monkeypatch.setattr(SimulatedDisk, "rmtree", counted)

    async def test(broker: Broker) -> None:
        await broker.metadata.create(CreatableTopic(name="t", num_partitions=20, replication_factor=1))
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)
        await broker.metadata.change(lambda image: broker.controller.delete_topics(image, deletion, 6))
        await asyncio.sleep(2.0)
        tidying = asyncio.ensure_future(broker.maintenance._tidy())
        await becomes(lambda: removed, every_s=0.0)
        # As is done when a topic is made.
        assert await broker.replicas.change_directories(removed.__len__) < 20
        await tidying
        assert len(removed) == 20

    on_a_broker(test, {"log.segment.delete.delay.ms": "1000"})
