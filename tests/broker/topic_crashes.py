"""Topics that are created, deleted and created again under the same name, with a crash at each operation of the disk.

`python -m tests.broker.topic_crashes` tries every operation, with both kinds of crash and several seeds.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tests.log.crashes import stored
from tests.log.making import batch

from headrace.broker.broker import Broker
from headrace.errors import ErrorCode
from headrace.log import Appended, Log, partition_metadata
from headrace.log.directory_names import DirectoryKind, partition_names
from headrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.runtime.simulated import CrashModel, HostDiedError, Simulation, run_simulation
from headrace.topics import TopicPartition

from . import raw
from .sim import SimulatedBroker

DIRECTORIES = ("/data/one", "/data/two")
OPERATIONS_MAX = 2_000


class Crash(Enum):
    """How the broker dies."""

    PROCESS = None
    POWER_HARSH = CrashModel.HARSH
    POWER_ORDERED = CrashModel.ORDERED


@dataclass
class Topic:
    """One life of a name, and what was acknowledged in it."""

    name: str
    config: dict[str, str]
    topic_id: bytes = b""
    written: dict[int, list[bytes]] = field(default_factory=dict)
    start: dict[int, int] = field(default_factory=dict)


class Story:
    """What was promised. `pending` is what was asked for and not answered: it may have happened or not."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.topics: dict[str, Topic] = {}
        self.moved: set[bytes] = set()
        self.pending: tuple[str, Topic, int, bytes] | None = None
        self._count = 0

    async def create(self, name: str, partitions: int, **config: str) -> None:
        topic = Topic(name, {key.replace("_", "."): value for key, value in config.items()})
        topic.written = {index: [] for index in range(partitions)}
        self.pending = ("create", topic, 0, b"")
        configs = [CreatableTopicConfig(name=key, value=value) for key, value in topic.config.items()]
        answer = await self.broker.metadata.create(
            CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)
        )
        assert answer.topics[0].error_code == ErrorCode.NONE
        topic.topic_id = self.broker.image.topics[name].topic_id
        self.topics[name] = topic
        self.pending = None

    async def delete(self, name: str) -> None:
        self.pending = ("delete", self.topics[name], 0, b"")
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1000)
        answer = await self.broker.metadata.decide(self.broker.controller.delete_topics, request, 6)
        assert answer.responses[0].error_code == ErrorCode.NONE
        del self.topics[name]
        self.pending = None

    async def write(self, name: str, count: int) -> None:
        topic = self.topics[name]
        for _ in range(count):
            for index in topic.written:
                self._count += 1
                value = b"%s %d" % (name.encode(), self._count)
                self.pending = ("write", topic, index, value)
                appended: Appended | Awaitable[Appended] = self.broker.partition(name, index).append(batch(value))
                if not isinstance(appended, Appended):
                    await appended
                topic.written[index].append(value)
                self.pending = None

    async def delete_records(self, name: str, index: int, before: int) -> None:
        self.topics[name].start[index] = before
        await self.broker.partition(name, index).turns.change_log(Log.delete_records, before)

    async def move(self, name: str, index: int) -> None:
        """To the other log directory."""
        self.moved.add(self.topics[name].topic_id)
        here = self.broker.directories.directory_of(self.broker.partition(name, index).log)
        await self.broker.replicas.move(name, index, next(path for path in DIRECTORIES if path != here))
        while self.broker.directories.moves:
            await asyncio.sleep(0.01)

    async def checkpoint(self) -> None:
        await self.broker.replicas.change_directories(self.broker.directories.checkpoint)

    async def clean_up(self) -> None:
        """Remove the files of what was deleted."""
        await self.broker.replicas.change_directories(self.broker.directories.clean_up, 2**62)


async def life(story: Story) -> None:
    """Names are used again with everything that an earlier topic could leave behind under them."""
    await story.create("a", 2, flush_messages="1", retention_ms="-1")
    await story.write("a", 5)
    await story.delete_records("a", 0, 4)
    await story.create("b", 3, flush_messages="1", cleanup_policy="compact")
    await story.write("b", 2)
    await story.checkpoint()
    await story.delete("a")
    await story.create("a", 2, flush_messages="1")
    await story.write("a", 3)
    await story.move("a", 0)
    await story.move("a", 1)
    await story.write("a", 1)
    await story.delete("b")
    await story.create("b", 1, flush_messages="1")
    await story.clean_up()
    await story.write("b", 2)
    await story.checkpoint()
    await story.delete("b")
    await story.delete("a")
    await story.create("a", 1, flush_messages="1")
    await story.write("a", 1)
    await story.delete("a")


def check(broker: Broker, story: Story, disk: Any) -> None:
    """Every acknowledged topic is there with its records, every deleted one is not, and nothing is inherited."""
    expected = dict(story.topics)
    kind, topic, pending_index, pending_value = story.pending or ("", None, 0, b"")
    if topic is not None and kind == "create" and topic.name in broker.image.topics:
        expected[topic.name] = topic
        topic.topic_id = broker.image.topics[topic.name].topic_id
    if topic is not None and kind == "delete" and topic.name not in broker.image.topics:
        del expected[topic.name]
    assert set(broker.image.topics) == set(expected)
    for name, known in expected.items():
        assert broker.image.topics[name].topic_id == known.topic_id
        assert broker.image.config(2, name) == known.config
        for index, values in known.written.items():
            log = broker.partition(name, index).log
            assert log.topic_id == known.topic_id
            found = [value for data in stored(log) for _, value in raw.values_of(data)]
            begin = log.start_offset
            # A start that was not checkpointed yet may be forgotten; a start of anyone else is never taken.
            assert begin in {0, known.start.get(index, 0)}, f"{name}-{index} begins at {begin}"
            if kind == "write" and known is topic and index == pending_index and len(found) > len(values) - begin:
                values = [*values, pending_value]
            assert found == values[begin:], f"{name}-{index}: {found} instead of {values[begin:]}"
    check_files(broker, disk, {known.topic_id for known in expected.values()}, story.moved)


def check_files(broker: Broker, disk: Any, topic_ids: set[bytes], moved: set[bytes]) -> None:
    for path in broker.directories.paths:
        for name, partition, state in partition_names(disk, path):
            if state is DirectoryKind.STRAY:
                # Of a move that was as good as done both logs may be there, and one is set aside. Else all is known.
                assert partition_metadata.read(disk, f"{path}/{name}") in moved, f"{path}/{name}: nothing was unknown"
            if state is DirectoryKind.PRESENT:
                log = broker.directories.get(TopicPartition(*partition))
                assert log is not None, f"{path}/{name} is not open"
                assert log.topic_id in topic_ids, f"{path}/{name} is nobody's"


async def main(simulation: Simulation, operation: int, crash: Crash) -> bool:
    """One crash, and one more while the broker starts again; whether there was an operation to crash at."""
    machine = SimulatedBroker(simulation, {"log.dirs": ",".join(DIRECTORIES)})
    await machine.start()
    assert machine.broker is not None
    story = Story(machine.broker)
    crash_after(machine, operation, crash)
    try:
        await machine.host.start(life(story))
    except HostDiedError:
        pass
    else:
        return False
    for _ in range(2):
        machine.host.restart()
        crash_after(machine, simulation.rng.randint(0, 120), crash)
        try:
            await machine.start()
        except HostDiedError:
            continue
        machine.kill()
    await machine.start()
    check(machine.broker, story, machine.host.disk)
    await machine.stop()
    await machine.start()
    check(machine.broker, story, machine.host.disk)
    await machine.stop()
    return True


def crash_after(machine: SimulatedBroker, operations: int, crash: Crash) -> None:
    host = machine.host
    host.disk.on_crash = lambda: host.kill(power_loss=crash.value is not None, model=crash.value or CrashModel.HARSH)
    host.disk.crash_after(operations)


def run(operation: int, crash: Crash, seed: int = 1) -> bool:
    logger = logging.getLogger("headrace")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        return run_simulation(lambda simulation: main(simulation, operation, crash), seed, time_max_s=3_600.0).value
    finally:
        logger.setLevel(before)


def run_all(seeds: Iterable[int]) -> int:
    tried, failed = 0, 0
    for seed in seeds:
        for crash in Crash:
            for operation in range(OPERATIONS_MAX):
                try:
                    if not run(operation, crash, seed):
                        break
                except Exception:  # noqa: BLE001 - every failing one is reported, whatever it fails with
                    failed += 1
                    print(f"seed {seed}, {crash.name}, operation {operation} failed:", file=sys.stderr)
                    traceback.print_exc()
                tried += 1
    print(f"{tried - failed} of {tried} crashes left every topic as it was promised")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(run_all(range(1, 1 + (int(sys.argv[1]) if len(sys.argv) > 1 else 3))))
