"""A consumer's core in a world without sockets, for the tests of it."""

from __future__ import annotations

from typing import Any

from tests.client.consumer.fake_group import ConsumerWorld, FakeGroupCluster
from tests.client.fake import VirtualClock

from headrace.topics import TopicPartition

T0 = TopicPartition("t", 0)


def make(brokers: int = 1, partitions: int = 1, **config: Any) -> ConsumerWorld:
    cluster = FakeGroupCluster(VirtualClock(), brokers, {"t": partitions})
    config.setdefault("auto_offset_reset", "earliest")
    return ConsumerWorld(cluster, **config)


def member(**config: Any) -> ConsumerWorld:
    config.setdefault("enable_auto_commit", False)
    world = make(group_id="g", **config)
    world.consumer.subscribe(["t"], None)
    return world


class Once:
    """A script that answers one kind of request differently, a number of times."""

    def __init__(self, kind: str, *answers: Any) -> None:
        self.kind, self.answers = kind, list(answers)

    def __call__(self, node: int, name: str, request: Any) -> Any:
        if name == self.kind and self.answers:
            return self.answers.pop(0)
        return None


class Listener:
    """Notes what a rebalance listener is told."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_partitions_revoked(self, partitions: Any) -> None:
        self.events.append("revoked")

    def on_partitions_assigned(self, partitions: Any) -> None:
        self.events.append("assigned")

    def on_partitions_lost(self, partitions: Any) -> None:
        self.events.append("lost")
