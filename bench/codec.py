"""How long the wire codec takes, next to kio (decoders in Rust) and kafka-python, measured in the same run.

    python bench/codec.py            every case
    python bench/codec.py metadata   those whose name contains the word

Each codec encodes and decodes the same message. The figure is the best of several rounds, in µs for one message; the
ratio is the peer's time over ours, so above 1 Headrace is faster. Needs the development dependencies.
"""

from __future__ import annotations

import importlib
import io
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from typing import Any

import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
from kio.serial import entity_reader, entity_writer

from headrace.protocol.codec import decode, encode
from headrace.protocol.messages import fetch, metadata, produce

ROUNDS = 7
ROUND_SECONDS = 0.1


def metadata_response(topics: int, partitions: int) -> metadata.MetadataResponse:
    return metadata.MetadataResponse(
        brokers=[metadata.MetadataResponseBroker(node_id=i, host=f"broker-{i}.local", port=9092) for i in range(3)],
        cluster_id="5L6g3nShT-eMCtK--X86sw",
        controller_id=1,
        topics=[
            metadata.MetadataResponseTopic(
                name=f"topic-{t}",
                topic_id=bytes([t + 1]) * 16,
                partitions=[
                    metadata.MetadataResponsePartition(
                        partition_index=p, leader_id=p % 3, leader_epoch=4, replica_nodes=[0, 1, 2], isr_nodes=[0, 1, 2]
                    )
                    for p in range(partitions)
                ],
            )
            for t in range(topics)
        ],
    )


def fetch_request(partitions: int) -> fetch.FetchRequest:
    return fetch.FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        session_id=7,
        session_epoch=3,
        topics=[
            fetch.FetchTopic(
                topic="topic-1",
                topic_id=bytes(15) + b"\x01",
                partitions=[
                    fetch.FetchPartition(
                        partition=p, current_leader_epoch=4, fetch_offset=1000 * p, partition_max_bytes=1 << 20
                    )
                    for p in range(partitions)
                ],
            )
        ],
    )


def fetch_response(partitions: int, records: bytes) -> fetch.FetchResponse:
    return fetch.FetchResponse(
        session_id=7,
        responses=[
            fetch.FetchableTopicResponse(
                topic="topic-1",
                topic_id=bytes(15) + b"\x01",
                partitions=[
                    fetch.PartitionData(
                        partition_index=p, high_watermark=9000, last_stable_offset=9000, records=records
                    )
                    for p in range(partitions)
                ],
            )
        ],
    )


def produce_request(partitions: int, records: bytes) -> produce.ProduceRequest:
    data = [produce.PartitionProduceData(index=p, records=records) for p in range(partitions)]
    return produce.ProduceRequest(
        acks=-1, timeout_ms=30000, topic_data=[produce.TopicProduceData(name="t", partition_data=data)]
    )


def cases() -> Iterator[tuple[str, Any, int, str, Any]]:
    """(name, our message, version, kio's module, kafka-python's class)"""
    peer = kafka.protocol.metadata.MetadataResponse
    yield "metadata response, 20x10 partitions", metadata_response(20, 10), 12, "metadata.v12.response", peer
    peer = kafka.protocol.consumer.FetchRequest
    yield "fetch request, 1 partition", fetch_request(1), 12, "fetch.v12.request", peer
    yield "fetch request, 50 partitions", fetch_request(50), 12, "fetch.v12.request", peer
    peer = kafka.protocol.consumer.FetchResponse
    yield "fetch response, 50 partitions x 1 KiB", fetch_response(50, bytes(1024)), 12, "fetch.v12.response", peer
    peer = kafka.protocol.producer.ProduceRequest
    yield "produce request, 10 partitions x 16 KiB", produce_request(10, bytes(16384)), 9, "produce.v9.request", peer


def microseconds(calls: list[Callable[[], Any]]) -> list[float]:
    """The best time of each. Processor time, round by round in turn, so that a busy machine is equally bad for all."""
    timers = [timeit.Timer(call, timer=time.process_time) for call in calls]
    numbers = [max(1, int(ROUND_SECONDS / max(timer.timeit(10) / 10, 1e-7))) for timer in timers]
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for index, (timer, number) in enumerate(zip(timers, numbers, strict=True)):
            best[index] = min(best[index], timer.timeit(number) / number * 1e6)
    return best


def kio_encoder(cls: type[Any], message: Any) -> Callable[[], bytes]:
    write = entity_writer(cls)

    def run() -> bytes:
        buffer = io.BytesIO()
        write(buffer, message)
        return buffer.getvalue()

    return run


def measure(name: str, message: Any, version: int, kio_module: str, kafka_python: Any) -> None:
    ours = type(message)
    raw = encode(message, version)
    kio_class = getattr(importlib.import_module(f"kio.schema.{kio_module}"), ours.__name__)
    read = entity_reader(kio_class)
    kio_message = read(raw, 0)[0]
    peer_message = kafka_python.decode(raw, version=version)
    peer_message._header = None  # a decoded message lacks it, and could not be encoded
    runs = {
        "encode": (
            lambda: encode(message, version),
            kio_encoder(kio_class, kio_message),
            lambda: peer_message.encode(version=version),
        ),
        "decode": (
            lambda: decode(ours, version, raw),
            lambda: read(raw, 0),
            lambda: kafka_python.decode(raw, version=version),
        ),
    }
    for verb, (mine, kio_run, kafka_run) in runs.items():
        if verb == "encode" and not bytes(mine()) == kio_run() == bytes(kafka_run()):
            raise SystemExit(f"{name}: the three encoders disagree")
        times = microseconds([mine, kio_run, kafka_run])
        ratios = [peer / times[0] for peer in times[1:]]
        print(
            f"{name:40} {verb}  {times[0]:8.1f} µs   kio {times[1]:8.1f} ({ratios[0]:5.2f}x)"
            f"   kafka-python {times[2]:8.1f} ({ratios[1]:5.2f}x)"
        )


def main() -> None:
    words = sys.argv[1:]
    for name, *rest in cases():
        if not words or any(word in name for word in words):
            measure(name, *rest)


if __name__ == "__main__":
    main()
