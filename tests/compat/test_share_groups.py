"""Share consumers that we did not write, and Kafka's own tools, on our broker."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
from bench.peers import kafka_libs, why_no_kafka
from confluent_kafka import ShareConsumer
from tests.client.share.test_share_consumer import Work
from tests.waiting import eventually

from headrace import testing

from .java_tools import java

pytestmark = pytest.mark.slow
_TOOLS = "org.apache.kafka.tools.consumer"


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.EmbeddedBroker]:
    with testing.broker() as running:
        yield running


def test_members_of_confluent_kafka_share_what_there_is(broker: testing.EmbeddedBroker) -> None:
    work = Work(broker.address, partitions=2)
    for partition in range(2):
        work.write(*(b"%d-%d" % (partition, number) for number in range(100)), partition=partition)
    members = [ShareConsumer({"bootstrap.servers": work.address, "group.id": work.group}) for _ in range(3)]
    got: list[bytes] = []

    def look() -> bool:
        for member in members:
            got.extend(message.value() for message in member.poll(0.2) or ())
        return len(got) >= 200

    for member in members:
        member.subscribe([work.topic])
    eventually(look)
    for member in members:
        member.close()
    assert sorted(got) == sorted(b"%d-%d" % (partition, number) for partition in range(2) for number in range(100))


def test_the_first_poll_brings_the_records_of_one_partition_as_it_does_from_apache_kafka(
    broker: testing.EmbeddedBroker,
) -> None:
    work = Work(broker.address, partitions=2)
    for partition in range(2):
        work.write(*(b"%d" % number for number in range(50)), partition=partition)
    member = ShareConsumer({"bootstrap.servers": work.address, "group.id": work.group})
    member.subscribe([work.topic])
    first = eventually(lambda: member.poll(1.0))
    second = eventually(lambda: member.poll(1.0))
    member.close()
    assert [len(first), len(second)] == [50, 50]
    assert sorted(batch[0].partition() for batch in (first, second)) == [0, 1]


@pytest.mark.java
@pytest.mark.skipif(kafka_libs() is None, reason=why_no_kafka())
def test_javas_share_consumer_reads_and_its_tool_tells_sets_and_deletes(broker: testing.EmbeddedBroker) -> None:
    work = Work(broker.address, partitions=3)
    for partition in range(3):
        work.write(*(b"%d-%d" % (partition, number) for number in range(50)), partition=partition)
    server = ("--bootstrap-server", work.address)
    read = _run(
        f"{_TOOLS}.ConsoleShareConsumer", *server, "--topic", work.topic, "--group", work.group, "--max-messages", "150"
    )
    assert sorted(re.findall(r"^\d-\d+$", read, re.MULTILINE)) == sorted(
        f"{partition}-{number}" for partition in range(3) for number in range(50)
    )

    def tool(*arguments: str) -> str:
        return _run(f"{_TOOLS}.group.ShareGroupCommand", *server, *arguments)

    def lags() -> list[str]:
        told = tool("--describe", "--group", work.group)
        return re.findall(rf"^{work.group} +{work.topic} +\d+ +\d+ +(\d+)", told, re.MULTILINE)

    assert lags() == ["0", "0", "0"]
    tool("--reset-offsets", "--group", work.group, "--topic", work.topic, "--to-earliest", "--execute")
    assert lags() == ["50", "50", "50"]
    tool("--delete-offsets", "--group", work.group, "--topic", work.topic)
    assert lags() == []
    assert "was successful" in tool("--delete", "--group", work.group)


def _run(*arguments: str) -> str:
    done = subprocess.run(java(*arguments), capture_output=True, text=True, timeout=100, check=False)
    return done.stdout + done.stderr
