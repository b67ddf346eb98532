"""A data directory goes from Apache Kafka to our broker and back: consumer and share groups go on where they were."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.peers import ApacheKafka, Quorum, kafka_libs, why_no_kafka
from tests.waiting import eventually

from headrace import Admin, Consumer, Producer, ShareConsumer
from headrace.admin import ConfigResource, ResourceType
from headrace.testing import broker
from headrace.testing.server_process import free_port

from .clients import create_topic

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(kafka_libs() is None, reason=why_no_kafka()),
]
NODE = 1
TOPIC, PARTITIONS, RECORDS = "t", 2, 10
SETTINGS = {
    "offsets.topic.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "group.share.assignment.interval.ms": "0",
}
# So that the metadata of the directory are a snapshot and what came after it.
SNAPSHOTS = {"metadata.log.max.snapshot.interval.ms": "500", "metadata.log.max.record.bytes.between.snapshots": "100"}
Read = set[tuple[int, int]]


@contextlib.contextmanager
def ours(directory: Path) -> Iterator[str]:
    with broker(str(directory / "data"), SETTINGS | {"node.id": str(NODE)}) as running:
        yield running.address


@contextlib.contextmanager
def theirs(directory: Path, *, is_killed: bool = False, **more: str) -> Iterator[str]:
    """Apache Kafka; on a directory that is there already, with the name of the cluster that it says."""
    quorum = None
    properties = directory / "data" / "meta.properties"
    if properties.exists():
        told = dict(line.split("=", 1) for line in properties.read_text().splitlines() if not line.startswith("#"))
        quorum = Quorum(told["cluster.id"], {NODE: free_port()})
    with ApacheKafka(directory, SETTINGS | more, node_id=NODE, quorum=quorum) as kafka:
        yield kafka.address
        if is_killed:
            kafka.kill()


def begin(address: str) -> None:
    create_topic(address, TOPIC, PARTITIONS, retention_ms="-1")
    group = ConfigResource(ResourceType.GROUP, "s")
    with Admin({"bootstrap.servers": address}) as admin:
        admin.incremental_alter_configs({group: {"share.auto.offset.reset": "earliest"}}).all()

        def is_known() -> bool:
            return bool(admin.describe_configs([group])[group]["share.auto.offset.reset"].value == "earliest")

        eventually(is_known, what="the configuration of the group")


def round_of(address: str, first: int) -> None:
    """More records; members of both groups read them, and nothing else."""
    wanted = {(part, offset) for part in range(PARTITIONS) for offset in range(first, first + RECORDS)}
    with Producer({"bootstrap.servers": address}) as producer:
        for part, offset in sorted(wanted):
            producer.send(TOPIC, b"%d" % offset, partition=part)
    consumer = {"group.protocol": "consumer", "auto.offset.reset": "earliest"}
    with reading(address, Consumer, "c", **consumer) as by_one, reading(address, ShareConsumer, "s") as by_all:
        eventually(lambda: len(by_one) >= len(wanted) <= len(by_all), what="all records in both groups")
    assert (by_one, by_all) == (wanted, wanted)
    with Admin({"bootstrap.servers": address}) as admin:
        assert {group.group_id: group.type for group in admin.list_groups()} == {"c": "consumer", "s": "share"}
        committed = admin.list_group_offsets(["c"])["c"]
    assert [committed[TOPIC, part].offset for part in range(PARTITIONS)] == [first + RECORDS] * PARTITIONS


@contextlib.contextmanager
def reading(address: str, kind: Callable[..., Any], group: str, **more: str) -> Iterator[Read]:
    """A member in a thread, which has acknowledged and committed what it read when it is over."""
    ending = threading.Event()
    read: Read = set()

    def run() -> None:
        with kind({"bootstrap.servers": address, "group.id": group, **more}) as member:
            member.subscribe([TOPIC])
            while not ending.is_set():
                read.update((record.partition, record.offset) for record in member.poll(0.2))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield read
    finally:
        ending.set()
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_a_directory_of_apache_kafka_with_its_metadata_is_gone_on_with(tmp_path: Path, is_killed: bool) -> None:
    with theirs(tmp_path, is_killed=is_killed, **SNAPSHOTS) as address:
        begin(address)
        round_of(address, 0)
    assert is_killed or list((tmp_path / "data" / "__cluster_metadata-0").glob("*.checkpoint"))
    with ours(tmp_path) as address:
        round_of(address, RECORDS)
        group = ConfigResource(ResourceType.GROUP, "s")
        with Admin({"bootstrap.servers": address}) as admin:
            assert admin.describe_configs([group])[group]["share.auto.offset.reset"].value == "earliest"


def test_a_directory_of_ours_is_gone_on_with_by_apache_kafka(tmp_path: Path) -> None:
    with ours(tmp_path) as address:
        begin(address)
        round_of(address, 0)
    with theirs(tmp_path) as address:
        round_of(address, RECORDS)
