"""Produce, next to confluent-kafka, kafka-python and aiokafka on the same broker, in the same run; prints ratios.

    python -m bench.produce [HOST:PORT] [--records N] [--rounds N] [--sizes 100,1000] [--codecs none,lz4]

Without an address a Headrace broker is started in a process of its own. Per-record produce has a delivery callback per
record (kafka-python and aiokafka: a future per record, as their API has it). Every client has the same batch size,
linger, acks and idempotence where it can; everything is flushed before the clock stops. The fast ones have sent 50,000
records in the same way before it starts; what `sendmsg` of the same bytes costs alone stands beside them. Every run is
a process of its own, the ways take turns, and the best of several rounds counts, because other work on a small machine
only ever slows one down. Two ratios are printed: of records per second, and of records per second of the client's CPU
time (all its threads), which says more where client and broker share few cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import statistics
import uuid
from collections.abc import Callable
from typing import Any

from bench.consume import Seconds, broker, now, since
from bench.floor import encoded_bytes, socket_alone

BATCH_BYTES = 1_000_000
LINGER_MS = 5
BUFFER_BYTES = 64 * 1024 * 1024
WARM_UP_RECORDS = 50_000
ROUND_TRIPS = 2_000
BASE = "confluent-kafka, per record"
FLOOR = "(sendmsg alone)"

Run = Callable[[str, str, list[bytes], str], Seconds]


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


def headrace_send(address: str, topic: str, values: list[bytes], codec: str) -> Seconds:
    producer = _ours(address, codec)
    for value in values[:WARM_UP_RECORDS]:
        producer.send(topic, value)
    producer.flush()
    delivered, callback = _counter()
    start = now()
    for value in values:
        producer.send(topic, value, on_delivery=callback)
    producer.flush()
    took = since(start)
    assert delivered[0] == len(values)
    producer.close()
    return took


def headrace_send_batch(address: str, topic: str, values: list[bytes], codec: str) -> Seconds:
    producer = _ours(address, codec)
    producer.send_batch(topic, values[:WARM_UP_RECORDS]).result(60)
    start = now()
    deliveries = [producer.send_batch(topic, values[at : at + 50_000]) for at in range(0, len(values), 50_000)]
    producer.flush()
    took = since(start)
    assert sum(entry.records for delivery in deliveries for entry in delivery.result()) == len(values)
    producer.close()
    return took


def headrace_send_arrow(address: str, topic: str, values: list[bytes], codec: str) -> Seconds:
    import pyarrow as pa

    table = pa.table({"value": values})
    producer = _ours(address, codec)
    producer.send_arrow(topic, table.slice(0, WARM_UP_RECORDS)).result(60)
    start = now()
    delivery = producer.send_arrow(topic, table)
    delivery.result(120)
    took = since(start)
    producer.close()
    return took


def confluent(address: str, topic: str, values: list[bytes], codec: str) -> Seconds:
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

    def produce(some: list[bytes]) -> None:
        for at, value in enumerate(some):
            while True:
                try:
                    producer.produce(topic, value, on_delivery=callback)
                    break
                except BufferError:
                    producer.poll(0.01)
            if at % 200 == 0:
                producer.poll(0)
        producer.flush()

    produce(values[:WARM_UP_RECORDS])
    start = now()
    produce(values)
    took = since(start)
    assert delivered[0] == len(values[:WARM_UP_RECORDS]) + len(values)
    return took


def kafka_python(address: str, topic: str, values: list[bytes], codec: str) -> Seconds:
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
    start = now()
    for value in values:
        producer.send(topic, value)
    producer.flush()
    took = since(start)
    producer.close()
    return took


def aiokafka(address: str, topic: str, values: list[bytes], codec: str) -> Seconds:
    from aiokafka import AIOKafkaProducer

    async def main() -> Seconds:
        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            compression_type=None if codec == "none" else codec,
            max_batch_size=BATCH_BYTES,
            linger_ms=LINGER_MS,
            max_request_size=BATCH_BYTES * 8,
            enable_idempotence=True,
        )
        await producer.start()
        start = now()
        for value in values:
            await producer.send(topic, value)
        await producer.flush()
        took = since(start)
        await producer.stop()
        return took

    return asyncio.run(main())


def headrace_round_trip(address: str, topic: str, _: list[bytes], codec: str) -> Seconds:
    """One record at a time, each waited for."""
    from headrace import Producer

    with Producer(bootstrap_servers=address, compression_type=codec, linger_ms=0) as producer:
        producer.send(topic, b"x" * 100).result(60)
        start = now()
        for _ in range(ROUND_TRIPS):
            producer.send(topic, b"x" * 100).result(60)
        return since(start)


def confluent_round_trip(address: str, topic: str, _: list[bytes], codec: str) -> Seconds:
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": address, "compression.type": codec, "linger.ms": 0, "enable.idempotence": True}
    )
    producer.produce(topic, b"x" * 100)
    producer.flush()
    start = now()
    for _ in range(ROUND_TRIPS):
        producer.produce(topic, b"x" * 100)
        producer.flush()
    return since(start)


def socket_only(_: str, topic: str, values: list[bytes], codec: str) -> Seconds:
    """The floor: as many bytes into a socket, and nothing else."""
    return socket_alone(encoded_bytes(values, codec), receives=False)


RUNS: dict[str, tuple[Run, float]] = {
    BASE: (confluent, 1.0),
    FLOOR: (socket_only, 2.0),
    "headrace send, per record": (headrace_send, 1.0),
    "headrace send_batch": (headrace_send_batch, 2.0),
    "headrace send_arrow": (headrace_send_arrow, 2.0),
    # A tenth of the records: they are that much slower, and only a rate is wanted.
    "kafka-python, per record": (kafka_python, 0.1),
    "aiokafka, per record": (aiokafka, 0.1),
}
ROUND_TRIP_RUNS: dict[str, Run] = {"confluent-kafka": confluent_round_trip, "headrace": headrace_round_trip}


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


def payloads(size: int, count: int) -> list[bytes]:
    """Not one byte repeated, which compresses to nothing, nor random, which does not compress."""
    text = b" ".join(b"%d" % (i * 7919 % 1000) for i in range(size))
    return [text[i % size : i % size + size].ljust(size, b".") for i in range(count)]


def _child(run: Run, address: str, topic: str, size: int, count: int, codec: str, out: Any) -> None:
    out.put(run(address, topic, payloads(size, count), codec))


def in_child(run: Run, address: str, size: int, count: int, codec: str) -> Seconds:
    context = multiprocessing.get_context("spawn")
    with topic_on(address) as topic:
        out = context.Queue()
        process = context.Process(target=_child, args=(run, address, topic, size, count, codec, out))
        process.start()
        took: Seconds = out.get(timeout=120)
        process.join()
    return took


def measure(address: str, size: int, codec: str, records: int, rounds: int, only: str) -> None:
    best: dict[str, tuple[float, float]] = {}
    for _ in range(rounds):
        for name, (run, share) in RUNS.items():
            if only in name or name in (BASE, FLOOR):
                count = max(1, int(records * share))
                seconds, cpu_seconds = in_child(run, address, size, count, codec)
                rate, thrift = best.get(name, (0.0, 0.0))
                best[name] = max(rate, count / seconds), max(thrift, count / cpu_seconds)
    print(f"\n{size} B, {codec} ({records} records, best of {rounds})")
    for name, (rate, thrift) in best.items():
        print(
            f"  {name:28} {rate:>11,.0f} records/s {rate * size / 1e6:>7.1f} MB/s {rate / best[BASE][0]:>6.2f} ×"
            f" {1e9 / thrift:>8,.0f} CPU ns/record {thrift / best[BASE][1]:>6.2f} ×",
            flush=True,
        )


def measure_round_trips(address: str, rounds: int) -> None:
    took: dict[str, list[Seconds]] = {}
    for _ in range(rounds):
        for name, run in ROUND_TRIP_RUNS.items():
            took.setdefault(name, []).append(in_child(run, address, 100, 0, "none"))
    print(f"\nround trip of one record of 100 B ({ROUND_TRIPS} one after the other, median of {rounds})")
    for name, runs in took.items():
        wall, cpu = (statistics.median(run[i] for run in runs) / ROUND_TRIPS * 1e6 for i in (0, 1))
        print(f"  {name:28} {wall:>8,.0f} µs {cpu:>8,.0f} CPU µs", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", help="host:port of the broker")
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="100,1000")
    parser.add_argument("--codecs", default="none,lz4")
    parser.add_argument("--only", default="", help="only the runs whose name has this in it, and confluent-kafka")
    parser.add_argument("--no-round-trip", action="store_true")
    arguments = parser.parse_args()
    with broker(arguments.address) as address:
        for size in map(int, arguments.sizes.split(",")):
            for codec in arguments.codecs.split(","):
                records = arguments.records if size <= 100 else arguments.records // 3
                measure(address, size, codec, records, arguments.rounds, arguments.only)
        if not arguments.no_round_trip:
            measure_round_trips(address, arguments.rounds)


if __name__ == "__main__":
    main()
