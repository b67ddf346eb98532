"""What the clients of a run talk to, and how it is hurt: one broker, three that share a store, or Apache Kafka."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from bench.peers import ApacheKafka, Quorum
from tests.waiting import eventually

from headrace import Admin
from headrace.errors import HeadraceError
from headrace.testing import BrokerProcess, FaultProxy, ZooKeeperEnsemble, ZooKeeperProcess

Say = Callable[[str, str], None]
"""Told of every fault: its name, and to whom."""
Fault = Callable[[random.Random, Say], None]
"""It is over, and what it hurt is up again, when it gives back."""

BROKER_SETTINGS = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "log.segment.bytes": "1048576",
}
SESSION_S = 3.0
CLUSTER_SETTINGS = BROKER_SETTINGS | {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "zookeeper.session.timeout.ms": f"{SESSION_S * 1000:.0f}",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "5000",
    "leader.imbalance.check.interval.seconds": "5",
}
KAFKA_SETTINGS = {name: value for name, value in CLUSTER_SETTINGS.items() if not name.startswith("zookeeper.")}
BROKERS = (1, 2, 3)
_HEAL_S = 90.0
_LOOK_S = 0.1


class Node(Protocol):
    """One of three brokers, as a process."""

    directory: Path

    @property
    def address(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def is_running(self) -> bool: ...
    def start(self) -> object: ...
    def stop(self) -> int:
        """As its operator does; the exit code."""

    def kill(self) -> None: ...
    def output(self) -> str: ...


class Servers(Protocol):
    @property
    def address(self) -> str:
        """`bootstrap.servers`."""

    @property
    def data(self) -> Path:
        """Of one that has everything."""

    @property
    def faults(self) -> Sequence[Fault]:
        """To choose from; more likely ones are there several times."""

    def start(self) -> None: ...

    def fallen(self) -> list[str]:
        """What those said that ended by themselves; they are started again."""

    def heal(self, topics: tuple[str, ...]) -> str | None:
        """Wait until all is well; what is not, if it does not become so."""

    def stop(self) -> None:
        """For good; nothing of it is left."""


def pause(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


class OneBroker:
    """See the module."""

    def __init__(self, directory: Path) -> None:
        self._broker = BrokerProcess(directory / "data", BROKER_SETTINGS)

    @property
    def address(self) -> str:
        return self._broker.address

    @property
    def data(self) -> Path:
        return self._broker.directory

    @property
    def faults(self) -> Sequence[Fault]:
        return [self._kill] * 2 + [self._pause] * 2

    def start(self) -> None:
        self._broker.start()

    def fallen(self) -> list[str]:
        return _start_fallen([self._broker])

    def heal(self, topics: tuple[str, ...]) -> str | None:
        return None

    def stop(self) -> None:
        self._broker.stop()

    def _kill(self, rng: random.Random, say: Say) -> None:
        say("broker killed", "")
        self._broker.kill()
        time.sleep(rng.choice([0.0, 0.5, 2.0]))
        self._broker.start()

    def _pause(self, rng: random.Random, say: Say) -> None:
        seconds = rng.choice([0.5, 2.0, 4.0])
        say("broker paused", f"for {seconds} s")
        pause(self._broker.pid, seconds)


class KafkaNode:
    """One of Apache Kafka's nodes, which is a broker and one of the controllers."""

    def __init__(self, kafka: ApacheKafka) -> None:
        self._kafka = kafka
        self.directory = kafka.directory / "data"

    @property
    def address(self) -> str:
        return self._kafka.address

    @property
    def pid(self) -> int:
        return self._kafka.pid

    @property
    def is_running(self) -> bool:
        return self._kafka.process is not None and self._kafka.process.poll() is None

    def start(self) -> None:
        self._kafka.start()

    def stop(self) -> int:
        process = self._kafka.process
        self._kafka.stop()
        # What Java ends with after SIGTERM, when all its hooks have run.
        return 0 if process is None or process.returncode == 128 + signal.SIGTERM else process.returncode

    def kill(self) -> None:
        self._kafka.kill()

    def output(self) -> str:
        return (self._kafka.directory / "server.log").read_text(errors="replace")


def kafka_nodes(directory: Path) -> tuple[dict[int, Node], dict[int, FaultProxy]]:
    """Of Apache Kafka, with the settings that count here; clients and the other brokers reach each by its proxy, the
    controllers each other directly."""
    quorum = Quorum.of(BROKERS)
    proxies = {node: FaultProxy() for node in BROKERS}
    nodes: dict[int, Node] = {}
    for node in BROKERS:
        settings = {**KAFKA_SETTINGS, **proxies[node].overrides}
        kafka = ApacheKafka(directory / f"node-{node}", settings, node_id=node, quorum=quorum)
        kafka.prepare()
        nodes[node] = KafkaNode(kafka)
    return nodes, proxies


def headrace_nodes(directory: Path, store: Mapping[str, str]) -> tuple[dict[int, Node], dict[int, FaultProxy]]:
    """Clients and the other brokers reach each by its proxy."""
    proxies = {node: FaultProxy() for node in BROKERS}
    nodes: dict[int, Node] = {
        node: BrokerProcess(
            directory / f"broker-{node}",
            {**CLUSTER_SETTINGS, **store, **proxies[node].overrides, "node.id": str(node)},
        )
        for node in BROKERS
    }
    return nodes, proxies


class ThreeBrokers:
    """Each behind a proxy of its own; with an ensemble of three ZooKeepers, or with the store in a directory. Or three
    nodes of Apache Kafka."""

    def __init__(self, directory: Path, *, with_zookeeper: bool = False, of_apache: bool = False) -> None:
        self._zookeeper = ZooKeeperEnsemble(directory / "zookeeper") if with_zookeeper else None
        if of_apache:
            self._brokers, self._proxies = kafka_nodes(directory)
        else:
            store = (
                {"zookeeper.connect": self._zookeeper.address}
                if self._zookeeper is not None
                else {"headrace.metadata.dir": str(directory / "metadata")}
            )
            self._brokers, self._proxies = headrace_nodes(directory, store)

    @property
    def address(self) -> str:
        return ",".join(proxy.address for proxy in self._proxies.values())

    @property
    def data(self) -> Path:
        return self._brokers[BROKERS[0]].directory

    @property
    def faults(self) -> Sequence[Fault]:
        of_disks = [self._fill_disk] * 2 if hasattr(resource, "prlimit") else []
        of_brokers = [self._kill] * 3 + [self._pause] * 3 + [self._restart] * 2 + [self._kill_two, self._pause_two]
        of_the_network = [self._cut] * 2 + [self._cut_off] * 2
        of_the_store = [self._kill_store, self._pause_store, self._kill_while_the_store_is_away]
        return of_brokers + of_disks + of_the_network + (of_the_store if self._zookeeper is not None else [])

    def start(self) -> None:
        if self._zookeeper is not None:
            self._zookeeper.start()
        for node, broker in self._brokers.items():
            self._proxies[node].target = broker.address
            self._proxies[node].start()
        # At once: a node of Apache Kafka serves nobody before it has found most of the others.
        with ThreadPoolExecutor(len(self._brokers)) as pool:
            list(pool.map(lambda broker: broker.start(), self._brokers.values()))
        with Admin({"bootstrap.servers": self.address}) as admin:
            # A broker takes connections before it is registered.
            eventually(lambda: len(admin.describe_cluster().nodes) == len(BROKERS), "all brokers", _HEAL_S)

    def stop(self) -> None:
        for broker in self._brokers.values():
            broker.kill()
        for proxy in self._proxies.values():
            proxy.stop()
        if self._zookeeper is not None:
            self._zookeeper.kill()

    def fallen(self) -> list[str]:
        return _start_fallen(list(self._brokers.values()))

    def tracebacks(self) -> dict[int, int]:
        """How many each broker's log has."""
        return {
            node: broker.output().count("Traceback (most recent call last)") for node, broker in self._brokers.items()
        }

    def heal(self, topics: tuple[str, ...]) -> str | None:
        """All replicas in sync, everywhere."""
        deadline = time.monotonic() + _HEAL_S
        with Admin({"bootstrap.servers": self.address}) as admin:
            while True:
                lacking = _lacking(admin, topics)
                if not lacking:
                    return None
                if time.monotonic() > deadline:
                    return f"after {_HEAL_S:.0f} s: {lacking}"
                time.sleep(_LOOK_S)

    def roll(self, topics: tuple[str, ...], say: Callable[[str], None]) -> list[str]:
        """Restart all, one after the other, each when the one before is in sync again; what went wrong."""
        problems: list[str] = []
        for node, broker in self._brokers.items():
            began = time.monotonic()
            code = broker.stop()
            stopped = time.monotonic()
            if code != 0:
                problems.append(f"broker {node} ended with {code}")
            broker.start()
            started = time.monotonic()
            lacking = self.heal(topics)
            if lacking is not None:
                problems.append(f"broker {node} is not in sync again {lacking}")
            say(
                f"broker {node} restarted: {stopped - began:.1f} s to stop, {started - stopped:.1f} s to start, "
                f"{time.monotonic() - started:.1f} s until all replicas are in sync"
            )
        return problems

    # --- faults of brokers

    def _kill(self, rng: random.Random, say: Say) -> None:
        self._kill_all(rng, say, [rng.choice(BROKERS)])

    def _kill_two(self, rng: random.Random, say: Say) -> None:
        self._kill_all(rng, say, rng.sample(BROKERS, 2))

    def _kill_all(self, rng: random.Random, say: Say, nodes: list[int]) -> None:
        say(f"{len(nodes)} killed", f"brokers {nodes}")
        for node in nodes:
            self._brokers[node].kill()
        time.sleep(rng.choice([0.0, 1.0, 4.0]))
        for node in nodes:
            self._brokers[node].start()

    def _restart(self, rng: random.Random, say: Say) -> None:
        node = rng.choice(BROKERS)
        say("1 restarted", f"broker {node}")
        self._brokers[node].stop()
        time.sleep(rng.choice([0.0, 1.0, 4.0]))
        self._brokers[node].start()

    def _pause(self, rng: random.Random, say: Say) -> None:
        self._pause_all(rng, say, [rng.choice(BROKERS)])

    def _pause_two(self, rng: random.Random, say: Say) -> None:
        self._pause_all(rng, say, rng.sample(BROKERS, 2))

    def _pause_all(self, rng: random.Random, say: Say, nodes: list[int]) -> None:
        """Longer than its session, more often than not: who wakes up has been deposed, and does not know it."""
        seconds = rng.choice([0.5, SESSION_S + 1, 2 * SESSION_S + 1])
        say(f"{len(nodes)} paused", f"brokers {nodes} for {seconds} s")
        pids = [self._brokers[node].pid for node in nodes]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    # --- faults of the network

    def _cut(self, rng: random.Random, say: Say) -> None:
        node = rng.choice(BROKERS)
        say("connections cut", f"{self._proxies[node].cut()} to broker {node}")

    def _cut_off(self, rng: random.Random, say: Say) -> None:
        """Whatever is sent to it is lost; what it sends arrives, and so does its sign of life in the store."""
        node, seconds = rng.choice(BROKERS), rng.choice([1.0, 4.0, 8.0])
        say("cut off", f"broker {node} for {seconds} s")
        self._proxies[node].swallow()
        time.sleep(seconds)
        self._proxies[node].resume()
        self._proxies[node].cut()

    # --- faults of disks

    def _fill_disk(self, rng: random.Random, say: Say) -> None:
        """No file of the broker can grow. It comes back with room on its disk, as a new process: a log directory that
        failed stays away until then."""
        node, seconds = rng.choice(BROKERS), rng.choice([0.2, 2.0, 6.0])
        say("disk full", f"broker {node} for {seconds} s")
        broker = self._brokers[node]
        _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (0, hard))
        time.sleep(seconds)
        broker.kill()
        broker.start()

    # --- faults of the store

    def _some_servers(self, rng: random.Random) -> list[ZooKeeperProcess]:
        """One, which the others do without; or most, or all."""
        assert self._zookeeper is not None
        servers = self._zookeeper.servers
        return rng.sample(servers, rng.choice([1, 1, 2, len(servers)]))

    def _kill_store(self, rng: random.Random, say: Say) -> None:
        assert self._zookeeper is not None
        servers, seconds = self._some_servers(rng), rng.choice([0.0, 2.0, 2 * SESSION_S])
        say(f"{len(servers)} of ZooKeeper killed", f"for {seconds} s")
        for server in servers:
            server.kill()
        time.sleep(seconds)
        self._zookeeper.start(servers)

    def _pause_store(self, rng: random.Random, say: Say) -> None:
        servers, seconds = self._some_servers(rng), rng.choice([1.0, 2 * SESSION_S])
        say(f"{len(servers)} of ZooKeeper paused", f"for {seconds} s")
        for server in servers:
            server.pause()
        time.sleep(seconds)
        for server in servers:
            server.resume()

    def _kill_while_the_store_is_away(self, rng: random.Random, say: Say) -> None:
        assert self._zookeeper is not None
        node = rng.choice(BROKERS)
        say("killed without ZooKeeper", f"broker {node}")
        for server in self._zookeeper.servers:
            server.pause()
        self._brokers[node].kill()
        time.sleep(rng.choice([1.0, 2 * SESSION_S]))
        for server in self._zookeeper.servers:
            server.resume()
        self._brokers[node].start()


def _start_fallen(brokers: Sequence[Node]) -> list[str]:
    fallen = [broker for broker in brokers if not broker.is_running]
    said = [f"{broker.directory.name}: {broker.output()[-1500:]}" for broker in fallen]
    for broker in fallen:
        broker.start()
    return said


def _lacking(admin: Admin, topics: tuple[str, ...]) -> str:
    """The partitions without a leader or with replicas that are not in sync; nothing if there are none."""
    try:
        found = admin.describe_topics(topics)
        return ", ".join(
            f"{topic}-{one.partition} leader {one.leader} isr {list(one.isr)} of {list(one.replicas)}"
            for topic in topics
            for one in found[topic].partitions
            if one.leader < 0 or len(one.isr) < len(one.replicas)
        )
    except HeadraceError as error:
        return repr(error)
