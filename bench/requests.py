"""Many small requests: what a broker spends on each, next to Apache Kafka in the same run.

    python -m bench.requests [--seconds 2] [--rounds 3] [--connections 1,16,64,256] [--only headrace|kafka]

Every connection has one request in flight: a Produce of one record of 100 B, a Metadata of one topic, a Fetch of one
batch of 100 B. The load generator is one process that sends the same bytes again and again and looks at nothing but the
length of an answer, so it costs less than what it measures: `load µs` is what a request costs it. Brokers take turns;
the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import select
import socket
import statistics
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from bench import peers
from bench.broker import make_topic, started
from headrace.protocol.codec import encode_request
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.records import build_batch

TOPIC = "requests"
KINDS = ("produce", "metadata", "fetch")
CONNECTIONS = (1, 16, 64, 256)
_PARTITION = 0
_LENGTH = struct.Struct(">i")
_WARM_UP_S = 0.5


def request_bytes(kind: str) -> bytes:
    """One request of that kind, as it goes over the wire; by topic name, so that it suits every broker."""
    if kind == "produce":
        batch = build_batch([(int(time.time() * 1000), None, b"x" * 100, ())])
        partition = PartitionProduceData(index=_PARTITION, records=batch)
        topics = [TopicProduceData(name=TOPIC, partition_data=[partition])]
        return b"".join(encode_request(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics), 12, 1, "bench"))
    if kind == "metadata":
        return b"".join(encode_request(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), 12, 1, "bench"))
    wanted = FetchPartition(partition=_PARTITION, fetch_offset=0, partition_max_bytes=1)
    topics_wanted = [FetchTopic(topic=TOPIC, partitions=[wanted])]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=topics_wanted)
    return b"".join(encode_request(request, 12, 1, "bench"))


def _load(address: str, kind: str, connections: int, seconds: float, out: Any) -> None:
    """Requests answered within the time, and how long some of them took."""
    host, _, port = address.rpartition(":")
    frame = request_bytes(kind)
    poller = select.epoll()
    sockets: dict[int, socket.socket] = {}
    for _ in range(connections):
        sock = socket.create_connection((host, int(port)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets[sock.fileno()] = sock
        poller.register(sock.fileno(), select.EPOLLIN)
    begun = dict.fromkeys(sockets, 0.0)
    clock = time.perf_counter
    times: list[float] = []
    for number, sock in sockets.items():
        sock.sendall(frame)
        begun[number] = clock()
    done = every = 0
    counting = clock() + _WARM_UP_S
    end = counting + seconds
    while True:
        events = poller.poll(1.0)
        now = clock()
        every += len(events)
        if now >= end:
            break
        if now >= counting:
            done += len(events)
        for number, _ in events:
            sock = sockets[number]
            answer = sock.recv(65_536)
            if len(answer) < 4 or _LENGTH.unpack_from(answer)[0] + 4 > len(answer):
                answer = _rest(sock, answer)
            if done % 7 == 0:
                times.append(now - begun[number])
            sock.send(frame)
            begun[number] = now
    for sock in sockets.values():
        sock.close()
    times.sort()
    own = psutil.Process().cpu_times()
    out.put(
        {
            "rate": done / seconds,
            "requests": every,
            "p50": times[len(times) // 2] * 1e6,
            "p99": times[int(len(times) * 0.99)] * 1e6,
            "own": (own.user + own.system) / every * 1e6,
        }
    )


def _rest(sock: socket.socket, begun: bytes) -> bytes:
    """An answer that came in pieces, whole."""
    while len(begun) < 4 or _LENGTH.unpack_from(begun)[0] + 4 > len(begun):
        more = sock.recv(65_536)
        if not more:
            raise RuntimeError("the broker closed the connection: it does not take this request")
        begun += more
    return begun


def measure(broker: Any, kind: str, connections: int, seconds: float) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    process = context.Process(target=_load, args=(broker.address, kind, connections, seconds, out))
    watched = psutil.Process(broker.pid)
    before = watched.cpu_times()
    process.start()
    found: dict[str, float] = out.get(timeout=seconds + 60)
    after = watched.cpu_times()
    process.join()
    spent = after.user + after.system - before.user - before.system
    found["cpu"] = spent / found["requests"] * 1e6
    return found


def _check(address: str) -> None:
    """Each request is answered without an error; otherwise a refusal would be what is measured."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address})
    producer.produce(TOPIC, b"x" * 100, partition=_PARTITION)
    assert producer.flush(30) == 0, "the topic could not be written to"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", default=",".join(map(str, CONNECTIONS)))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--only", choices=("headrace", "kafka"))
    options = parser.parse_args()
    kinds = [options.only] if options.only else ["headrace", "kafka"]
    if "kafka" in kinds and peers.kafka_libs() is None:
        print(f"Apache Kafka is not measured: {peers.why_no_kafka()}")
        kinds.remove("kafka")
    with contextlib.ExitStack() as stack:
        brokers: dict[str, Any] = {}
        for kind in kinds:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"bench-{kind}-"))
            brokers[kind], _ = stack.enter_context(started(kind, Path(directory)))
            make_topic(brokers[kind].address, TOPIC)
            _check(brokers[kind].address)
        print(
            f"{'':24}"
            + "".join(f"{kind + ' req/s':>16}{'CPU µs':>8}{'p50 µs':>9}{'p99 µs':>9}{'load µs':>9}" for kind in kinds)
        )
        for request in options.kinds.split(","):
            for count in map(int, options.connections.split(",")):
                rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
                for _ in range(options.rounds):
                    for kind in kinds:
                        rounds[kind].append(measure(brokers[kind], request, count, options.seconds))
                medians = {
                    kind: {name: statistics.median(one[name] for one in found) for name in found[0]}
                    for kind, found in rounds.items()
                }
                line = f"{request + ' ' + str(count) + ' conn.':24}"
                for kind in kinds:
                    one = medians[kind]
                    line += (
                        f"{one['rate']:16,.0f}{one['cpu']:8.0f}{one['p50']:9,.0f}{one['p99']:9,.0f}{one['own']:9.0f}"
                    )
                if len(kinds) == 2:
                    line += f"   {medians['headrace']['rate'] / medians['kafka']['rate']:.2f}x"
                print(line, flush=True)


if __name__ == "__main__":
    main()
