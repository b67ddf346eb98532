"""Where transactions are tested: Headrace in both protocols, and an Apache Kafka that HEADRACE_TEST_KAFKA names."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.waiting import eventually

import headrace.testing
from headrace import Admin, Consumer, NewTopic
from headrace.client.admin import FeatureUpdate, UpgradeType

ENVIRONMENT = "HEADRACE_TEST_KAFKA"
WAIT_S = 60.0
OVERRIDES = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.min.session.timeout.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}


@dataclass
class Cluster:
    """A broker, the protocol that producers choose on it, and what tests need of it."""

    address: str
    protocol: int
    broker: Any = None

    def topic(self, partitions: int = 1) -> str:
        name = f"test-{uuid.uuid4().hex[:10]}"
        with Admin({"bootstrap.servers": self.address}) as admin:
            admin.create_topics([NewTopic(name, partitions, 1)]).all()
        return name

    def name(self, kind: str) -> str:
        return f"{kind}-{uuid.uuid4().hex[:10]}"

    def producer_config(self, **given: Any) -> dict[str, Any]:
        made = {"bootstrap.servers": self.address, "transactional.id": self.name("tid"), "linger.ms": 0}
        return made | {key.replace("_", "."): value for key, value in given.items()}

    def consumer_config(self, **given: Any) -> dict[str, Any]:
        made = {
            "bootstrap.servers": self.address,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 200,
        }
        return made | {key.replace("_", "."): value for key, value in given.items()}

    def settle(self, topic: str) -> None:
        """Wait until no transaction is open: markers are written after the end of one was answered."""

        def ends(isolation: str) -> Any:
            with Consumer(self.consumer_config(isolation_level=isolation)) as consumer:
                count = len(consumer.partitions_for(topic))
                return consumer.end_offsets([(topic, index) for index in range(count)])

        eventually(lambda: ends("read_uncommitted") == ends("read_committed"), f"the end of transactions in {topic}")

    def read(self, topic: str, isolation: str = "read_committed", *, settled: bool = True) -> list[bytes]:
        """Every value up to the end of what may be read once every transaction has ended (or right now)."""
        if settled:
            self.settle(topic)
        with Consumer(self.consumer_config(isolation_level=isolation)) as consumer:
            partitions = [(topic, index) for index in range(len(consumer.partitions_for(topic)))]
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(partitions)
            found: list[bytes] = []
            deadline = time.monotonic() + WAIT_S
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                assert time.monotonic() < deadline, f"only {len(found)} records were read, the end is {ends}"
                found += [record.value for record in consumer.poll(0.2)]
            return found


def _headrace(protocol: int) -> Iterator[Cluster]:
    with headrace.testing.broker(overrides=OVERRIDES) as broker:
        if protocol == 1:
            with Admin({"bootstrap.servers": broker.address}) as admin:
                admin.update_features({"transaction.version": FeatureUpdate(1, UpgradeType.SAFE_DOWNGRADE)}).all()
        yield Cluster(broker.address, protocol, broker)


@pytest.fixture(scope="session")
def headrace_1() -> Iterator[Cluster]:
    yield from _headrace(1)


@pytest.fixture(scope="session")
def headrace_2() -> Iterator[Cluster]:
    yield from _headrace(2)


@pytest.fixture(params=["headrace-1", "headrace-2", "kafka"])
def kafka(request: pytest.FixtureRequest) -> Cluster:
    if request.param != "kafka":
        found: Cluster = request.getfixturevalue(request.param.replace("-", "_"))
        return found
    address = os.environ.get(ENVIRONMENT)
    if not address:
        pytest.skip(f"no Apache Kafka: {ENVIRONMENT} (host:port) is not set")
    with Admin({"bootstrap.servers": address}) as admin:
        level = admin.describe_features().finalized["transaction.version"].max_version
    return Cluster(address, 2 if level >= 2 else 1)
