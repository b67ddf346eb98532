"""Apache Kafka's Java clients: producer, consumer and admin, also in one group with Python's."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable

import pytest
from bench.peers import kafka_libs, why_no_kafka
from tests.waiting import eventually

from headrace.testing import EmbeddedBroker

from .clients import TIMEOUT_S, create_topic
from .java_tools import JAVA_DIRECTORY, java
from .members import AioKafkaMember, ConfluentMember, KafkaPythonMember, Member, stop_all, wait_until_shared_out
from .test_groups import PARTITIONS, all_partitions, fill, read_by

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.skipif(kafka_libs() is None, reason=why_no_kafka()),
]
CHECKS = 19


def test_the_java_clients_find_nothing_amiss(kafka: EmbeddedBroker, fresh: Callable[[str], str]) -> None:
    command = java(str(JAVA_DIRECTORY / "Clients.java"), kafka.address, fresh("java"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "done"
    assert sum(line.startswith("ok ") for line in done.stdout.splitlines()) == CHECKS


class JavaMember(Member):
    """Apache Kafka's VerifiableConsumer, a process that tells what it does in JSON."""

    protocol = (
        *("--session-timeout", "6000"),
        *("--assignment-strategy", "org.apache.kafka.clients.consumer.RangeAssignor"),
    )

    def start(self) -> Member:
        command = java(
            "org.apache.kafka.tools.VerifiableConsumer",
            *("--bootstrap-server", self.address, "--group-id", self.group, "--topic", self.topics[0]),
            *("--reset-policy", "earliest", "--verbose"),
            *self.protocol,
        )
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return super().start()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        super().stop()
        self._process.wait(TIMEOUT_S)

    def open(self) -> None:
        self._held: set[tuple[str, int]] = set()

    def poll(self) -> list[tuple[str, int, int]]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._stop.set()
            return []
        event = json.loads(line)
        if event["name"] == "record_data":
            return [(event["topic"], event["partition"], event["offset"])]
        if event["name"] in ("partitions_assigned", "partitions_revoked"):
            named = {(part["topic"], part["partition"]) for part in event["partitions"]}
            self._held = self._held | named if event["name"] == "partitions_assigned" else self._held - named
        return []

    def assigned(self) -> frozenset[tuple[str, int]]:
        return frozenset(self._held)

    def close(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()


def test_java_and_python_are_members_of_one_group(kafka: EmbeddedBroker, topic: str, group: str) -> None:
    create_topic(kafka.address, topic, PARTITIONS, retention_ms="-1")
    records = fill(kafka.address, topic, 10)
    kinds = (JavaMember, ConfluentMember, KafkaPythonMember, AioKafkaMember)
    members = [kind(kafka.address, group, [topic]) for kind in kinds]
    running = list(members)
    try:
        for member in members:
            member.start()
        wait_until_shared_out(running, all_partitions(topic))
        running.pop().stop()
        wait_until_shared_out(running, all_partitions(topic))
        running.pop(0).stop()
        wait_until_shared_out(running, all_partitions(topic))
        eventually(lambda: set(read_by(members)) == records, what="all records read")
    finally:
        stop_all(running)


class NewJavaMember(JavaMember):
    """The same, as a member of the newer protocol."""

    protocol = ("--group-protocol", "consumer")


def test_java_members_of_both_protocols_share_a_group_with_others(
    kafka: EmbeddedBroker, topic: str, group: str
) -> None:
    create_topic(kafka.address, topic, PARTITIONS, retention_ms="-1")
    records = fill(kafka.address, topic, 10)
    kinds = (NewJavaMember, NewJavaMember, JavaMember, KafkaPythonMember)
    members = [kind(kafka.address, group, [topic]) for kind in kinds]
    running = list(members)
    try:
        for member in members:
            member.start()
        wait_until_shared_out(running, all_partitions(topic))
        running.pop(0).stop()
        wait_until_shared_out(running, all_partitions(topic))
        running.pop().stop()
        wait_until_shared_out(running, all_partitions(topic))
        eventually(lambda: set(read_by(members)) == records, what="all records read")
    finally:
        stop_all(running)
