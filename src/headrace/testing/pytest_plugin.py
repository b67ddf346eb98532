"""Fixtures of pytest, there for every test once Headrace is installed:

`kafka`          one broker for all tests of a process, with topics and groups of one's own for each test
`kafka_cluster`  three brokers in processes of their own, likewise, to be killed, paused and cut off from one another
`simulated`      a cluster in virtual time, under a seed; `@pytest.mark.seeds(100)` runs a test under a hundred of them

The first two are started by the first test that asks. Nothing of Headrace is imported before.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace import Admin, Consumer, Producer
    from headrace.testing.brokers import Cluster
    from headrace.testing.embedded import EmbeddedBroker
    from headrace.testing.simulated import ClusterUnderSeed

_NAME_LENGTH_MAX = 80
_NUMBERS = itertools.count(1)


class KafkaForTest:
    """A Kafka as one test sees it. Topics, groups and clients that are made here end with the test."""

    def __init__(self, address: str, admin: Admin, name: str) -> None:
        self.address = address
        self.admin = admin
        self._name = re.sub(r"[^a-zA-Z0-9._-]+", "-", name)[:_NAME_LENGTH_MAX].strip("-.")
        self._topics: list[str] = []
        self._clients = ExitStack()

    @property
    def bootstrap_servers(self) -> str:
        return self.address

    def topic(self, name: str = "topic", *, partitions: int = 1, **configs: str | int) -> str:
        """Make a topic that no other test has, and give its name. `cleanup_policy="compact"` is `cleanup.policy`."""
        from headrace import NewTopic

        wanted = {key.replace("_", "."): str(value) for key, value in configs.items()}
        topic = self.name(name)
        self.admin.create_topics([NewTopic(topic, num_partitions=partitions, configs=wanted)]).all()
        self._topics.append(topic)
        return topic

    def group(self, name: str = "group") -> str:
        """A group id that no other test has."""
        return self.name(name)

    def name(self, what: str) -> str:
        """A name that says what it is of which test, and that no other has."""
        return f"{what}-{self._name}-{next(_NUMBERS)}"

    def producer(self, **config: Any) -> Producer:
        """A producer of this Kafka, closed when the test ends."""
        from headrace import Producer

        return self._clients.enter_context(Producer(**{"bootstrap_servers": self.address, **config}))

    def consumer(self, *topics: str, **config: Any) -> Consumer:
        """A consumer that reads these topics from their beginning, in a group of its own; closed when the test ends."""
        from headrace import Consumer

        own = {"bootstrap_servers": self.address, "group_id": self.group(), "auto_offset_reset": "earliest"}
        consumer = self._clients.enter_context(Consumer(**{**own, **config}))
        if topics:
            consumer.subscribe(list(topics))
        return consumer

    def close(self) -> None:
        self._clients.close()
        if self._topics:
            self.admin.delete_topics(self._topics)


class ClusterForTest(KafkaForTest):
    """As `KafkaForTest`, of several brokers. `brokers` is what can be hurt: `kafka_cluster.brokers.kill(1)`."""

    def __init__(self, cluster: Cluster, admin: Admin, name: str) -> None:
        super().__init__(cluster.address, admin, name)
        self.brokers = cluster


@pytest.fixture(scope="session")
def kafka_settings() -> Mapping[str, str]:
    """Settings of the brokers, by Kafka's names: override this fixture in conftest.py to have others."""
    return {}


@pytest.fixture(scope="session")
def _headrace_broker(kafka_settings: Mapping[str, str]) -> Iterator[tuple[EmbeddedBroker, Admin]]:
    from headrace import Admin
    from headrace.testing.embedded import broker

    with broker(overrides=kafka_settings) as running, Admin(bootstrap_servers=running.address) as admin:
        yield running, admin


@pytest.fixture
def kafka(_headrace_broker: tuple[EmbeddedBroker, Admin], request: pytest.FixtureRequest) -> Iterator[KafkaForTest]:
    """A broker for all tests of this process, and topics of one's own."""
    running, admin = _headrace_broker
    given = KafkaForTest(running.address, admin, request.node.name)
    yield given
    given.close()


@pytest.fixture(scope="session")
def _headrace_cluster(kafka_settings: Mapping[str, str]) -> Iterator[tuple[Cluster, Admin]]:
    from headrace import Admin
    from headrace.testing.brokers import cluster

    with cluster(3, kafka_settings) as running, Admin(bootstrap_servers=running.address) as admin:
        yield running, admin


@pytest.fixture
def kafka_cluster(_headrace_cluster: tuple[Cluster, Admin], request: pytest.FixtureRequest) -> Iterator[ClusterForTest]:
    """Three brokers for all tests of this process, whole again after each test, and topics of one's own."""
    running, admin = _headrace_cluster
    given = ClusterForTest(running, admin, request.node.name)
    yield given
    running.restore()
    given.close()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "seeds(count, first=0): run a test that asks for `simulated` under so many seeds, from the first on"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("seeds")
    if marker is not None and "simulated" in metafunc.fixturenames:
        seeds = _seeds(*marker.args, **marker.kwargs)
        metafunc.parametrize("simulated", seeds, indirect=True, ids=[f"seed {seed}" for seed in seeds])


def _seeds(count: int, first: int = 0) -> range:
    return range(first, first + count)


@pytest.fixture
def simulated(request: pytest.FixtureRequest) -> ClusterUnderSeed:
    """A cluster in virtual time, that of seed 0 unless the test is marked with `seeds`."""
    from headrace.testing.simulated import simulated_cluster

    return simulated_cluster(getattr(request, "param", 0))
