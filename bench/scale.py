"""Many partitions and many connections on one broker: `python -m bench.scale [--partitions 3000] [--connections 500]`.

Prints how long it takes to make the partitions (and how long others wait meanwhile), to start with them, cleanly and
after a kill, to answer Metadata for all of them; what the broker uses when nothing happens; its memory at each step.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from headrace.protocol import codec
from headrace.protocol.api import ApiKey, api
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.testing import BrokerProcess

METADATA_VERSION, CREATE_TOPICS_VERSION, API_VERSIONS_VERSION = 12, 5, 0
PARTITIONS_PER_TOPIC = 100
IDLE_S = 10.0


class Connection:
    """A socket that asks and waits for the answer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)

    def request(self, message: Any, version: int) -> Any:
        self._socket.sendall(b"".join(codec.encode_request(message, version, 1, "scale")))
        size = struct.unpack(">i", self._read(4))[0]
        return codec.decode_response(api(ApiKey(message.SCHEMA.api_key)).response, version, self._read(size))[1]

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                raise ConnectionResetError("the broker closed the connection")
            data += piece
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


@dataclass
class Figures:
    """What was measured; times in seconds, memory in MB."""

    rows: dict[str, float] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        self.rows[name] = value
        print(f"{name:52} {value:10.3f}", flush=True)


@contextlib.contextmanager
def connected(port: int) -> Iterator[Connection]:
    connection = Connection(port)
    try:
        yield connection
    finally:
        connection.close()


def ask_all(connection: Connection) -> int:
    """Metadata of every topic; the number of partitions in it."""
    answer = connection.request(MetadataRequest(topics=None), METADATA_VERSION)
    return sum(len(topic.partitions) for topic in answer.topics)


def ready(broker: BrokerProcess, began: float) -> float:
    """How long until a client has an answer."""
    with connected(broker.port) as connection:
        ask_all(connection)
    return time.monotonic() - began


def memory_mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 1e6


def cpu_s(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


def create(port: int, topics: int, figures: Figures) -> None:
    """Make the topics in one request, and ask something else all the while."""
    waits: list[float] = []
    done = threading.Event()

    def ask() -> None:
        with connected(port) as connection:
            while not done.is_set():
                began = time.monotonic()
                connection.request(ApiVersionsRequest(), API_VERSIONS_VERSION)
                waits.append(time.monotonic() - began)
                time.sleep(0.002)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        with connected(port) as connection:
            wanted = [
                CreatableTopic(name=f"topic-{n}", num_partitions=PARTITIONS_PER_TOPIC, replication_factor=1)
                for n in range(topics)
            ]
            began = time.monotonic()
            request = CreateTopicsRequest(topics=wanted, timeout_ms=60_000)
            answer = connection.request(request, CREATE_TOPICS_VERSION)
            figures.note("making them, s", time.monotonic() - began)
            assert all(topic.error_code == 0 for topic in answer.topics)
    finally:
        done.set()
        asking.join()
    figures.note("longest wait of another client meanwhile, s", max(waits))


def run(directory: Path, partitions: int, connections: int, *, idle_s: float = IDLE_S) -> Figures:
    figures = Figures()
    broker = BrokerProcess(directory)
    began = time.monotonic()
    broker.start()
    try:
        figures.note("start, empty, s", ready(broker, began))
        process = psutil.Process(broker.pid)
        figures.note("memory, empty, MB", memory_mb(process))
        before = cpu_s(process)
        create(broker.port, partitions // PARTITIONS_PER_TOPIC, figures)
        figures.note("making them, CPU s", cpu_s(process) - before)
        figures.note(f"memory, {partitions} partitions, MB", memory_mb(process))
        broker.kill()
        began = time.monotonic()
        broker.start()
        figures.note("start after kill -9, s", ready(broker, began))
        figures.note("start after kill -9, CPU s", cpu_s(psutil.Process(broker.pid)))
        began = time.monotonic()
        broker.stop()
        figures.note("clean stop, s", time.monotonic() - began)
        began = time.monotonic()
        broker.start()
        figures.note("start after a clean stop, s", ready(broker, began))
        process = psutil.Process(broker.pid)
        figures.note("start after a clean stop, CPU s", cpu_s(process))
        figures.note(f"memory, {partitions} partitions, restarted, MB", memory_mb(process))
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(connected(broker.port)) for _ in range(connections)]
            for client in clients:
                client.request(ApiVersionsRequest(), API_VERSIONS_VERSION)
            figures.note(f"memory, {connections} connections, MB", memory_mb(process))
            took = []
            before = cpu_s(process)
            for client in clients[:20]:
                began = time.monotonic()
                assert ask_all(client) == partitions
                took.append(time.monotonic() - began)
            figures.note("Metadata for all, median, s", sorted(took)[len(took) // 2])
            figures.note("Metadata for all, CPU s", (cpu_s(process) - before) / len(took))
            _measure_idle(process, idle_s, figures)
        broker.stop()
    finally:
        broker.kill()
    return figures


def _measure_idle(process: psutil.Process, idle_s: float, figures: Figures) -> None:
    before, switches = process.cpu_times(), process.num_ctx_switches()
    time.sleep(idle_s)
    after, switched = process.cpu_times(), process.num_ctx_switches()
    used_s = after.user + after.system - before.user - before.system
    figures.note("idle CPU, %", 100 * used_s / idle_s)
    figures.note("idle wake-ups, per s", (switched.voluntary - switches.voluntary) / idle_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=3_000)
    parser.add_argument("--connections", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-scale-") as directory:
        run(Path(directory) / "data", options.partitions, options.connections)


if __name__ == "__main__":
    main()
