"""The three brokers of the show, each a process of its own: who leads, one that is killed, and how the others go on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.cli.local_cluster import LocalBroker, LocalCluster
from headrace.cli.output import CommandError
from headrace.client.admin import Admin
from headrace.runtime.free_ports import free_ports

BROKERS = 3
NOBODY = -1
_WAIT_S = 60.0
_LOOK_S = 0.02
_SETTINGS = {
    # A record is acknowledged when two have it: so one may die.
    "min.insync.replicas": "2",
    # A group's first rebalance waits three seconds for more members: not here.
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    # Short time-outs, so that a dead member is missed soon.
    "group.min.session.timeout.ms": "1000",
}


@dataclass(frozen=True, slots=True)
class Failover:
    """What a broker's death meant for a topic."""

    killed: int
    pid: int
    led: int
    """How many of the topic's partitions."""
    leaders_s: float
    """Until all of them had another leader."""
    leaders: dict[int, int]
    """Who leads now, by partition."""


class Brokers:
    """A cluster of three on free ports, gone with its directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        brokers = [LocalBroker(at + 1, port) for at, port in enumerate(free_ports(BROKERS))]
        self._cluster = LocalCluster(directory, brokers, overrides=_SETTINGS)

    @property
    def addresses(self) -> str:
        """Of those that run first: a client that begins with a dead one waits for nothing."""
        return self._cluster.bootstrap

    @property
    def ports(self) -> list[int]:
        return [broker.port for broker in self._cluster.brokers]

    def start(self) -> float:
        """Start them; the seconds until all are members of the cluster."""
        began = time.monotonic()
        self._cluster.start(self._cluster.brokers)
        with self.admin() as admin:
            _wait(lambda: len(admin.describe_cluster().nodes) == BROKERS, "three brokers")
        return time.monotonic() - began

    def admin(self) -> Admin:
        return Admin(bootstrap_servers=self.addresses, default_api_timeout_ms=60_000)

    def kill_leader(self, admin: Admin, topic: str) -> Failover:
        """Kill whoever leads most of the topic, and wait until others do."""
        before = leaders(admin, topic)
        victim, led = Counter(before.values()).most_common(1)[0]
        broker = self._cluster.broker(victim)
        pid = broker.pid
        began = time.monotonic()
        self._cluster.kill(broker)
        # Kept as it was read: the next answer may be another broker's, which has not heard of it yet.
        now = before

        def is_led_by_others() -> bool:
            nonlocal now
            now = leaders(admin, topic)
            return not {victim, NOBODY} & set(now.values())

        _wait(is_led_by_others, "other leaders")
        return Failover(victim, pid, led, time.monotonic() - began, now)

    def restart(self, node_id: int) -> float:
        """Start one again; the seconds until it listens."""
        return self._cluster.start([self._cluster.broker(node_id)])

    def kill(self) -> None:
        for broker in self._cluster.brokers:
            self._cluster.kill(broker)


def leaders(admin: Admin, topic: str) -> dict[int, int]:
    """By partition; NOBODY where none leads."""
    return {info.partition: info.leader for info in admin.describe_topics([topic]).all()[topic].partitions}


def is_whole(admin: Admin, topic: str) -> bool:
    """All replicas are in sync."""
    return all(len(info.isr) == BROKERS for info in admin.describe_topics([topic]).all()[topic].partitions)


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise CommandError(f"the show waited {_WAIT_S:.0f} s for {what}, and gave up")
        time.sleep(_LOOK_S)
