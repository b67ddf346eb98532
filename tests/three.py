"""Three brokers as processes of their own, for tests: who leads, killing one, and waiting until all is whole again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.waiting import eventually

from headrace.cli.local_cluster import LocalBroker, LocalCluster
from headrace.client.admin import Admin
from headrace.runtime.free_ports import free_ports

NODES = (1, 2, 3)
HEAL_S = 120.0
SETTINGS = {
    "min.insync.replicas": "2",
    "group.initial.rebalance.delay.ms": "0",
    # One partition each: so it is known who coordinates.
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "auto.leader.rebalance.enable": "false",
}


class ThreeBrokers:
    """See the module."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.address = ",".join(broker.address for broker in cluster.brokers)

    def admin(self) -> Admin:
        return Admin({"bootstrap.servers": self.address, "default.api.timeout.ms": 60_000})

    def leader(self, topic: str, partition: int = 0) -> int:
        with self.admin() as admin:
            return admin.describe_topics([topic]).all()[topic].partitions[partition].leader

    def controller(self) -> int:
        with self.admin() as admin:
            found = admin.describe_cluster().controller
        return NODES[0] if found is None else found.id

    def kill(self, node: int) -> None:
        self.cluster.kill(self.cluster.broker(node))

    def stop(self, node: int) -> None:
        assert not self.cluster.stop([self.cluster.broker(node)]), "it had to be killed"

    def start(self, node: int) -> None:
        self.cluster.start([self.cluster.broker(node)])

    def await_whole(self) -> None:
        """All are members, and every replica of every partition is in sync."""
        with self.admin() as admin:
            eventually(lambda: len(admin.describe_cluster().nodes) == len(NODES), "three brokers", HEAL_S)

            def lacking() -> list[str]:
                described = admin.describe_topics(admin.list_topics(list_internal=True)).ok
                return [
                    f"{name}-{info.partition}"
                    for name, topic in described.items()
                    for info in topic.partitions
                    if info.leader < 0 or len(info.isr) < len(info.replicas)
                ]

            eventually(lambda: not lacking(), "all replicas in sync", HEAL_S)


@contextlib.contextmanager
def three_brokers(directory: Path, overrides: Mapping[str, str] | None = None) -> Iterator[ThreeBrokers]:
    directory.mkdir(parents=True, exist_ok=True)
    brokers = [LocalBroker(node, port) for node, port in zip(NODES, free_ports(len(NODES)))]
    cluster = LocalCluster(directory, brokers, overrides={**SETTINGS, **(overrides or {})})
    try:
        cluster.start(brokers)
        found = ThreeBrokers(cluster)
        found.await_whole()
        yield found
    finally:
        for broker in brokers:
            cluster.kill(broker)
