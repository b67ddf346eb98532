"""Three Python clients and kcat behind one small face: messages in, messages out.

What only one of them can do is tested with it directly.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka as kafka_python
import kafka.codec
from confluent_kafka.admin import AdminClient, NewTopic

TIMEOUT_S = 40.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Message:
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = 0


class Client(Protocol):
    name: str

    def why_not(self, codec: str) -> str | None: ...
    def produce(
        self, address: str, topic: str, messages: Iterable[Message], codec: str = "none", **config: Any
    ) -> None: ...
    def consume(self, address: str, topic: str, count: int, **config: Any) -> list[Message]: ...


class Confluent:
    name = "confluent-kafka"

    def why_not(self, codec: str) -> str | None:
        return None

    def produce(
        self, address: str, topic: str, messages: Iterable[Message], codec: str = "none", **config: Any
    ) -> None:
        producer = confluent_producer(address, **{"compression.type": codec, "linger.ms": 5, **config})
        errors: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                errors.append(error)

        for message in messages:
            producer.produce(
                topic,
                key=message.key,
                value=message.value,
                partition=message.partition,
                timestamp=message.timestamp_ms,
                headers=list(message.headers),
                on_delivery=delivered,
            )
        assert producer.flush(TIMEOUT_S) == 0
        assert not errors, errors

    def consume(self, address: str, topic: str, count: int, **config: Any) -> list[Message]:
        consumer = confluent_consumer(address, f"confluent-{topic}", **config)
        consumer.list_topics(topic, timeout=TIMEOUT_S)  # else librdkafka asks for the leader only after half a second
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
        try:
            return [confluent_message(message) for message in poll_confluent(consumer, count)]
        finally:
            consumer.close()


class KafkaPython:
    name = "kafka-python"

    def why_not(self, codec: str) -> str | None:
        known = {"snappy": kafka.codec.has_snappy, "lz4": kafka.codec.has_lz4, "zstd": kafka.codec.has_zstd}
        return None if known.get(codec, lambda: True)() else f"kafka-python has no {codec} here (its extra is missing)"

    def produce(
        self, address: str, topic: str, messages: Iterable[Message], codec: str = "none", **config: Any
    ) -> None:
        producer = kafka_python.KafkaProducer(
            bootstrap_servers=address,
            client_id=self.name,
            compression_type=None if codec == "none" else codec,
            linger_ms=5,
            **config,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    key=message.key,
                    value=message.value,
                    partition=message.partition,
                    timestamp_ms=message.timestamp_ms,
                    headers=list(message.headers),
                )
                for message in messages
            ]
            for future in futures:
                future.get(TIMEOUT_S)
        finally:
            producer.close()

    def consume(self, address: str, topic: str, count: int, **config: Any) -> list[Message]:
        consumer = kafka_python.KafkaConsumer(
            bootstrap_servers=address, client_id=self.name, auto_offset_reset="earliest", group_id=None, **config
        )
        try:
            consumer.assign([kafka_python.TopicPartition(topic, 0)])
            found = []
            deadline = time.monotonic() + TIMEOUT_S
            while len(found) < count and time.monotonic() < deadline:
                for records in consumer.poll(timeout_ms=1000).values():
                    found += [_of_record(record) for record in records]
            return found
        finally:
            consumer.close()


class AioKafka:
    name = "aiokafka"

    def why_not(self, codec: str) -> str | None:
        return None

    def produce(
        self, address: str, topic: str, messages: Iterable[Message], codec: str = "none", **config: Any
    ) -> None:
        async def run() -> None:
            compression = None if codec == "none" else codec
            async with aiokafka.AIOKafkaProducer(
                bootstrap_servers=address, client_id=self.name, compression_type=compression, linger_ms=5, **config
            ) as producer:
                futures = [
                    await producer.send(
                        topic,
                        key=message.key,
                        value=message.value,
                        partition=message.partition,
                        timestamp_ms=message.timestamp_ms,
                        headers=list(message.headers),
                    )
                    for message in messages
                ]
                await asyncio.wait_for(asyncio.gather(*futures), TIMEOUT_S)

        asyncio.run(run())

    def consume(self, address: str, topic: str, count: int, **config: Any) -> list[Message]:
        async def run() -> list[Message]:
            async with aiokafka.AIOKafkaConsumer(
                bootstrap_servers=address, client_id=self.name, auto_offset_reset="earliest", group_id=None, **config
            ) as consumer:
                consumer.assign([aiokafka.TopicPartition(topic, 0)])
                return [_of_record(await asyncio.wait_for(consumer.getone(), TIMEOUT_S)) for _ in range(count)]

        return asyncio.run(run())


class Kcat:
    """The Debian package: librdkafka 2.0. It produces lines of text with the time of now."""

    name = "kcat"

    def why_not(self, codec: str) -> str | None:
        return None if shutil.which("kcat") else "kcat is not installed (Debian's package kcat)"

    def produce(
        self, address: str, topic: str, messages: Iterable[Message], codec: str = "none", **config: Any
    ) -> None:
        common = [*self.command(address), "-P", "-t", topic, "-p", "0", "-z", codec, "-K", "\t", "-Z"]
        for key, value in config.items():
            common += ["-X", f"{key}={value}"]
        by_headers: dict[tuple[tuple[str, bytes | None], ...], list[Message]] = {}
        for message in messages:
            by_headers.setdefault(message.headers, []).append(message)
        for headers, group in by_headers.items():
            options = [part for name, value in headers for part in ("-H", f"{name}={(value or b'').decode()}")]
            lines = b"".join((m.key or b"") + b"\t" + (m.value or b"") + b"\n" for m in group)
            subprocess.run([*common, *options], input=lines, check=True, timeout=TIMEOUT_S, capture_output=True)

    def consume(self, address: str, topic: str, count: int, **config: Any) -> list[Message]:
        options = [part for key, value in config.items() for part in ("-X", f"{key}={value}")]
        command = [
            *self.command(address),
            "-C",
            "-t",
            topic,
            "-p",
            "0",
            "-o",
            "beginning",
            "-c",
            str(count),
            "-J",
            "-q",
        ]
        done = subprocess.run([*command, *options], check=True, timeout=TIMEOUT_S, capture_output=True)
        return [_of_json(json.loads(line)) for line in done.stdout.splitlines()]

    def command(self, address: str) -> list[str]:
        return ["kcat", "-b", address, "-X", f"client.id={self.name}", "-X", "broker.address.family=v4"]


def _of_json(found: dict[str, Any]) -> Message:
    texts = iter(found.get("headers", ()))
    headers = tuple((name, value.encode()) for name, value in zip(texts, texts, strict=True))
    key, value = found["key"], found["payload"]
    return Message(
        None if key is None else key.encode(), None if value is None else value.encode(), found["ts"], headers
    )


def _of_record(record: Any) -> Message:
    headers = tuple((name, value) for name, value in record.headers)
    return Message(record.key, record.value, record.timestamp, headers, record.partition)


def confluent_message(message: confluent_kafka.Message) -> Message:
    headers = tuple(message.headers() or ())
    return Message(message.key(), message.value(), message.timestamp()[1], headers, message.partition() or 0)


PYTHON_CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), AioKafka())
CLIENTS: tuple[Client, ...] = (*PYTHON_CLIENTS, Kcat())


def confluent_producer(address: str, **config: Any) -> confluent_kafka.Producer:
    return confluent_kafka.Producer({"bootstrap.servers": address, "client.id": Confluent.name, **config})


def confluent_consumer(address: str, group: str, **config: Any) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "client.id": Confluent.name,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            # Short, so that a member which is gone is noticed within a test.
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 200,
            "fetch.wait.max.ms": 100,
            **config,
        }
    )


def confluent_admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, "client.id": Confluent.name})


def create_topic(address: str, topic: str, partitions: int = 1, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
    admin = confluent_admin(address)
    for future in admin.create_topics([new]).values():
        future.result(TIMEOUT_S)


def poll_confluent(consumer: confluent_kafka.Consumer, count: int) -> list[confluent_kafka.Message]:
    """Exactly that many messages, or fewer when they do not come in time."""
    found: list[confluent_kafka.Message] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(found), timeout=0.2):
            if message.error() is not None:
                raise confluent_kafka.KafkaException(message.error())
            found.append(message)
    return found


def sample(
    count: int, *, start_ms: int = 1_700_000_000_000, size: int = 20, null_headers: bool = True
) -> list[Message]:
    """Messages of all shapes: keys and values null, empty, binary; headers none, several, repeated, null."""
    shapes: Sequence[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]] = (
        (b"key", b"value", ()),
        (None, b"no key", ()),
        (b"no value", None, (("reason", b"tombstone"),)),
        (b"", b"", (("empty", b""), ("null", None if null_headers else b"null"))),
        (bytes(range(256)), "größer €".encode(), (("same", b"1"), ("same", b"2"), ("ключ", b"\x00\xff"))),
    )
    messages = []
    for number in range(count):
        key, value, headers = shapes[number % len(shapes)]
        text = None if value is None else value + b" %d " % number * (size // 4)
        messages.append(Message(key, text, start_ms + number * 7, headers))
    return messages
