"""Three broker processes that share their metadata in a directory, and in a real ZooKeeper; one is killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.waiting import eventually

from headrace.errors import ErrorCode
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from headrace.testing import BrokerDidNotStartError, BrokerProcess, ZooKeeperNotFoundError, ZooKeeperProcess

from . import raw
from .raw import RawClient
from .sim import METADATA_VERSION


def metadata(broker: BrokerProcess, *names: str) -> MetadataResponse:
    with RawClient(broker.port) as client:
        topics = [MetadataRequestTopic(name=name) for name in names]
        found: MetadataResponse = client.request(MetadataRequest(topics=topics), METADATA_VERSION)
        return found


def create(broker: BrokerProcess, name: str, partitions: int) -> int:
    with RawClient(broker.port) as client:
        answer = client.request(raw.create_topics_request({name: partitions}), raw.CREATE_TOPICS_VERSION)
        code: int = answer.topics[0].error_code
        return code


def leaders(broker: BrokerProcess, name: str) -> set[int]:
    return {partition.leader_id for partition in metadata(broker, name).topics[0].partitions}


def live_through_a_kill(tmp_path: Path, shared: dict[str, str]) -> None:
    brokers = {
        node_id: BrokerProcess(
            tmp_path / f"broker-{node_id}",
            {"node.id": str(node_id), "broker.session.timeout.ms": "5000", "broker.heartbeat.interval.ms": "500"}
            | shared,
        )
        for node_id in (1, 2, 3)
    }
    with contextlib.ExitStack() as stack:
        for broker in brokers.values():
            stack.callback(broker.kill)
            broker.start()
        for broker in brokers.values():
            eventually(lambda b=broker: len(metadata(b).brokers) == 3)
        assert create(brokers[2], "spread", 6) == ErrorCode.NONE
        eventually(lambda: leaders(brokers[2], "spread") == {1, 2, 3}, "leaders on all brokers")
        controller = metadata(brokers[2]).controller_id
        assert controller in brokers
        dead = brokers.pop(controller)
        dead.kill()
        other = next(iter(brokers.values()))
        eventually(lambda: metadata(other).controller_id in brokers)
        eventually(lambda: {b.node_id for b in metadata(other).brokers} == set(brokers))
        assert create(other, "after", 4) == ErrorCode.NONE
        dead.start()
        eventually(lambda: {b.node_id for b in metadata(other).brokers} == {1, 2, 3})
        eventually(lambda: leaders(other, "spread") == {1, 2, 3}, "leaders on all brokers again")
        for broker in (*brokers.values(), dead):
            assert broker.stop() == 0, broker.output()


@pytest.mark.slow
def test_processes_that_share_a_directory_go_on_when_the_controller_is_killed(tmp_path: Path) -> None:
    live_through_a_kill(tmp_path, {"headrace.metadata.dir": str(tmp_path / "metadata")})


@pytest.mark.slow
def test_processes_that_share_a_zookeeper_go_on_when_the_controller_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("kazoo")
    try:
        zookeeper = ZooKeeperProcess(tmp_path / "zookeeper").start()
    except ZooKeeperNotFoundError as error:
        pytest.skip(str(error))
    try:
        shared = {"zookeeper.connect": f"{zookeeper.address}/kafka", "zookeeper.session.timeout.ms": "5000"}
        live_through_a_kill(tmp_path, shared)
    finally:
        zookeeper.kill()


@pytest.mark.slow
def test_brokers_start_before_their_zookeeper_does_and_can_be_stopped_while_they_wait(tmp_path: Path) -> None:
    pytest.importorskip("kazoo")
    zookeeper = ZooKeeperProcess(tmp_path / "zookeeper")
    shared = {"zookeeper.connect": f"{zookeeper.address}/kafka", "zookeeper.session.timeout.ms": "1500"}
    brokers = [BrokerProcess(tmp_path / str(number), {"node.id": str(number)} | shared) for number in (1, 2)]

    def is_trying(broker: BrokerProcess) -> bool:
        return "goes on trying" in broker.output()

    with contextlib.ExitStack() as stack:
        stack.callback(zookeeper.kill)
        pool = stack.enter_context(ThreadPoolExecutor(len(brokers)))
        for broker in brokers:
            stack.callback(broker.kill)
        starting = [pool.submit(broker.start) for broker in brokers]
        eventually(lambda: all(map(is_trying, brokers)))
        try:
            zookeeper.start()
        except ZooKeeperNotFoundError as error:
            for broker in brokers:
                broker.kill()
            pytest.skip(str(error))
        for started in starting:
            started.result()
        eventually(lambda: len(metadata(brokers[0]).brokers) == 2)
        assert brokers[1].stop() == 0, brokers[1].output()
        # It is there and says nothing: a broker waits for it too, and ends when it is asked to.
        zookeeper.pause()
        brokers[1].output_path.unlink()
        again = pool.submit(brokers[1].start)
        eventually(lambda: is_trying(brokers[1]))
        os.kill(brokers[1].pid, signal.SIGTERM)
        with pytest.raises(BrokerDidNotStartError, match="ended with 0"):
            again.result()
        zookeeper.resume()


def received(zookeeper: ZooKeeperProcess) -> int:
    """How many requests a ZooKeeper was ever sent; those for this number are none of them."""
    with socket.create_connection(("127.0.0.1", zookeeper.port), timeout=10) as sock:
        sock.sendall(b"srvr")
        text = b""
        while part := sock.recv(4096):
            text += part
    found = re.search(rb"Received: (\d+)", text)
    assert found is not None, text
    return int(found[1])


@pytest.mark.slow
def test_a_change_of_the_metadata_is_not_read_from_zookeeper_by_every_broker(tmp_path: Path) -> None:
    pytest.importorskip("kazoo")
    with contextlib.ExitStack() as stack:
        try:
            zookeeper = ZooKeeperProcess(tmp_path / "zookeeper", tick_s=3.0).start()
        except ZooKeeperNotFoundError as error:
            pytest.skip(str(error))
        stack.callback(zookeeper.kill)
        # Long sessions: what is counted are no pings.
        shared = {"zookeeper.connect": f"{zookeeper.address}/kafka", "zookeeper.session.timeout.ms": "60000"}
        brokers = [BrokerProcess(tmp_path / str(number), {"node.id": str(number)} | shared) for number in (1, 2, 3)]
        for broker in brokers:
            stack.callback(broker.kill)
            broker.start()
        for broker in brokers:
            eventually(lambda b=broker: len(metadata(b).brokers) == 3)
        before = received(zookeeper)
        count = 30
        for number in range(count):
            assert create(brokers[number % 3], f"t{number}", 3) == ErrorCode.NONE
        for broker in brokers:
            name = f"t{count - 1}"
            eventually(lambda b=broker, n=name: not metadata(b, n).topics[0].error_code)
        # One append each, and a few pings; three brokers that read it would need a dozen more.
        assert received(zookeeper) - before < 3 * count
