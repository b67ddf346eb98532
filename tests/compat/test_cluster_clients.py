"""Clients and tools that we did not write, on three brokers of which one is killed."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from bench.peers import kafka_libs, why_no_kafka
from tests.three import NODES, ThreeBrokers, three_brokers
from tests.waiting import eventually

from headrace.client.admin import NewTopic

from .clients import PYTHON_CLIENTS, TIMEOUT_S, Client, Kcat, Message, confluent_consumer, poll_confluent
from .java_tools import JavaTools

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # kafka-python leaves the sockets of connections that failed to whoever collects garbage.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]

MESSAGES = 400
IDEMPOTENT: dict[str, dict[str, Any]] = {
    "confluent-kafka": {"enable.idempotence": True},
    "kafka-python": {"enable_idempotence": True},
    "aiokafka": {"enable_idempotence": True},
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    with three_brokers(tmp_path_factory.mktemp("three")) as cluster:
        yield cluster


@pytest.fixture
def three(running: ThreeBrokers) -> Iterator[ThreeBrokers]:
    """The cluster; whoever was killed is there again for the next test."""
    yield running
    gc.collect()
    for node in NODES:
        if running.cluster.broker(node).health.value == "dead":
            running.start(node)
    running.await_whole()


def make(three: ThreeBrokers, topic: str, *replicas: list[int]) -> str:
    """A topic with these replicas of its partitions, known to all brokers."""
    with three.admin() as admin:
        assignments = dict(enumerate(replicas))
        admin.create_topics([NewTopic(topic, replicas_assignments=assignments)]).all()
    three.await_whole()
    return topic


def numbered(count: int, midway: Callable[[], None] = lambda: None) -> Iterator[Message]:
    for number in range(count):
        if number == count // 2:
            midway()
        yield Message(b"key-%d" % number, b"value-%d" % number, 1_700_000_000_000 + number)


@pytest.mark.parametrize("client", PYTHON_CLIENTS, ids=lambda client: client.name)
def test_what_is_sent_while_the_leader_is_killed_is_there_once_and_in_order(
    three: ThreeBrokers, client: Client, topic: str
) -> None:
    make(three, topic, [2, 3, 1])
    messages = numbered(MESSAGES, lambda: three.kill(2))
    client.produce(three.address, topic, messages, **IDEMPOTENT[client.name])
    # Two brokers are left, and one of the addresses that clients begin with is dead.
    found = client.consume(three.address, topic, MESSAGES)
    assert [message.value for message in found] == [message.value for message in numbered(MESSAGES)]
    assert three.leader(topic) == 3


@pytest.mark.long
def test_kcat_writes_and_reads_with_one_of_three_down(three: ThreeBrokers, topic: str) -> None:
    kcat = Kcat()
    if reason := kcat.why_not("none"):
        pytest.skip(reason)
    make(three, topic, [1, 2, 3])
    three.kill(1)
    kcat.produce(three.address, topic, numbered(100))
    assert [message.value for message in kcat.consume(three.address, topic, 100)] == [
        message.value for message in numbered(100)
    ]


def test_a_group_goes_on_when_its_coordinator_is_killed(three: ThreeBrokers, topic: str, group: str) -> None:
    make(three, topic, [1, 2, 3])
    client = PYTHON_CLIENTS[0]
    client.produce(three.address, topic, numbered(MESSAGES))
    consumer = confluent_consumer(three.address, group, **{"session.timeout.ms": 20_000})
    consumer.subscribe([topic])
    try:
        found = poll_confluent(consumer, MESSAGES // 2)
        consumer.commit(asynchronous=False)
        three.kill(three.leader("__consumer_offsets"))
        found += poll_confluent(consumer, MESSAGES // 2)

        def committed() -> bool:
            try:
                consumer.commit(asynchronous=False)
            except confluent_kafka.KafkaException:
                return False  # librdkafka hands on that the coordinator moved
            return True

        eventually(committed, "a commit at the new coordinator", TIMEOUT_S)
        (now,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=TIMEOUT_S)
    finally:
        consumer.close()
    assert [message.value() for message in found] == [message.value for message in numbered(MESSAGES)]
    assert now.offset == MESSAGES


# --- Kafka's own tools


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaTools]:
    if kafka_libs() is None:
        pytest.skip(why_no_kafka())
    with JavaTools(tmp_path_factory.mktemp("tools") / "errors") as started:
        yield started


def described(tools: JavaTools, three: ThreeBrokers, *options: str) -> dict[int, tuple[str, str, str]]:
    """Leader, replicas and in-sync replicas by partition, as Kafka's tool prints them."""
    printed = tools.run("kafka-topics", "--bootstrap-server", three.address, "--describe", *options)
    rows = re.findall(r"Partition: (\d+)\s+Leader: (\S+)\s+Replicas: (\S+)\s+Isr: (\S+)", printed)
    return {int(number): (leader, replicas, ",".join(sorted(isr.split(",")))) for number, leader, replicas, isr in rows}


@pytest.mark.java
@pytest.mark.long
def test_javas_tools_make_move_and_elect(three: ThreeBrokers, tools: JavaTools, topic: str, tmp_path: Path) -> None:
    at = ("--bootstrap-server", three.address)
    tools.run("kafka-topics", *at, "--create", "--topic", topic, "--replica-assignment", "1:2:3,2:3:1")
    three.await_whole()
    whole = {0: ("1", "1,2,3", "1,2,3"), 1: ("2", "2,3,1", "1,2,3")}
    assert described(tools, three, "--topic", topic) == whole
    typed = "".join(f"line {number}\n" for number in range(100))
    tools.run("kafka-console-producer", *at, "--topic", topic, typed=typed)

    three.kill(1)
    eventually(lambda: described(tools, three, "--topic", topic)[0][0] == "2", "another leader", TIMEOUT_S)
    lacking = described(tools, three, "--under-replicated-partitions", "--topic", topic)
    assert lacking == {0: ("2", "1,2,3", "2,3"), 1: ("2", "2,3,1", "2,3")}
    three.start(1)
    three.await_whole()
    election = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert "Successfully completed" in tools.run("kafka-leader-election", *at, *election)
    eventually(lambda: described(tools, three, "--topic", topic) == whole, "the preferred leader", TIMEOUT_S)

    plan = tmp_path / "plan.json"
    moved = {"topic": topic, "partition": 0, "replicas": [3, 2]}
    plan.write_text(json.dumps({"version": 1, "partitions": [moved]}))
    named = ("--reassignment-json-file", str(plan))
    assert "Successfully started" in tools.run("kafka-reassign-partitions", *at, *named, "--execute")
    verify = ("kafka-reassign-partitions", *at, *named, "--verify")
    eventually(lambda: "is completed" in tools.run(*verify), "the reassignment", TIMEOUT_S)
    assert described(tools, three, "--topic", topic)[0] == ("3", "3,2", "2,3")
    options = ("--topic", topic, "--from-beginning", "--max-messages", "100", "--timeout-ms", "30000")
    printed = tools.run("kafka-console-consumer", *at, *options)
    assert sorted(re.findall(r"line \d+", printed)) == sorted(typed.splitlines())
