"""What waiting for the disk costs: acknowledged records a second and latency, with and without a sync before each ack.

    python -m bench.durability [--seconds 4] [--partitions 1,10,100]

`flush.messages=1` makes a topic sync before it acknowledges; without it an acknowledged record survives a crash of the
broker (kill -9) but not of the machine, as in Apache Kafka, which is measured beside it where it can be had.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import peers
from bench.broker import in_process, started

RECORD = b"x" * 1000
IN_FLIGHT = 200


def load(address: str, partitions: int, synced: bool, seconds: float, out: Any) -> None:
    """Keep a number of records in flight over all partitions, and time each from send to ack."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"durable-{partitions}-{int(synced)}"
    config = {"flush.messages": "1"} if synced else {}
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(60)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": "all"})
    producer.list_topics(topic, timeout=30)
    latencies: list[float] = []
    waiting = 0

    def acknowledged(sent_at: float) -> Any:
        def done(error: Any, _: Any) -> None:
            nonlocal waiting
            waiting -= 1
            if error is None:
                latencies.append(time.perf_counter() - sent_at)

        return done

    end = time.perf_counter() + seconds
    number = 0
    while time.perf_counter() < end:
        while waiting < IN_FLIGHT:
            producer.produce(
                topic, RECORD, partition=number % partitions, on_delivery=acknowledged(time.perf_counter())
            )
            waiting += 1
            number += 1
        producer.poll(0.001)
    producer.flush(30)
    latencies.sort()
    out.put(
        {
            "per_s": len(latencies) / seconds,
            "p50_ms": latencies[len(latencies) // 2] * 1000,
            "p99_ms": latencies[int(len(latencies) * 0.99)] * 1000,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--partitions", default="1,10,100")
    options = parser.parse_args()
    kinds = ["headrace"] + (["kafka"] if peers.kafka_libs() is not None else [])
    if len(kinds) == 1:
        print(f"Apache Kafka is not measured: {peers.why_no_kafka()}")
    print(f"{'broker':10}{'partitions':>11}{'sync':>6}{'records/s':>12}{'p50 ms':>9}{'p99 ms':>9}")
    for kind in kinds:
        directory = Path(tempfile.mkdtemp(prefix=f"bench-{kind}-"))
        try:
            with started(kind, directory) as (broker, _):
                for partitions in map(int, options.partitions.split(",")):
                    for synced in (False, True):
                        figures = in_process(load, broker.address, partitions, synced, options.seconds)
                        print(
                            f"{kind:10}{partitions:>11}{'yes' if synced else 'no':>6}{figures['per_s']:12,.0f}"
                            f"{figures['p50_ms']:9.2f}{figures['p99_ms']:9.2f}",
                            flush=True,
                        )
        finally:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
