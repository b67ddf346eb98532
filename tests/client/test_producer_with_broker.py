"""Producers against a real broker, with confluent-kafka as the reader that we did not write."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from headrace import Producer, aio
from headrace.client.cluster.drivers import BlockingClient
from headrace.client.configs import COMMON_KEYS, ConnectionConfig, read_config
from headrace.client.producer.delivery import Delivery
from headrace.config import ConfigDefinition
from headrace.errors import MessageTooLargeError, UnknownTopicOrPartitionError
from headrace.protocol.messages.metadata import MetadataRequest

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
HEADERS = [("a", b"1"), ("a", b""), ("ž", None)]


def test_the_blocking_driver_speaks_to_a_broker(broker_address: str) -> None:
    values = read_config(ConfigDefinition(COMMON_KEYS), {"bootstrap.servers": broker_address})
    client = BlockingClient(ConnectionConfig.of(values))
    try:
        client.ensure_metadata(time.monotonic() + 20)
        node = next(iter(client.core.view.nodes))
        calls = [client.submit(node, MetadataRequest(topics=[])) for _ in range(50)]
        client.wait(*calls, timeout_ms=20_000)
        assert all(call.response.cluster_id == client.core.view.cluster_id for call in calls)
    finally:
        client.close()


@pytest.mark.parametrize("codec", CODECS)
def test_keys_values_headers_and_timestamps_arrive_as_sent(
    broker_address: str, make_topic: Any, read_all: Any, codec: str
) -> None:
    topic = make_topic(1)
    rng = random.Random(codec)
    sent = []
    with Producer(bootstrap_servers=broker_address, compression_type=codec, batch_size=8000) as producer:
        for i in range(1000):
            key = rng.choice([None, b"", b"key-%d" % i])
            value = rng.choice([None, b"", b"v" * rng.randint(1, 300), rng.randbytes(50)])
            headers = rng.choice([None, HEADERS])
            stamp = 1_700_000_000_000 + rng.randint(-10_000, 10_000)
            producer.send(topic, value, key, timestamp=stamp, headers=headers)
            sent.append((key, value, headers, stamp))
    got = [(m.key(), m.value(), m.headers() or None, m.timestamp()[1]) for m in read_all(topic)]
    assert got == sent


def test_a_large_batch_goes_through_the_compiled_kernels_unharmed(
    broker_address: str, make_topic: Any, read_all: Any
) -> None:
    topic = make_topic(1)
    values = [b"%d" % i for i in range(50_000)]
    with Producer(bootstrap_servers=broker_address, batch_size=500_000) as producer:
        deliveries = [producer.send(topic, value) for value in values]
    assert [message.value() for message in read_all(topic)] == values
    assert [delivery.result().offset for delivery in deliveries] == list(range(50_000))


def test_keys_go_to_the_partitions_that_librdkafka_chooses(broker_address: str, make_topic: Any, read_all: Any) -> None:
    from confluent_kafka import Producer as Other

    topic, other_topic = make_topic(7), make_topic(7)
    rng = random.Random(1)
    keys = list({rng.randbytes(rng.randint(0, 40)) for _ in range(500)})
    with Producer(bootstrap_servers=broker_address) as producer:
        for key in keys:
            producer.send(topic, b"", key)
    other = Other({"bootstrap.servers": broker_address, "partitioner": "murmur2"})
    for key in keys:
        other.produce(other_topic, b"", key)
    other.flush(20)
    ours = {message.key(): message.partition() for message in read_all(topic)}
    assert ours == {message.key(): message.partition() for message in read_all(other_topic)}
    assert len(ours) == len(keys)


def test_callbacks_come_once_each_with_the_place(broker_address: str, make_topic: Any, read_all: Any) -> None:
    topic = make_topic(3)
    told: list[Any] = []
    with Producer(bootstrap_servers=broker_address) as producer:
        for i in range(3000):
            producer.send(topic, b"%d" % i, on_delivery=lambda error, metadata, i=i: told.append((i, error, metadata)))
    assert sorted(i for i, _, _ in told) == list(range(3000))
    where = {(m.partition(), m.offset()): m.value() for m in read_all(topic)}
    assert all(error is None and where[(metadata[1], metadata[2])] == b"%d" % i for i, error, metadata in told)


def test_log_append_time_is_what_the_metadata_says(broker_address: str, make_topic: Any, read_all: Any) -> None:
    topic = make_topic(1, message_timestamp_type="LogAppendTime")
    with Producer(bootstrap_servers=broker_address) as producer:
        metadata = producer.send(topic, b"a", timestamp=1000).result(60)
    assert metadata.timestamp == read_all(topic)[0].timestamp()[1] > 1_600_000_000_000


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acks(broker_address: str, make_topic: Any, read_all: Any, acks: str) -> None:
    topic = make_topic(1)
    with Producer(bootstrap_servers=broker_address, acks=acks) as producer:
        metadata = producer.send(topic, b"a").result(60)
        assert metadata.offset == (-1 if acks == "0" else 0)
        producer.partitions_for(topic)
    assert [message.value() for message in read_all(topic)] == [b"a"]


def test_batches_too_large_for_the_topic_are_split(broker_address: str, make_topic: Any, read_all: Any) -> None:
    topic = make_topic(1, max_message_bytes="2000")
    with Producer(bootstrap_servers=broker_address, batch_size=100_000, linger_ms=100) as producer:
        deliveries = [producer.send(topic, b"%04d" % i + b"x" * 200) for i in range(200)]
        too_large = producer.send(topic, b"y" * 5000)
        producer.flush(30)
        assert isinstance(too_large.exception(), MessageTooLargeError)
        assert producer.metrics()["batch-split-total"] > 0
    assert [message.value()[:4] for message in read_all(topic)] == [b"%04d" % i for i in range(200)]
    assert [delivery.result().offset for delivery in deliveries] == list(range(200))


def test_send_batch_keeps_rows_together_and_in_order(broker_address: str, make_topic: Any, read_all: Any) -> None:
    topic = make_topic(4)
    count = 5000
    keys = [None if i % 5 == 0 else b"k%d" % (i % 97) for i in range(count)]
    values = [b"%d" % i for i in range(count)]
    partitions = [i % 4 if i % 7 == 0 else None for i in range(count)]
    headers = [[("n", b"%d" % i)] if i % 3 == 0 else None for i in range(count)]
    with Producer(bootstrap_servers=broker_address) as producer:
        first = producer.send(topic, b"before", partition=0)
        batch = producer.send_batch(
            topic, values, keys, partition=partitions, timestamps=list(range(1, count + 1)), headers=headers
        )
        last = producer.send(topic, b"after", partition=0)
        assert sum(delivered.records for delivered in batch.result(30)) == count
        assert first.result(60).offset < last.result(60).offset
    rows = {m.value(): m for m in read_all(topic)}
    for i in range(count):
        message = rows[values[i]]
        assert message.key() == keys[i]
        assert message.timestamp()[1] == i + 1
        assert (message.headers() or None) == headers[i]
        assert partitions[i] is None or message.partition() == partitions[i]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_send_arrow_sends_every_column(broker_address: str, make_topic: Any, read_all: Any, codec: str) -> None:
    pa = pytest.importorskip("pyarrow")
    topic = make_topic(4)
    count = 3000
    values = [None if i % 11 == 0 else b"value-%d" % i for i in range(count)]
    keys = [None if i % 5 == 0 else f"key-{i % 50}" for i in range(count)]
    partitions = [3 if i % 13 == 0 else None for i in range(count)]
    headers = [[{"key": "i", "value": b"%d" % i}] for i in range(count)]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table(
        {
            "value": pa.array(values, pa.large_binary()),
            "key": pa.array(keys, pa.string()),
            "partition": pa.array(partitions, pa.int32()),
            "timestamp": pa.array([1_700_000_000_000 + i for i in range(count)], pa.timestamp("ms")),
            "headers": pa.array(headers, kind),
        }
    )
    with Producer(bootstrap_servers=broker_address, compression_type=codec) as producer:
        sliced = pa.Table.from_batches(table.to_batches(max_chunksize=700)).slice(1)
        delivered = producer.send_arrow(topic, sliced).result(30)
        assert sum(entry.records for entry in delivered) == count - 1
    from headrace.records.murmur2 import partition_for_key

    messages = {int(m.headers()[0][1]): m for m in read_all(topic)}
    assert sorted(messages) == list(range(1, count))
    for i, message in messages.items():
        assert message.value() == values[i]
        assert message.key() == (None if keys[i] is None else str(keys[i]).encode())
        assert message.timestamp()[1] == 1_700_000_000_000 + i
        if partitions[i] is not None:
            assert message.partition() == 3
        elif keys[i] is not None:
            assert message.partition() == partition_for_key(str(keys[i]).encode(), 4)


def test_a_partition_that_does_not_exist_is_a_clear_error(broker_address: str, make_topic: Any) -> None:
    topic = make_topic(2)
    with Producer(bootstrap_servers=broker_address, max_block_ms=500) as producer:
        error = producer.send(topic, b"", partition=5).exception(20)
    assert isinstance(error, UnknownTopicOrPartitionError)
    assert topic in str(error)


def test_serializers_and_interceptors_work_together(broker_address: str, make_topic: Any, read_all: Any) -> None:
    class Tagging:
        seen: int = 0

        def on_send(self, record: Any) -> Any:
            return record._replace(headers=[("tag", b"x")])

        def on_acknowledgement(self, metadata: Any, error: Any) -> None:
            Tagging.seen += 1

    topic = make_topic(1)
    config = {"bootstrap.servers": broker_address, "value.serializer": "json", "key.serializer": "string"}
    with Producer({**config, "interceptor.classes": [Tagging]}) as producer:
        producer.send(topic, {"n": 1}, "klíč")
    message = read_all(topic)[0]
    assert (message.key(), message.value()) == ("klíč".encode(), b'{"n":1}')
    assert message.headers() == [("tag", b"x")]
    assert Tagging.seen == 1


def test_the_asyncio_producer_delivers(broker_address: str, make_topic: Any, read_all: Any) -> None:
    topic = make_topic(2)

    async def main() -> list[Any]:
        async with aio.Producer(bootstrap_servers=broker_address, compression_type="lz4") as producer:
            assert len(await producer.partitions_for(topic)) == 2
            deliveries: list[Delivery] = []
            for i in range(2000):
                deliveries.append(producer.send(topic, b"%d" % i, key=b"%d" % (i % 10)))
                if i % 500 == 0:
                    await producer.room()
            results = await asyncio.gather(*(_await(delivery) for delivery in deliveries))
            await producer.send_batch(topic, [b"x", b"y"])
            return results

    results = asyncio.run(main())
    messages = read_all(topic)
    where = {(m.partition(), m.offset()): m.value() for m in messages}
    assert all(where[(r.partition, r.offset)] == b"%d" % i for i, r in enumerate(results))
    assert len(messages) == 2002


async def _await(delivery: Delivery) -> Any:
    return await delivery
