"""Fetches over real sockets, threads and files: pipelined, by slow readers, of cold pages, with few descriptors, while
segments roll, are synced and deleted. `python -m tests.broker.fetch_stress SECONDS SEED` runs it for long.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.waiting import eventually

from headrace.broker.broker import Broker
from headrace.log import Log
from headrace.protocol import codec
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from headrace.records import check
from headrace.testing import EmbeddedBroker, broker

from . import raw
from .fetch_model import whole_batches
from .raw import RawClient

TOPICS = {"t0": {}, "t1": {"flush_messages": "5"}, "t2": {}}
PARTITIONS = 2
OPEN_FILES_MAX = 4
VERSIONS = (11, 12, 17)
TOPIC_IDS_SINCE_VERSION = 13
SETTINGS = {
    "log.segment.bytes": str(1 << 20),
    "log.retention.bytes": str(8 << 20),
    "log.segment.delete.delay.ms": "1000",
}


class Stress:
    """A broker and the threads that use it; what went wrong is in `problems`."""

    def __init__(self, kafka: EmbeddedBroker, directory: Path, seed: int) -> None:
        self.kafka, self.directory, self.seed = kafka, directory, seed
        self.over = threading.Event()
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    def rng(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def run(self, name: str, work: Callable[[random.Random], None]) -> threading.Thread:
        def repeat() -> None:
            rng = self.rng(name)
            try:
                while not self.over.is_set():
                    work(rng)
            except Exception as error:  # noqa: BLE001 - told by the thread that waits for this one
                self.problems.append(f"{name}: {type(error).__name__}: {error}")
                self.over.set()

        thread = threading.Thread(target=repeat, name=name)
        thread.start()
        return thread

    # --- what the threads do, again and again

    def produce(self, rng: random.Random) -> None:
        with RawClient(self.kafka.port) as client:
            for _ in range(50):
                if self.over.is_set():
                    return
                values = [rng.randbytes(16) * rng.choice((1, 10, 100, 2000)) for _ in range(rng.randint(1, 8))]
                records = raw.batch(values, timestamp_ms=time.time_ns() // 1_000_000)
                where = rng.choice(list(TOPICS)), rng.randrange(PARTITIONS)
                request = raw.produce_request(*where, records, acks=rng.choice((1, -1)))
                code = raw.produced(client.request(request, raw.PRODUCE_VERSION)).error_code
                assert code == 0, f"produce to {where} was answered with {code}"
                self.counts["produced"] += 1
                self.over.wait(rng.choice((0, 0.001, 0.01, 0.05)))

    def cool(self, rng: random.Random) -> None:
        """Have the kernel forget what it keeps of the files, so that reads need the disk."""
        for path in self.directory.glob("t*/*.log"):
            with contextlib.suppress(OSError), path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.over.wait(rng.choice((0.05, 0.3)))

    def meddle(self, rng: random.Random) -> None:
        async def work(inside: Broker) -> None:
            for partition in list(inside.replicas.partitions.values()):
                kind, log = rng.random(), partition.log
                if kind < 0.3:
                    await partition.turns.sync()
                elif kind < 0.5:
                    before = min(log.high_watermark, log.start_offset + rng.randint(0, 30))
                    await partition.turns.change_log(Log.delete_records, before)
            await inside.maintenance._retain()

        self.kafka.call(work)
        self.over.wait(rng.choice((0.1, 0.5)))

    def fetch(self, rng: random.Random) -> None:
        """Several requests at once, read slowly or not to their end."""
        version = rng.choice(VERSIONS)
        with RawClient(self.kafka.port, receive_buffer_bytes=rng.choice((None, 4096, 65536))) as client:
            for _ in range(20):
                if self.over.is_set():
                    return
                sent = [self.send_one(client, version, rng) for _ in range(rng.choice((1, 1, 2, 5)))]
                if rng.random() < 0.05:
                    return
                for offset, high_watermark in sent:
                    self.check(read_one(client, version, rng), offset, high_watermark)

    def send_one(self, client: RawClient, version: int, rng: random.Random) -> tuple[int, int]:
        name, index = rng.choice(list(TOPICS)), rng.randrange(PARTITIONS)

        def look(inside: Broker) -> tuple[int, int, bytes | None]:
            log = inside.partition(name, index).log
            return log.start_offset, log.high_watermark, inside.cluster.topic_id(name)

        start, high_watermark, topic_id = self.kafka.call(look)
        offset = rng.choice((high_watermark, rng.randint(start, high_watermark), max(start, high_watermark - 3)))
        limit = rng.choice((200, 40_000, 300_000, 5_000_000))
        wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=limit)
        by_id = version >= TOPIC_IDS_SINCE_VERSION
        topic = FetchTopic(topic="" if by_id else name, topic_id=topic_id or bytes(16), partitions=[wanted])
        request = FetchRequest(
            max_wait_ms=rng.choice((0, 100, 500)),
            min_bytes=1,
            max_bytes=limit,
            isolation_level=rng.randrange(2),
            topics=[topic],
        )
        client.send(request, version)
        return offset, high_watermark

    def check(self, data: PartitionData, offset: int, high_watermark: int) -> None:
        self.counts["fetched"] += 1
        if data.error_code:
            # Records before an offset may be deleted between the look and the fetch.
            assert data.error_code == 1, f"error {data.error_code} at {offset}"
            return
        batches = list(whole_batches(bytes(data.records or b"")))
        for batch in batches:
            check(batch)
        headers = [batch.header() for batch in batches]
        assert headers or offset >= high_watermark, f"nothing at {offset}, though there is more to {high_watermark}"
        assert not headers or headers[0].base_offset <= offset <= headers[0].last_offset, f"{headers[0]} for {offset}"
        for one, next_one in itertools.pairwise(headers):
            assert one.last_offset + 1 == next_one.base_offset, f"a gap after {one}"
        self.counts["batches"] += len(headers)


def read_one(client: RawClient, version: int, rng: random.Random) -> PartitionData:
    size = struct.unpack(">i", client._read(4))[0]
    body = bytearray()
    while len(body) < size:
        body += client._read(min(size - len(body), rng.choice((1000, 100_000, 1 << 20))))
        if rng.random() < 0.02:
            time.sleep(0.02)
    _, answer = codec.decode_response(FetchResponse, version, bytes(body))
    found: PartitionData = answer.responses[0].partitions[0]
    return found


@contextlib.contextmanager
def stressed(directory: Path, seed: int) -> Iterator[Stress]:
    with broker(str(directory), SETTINGS) as kafka:
        with RawClient(kafka.port) as client:
            for name, configs in TOPICS.items():
                client.request(raw.create_topics_request({name: PARTITIONS}, **configs), raw.CREATE_TOPICS_VERSION)
        acceptor = kafka.broker.acceptor

        def few(inside: Broker) -> None:
            acceptor.on_files_max = None
            inside.directories.caches.files.resize(OPEN_FILES_MAX)

        kafka.call(few)
        stress = Stress(kafka, directory, seed)
        threads = [stress.run(f"producer-{number}", stress.produce) for number in range(2)]
        threads += [stress.run("cooler", stress.cool), stress.run("meddler", stress.meddle)]
        threads += [stress.run(f"consumer-{number}", stress.fetch) for number in range(4)]
        try:
            yield stress
        finally:
            stress.over.set()
            for thread in threads:
                thread.join()
        eventually(
            lambda: kafka.call(lambda inside: not inside.acceptor.is_busy and not inside.acceptor.connections),
            "the end of all requests and connections",
        )
        assert kafka.call(lambda inside: inside.acceptor.held_bytes) == 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary, stressed(Path(temporary), int(sys.argv[2])) as running:
        running.over.wait(float(sys.argv[1]))
    print(dict(running.counts), running.problems)
    sys.exit(bool(running.problems))
