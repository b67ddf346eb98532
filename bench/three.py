"""Three brokers of either kind, as processes of this machine: Headrace's, or Apache Kafka's nodes (KRaft, combined)."""

from __future__ import annotations

import compileall
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import psutil

import headrace
from bench import peers
from headrace.testing import BrokerProcess, ZooKeeperProcess

NODES = (1, 2, 3)
WAIT_S = 180.0
# Three copies of everything, two of them needed for an acknowledgement; the rest as it comes.
SETTINGS = {
    "num.partitions": "4",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "group.initial.rebalance.delay.ms": "0",
    # Where leaders are is decided by who was killed, and not by a look-out that comes every five minutes.
    "auto.leader.rebalance.enable": "false",
}


class Node(Protocol):
    @property
    def address(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def start(self) -> Any: ...
    def stop(self) -> Any:
        """Cleanly: it hands over what it leads."""

    def kill(self) -> None:
        """As a crash does."""


class Three:
    """The cluster: who is in it, what it uses, who leads."""

    def __init__(self, kind: str, nodes: dict[int, Node]) -> None:
        self.kind = kind
        self.nodes = nodes

    @property
    def address(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    def start(self) -> float:
        """All at once; the seconds until a client sees all of them."""
        began = time.perf_counter()
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.start(), self.nodes.values()))
        self.await_members()
        return time.perf_counter() - began

    def stop(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def await_members(self) -> None:
        admin = self._admin()
        wait_until(lambda: set(admin.list_topics(timeout=WAIT_S).brokers) == set(self.nodes), "three brokers")

    def leader(self, topic: str, partition: int = 0) -> int:
        leader: int = self._admin().list_topics(topic, timeout=WAIT_S).topics[topic].partitions[partition].leader
        return leader

    def led_by(self, node: int) -> list[tuple[str, int]]:
        """The partitions that this one leads, Kafka's own topics left out."""
        return [
            (name, number)
            for name, topic in self._admin().list_topics(timeout=WAIT_S).topics.items()
            for number, partition in topic.partitions.items()
            if partition.leader == node and not name.startswith("__")
        ]

    def await_whole(self) -> None:
        """All brokers are members, and every replica is in sync."""
        self.await_members()
        admin = self._admin()

        def is_whole() -> bool:
            topics = admin.list_topics(timeout=WAIT_S).topics.values()
            return all(
                partition.leader >= 0 and len(partition.isrs) == len(partition.replicas)
                for topic in topics
                for partition in topic.partitions.values()
            )

        wait_until(is_whole, "all replicas in sync")

    def await_leaders(self, topic: str, *, but: int) -> float:
        """When the others say that all partitions of a topic are led, and none by this one."""
        admin = self._admin(but=but)

        def are_led() -> bool:
            partitions = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions.values()
            return all(partition.leader not in (but, -1) for partition in partitions)

        wait_until(are_led, "new leaders")
        return time.monotonic()

    def _admin(self, *, but: int | None = None) -> Any:
        from confluent_kafka.admin import AdminClient

        address = ",".join(node.address for number, node in self.nodes.items() if number != but)
        return AdminClient({"bootstrap.servers": address, "log_level": 0})

    # --- what it uses

    def processes(self, *, but: int | None = None) -> list[psutil.Process]:
        return [psutil.Process(node.pid) for number, node in self.nodes.items() if number != but]

    def cpu_seconds(self, *, but: int | None = None) -> float:
        return sum(times.user + times.system for times in (one.cpu_times() for one in self.processes(but=but)))

    def memory_mb(self) -> float:
        return float(sum(one.memory_info().rss for one in self.processes())) / 1e6


def wait_until(condition: Callable[[], bool], what: str, *, timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(0.05)


@contextmanager
def three(
    kind: str, directory: Path, *, zookeeper: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[Three]:
    """Prepared and not started yet; ended afterwards."""
    if kind == "kafka":
        found = Three(kind, dict(zip(NODES, _kafkas(directory, settings or {}))))
        keeper = None
    else:
        # An installed package is compiled by pip; one that is run from its source may not be.
        compileall.compile_dir(str(Path(headrace.__file__).parent), quiet=2)
        keeper = ZooKeeperProcess(directory / "zookeeper").start() if zookeeper else None
        shared = (
            {"zookeeper.connect": keeper.address} if keeper else {"headrace.metadata.dir": str(directory / "metadata")}
        )
        nodes = {
            node: BrokerProcess(
                directory / f"broker-{node}", {**SETTINGS, **shared, **(settings or {}), "node.id": str(node)}
            )
            for node in NODES
        }
        found = Three(kind, dict(nodes))
    try:
        yield found
    finally:
        found.stop()
        if keeper is not None:
            keeper.kill()


def _kafkas(directory: Path, settings: Mapping[str, str]) -> Sequence[Node]:
    quorum = peers.Quorum.of(NODES)
    nodes = [
        peers.ApacheKafka(directory / f"node-{node}", {**SETTINGS, **settings}, node_id=node, quorum=quorum)
        for node in NODES
    ]
    for node in nodes:
        node.prepare()
    return nodes
