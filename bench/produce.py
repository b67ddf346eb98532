"""Produce, next to confluent-kafka, kafka-python and aiokafka on the same broker, in the same run; prints ratios.

    python bench/produce.py HOST:PORT [--records N] [--rounds N] [--quick]

Per-record produce has a delivery callback per record (kafka-python and aiokafka: a future per record, as their API has
it). Every client has the same batch size, linger, acks and idempotence where it can; everything is flushed before the
clock stops. The best of several rounds counts, because other work on a small machine only ever slows one down.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable
from typing import Any

BATCH_BYTES = 1_000_000
LINGER_MS = 5
BUFFER_BYTES = 64 * 1024 * 1024

Run = Callable[[str, str, list[bytes], str], float]


def _counter() -> tuple[list[int], Callable[[Any, Any], None]]:
    delivered = [0]

    def callback(error: Any, _: Any) -> None:
        if error is not None:
            raise SystemExit(f"a record was not delivered: {error}")
        delivered[0] += 1

    return delivered, callback


def _ours(address: str, codec: str) -> Any:
    from headrace import Producer
    from headrace.records import use_fast

    use_fast()  # at once, not after the first records: what is measured is the rate, not the start
    return Producer(
        bootstrap_servers=address,
        compression_type=codec,
        batch_size=BATCH_BYTES,
        linger_ms=LINGER_MS,
        buffer_memory=BUFFER_BYTES,
        max_request_size=BATCH_BYTES * 8,
    )


def headrace_send(address: str, topic: str, values: list[bytes], codec: str) -> float:
    producer = _ours(address, codec)
    producer.partitions_for(topic)
    delivered, callback = _counter()
    start = time.perf_counter()
    for value in values:
        producer.send(topic, value, on_delivery=callback)
    producer.flush()
    took = time.perf_counter() - start
    assert delivered[0] == len(values)
    producer.close()
    return took


def headrace_send_batch(address: str, topic: str, values: list[bytes], codec: str) -> float:
    producer = _ours(address, codec)
    producer.partitions_for(topic)
    start = time.perf_counter()
    deliveries = [producer.send_batch(topic, values[at : at + 50_000]) for at in range(0, len(values), 50_000)]
    producer.flush()
    took = time.perf_counter() - start
    assert sum(entry.records for delivery in deliveries for entry in delivery.result()) == len(values)
    producer.close()
    return took


def headrace_send_arrow(address: str, topic: str, values: list[bytes], codec: str) -> float:
    import pyarrow as pa

    table = pa.table({"value": values})
    producer = _ours(address, codec)
    producer.partitions_for(topic)
    start = time.perf_counter()
    delivery = producer.send_arrow(topic, table)
    delivery.result(120)
    took = time.perf_counter() - start
    producer.close()
    return took


def confluent(address: str, topic: str, values: list[bytes], codec: str) -> float:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": codec,
            "batch.size": BATCH_BYTES,
            "linger.ms": LINGER_MS,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": BUFFER_BYTES // 1024,
        }
    )
    producer.list_topics(topic, timeout=20)
    delivered, callback = _counter()
    start = time.perf_counter()
    for at, value in enumerate(values):
        while True:
            try:
                producer.produce(topic, value, on_delivery=callback)
                break
            except BufferError:
                producer.poll(0.01)
        if at % 200 == 0:
            producer.poll(0)
    producer.flush()
    took = time.perf_counter() - start
    assert delivered[0] == len(values)
    return took


def kafka_python(address: str, topic: str, values: list[bytes], codec: str) -> float:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=address,
        compression_type=None if codec == "none" else codec,
        batch_size=BATCH_BYTES,
        linger_ms=LINGER_MS,
        max_request_size=BATCH_BYTES * 8,
        acks="all",
    )
    producer.partitions_for(topic)
    start = time.perf_counter()
    for value in values:
        producer.send(topic, value)
    producer.flush()
    took = time.perf_counter() - start
    producer.close()
    return took


def aiokafka(address: str, topic: str, values: list[bytes], codec: str) -> float:
    from aiokafka import AIOKafkaProducer

    async def main() -> float:
        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            compression_type=None if codec == "none" else codec,
            max_batch_size=BATCH_BYTES,
            linger_ms=LINGER_MS,
            max_request_size=BATCH_BYTES * 8,
            enable_idempotence=True,
        )
        await producer.start()
        start = time.perf_counter()
        for value in values:
            await producer.send(topic, value)
        await producer.flush()
        took = time.perf_counter() - start
        await producer.stop()
        return took

    return asyncio.run(main())


RUNS: dict[str, tuple[Run, float]] = {
    "confluent-kafka, per record": (confluent, 1.0),
    "headrace send, per record": (headrace_send, 1.0),
    "headrace send_batch": (headrace_send_batch, 2.0),
    "headrace send_arrow": (headrace_send_arrow, 2.0),
    # A tenth of the records: they are that much slower, and only a rate is wanted.
    "kafka-python, per record": (kafka_python, 0.1),
    "aiokafka, per record": (aiokafka, 0.1),
}


@contextlib.contextmanager
def topic_on(address: str) -> Any:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    name = f"bench-{uuid.uuid4().hex[:8]}"
    config = {"max.message.bytes": str(BATCH_BYTES * 4)}
    admin.create_topics([NewTopic(name, 4, 1, config=config)])[name].result(20)
    try:
        yield name
    finally:
        admin.delete_topics([name])[name].result(20)


def measure(address: str, size: int, codec: str, records: int, rounds: int, only: str) -> None:
    # Not one byte repeated, which compresses to nothing, nor random, which does not compress.
    text = b" ".join(b"%d" % (i * 7919 % 1000) for i in range(size))
    values = [text[i % size : i % size + size] for i in range(records * 2)]
    values = [value.ljust(size, b".") for value in values]
    rates: dict[str, float] = {}
    for _ in range(rounds):
        for name, (run, share) in RUNS.items():
            if only in name:
                with topic_on(address) as topic:
                    count = max(1, int(records * share))
                    rates[name] = max(rates.get(name, 0.0), count / run(address, topic, values[:count], codec))
    base = rates.get("confluent-kafka, per record")
    print(f"\n{size} B, {codec} ({records} records, best of {rounds})")
    for name, rate in rates.items():
        ratio = f"{rate / base:7.2f} x confluent-kafka" if base else ""
        print(f"  {name:30} {rate:12,.0f} records/s {rate * size / 1e6:8.1f} MB/s {ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="host:port of the broker")
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="100 B without compression only")
    parser.add_argument("--only", default="", help="only the runs whose name has this in it")
    arguments = parser.parse_args()
    for size in (100,) if arguments.quick else (100, 1000):
        for codec in ("none",) if arguments.quick else ("none", "lz4"):
            records = arguments.records if size == 100 else arguments.records // 3
            measure(arguments.address, size, codec, records, arguments.rounds, arguments.only)


if __name__ == "__main__":
    main()
