"""Logs of later leader epochs than the metadata knows of: they are served, and epochs go on rising."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from tests.log.making import append_one

from headrace.errors import ErrorCode
from headrace.log import LogConfig, LogDirectories
from headrace.runtime.simulated import DiskFault, Simulation, run_simulation
from headrace.topics import TopicPartition

from . import raw
from .sim import Client, SimulatedBroker

ONE, TWO = "/data/one", "/data/two"
BOTH, ONLY_ONE = {"log.dirs": f"{ONE},{TWO}"}, {"log.dirs": ONE}
TOPIC, TOPIC_ID = "t", bytes(range(16))
LATE_EPOCH = 7


def run(scenario: Callable[[Simulation], Awaitable[None]]) -> None:
    async def main(simulation: Simulation) -> None:
        await scenario(simulation)

    run_simulation(main, 1, time_max_s=900.0)


def fill(broker: SimulatedBroker) -> None:
    """What another broker has left, without its metadata: partition 0 in the second directory, 1 in the first."""
    for index, (path, epoch) in enumerate([(TWO, LATE_EPOCH), (ONE, 2)]):
        directories = LogDirectories.open(broker.host.runtime, [path], node_id=1, cluster_id="cluster")
        directories.open_logs(lambda topic: LogConfig())
        log = directories.create(TopicPartition(TOPIC, index), LogConfig(), TOPIC_ID)
        for number in range(3):
            append_one(log, raw.batch([b"old %d" % number]), epoch)
        directories.close()


async def write(client: Client, index: int, value: bytes) -> int:
    request = raw.produce_request(TOPIC, index, raw.batch([value]))
    return raw.produced(await client.insist(request, raw.PRODUCE_VERSION)).error_code


async def check_served(broker: SimulatedBroker, client: Client, *more: bytes) -> None:
    """Everything that was there is, what is written comes behind it, and of a later epoch than all of it."""
    assert broker.broker is not None
    epoch = broker.broker.partition(TOPIC, 0).leader_epoch
    assert epoch > LATE_EPOCH
    assert await write(client, 0, b"new") == ErrorCode.NONE
    assert broker.broker.partition(TOPIC, 0).log.leader_epoch == epoch
    values = [value for _, value in await client.read_all(TOPIC, 0)]
    assert values == [b"old 0", b"old 1", b"old 2", *more, b"new"]


@pytest.mark.parametrize("at_first", ["not named", "failing"])
def test_a_directory_that_was_away_when_its_topic_was_taken_over_is_served_when_it_is_back(at_first: str) -> None:
    async def scenario(simulation: Simulation) -> None:
        settings = {"metadata.log.dir": ONE, **(BOTH if at_first == "failing" else ONLY_ONE)}
        broker, client = SimulatedBroker(simulation, settings), Client(simulation, "client")
        fill(broker)
        if at_first == "failing":
            broker.host.disk.inject(DiskFault("*", under=TWO, times=None))
        await broker.start()
        assert broker.broker is not None
        assert broker.broker.image.topics[TOPIC].partitions[0].leader_epoch < LATE_EPOCH
        assert await write(client, 1, b"here") == ErrorCode.NONE
        client.close()
        await broker.stop()
        broker.host.disk.heal()
        broker.settings |= BOTH
        await broker.start()
        await check_served(broker, client)
        client.close()
        broker.kill()
        await broker.start()
        await check_served(broker, client, b"new")

    run(scenario)
