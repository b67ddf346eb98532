"""Transactions in company: Java's and librdkafka's producers and readers of committed records, and ours, crosswise, on
Headrace and on Apache Kafka."""

from __future__ import annotations

import itertools
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from bench.peers import ApacheKafka, kafka_libs, why_no_kafka
from tests.waiting import eventually

from headrace import Consumer, Producer, TransactionTimeoutError, exactly_once
from headrace.testing import BrokerProcess, EmbeddedBroker

from .clients import TIMEOUT_S, create_topic
from .java_tools import JAVA_DIRECTORY, JavaTransactions, java

needs_java = [pytest.mark.java, pytest.mark.slow, pytest.mark.skipif(kafka_libs() is None, reason=why_no_kafka())]
Fresh = Callable[[str], str]
TRANSACTIONS, PER_TRANSACTION = 9, 10


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Apache Kafka, started for this file."""
    settings = {"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"}
    with ApacheKafka(tmp_path_factory.mktemp("apache"), settings) as running:
        yield running.address


@pytest.fixture(scope="module")
def java_clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaTransactions]:
    """One JVM for all the runs of Java's clients in this file."""
    with JavaTransactions(tmp_path_factory.mktemp("java") / "errors.txt") as running:
        yield running


@pytest.fixture
def cast(request: pytest.FixtureRequest) -> Callable[[type[Any]], Any]:
    """A client of the kind given; Java's come with the JVM that they share."""
    return lambda kind: kind(request.getfixturevalue("java_clients")) if kind is Java else kind()


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    """Of the broker that the parameters name."""
    name: str = request.param
    return request.getfixturevalue("kafka").address if name == "headrace" else str(request.getfixturevalue("apache"))


def value_of(prefix: str, transaction: int, at: int) -> str:
    return f"{prefix}-{transaction}-{at}" + ("-aborted" if transaction % 3 == 2 else "")


class Ours:
    """Headrace's clients."""

    name = "headrace"

    @staticmethod
    def produce(address: str, topics: list[str], transactional_id: str, prefix: str) -> list[str]:
        kept = []
        with Producer({"bootstrap.servers": address, "transactional.id": transactional_id}) as producer:
            producer.init_transactions()
            for transaction in range(TRANSACTIONS):
                producer.begin_transaction()
                for at in range(PER_TRANSACTION):
                    for topic in topics:
                        value = value_of(prefix, transaction, at)
                        producer.send(topic, value.encode(), key=value.encode())
                        if transaction % 3 != 2:
                            kept.append(f"{topic} {value}")
                if transaction % 3 == 2:
                    producer.flush()
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
        return kept

    @staticmethod
    def read(address: str, topics: list[str], count: int, group: str) -> list[str]:
        config = {
            "bootstrap.servers": address,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
        found: list[str] = []
        with Consumer(config) as consumer:
            consumer.subscribe(topics)

            def poll(seconds: float) -> bool:
                found.extend(f"{record.topic} {record.value.decode()}" for record in consumer.poll(seconds))
                return len(found) >= count

            eventually(lambda: poll(0.2), what=f"{count} records")
            poll(0.5)
        return found

    @staticmethod
    def copy(address: str, source: str, target: str, group: str, transactional_id: str, count: int) -> None:
        config = {
            "bootstrap.servers": address,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        with (
            Consumer(config) as consumer,
            Producer({"bootstrap.servers": address, "transactional.id": transactional_id}) as producer,
        ):
            consumer.subscribe([source])
            copied = 0
            batches = exactly_once(consumer, producer, poll_timeout=0.2)
            for batch in batches:
                for record in batch:
                    producer.send(target, record.value, key=record.key)
                copied += len(batch)
                if copied >= count:
                    batches.stop()


class Confluent:
    """librdkafka, which speaks the older protocol."""

    name = "confluent-kafka"

    @staticmethod
    def produce(address: str, topics: list[str], transactional_id: str, prefix: str) -> list[str]:
        producer = confluent_kafka.Producer({"bootstrap.servers": address, "transactional.id": transactional_id})
        producer.init_transactions(TIMEOUT_S)
        kept = []
        for transaction in range(TRANSACTIONS):
            producer.begin_transaction()
            for at in range(PER_TRANSACTION):
                for topic in topics:
                    value = value_of(prefix, transaction, at)
                    producer.produce(topic, value, key=value)
                    if transaction % 3 != 2:
                        kept.append(f"{topic} {value}")
            if transaction % 3 == 2:
                producer.flush(TIMEOUT_S)
                producer.abort_transaction(TIMEOUT_S)
            else:
                producer.commit_transaction(TIMEOUT_S)
        return kept

    @staticmethod
    def consumer(address: str, group: str) -> Any:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )

    @classmethod
    def read(cls, address: str, topics: list[str], count: int, group: str) -> list[str]:
        consumer = cls.consumer(address, group)
        consumer.subscribe(topics)
        found: list[str] = []

        def poll(seconds: float) -> bool:
            for message in consumer.consume(1000, timeout=seconds):
                assert message.error() is None
                found.append(f"{message.topic()} {message.value().decode()}")
            return len(found) >= count

        try:
            eventually(lambda: poll(0.2), what=f"{count} records")
            poll(0.5)
        finally:
            consumer.close()
        return found

    @classmethod
    def copy(cls, address: str, source: str, target: str, group: str, transactional_id: str, count: int) -> None:
        consumer = cls.consumer(address, group)
        producer = confluent_kafka.Producer({"bootstrap.servers": address, "transactional.id": transactional_id})
        producer.init_transactions(TIMEOUT_S)
        consumer.subscribe([source])
        copied = 0

        def step() -> bool:
            nonlocal copied
            messages = consumer.consume(100, timeout=0.2)
            if messages:
                producer.begin_transaction()
                for message in messages:
                    producer.produce(target, message.value(), key=message.key())
                offsets = consumer.position(consumer.assignment())
                metadata = consumer.consumer_group_metadata()
                producer.send_offsets_to_transaction(offsets, metadata, TIMEOUT_S)
                producer.commit_transaction(TIMEOUT_S)
                copied += len(messages)
            return copied >= count

        try:
            eventually(step, what=f"{count} copies")
        finally:
            consumer.close()


class Java:
    """Apache Kafka's own client."""

    name = "Java"

    def __init__(self, process: JavaTransactions) -> None:
        self._run = process.run

    def produce(self, address: str, topics: list[str], transactional_id: str, prefix: str) -> list[str]:
        return self._run("produce", address, ",".join(topics), transactional_id, str(TRANSACTIONS), prefix)

    def read(self, address: str, topics: list[str], count: int, group: str) -> list[str]:
        return self._run("read", address, ",".join(topics), str(count), group)

    def copy(self, address: str, source: str, target: str, group: str, transactional_id: str, count: int) -> None:
        printed = self._run("copy", address, source, target, group, transactional_id, str(count))
        assert printed == [f"copied {count}"]


def crossings() -> Iterator[Any]:
    """Every pair of clients on Headrace; on Apache Kafka, those of which one is ours."""
    for first, second in itertools.product((Ours, Confluent, Java), repeat=2):
        for name in ("headrace", "apache-kafka"):
            if name == "headrace" or Ours in (first, second):
                marks = needs_java if name == "apache-kafka" or Java in (first, second) else []
                yield pytest.param(name, first, second, id=f"{first.name}-{second.name}-on-{name}", marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(("address", "writer", "reader"), list(crossings()), indirect=["address"])
def test_what_one_commits_the_other_reads_and_nothing_else(
    address: str, fresh: Fresh, cast: Callable[[Any], Any], writer: Any, reader: Any
) -> None:
    topics = [fresh("txn"), fresh("txn")]
    for topic in topics:
        create_topic(address, topic, 3)
    kept = cast(writer).produce(address, topics, fresh("tid"), "value")
    assert len(kept) == 120
    found = cast(reader).read(address, topics, len(kept), fresh("group"))
    assert sorted(found) == sorted(kept)


@pytest.mark.slow
@pytest.mark.parametrize(("address", "first", "second"), list(crossings()), indirect=["address"])
def test_one_goes_on_where_the_other_stopped_in_a_consume_transform_produce(
    address: str, fresh: Fresh, cast: Callable[[Any], Any], first: Any, second: Any
) -> None:
    source, target, group, transactional_id = fresh("in"), fresh("out"), fresh("group"), fresh("tid")
    create_topic(address, source, 2)
    create_topic(address, target, 2)
    before = Ours.produce(address, [source], fresh("tid"), "before")
    cast(first).copy(address, source, target, group, transactional_id, len(before))
    after = Ours.produce(address, [source], fresh("tid"), "after")
    cast(second).copy(address, source, target, group, transactional_id, len(after))
    found = Ours.read(address, [target], len(before) + len(after), fresh("group"))
    assert sorted(line.split()[1] for line in found) == sorted(line.split()[1] for line in before + after)


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.skipif(kafka_libs() is None, reason=why_no_kafka())
def test_a_fenced_java_producer_is_told_so(kafka: EmbeddedBroker, fresh: Fresh, java_clients: JavaTransactions) -> None:
    topic = fresh("txn")
    create_topic(kafka.address, topic, 1)
    assert java_clients.run("fence", kafka.address, topic, fresh("tid")) == ["fenced"]
    assert Ours.read(kafka.address, [topic], 1, fresh("group")) == [f"{topic} heir"]


# --- Kafka Streams


def streams_missing() -> str | None:
    libs = kafka_libs()
    if libs is None:
        return why_no_kafka()
    if not any(libs.glob("kafka-streams-*.jar")):
        return f"no kafka-streams jar in {libs}: run `make peers` (needs Maven)"
    return None


# Of members of streams groups, which the broker sets.
SHORT_SESSIONS = {
    "group.streams.min.session.timeout.ms": "1000",
    "group.streams.session.timeout.ms": "6000",
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.heartbeat.interval.ms": "1000",
    "group.streams.initial.rebalance.delay.ms": "0",
}
WORDS = ["wheel", "water", "mill", "race", "head", "stone", "flour"]


class WordCount:
    """The Streams application as a process."""

    def __init__(self, address: str, application: str, source: str, target: str, state: Path, protocol: str) -> None:
        self._log = state.parent / f"{state.name}.log"
        arguments = (address, application, source, target, str(state), protocol)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                java(
                    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", str(JAVA_DIRECTORY / "WordCount.java"), *arguments
                ),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def is_running(self) -> bool:
        assert self._process.poll() is None, self.output()
        return "running" in self.output().splitlines()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(streams_missing() is not None, reason=str(streams_missing()))
@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_kafka_streams_counts_exactly_once_through_kills(tmp_path: Path, protocol: str) -> None:
    """exactly_once_v2: the application is killed, then the broker; every word is counted once."""
    settings = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "4"} | SHORT_SESSIONS
    with BrokerProcess(tmp_path / "data", {**settings, "transaction.state.log.num.partitions": "4"}) as broker:
        create_topic(broker.address, "lines", 3)
        create_topic(broker.address, "counts", 2)
        expected = dict.fromkeys(WORDS, 0)

        def write(first: int) -> None:
            with Producer({"bootstrap.servers": broker.address}) as producer:
                for number in range(first, first + 2000):
                    words = [WORDS[number % 7], WORDS[number // 7 % 7], WORDS[number // 49 % 7]]
                    for word in words:
                        expected[word] += 1
                    producer.send("lines", " ".join(words).encode(), key=b"%d" % number)

        def counts() -> dict[str, list[int]]:
            found: dict[str, list[int]] = {}
            config = {"bootstrap.servers": broker.address, "isolation.level": "read_committed"}
            with Consumer(config) as consumer:
                partitions = [("counts", 0), ("counts", 1)]
                consumer.assign(partitions)
                consumer.seek_to_beginning()
                ends = consumer.end_offsets(partitions)
                while any(consumer.position(partition) < end for partition, end in ends.items()):
                    for record in consumer.poll(0.2):
                        found.setdefault(record.key.decode(), []).append(int(record.value))
            return found

        def progress(words: int) -> bool:
            return sum(max(seen) for seen in counts().values()) >= words

        application = None
        try:
            application = WordCount(broker.address, "word-count", "lines", "counts", tmp_path / "one", protocol)
            eventually(application.is_running, what="the application", timeout_s=60)
            write(0)
            eventually(lambda: progress(1), what="some counts", timeout_s=60)
            application.kill()
            # Another instance, without the state of the first one: it is restored from the changelog topic.
            application = WordCount(broker.address, "word-count", "lines", "counts", tmp_path / "two", protocol)
            write(2000)
            eventually(lambda: progress(6001), what="more counts", timeout_s=90)
            broker.kill()
            broker.start()
            write(4000)
            eventually(lambda: progress(sum(expected.values())), what="all counts", timeout_s=90)
        finally:
            if application is not None:
                application.kill()
        found = counts()
        assert {word: seen[-1] for word, seen in found.items()} == expected
        for word, seen in found.items():
            assert seen == sorted(set(seen)), f"a count of {word} came twice, or went back"


@pytest.mark.slow
def test_a_commit_without_a_broker_is_known_to_be_unknown(tmp_path: Path) -> None:
    """And known, once the broker is back."""
    with BrokerProcess(tmp_path / "data", {"transaction.state.log.num.partitions": "2"}) as broker:
        create_topic(broker.address, "t", 1)
        with Producer({"bootstrap.servers": broker.address, "transactional.id": "tid", "linger.ms": 0}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"kept").result(TIMEOUT_S)
            broker.kill()
            with pytest.raises(TransactionTimeoutError, match="again"):
                producer.commit_transaction(0.5)
            broker.start()
            producer.commit_transaction(TIMEOUT_S)
        assert Ours.read(broker.address, ["t"], 1, "g") == ["t kept"]
