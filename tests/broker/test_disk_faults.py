"""Disks that are full, fail, or are gone: their partitions say so, the others go on, and what was promised is kept."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.waiting import becomes

from headrace.errors import ErrorCode, HeadraceError
from headrace.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.runtime.simulated import DiskFault, Simulation, run_simulation

from . import raw
from .sim import PORT, Client, SimulatedBroker

ONE, TWO = "/data/one", "/data/two"
METADATA_VERSION, DESCRIBE_LOG_DIRS_VERSION = 9, 3
BOTH = {"log.dirs": f"{ONE},{TWO}"}
APART = {"log.dirs": f"{ONE},{TWO}", "metadata.log.dir": TWO}


def run(scenario: Callable[[Simulation], Awaitable[None]], seed: int = 1) -> None:
    async def main(simulation: Simulation) -> None:
        await scenario(simulation)

    run_simulation(main, seed, time_max_s=900.0)


class World:
    """A broker and a client, and what the client was promised."""

    def __init__(self, simulation: Simulation, settings: dict[str, str] | None = None) -> None:
        self.broker = SimulatedBroker(simulation, settings)
        self.client = Client(simulation, "client")
        self.acknowledged: dict[tuple[str, int], list[bytes]] = {}

    async def create(self, topic: str, partitions: int = 1, **configs: str) -> int:
        request = raw.create_topics_request({topic: partitions}, **configs)
        answer = await self.client.insist(request, raw.CREATE_TOPICS_VERSION)
        code: int = answer.topics[0].error_code
        return code

    async def write(self, topic: str, partition: int, value: bytes) -> int:
        request = raw.produce_request(topic, partition, raw.batch([value]))
        code = raw.produced(await self.client.insist(request, raw.PRODUCE_VERSION)).error_code
        if code == ErrorCode.NONE:
            self.acknowledged.setdefault((topic, partition), []).append(value)
        return code

    async def read(self, topic: str, partition: int) -> int:
        answer = await self.client.insist(raw.fetch_request(topic, partition, 0), raw.FETCH_VERSION)
        return raw.fetched(answer).error_code

    async def topics(self) -> set[str]:
        answer: Any = await self.client.insist(MetadataRequest(topics=None), METADATA_VERSION)
        return {topic.name for topic in answer.topics}

    async def leaders(self, topic: str) -> dict[int, tuple[int, int, list[int]]]:
        """Per partition what Metadata tells: error, leader, offline replicas."""
        answer: Any = await self.client.insist(MetadataRequest(topics=None), METADATA_VERSION)
        return {
            found.partition_index: (found.error_code, found.leader_id, found.offline_replicas)
            for told in answer.topics
            if told.name == topic
            for found in told.partitions
        }

    async def restart(self) -> None:
        self.client.close()
        if self.broker.host.alive:
            self.broker.kill()
        await self.broker.start()

    async def check(self) -> None:
        """Everything acknowledged is there, once and in order; what was not may be there after it."""
        for (topic, partition), values in self.acknowledged.items():
            rows = [value for _, value in await self.client.read_all(topic, partition)]
            assert [value for value in rows if value in values] == values

    def place_of(self, topic: str, partition: int) -> str:
        assert self.broker.broker is not None
        return self.broker.broker.partition(topic, partition).log.directory.rpartition("/")[0]


STORAGE = ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.slow
def test_a_full_disk_is_said_and_nothing_acknowledged_is_lost() -> None:
    async def scenario(simulation: Simulation) -> None:
        world = World(simulation)
        await world.broker.start()
        await world.create("t", 3)
        for number in range(30):
            assert await world.write("t", number % 3, b"%d" % number) == 0
        world.broker.host.disk.fill(500)
        codes = [await world.write("t", number % 3, b"more %d" % number + bytes(100)) for number in range(12)]
        assert codes[-1] == STORAGE
        assert set(codes) <= {0, STORAGE}
        assert await world.read("t", 0) == STORAGE
        # Room alone does not bring it back: what is on that disk has to be looked at first.
        world.broker.host.disk.fill(1 << 30)
        assert await world.write("t", 0, b"too early") == STORAGE
        await world.restart()
        await world.check()
        assert await world.write("t", 0, b"after") == 0
        await world.broker.stop()
        await world.restart()
        await world.check()

    for seed in range(5):
        run(scenario, seed)


@pytest.mark.parametrize("operation", ["append", "sync", "*"])
def test_a_failing_directory_takes_only_its_own_partitions_offline(operation: str) -> None:
    async def scenario(simulation: Simulation) -> None:
        world = World(simulation, BOTH)
        await world.broker.start()
        await world.create("t", 4, flush_messages="1")
        places = {index: world.place_of("t", index) for index in range(4)}
        assert sorted(places.values()) == [ONE, ONE, TWO, TWO]
        for index in range(4):
            assert await world.write("t", index, b"before") == 0
        world.broker.host.disk.inject(DiskFault(operation, under=TWO, times=None))
        for round_ in range(3):
            for index in range(4):
                expected = STORAGE if places[index] == TWO else ErrorCode.NONE
                assert await world.write("t", index, b"during %d" % round_) == expected
        for index in range(4):
            assert await world.read("t", index) == (STORAGE if places[index] == TWO else ErrorCode.NONE)
        described = await world.client.insist(DescribeLogDirsRequest(topics=None), DESCRIBE_LOG_DIRS_VERSION)
        assert {(found.log_dir, found.error_code) for found in described.results} == {(ONE, 0), (TWO, STORAGE)}
        led: tuple[int, int, list[int]] = (ErrorCode.NONE, 1, [])
        not_led: tuple[int, int, list[int]] = (ErrorCode.LEADER_NOT_AVAILABLE, -1, [1])
        assert await world.leaders("t") == {index: not_led if places[index] == TWO else led for index in range(4)}
        # New partitions go where there is a disk.
        assert await world.create("new", 2) == 0
        assert {world.place_of("new", index) for index in range(2)} == {ONE}
        assert await world.write("new", 0, b"v") == 0
        world.broker.host.disk.heal()
        await world.restart()
        await world.check()
        assert await world.leaders("t") == dict.fromkeys(range(4), led)
        for index in range(4):
            assert await world.write("t", index, b"after") == 0
        await world.check()

    for seed in range(3):
        run(scenario, seed)


def test_what_could_not_be_synced_is_not_acknowledged() -> None:
    async def scenario(simulation: Simulation) -> None:
        world = World(simulation)
        await world.broker.start()
        await world.create("t", 1, flush_messages="1")
        for number in range(5):
            assert await world.write("t", 0, b"%d" % number) == 0
        world.broker.host.disk.inject(DiskFault("sync", under=f"{ONE}/t-0"))
        assert await world.write("t", 0, b"lost") == STORAGE
        assert await world.write("t", 0, b"refused") == STORAGE
        world.broker.lose_power()
        await world.restart()
        await world.check()

    for seed in range(5):
        run(scenario, seed)


def test_without_its_metadata_directory_a_broker_serves_on_but_changes_nothing() -> None:
    async def scenario(simulation: Simulation) -> None:
        world = World(simulation, APART)
        await world.broker.start()
        await world.create("t", 2)
        place = {index: world.place_of("t", index) for index in range(2)}
        here = next(index for index in place if place[index] == ONE)
        world.broker.host.disk.inject(DiskFault("*", errno=errno.EIO, under=TWO, times=None))
        assert await world.create("u") == STORAGE
        assert await world.create("v") == STORAGE
        assert await world.write("t", here, b"goes on") == 0
        assert await world.topics() == {"t"}
        world.broker.host.disk.heal()
        await world.restart()
        assert "t" in await world.topics()
        await world.check()
        assert await world.create("w") == 0

    run(scenario)


def test_a_directory_that_cannot_be_read_at_start_keeps_its_partitions_for_later() -> None:
    async def scenario(simulation: Simulation) -> None:
        world = World(simulation, {"log.dirs": f"{ONE},{TWO}"})
        await world.broker.start()
        await world.create("t", 4)
        place = {index: world.place_of("t", index) for index in range(4)}
        for index in range(4):
            assert await world.write("t", index, b"kept %d" % index) == 0
        world.client.close()
        await world.broker.stop()
        world.broker.host.restart()
        world.broker.host.disk.inject(DiskFault("*", under=TWO, times=None))
        await world.broker.start()
        for index in range(4):
            assert await world.write("t", index, b"meanwhile") == (STORAGE if place[index] == TWO else 0)
        world.broker.host.disk.heal()
        await world.restart()
        await world.check()
        for index in range(4):
            assert world.place_of("t", index) == place[index]
            assert await world.write("t", index, b"again") == 0

    run(scenario)


def test_a_broker_does_not_start_with_new_metadata_when_the_old_cannot_be_read() -> None:
    async def scenario(simulation: Simulation) -> None:
        world = World(simulation, BOTH)
        await world.broker.start()
        await world.create("t", 2)
        world.client.close()
        await world.broker.stop()
        world.broker.host.restart()
        world.broker.host.disk.inject(DiskFault("*", under=ONE, times=None))
        with pytest.raises(HeadraceError, match="metadata"):
            await world.broker.start()
        world.broker.host.disk.heal()
        await world.restart()
        assert await world.topics() == {"t"}
        for index in range(2):
            assert await world.write("t", index, b"v") == 0

    run(scenario)


@pytest.mark.slow
def test_a_disk_that_fails_at_any_moment_loses_nothing_acknowledged() -> None:
    """One operation fails, each time a later one; the broker answers, and after a restart all is there."""

    async def scenario(simulation: Simulation) -> None:
        world = World(simulation, BOTH)
        await world.broker.start()
        await world.create("t", 4, flush_messages=simulation.rng.choice(("1", "1000000")))
        for number in range(6):
            assert await world.write("t", number % 4, b"first %d" % number) == 0
        under = simulation.rng.choice((f"{ONE}/t-0", f"{TWO}/t-1", ONE, TWO))
        fault = DiskFault(simulation.rng.choice(("*", "append", "sync", "read")), under=under, skip=simulation.seed)
        world.broker.host.disk.inject(fault)
        for number in range(40):
            await world.write("t", number % 4, b"second %d" % number + bytes(simulation.rng.choice((10, 4_000))))
            if number % 10 == 9:
                await world.read("t", number % 4)
                await asyncio.sleep(1.0)
        world.broker.host.disk.heal()
        await world.restart()
        await world.check()
        for index in range(4):
            assert await world.write("t", index, b"third") == 0

    for seed in range(30):
        run(scenario, seed)


@pytest.mark.parametrize("synced_before", [0, 1], ids=["the id of a topic", "a segment"])
def test_a_directory_that_cannot_be_synced_at_the_start_costs_its_logs_and_not_the_broker(synced_before: int) -> None:
    """Those that were to be synced after the one that failed are offline by then, and say so in another way."""

    async def main(simulation: Simulation) -> None:
        machine = SimulatedBroker(simulation, {**BOTH, "log.flush.interval.messages": "1"}, "b1")
        await machine.start()
        assert machine.broker is not None
        client = await raw.AsyncRawClient.connect(simulation.host("client").runtime, "b1", PORT)
        await client.request(raw.create_topics_request({"t": 12}), raw.CREATE_TOPICS_VERSION)
        for index in range(12):
            await client.request(raw.produce_request("t", index, raw.batch([b"x"])), raw.PRODUCE_VERSION)
        client.close()
        partitions = machine.broker.replicas.partitions
        on_two = [key for key, found in partitions.items() if found.log.directory.startswith(TWO)]
        machine.kill()
        machine.host.restart()
        fault = DiskFault("sync", under=f"{TWO}/t-{on_two[-1][1]}", skip=synced_before, times=None)
        machine.host.disk.inject(fault)
        await machine.start()
        assert sorted(machine.broker.replicas.offline) == on_two

    for seed in range(3):
        run(main, seed)


def test_a_partition_that_has_moved_off_a_failing_disk_is_served() -> None:
    """The disk fails when the original is to be deleted: by then it is not in use any more."""

    async def scenario(simulation: Simulation) -> None:
        world = World(simulation, {"log.dirs": f"{ONE},{TWO}", "metadata.log.dir": "/metadata"})
        await world.broker.start()
        await world.create("t", 1)
        assert await world.write("t", 0, b"first") == 0
        broker = world.broker.broker
        assert broker is not None
        here = world.place_of("t", 0)
        there = TWO if here == ONE else ONE
        world.broker.host.disk.inject(DiskFault("rename", errno.EIO, under=f"{here}/t-0", times=None))
        await broker.replicas.move("t", 0, there)
        await becomes(lambda: world.place_of("t", 0) == there)
        assert broker.directories.online_paths == [there]
        assert await world.write("t", 0, b"second") == 0
        assert (await world.leaders("t"))[0] == (0, broker.node_id, [])
        await world.check()

    run(scenario)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE], ids=["its disk", "alone"])
def test_nobody_is_told_of_a_log_that_fails_while_the_broker_stops(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no controller any more that would hear it: a stopped broker does nothing."""

    async def scenario(simulation: Simulation) -> None:
        world = World(simulation, {"log.dirs": ONE})
        await world.broker.start()
        await world.create("t", 1)
        assert await world.write("t", 0, b"first") == 0
        world.broker.host.disk.inject(DiskFault("sync", number, under=f"{ONE}/t-0", times=None))
        await world.broker.stop()
        await asyncio.sleep(10)
        assert "closing a log failed" in caplog.text
        assert "the controller does not hear" not in caplog.text

    run(scenario)
