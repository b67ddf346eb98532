"""Java clients of older releases, and clients that a broker of older releases would meet with older versions."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from bench.peers import kafka_libs, old_clients, why_no_kafka, why_no_old_clients

import headrace.broker.handlers.api_versions
from headrace.broker.handlers.api_versions import served_apis
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.api_versions import ApiVersion
from headrace.testing import EmbeddedBroker

from .clients import TIMEOUT_S, create_topic, poll_confluent
from .java_tools import JAVA_DIRECTORY
from .served import OLDER_JAVA, Served

Fresh = Callable[[str], str]
COMPILED_AGAINST = "3.9.1"


def needs_old_clients(function: Any) -> Any:
    for mark in (
        pytest.mark.java,
        pytest.mark.slow,
        pytest.mark.skipif(kafka_libs() is None, reason=why_no_kafka()),
        pytest.mark.skipif(old_clients() is None, reason=why_no_old_clients()),
    ):
        function = mark(function)
    return function


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where OldClient is, compiled."""
    jars = old_clients()
    assert jars is not None
    directory = tmp_path_factory.mktemp("classes")
    source = str(JAVA_DIRECTORY / "old" / "OldClient.java")
    command = ["javac", "-nowarn", "-d", str(directory), "-cp", str(jars[COMPILED_AGAINST]), source]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    return directory


def run(classes: Path, address: str, prefix: str, versions: list[str]) -> None:
    """All checks of OldClient with each of these releases, in one JVM."""
    jars, libs = old_clients(), kafka_libs()
    assert jars is not None
    assert libs is not None
    path = os.pathsep.join([f"{classes}/", *map(str, libs.glob("slf4j-api-*.jar"))])
    # Releases lack classes that others have; what is missing is found out when it is called, not when it is loaded.
    options = ["-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"]
    command = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *options]
    command += [str(JAVA_DIRECTORY / "OldClients.java"), path, address, prefix, *(str(jars[one]) for one in versions)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == 0, "\n".join([*failures(done.stdout), done.stderr])
    assert done.stdout.splitlines()[-1] == "done"


def failures(printed: str) -> Iterator[str]:
    """Of what OldClients printed, the checks that failed, with the release and why: what passed would hide them."""
    for line in printed.splitlines():
        if not line.startswith("  ") or " FAILED: " in line:
            yield line


@contextmanager
def at_most(highest: dict[ApiKey, int]) -> Iterator[None]:
    """Have brokers say that they speak these requests up to lower versions than they do."""

    def lowered(to_brokers: bool) -> list[ApiVersion]:
        return [
            ApiVersion(
                api_key=one.api_key,
                min_version=one.min_version,
                max_version=highest.get(ApiKey(one.api_key), one.max_version),
            )
            for one in served_apis(to_brokers)
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(headrace.broker.handlers.api_versions, "served_apis", lowered)
        yield


@needs_old_clients
@pytest.mark.timeout(240)
@pytest.mark.flaky(reruns=0)
def test_java_clients_of_many_releases_find_nothing_amiss(
    kafka: EmbeddedBroker, served: Served, fresh: Fresh, classes: Path
) -> None:
    jars = old_clients()
    assert jars is not None
    run(classes, kafka.address, fresh("old"), list(jars))
    assert {6, 7, 8, 9, 11} <= served.versions(OLDER_JAVA, ApiKey.PRODUCE)
    assert {8, 10, 11, 12, 13, 15, 17} <= served.versions(OLDER_JAVA, ApiKey.FETCH)


# Versions that no release sends to a broker that knows newer ones.
LOWERED = [
    {
        ApiKey.PRODUCE: 4,
        ApiKey.FETCH: 9,
        ApiKey.METADATA: 4,
        ApiKey.OFFSET_FETCH: 2,
        ApiKey.JOIN_GROUP: 8,
        ApiKey.DESCRIBE_GROUPS: 1,
        ApiKey.DESCRIBE_CONFIGS: 3,
        ApiKey.ELECT_LEADERS: 1,
    },
    {ApiKey.FETCH: 14, ApiKey.METADATA: 10, ApiKey.DESCRIBE_GROUPS: 4, ApiKey.UPDATE_FEATURES: 0},
    {ApiKey.PRODUCE: 5, ApiKey.FETCH: 5, ApiKey.METADATA: 5, ApiKey.OFFSET_COMMIT: 3, ApiKey.DESCRIBE_GROUPS: 0},
    {ApiKey.PRODUCE: 3, ApiKey.FETCH: 6, ApiKey.METADATA: 6, ApiKey.OFFSET_COMMIT: 5},
]


@needs_old_clients
@pytest.mark.parametrize("highest", LOWERED, ids=lambda highest: f"fetch-{highest[ApiKey.FETCH]}")
def test_a_java_client_steps_down_to_versions_in_between(
    kafka: EmbeddedBroker, served: Served, fresh: Fresh, classes: Path, highest: dict[ApiKey, int]
) -> None:
    with at_most(highest):
        run(classes, kafka.address, fresh("lowered"), [COMPILED_AGAINST])
    for key, version in highest.items():
        assert version in served.versions(OLDER_JAVA, key), key


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
def test_librdkafka_steps_down_to_old_metadata(
    kafka: EmbeddedBroker, served: Served, topic: str, group: str, version: int
) -> None:
    create_topic(kafka.address, topic)
    with at_most({ApiKey.METADATA: version}):
        name = {"bootstrap.servers": kafka.address, "client.id": "confluent-kafka"}
        producer = confluent_kafka.Producer(name)
        for number in range(10):
            producer.produce(topic, f"value {number}")
        assert producer.flush(TIMEOUT_S) == 0
        consumer = confluent_kafka.Consumer({**name, "group.id": group, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        try:
            found = [message.value() for message in poll_confluent(consumer, 10)]
        finally:
            consumer.close()
    assert found == [b"value %d" % number for number in range(10)]
    assert version in served.versions("confluent-kafka", ApiKey.METADATA)
