"""A process may have few file descriptors: connections and files share them, and to be out of them breaks nothing."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import resource
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.waiting import eventually

from headrace.broker.broker import WAITING_LOGS_RETRY_S
from headrace.broker.partitions.replicas import Replicas
from headrace.broker.server.descriptors import share_out
from headrace.cluster.image import Image
from headrace.errors import ErrorCode
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.runtime import real_network, real_runtime
from headrace.runtime.simulated import DiskFault, Simulation, run_simulation
from headrace.testing import BrokerProcess

from . import raw
from .raw import RawClient
from .sim import Client, SimulatedBroker

METADATA_VERSION = 9
MIB = 1024 * 1024


def limited(directory: Path, descriptors: int) -> BrokerProcess:
    """A broker in a process of its own, which may not raise its limit."""
    limits = ("/bin/sh", "-c", 'ulimit -n "$0" && exec "$@"', str(descriptors))
    return BrokerProcess(directory / "data", {"log.retention.ms": "-1"}, prefix=limits)


def produce_to_all(client: RawClient, topic: str, partitions: int) -> set[int]:
    """One small batch for each partition, in one request; the error codes that were answered."""
    data = [PartitionProduceData(index=index, records=raw.batch([b"x"])) for index in range(partitions)]
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)])
    answer = client.request(request, raw.PRODUCE_VERSION)
    return {result.error_code for told in answer.responses for result in told.partition_responses}


@pytest.mark.slow
@pytest.mark.parametrize(("partitions", "descriptors"), [(300, 200), pytest.param(1500, 1024, marks=pytest.mark.long)])
def test_more_partitions_than_descriptors_are_made_and_served_also_after_a_restart(
    tmp_path: Path, partitions: int, descriptors: int
) -> None:
    kafka = limited(tmp_path, descriptors)
    with kafka, RawClient(kafka.port) as client:
        answer = client.request(raw.create_topics_request({"t": partitions}), raw.CREATE_TOPICS_VERSION)
        assert answer.topics[0].error_code == 0
        assert produce_to_all(client, "t", partitions) == {0}
    with kafka, RawClient(kafka.port) as client:
        assert produce_to_all(client, "t", partitions) == {0}
        answer = client.request(raw.fetch_request("t", partitions - 1, 0), raw.FETCH_VERSION)
        assert [offset for offset, _ in raw.values_of(raw.fetched(answer).records)] == [0, 1]
    assert "offline" not in kafka.output()


@pytest.mark.slow
def test_idle_connections_take_no_descriptor_from_the_logs(tmp_path: Path) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 600:
        pytest.skip("this test needs 600 descriptors itself")
    kafka = limited(tmp_path, 256)
    with kafka, RawClient(kafka.port) as client, contextlib.ExitStack() as stack:
        request = raw.create_topics_request({"t": 20}, segment_bytes=str(MIB), max_message_bytes=str(MIB))
        assert client.request(request, raw.CREATE_TOPICS_VERSION).topics[0].error_code == 0
        idle = [stack.enter_context(RawClient(kafka.port)) for _ in range(400)]
        eventually(lambda: "connections were refused" in kafka.output())
        for _ in range(3):
            for partition in range(20):
                records = raw.batch([bytes(MIB // 2 - 1000)])
                answer = client.request(raw.produce_request("t", partition, records), raw.PRODUCE_VERSION)
                assert raw.produced(answer).error_code == 0
        assert list((kafka.directory / "t-0").glob("*2.log")), "no segment has ended: the test shows nothing"
        for connection in idle:
            connection.close()
        eventually(lambda: is_served(kafka.port))
    assert len(kafka.output()) < 5000, "the log is no place for what happens again and again"


def is_served(port: int) -> bool:
    with contextlib.suppress(ConnectionError), RawClient(port) as client:
        return bool(client.request(MetadataRequest(topics=None), METADATA_VERSION).brokers)
    return False


def test_connections_beyond_their_share_are_turned_away_and_files_give_way_to_them() -> None:
    async def main(simulation: Simulation) -> None:
        broker = SimulatedBroker(simulation)
        host = broker.host
        host.runtime = dataclasses.replace(host.runtime, descriptors=100)
        await broker.start()
        assert broker.broker is not None
        shares = share_out(100)
        files = broker.broker.directories.caches.files
        assert files.open_max == shares.shared
        clients = [Client(simulation, f"client-{number}") for number in range(shares.connections_max)]
        for client in clients:
            await client.request(MetadataRequest(topics=None), METADATA_VERSION)
        assert files.open_max == shares.files_min
        with pytest.raises(ConnectionError):
            await Client(simulation, "too-many").request(MetadataRequest(topics=None), METADATA_VERSION)
        clients.pop().close()
        await Client(simulation, "late").insist(MetadataRequest(topics=None), METADATA_VERSION)
        await broker.stop()

    run_simulation(main, 1, time_max_s=900.0)


def test_the_shares_fit_into_what_there_is() -> None:
    for free in (0, 1, 10, 100, 200, 1000, 20_000, 1 << 20):
        shares = share_out(free)
        for connections in (0, 1, shares.connections_max):
            assert shares.files_beside(connections) >= 1
            assert connections + shares.files_beside(connections) <= max(free, 2)
    assert share_out(240).connections_max > 100
    assert share_out(None).files_beside(10_000) == 1024


def run(scenario: Callable[[Simulation, SimulatedBroker, Client], Awaitable[None]], seed: int = 1) -> None:
    async def main(simulation: Simulation) -> None:
        broker = SimulatedBroker(simulation)
        await broker.start()
        await scenario(simulation, broker, Client(simulation, "client"))
        await broker.stop()

    run_simulation(main, seed, time_max_s=900.0)


@pytest.mark.parametrize("has_defect", [False, True])
def test_a_topic_whose_logs_cannot_be_opened_is_not_told_as_made_and_works_when_they_can(
    failures: list[str], monkeypatch: pytest.MonkeyPatch, has_defect: bool
) -> None:
    async def scenario(simulation: Simulation, broker: SimulatedBroker, client: Client) -> None:
        disk = broker.host.disk
        if has_defect:
            make = Replicas.make_waiting
            defects = [RuntimeError("a defect")]

            async def fail_once(replicas: Replicas, image: Image) -> None:
                if defects:
                    raise defects.pop()
                await make(replicas, image)

            monkeypatch.setattr(Replicas, "make_waiting", fail_once)
        fault = disk.inject(DiskFault("open", errno.EMFILE, under="/data/one/t-1", times=None))
        answer = await client.insist(raw.create_topics_request({"t": 3, "u": 1}), raw.CREATE_TOPICS_VERSION)
        told = {topic.name: topic for topic in answer.topics}
        assert told["t"].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "partition 1" in told["t"].error_message
        assert told["u"].error_code == 0
        assert await write(client, "t", 0) == 0
        assert await write(client, "t", 1) == ErrorCode.KAFKA_STORAGE_ERROR
        disk.faults.remove(fault)
        await asyncio.sleep(3 * WAITING_LOGS_RETRY_S)
        assert await write(client, "t", 1) == 0
        assert await client.read_all("t", 1)
        assert sum("could not be made" in text for text in failures) == 1 + has_defect
        failures.clear()

    run(scenario)


async def write(client: Client, topic: str, partition: int, size: int = 10) -> int:
    records = raw.batch([bytes(size)], timestamp_ms=client.host.clock.now_ms())
    answer = await client.insist(raw.produce_request(topic, partition, records), raw.PRODUCE_VERSION)
    return raw.produced(answer).error_code


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["open", "sync_dir", "truncate"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_a_roll_that_descriptors_were_short_for_is_done_later_and_nothing_is_lost(operation: str, number: int) -> None:
    """At each step of ending a segment and beginning the next."""

    async def scenario(simulation: Simulation, broker: SimulatedBroker, client: Client) -> None:
        await client.insist(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
        acknowledged = 0
        refused = 0
        for step in range(12):
            fault = broker.host.disk.inject(DiskFault(operation, number, under="/data/one/t-0", skip=step))
            for _ in range(4):  # three make a segment full
                code = await write(client, "t", 0, 6000)
                assert code in (0, ErrorCode.KAFKA_STORAGE_ERROR)
                acknowledged += code == 0
                refused += code != 0
            broker.host.disk.faults.remove(fault)
            assert await write(client, "t", 0, 6000) == 0
            acknowledged += 1
        assert refused > 0 or operation != "open"
        assert len(await client.read_all("t", 0)) == acknowledged
        assert broker.broker is not None
        assert len(broker.broker.partition("t", 0).log.segments) > 10
        client.close()
        await broker.stop()
        await broker.start()
        assert len(await client.read_all("t", 0)) == acknowledged
        assert await write(client, "t", 0) == 0

    run(scenario)


def test_files_that_are_only_kept_open_are_closed_for_those_that_are_needed() -> None:
    async def scenario(simulation: Simulation, broker: SimulatedBroker, client: Client) -> None:
        await client.insist(raw.create_topics_request({"t": 30}), raw.CREATE_TOPICS_VERSION)
        disk = broker.host.disk
        disk.descriptors_max = disk.open_count  # none is left
        for size in (10, 12_000, 12_000):
            for partition in range(30):
                assert await write(client, "t", partition, size) == 0
        answer = await client.insist(raw.create_topics_request({"u": 30}), raw.CREATE_TOPICS_VERSION)
        assert answer.topics[0].error_code == 0
        for partition in range(30):
            assert await write(client, "u", partition) == 0
            assert len(await client.read_all("t", partition)) == 3

    run(scenario)


def test_a_start_that_descriptors_are_short_for_fails_and_changes_nothing(failures: list[str]) -> None:
    async def main(simulation: Simulation) -> None:
        broker = SimulatedBroker(simulation)
        client = Client(simulation, "client")
        await broker.start()
        await client.insist(raw.create_topics_request({"t": 3}), raw.CREATE_TOPICS_VERSION)
        for partition in range(3):
            assert await write(client, "t", partition) == 0
        client.close()
        await broker.stop()
        runtime = broker.host.restart()
        runtime.disk.inject(DiskFault("open", errno.EMFILE, under="/data/one/t-1", times=None))  # type: ignore[attr-defined]
        runtime.disk.inject(DiskFault("read", errno.EMFILE, under="/data/one/t-1", times=None))  # type: ignore[attr-defined]
        with pytest.raises(Exception, match="EMFILE"):
            await broker.start()
        broker.kill()
        await broker.start()
        for partition in range(3):
            assert len(await client.read_all("t", partition)) == 1
        await broker.stop()

    run_simulation(main, 1, time_max_s=900.0)


def test_nobody_is_accepted_while_descriptors_are_short_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(real_network, "_ACCEPT_PAUSE_S", 0.001)
    short = [OSError(errno.EMFILE, "too many")] * 5 + [OSError(errno.ENFILE, "far too many")] * 5

    class ShortSocket(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            if short:
                raise short.pop()
            return super().accept()

    monkeypatch.setattr(real_network.socket, "socket", ShortSocket)

    async def main() -> None:
        made = asyncio.Event()

        class Server(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                transport.abort()  # type: ignore[attr-defined]
                made.set()

        listener = await real_runtime().network.listen(Server, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*listener.addresses[0])
        await made.wait()
        writer.close()
        listener.close()
        await listener.wait_closed()

    asyncio.run(main())
    assert [record.levelname for record in caplog.records if record.name == "headrace.network"] == ["WARNING"]


@pytest.mark.parametrize("skip", range(4))
def test_metadata_that_descriptors_were_short_for_is_either_decided_or_not(failures: list[str], skip: int) -> None:
    """A decision that was refused must not come to light after the next start, beside one that replaced it."""

    async def scenario(simulation: Simulation, broker: SimulatedBroker, client: Client) -> None:
        disk = broker.host.disk
        fault = disk.inject(DiskFault("*", errno.EMFILE, under="/data/one/__cluster_metadata-0", skip=skip, times=3))
        made = {}
        for number in range(4):
            answer = await client.insist(raw.create_topics_request({f"t{number}": 1}), raw.CREATE_TOPICS_VERSION)
            made[f"t{number}"] = answer.topics[0].error_code == 0
        disk.faults.remove(fault)
        client.close()
        await broker.stop()
        await broker.start()
        for number in range(4):
            answer = await client.insist(raw.create_topics_request({f"t{number}": 1}), raw.CREATE_TOPICS_VERSION)
            if made[f"t{number}"]:
                assert answer.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        for number in range(4):
            assert await write(client, f"t{number}", 0) == 0
        failures.clear()

    run(scenario)
