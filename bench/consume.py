"""Consuming next to confluent-kafka, kafka-python and aiokafka, from the same broker, in the same run.

    python -m bench.consume [ADDRESS] [--records 400000] [--repeat 3] [--sizes 100,1000] [--codecs none,lz4]

Without an address a Headrace broker is started in a process of its own. Each way of reading reads the same topic from
its start, in a process of its own that has read one record before; the clock starts before the consumer is made, since
some begin to fetch at once. The ways take turns, and the best of several runs counts. Ratios are to confluent-kafka
reading record by record (`consume` of 500 at a time, value and offset looked at): of records per second, and of records
per second of CPU time. What `recv_into` of the same bytes costs alone stands beside them: nobody can be faster.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PARTITIONS = 4
BASE = "confluent-kafka"
FLOOR = "(recv_into alone)"
Seconds = tuple[float, float]
"""Seconds, and CPU seconds of all threads."""
Timed = tuple[int, Seconds]
"""Records read, and what that took."""


def now() -> Seconds:
    return time.perf_counter(), time.process_time()


def since(start: Seconds) -> Seconds:
    seconds, cpu_seconds = now()
    return seconds - start[0], cpu_seconds - start[1]


def _common(address: str) -> dict[str, Any]:
    return {"bootstrap.servers": address, "auto.offset.reset": "earliest", "enable.auto.commit": False}


def _ours(address: str) -> dict[str, Any]:
    from headrace.records import use_fast

    use_fast()  # at once, not after the first records: what is measured is the rate, not the start
    return _common(address)


def headrace_records(address: str, topic: str, count: int) -> Timed:
    from headrace.client.consumer.blocking import Consumer

    start = now()
    with Consumer(_ours(address)) as consumer:
        consumer.assign([(topic, partition) for partition in range(PARTITIONS)])
        read = total = 0
        while read < count:
            for record in consumer.poll(1.0):
                total += record.offset + len(record.value)
                read += 1
        return read, since(start)


def headrace_iteration(address: str, topic: str, count: int) -> Timed:
    from headrace.client.consumer.blocking import Consumer

    start = now()
    with Consumer(_ours(address)) as consumer:
        consumer.assign([(topic, partition) for partition in range(PARTITIONS)])
        read = total = 0
        for record in consumer:
            total += record.offset + len(record.value)
            read += 1
            if read == count:
                break
        return read, since(start)


def headrace_columns(address: str, topic: str, count: int) -> Timed:
    from headrace.client.consumer.blocking import Consumer

    start = now()
    with Consumer(_ours(address)) as consumer:
        consumer.assign([(topic, partition) for partition in range(PARTITIONS)])
        read = 0
        while read < count:
            for piece in consumer.poll_columns(1.0):
                read += len(piece)
        return read, since(start)


def headrace_arrow(address: str, topic: str, count: int) -> Timed:
    from headrace.client.consumer.blocking import Consumer

    start = now()
    with Consumer(_ours(address)) as consumer:
        consumer.assign([(topic, partition) for partition in range(PARTITIONS)])
        read = 0
        while read < count:
            read += consumer.poll_arrow(1.0).num_rows
        return read, since(start)


def confluent_records(address: str, topic: str, count: int) -> Timed:
    from confluent_kafka import Consumer, TopicPartition

    # With its defaults it rests for a second whenever its queue is full.
    queue = {"queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 1_000_000, "fetch.queue.backoff.ms": 5}
    start = now()
    consumer = Consumer({**_common(address), "group.id": "bench", **queue})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    read = total = 0
    while read < count:
        for message in consumer.consume(500, 1.0):
            total += message.offset() + len(message.value())
            read += 1
    seconds = since(start)
    consumer.close()
    return read, seconds


def kafka_python_records(address: str, topic: str, count: int) -> Timed:
    from kafka import KafkaConsumer, TopicPartition

    start = now()
    consumer = KafkaConsumer(
        bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False, group_id=None
    )
    consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
    read = total = 0
    while read < count:
        for records in consumer.poll(1000).values():
            for record in records:
                total += record.offset + len(record.value)
                read += 1
    seconds = since(start)
    consumer.close()
    return read, seconds


def aiokafka_records(address: str, topic: str, count: int) -> Timed:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def run() -> Timed:
        start = now()
        consumer = AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False)
        await consumer.start()
        consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
        read = total = 0
        while read < count:
            for records in (await consumer.getmany(timeout_ms=1000, max_records=500)).values():
                for record in records:
                    total += record.offset + len(record.value)
                    read += 1
        seconds = since(start)
        await consumer.stop()
        return read, seconds

    return asyncio.run(run())


def headrace_aio_records(address: str, topic: str, count: int) -> Timed:
    from headrace.client.consumer.aio import Consumer

    async def run() -> Timed:
        start = now()
        async with Consumer(_ours(address)) as consumer:
            consumer.assign([(topic, partition) for partition in range(PARTITIONS)])
            read = total = 0
            while read < count:
                for record in await consumer.poll(1.0):
                    total += record.offset + len(record.value)
                    read += 1
            return read, since(start)

    return asyncio.run(run())


def socket_only(_: str, topic: str, count: int) -> Timed:
    """The floor: as many bytes out of a socket, and nothing else."""
    from bench.floor import encoded_bytes, socket_alone

    _, size, codec, _ = topic.split("-")
    values = some_values(int(size))
    return count, socket_alone(encoded_bytes(values, codec) * count // len(values), receives=True)


WAYS: dict[str, Callable[[str, str, int], Timed]] = {
    BASE: confluent_records,
    FLOOR: socket_only,
    "headrace poll": headrace_records,
    "headrace iteration": headrace_iteration,
    "headrace poll_columns": headrace_columns,
    "headrace poll_arrow": headrace_arrow,
    "headrace.aio poll": headrace_aio_records,
    "kafka-python": kafka_python_records,
    "aiokafka": aiokafka_records,
}
SLOW = {"kafka-python": 10, "aiokafka": 4}
"""These read a part of the records only, so that a run ends."""


def some_values(size: int) -> list[bytes]:
    """Half random, so that compression has something to do and not too much."""
    rng = random.Random(4)
    return [rng.randbytes(size // 2) + b"x" * (size - size // 2) for _ in range(1000)]


def fill(address: str, topic: str, count: int, size: int, codec: str) -> None:
    """Records of `size` bytes."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    created = admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    for future in created.values():
        future.result(30)
    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": codec,
            "linger.ms": 20,
            "batch.size": 100_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    values = some_values(size)
    for i in range(count):
        while True:
            try:
                producer.produce(topic, values[i % 1000], partition=i * PARTITIONS // count)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(120)


def _child(way: str, address: str, topic: str, count: int, out: Any) -> None:
    run = WAYS[way]
    run(address, topic, 1)  # what is imported, compiled or generated for the first record is not what is measured
    out.put(run(address, topic, count))


def measure(ways: list[str], address: str, topic: str, count: int, repeat: int) -> dict[str, tuple[float, float]]:
    """Records per second, best of several; and per second of CPU time, which a busy machine disturbs less."""
    best: dict[str, tuple[float, float]] = {}
    context = multiprocessing.get_context("spawn")
    for _ in range(repeat):
        for way in ways:
            out = context.Queue()
            process = context.Process(target=_child, args=(way, address, topic, count // SLOW.get(way, 1), out))
            process.start()
            read, (seconds, cpu_seconds) = out.get(timeout=300)
            process.join()
            rate, thrift = best.get(way, (0.0, 0.0))
            best[way] = max(rate, read / seconds), max(thrift, read / cpu_seconds)
    return best


@contextlib.contextmanager
def broker(address: str | None) -> Iterator[str]:
    if address is not None:
        yield address
        return
    from headrace.testing import BrokerProcess

    with tempfile.TemporaryDirectory() as directory, BrokerProcess(Path(directory) / "data") as broker:
        yield broker.address


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?")
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--sizes", default="100,1000")
    parser.add_argument("--codecs", default="none,lz4")
    parser.add_argument("--only", help="ways to read, separated by commas", default=",".join(WAYS))
    arguments = parser.parse_args()
    chosen = [way for way in WAYS if way in arguments.only.split(",") or way in (BASE, FLOOR)]
    with broker(arguments.address) as address:
        for size in map(int, arguments.sizes.split(",")):
            for codec in arguments.codecs.split(","):
                count = arguments.records if size <= 100 else arguments.records // 4
                topic = f"bench-{size}-{codec}-{time.time_ns()}"
                fill(address, topic, count, size, codec)
                print(f"\n{size} B, {codec}, {count} records (best of {arguments.repeat})")
                best = measure(chosen, address, topic, count, arguments.repeat)
                for way, (rate, thrift) in best.items():
                    print(
                        f"  {way:24} {rate:>11,.0f} records/s {rate * size / 1e6:>7,.0f} MB/s"
                        f" {rate / best[BASE][0]:>6.2f} × {1e9 / thrift:>8,.0f} CPU ns/record"
                        f" {thrift / best[BASE][1]:>6.2f} ×",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
