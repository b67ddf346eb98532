"""A large consumer group, next to Apache Kafka: `python -m bench.consumer_groups` (`--members`, `--partitions`).

Members speak the protocol of KIP-848 themselves, over a few connections, and send their next heartbeat as soon as they
have the answer to the last one. Printed for both brokers: how long it takes until all members have what is theirs, how
long a rebalance takes when members join and leave, how many heartbeats a second are answered when nothing happens, and
how much of the broker's processor time each takes; with the ratios.
"""

from __future__ import annotations

import argparse
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench.peers import ApacheKafka, kafka_libs, why_no_kafka
from headrace.errors import ErrorCode
from headrace.protocol import codec
from headrace.protocol.api import ApiKey, api
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.testing import BrokerProcess

GROUP = "large"
CONNECTIONS = 8
PARTITIONS_PER_TOPIC = 1_000
STEADY_S = 5.0
DEADLINE_S = 240.0
SESSION_MS = 300_000
ASSIGNMENT_INTERVAL_S = 1.2


class Connection:
    """A socket on which several requests are under way at a time."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=120)
        self._file = self._socket.makefile("rb")

    def send(self, requests: Iterable[tuple[Any, int]]) -> None:
        self._socket.sendall(
            b"".join(
                bytes(part) for message, version in requests for part in codec.encode_request(message, version, 1, "b")
            )
        )

    def receive(self, key: ApiKey, version: int) -> Any:
        size = struct.unpack(">i", self._file.read(4))[0]
        return codec.decode_response(api(key).response, version, self._file.read(size))[1]

    def ask(self, message: Any, version: int) -> Any:
        self.send([(message, version)])
        return self.receive(ApiKey(message.SCHEMA.api_key), version)

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@dataclass(slots=True)
class Member:
    member_id: str
    epoch: int = 0
    assigned: dict[bytes, list[int]] = field(default_factory=dict)
    tells_owned: bool = False

    @property
    def count(self) -> int:
        return sum(map(len, self.assigned.values()))

    def request(self, topics: list[str]) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id=self.member_id, member_epoch=self.epoch)
        if self.epoch == 0:
            request.rebalance_timeout_ms = SESSION_MS
            request.subscribed_topic_names = topics
            request.topic_partitions = []
        elif self.tells_owned:
            request.topic_partitions = [
                HeartbeatTopicPartitions(topic_id=topic, partitions=found) for topic, found in self.assigned.items()
            ]
        return request

    def hear(self, response: ConsumerGroupHeartbeatResponse) -> None:
        if response.error_code != ErrorCode.NONE:
            raise RuntimeError(f"{self.member_id}: {ErrorCode(response.error_code).name} {response.error_message}")
        self.epoch, self.tells_owned = response.member_epoch, False
        if response.assignment is not None:
            self.assigned = {part.topic_id: list(part.partitions) for part in response.assignment.topic_partitions}
            self.tells_owned = True  # what was taken away is given up at once


class Figures(NamedTuple):
    fill_s: float
    join_s: float
    leave_s: float
    heartbeats_s: float
    processor_us: float


class Group:
    def __init__(self, address: str, process: psutil.Process, partitions: int) -> None:
        self._process = process
        self._partitions = partitions
        self._connections = [Connection(address) for _ in range(CONNECTIONS)]
        self.topics = [f"large-{number}" for number in range(-(-partitions // PARTITIONS_PER_TOPIC))]
        self.members: list[Member] = []
        self.heartbeats = 0

    def make_topics(self) -> None:
        first = self._connections[0]
        for topic in self.topics:
            wanted = CreatableTopic(name=topic, num_partitions=PARTITIONS_PER_TOPIC, replication_factor=1)
            response = first.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=60_000), 5)
            if response.topics[0].error_code != ErrorCode.NONE:
                raise RuntimeError(f"{topic}: {ErrorCode(response.topics[0].error_code).name}")
        deadline = time.monotonic() + DEADLINE_S
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
        while first.ask(find, 4).coordinators[0].error_code != ErrorCode.NONE:
            if time.monotonic() > deadline:
                raise RuntimeError("no coordinator in time")
            time.sleep(0.1)
        while (found := first.ask(Member("first").request(self.topics), 1)).error_code != ErrorCode.NONE:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no group in time: {ErrorCode(found.error_code).name}")
            time.sleep(0.1)
        first.ask(ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="first", member_epoch=-1), 1)

    def round(self, members: list[Member]) -> None:
        """One heartbeat of each, as many at a time as there are connections, and a few on each."""
        for start in range(0, len(members), CONNECTIONS * 16):
            turn = members[start : start + CONNECTIONS * 16]
            for number, connection in enumerate(self._connections):
                connection.send((member.request(self.topics), 1) for member in turn[number::CONNECTIONS])
            for number, connection in enumerate(self._connections):
                for member in turn[number::CONNECTIONS]:
                    member.hear(connection.receive(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1))
            self.heartbeats += len(turn)

    def settle(self) -> None:
        """Heartbeats of all, until all partitions are with members of one epoch."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self.round(self.members)
            epochs = {member.epoch for member in self.members}
            if len(epochs) == 1 and sum(member.count for member in self.members) == self._partitions:
                counts = {member.count for member in self.members}
                if max(counts) - min(counts) <= 1:
                    return
            if time.monotonic() > deadline:
                raise RuntimeError(f"not settled: epochs {sorted(epochs)[-3:]}")

    def add(self, count: int) -> None:
        first = len(self.members)
        self.members += [Member(f"member-{number:05}") for number in range(first, first + count)]

    def remove(self, count: int) -> None:
        connection = self._connections[0]
        for _ in range(count):
            gone = self.members.pop()
            leave = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id=gone.member_id, member_epoch=-1)
            connection.ask(leave, 1)

    def steady(self) -> tuple[float, float]:
        """Heartbeats a second, and microseconds of the broker's processor time for each."""
        before, began, count = self._processor_s(), time.monotonic(), self.heartbeats
        while time.monotonic() - began < STEADY_S:
            self.round(self.members)
        took_s = time.monotonic() - began
        sent = self.heartbeats - count
        return sent / took_s, (self._processor_s() - before) / sent * 1e6

    def _processor_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


def timed(what: Any, *arguments: Any) -> float:
    began = time.monotonic()
    what(*arguments)
    return time.monotonic() - began


def measure(address: str, pid: int, members: int, partitions: int) -> Figures:
    group = Group(address, psutil.Process(pid), partitions)
    try:
        group.make_topics()
        group.add(members)
        fill_s = timed(group.settle)
        # A target may be computed again at once: else the time is mostly that of waiting for that.
        time.sleep(ASSIGNMENT_INTERVAL_S)
        group.add(members // 100)
        join_s = timed(group.settle)
        time.sleep(ASSIGNMENT_INTERVAL_S)
        group.remove(members // 100)
        leave_s = timed(group.settle)
        rate, processor_us = group.steady()
        return Figures(fill_s, join_s, leave_s, rate, processor_us)
    finally:
        group.close()


SETTINGS = {
    "group.consumer.max.session.timeout.ms": str(SESSION_MS),
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.initial.rebalance.delay.ms": "0",
}


@contextmanager
def headrace_broker(directory: Path) -> Iterator[tuple[str, int]]:
    with BrokerProcess(directory / "data", overrides=SETTINGS) as broker:
        yield broker.address, broker.pid


@contextmanager
def apache_kafka(directory: Path) -> Iterator[tuple[str, int]]:
    with ApacheKafka(directory / "kafka", SETTINGS) as kafka:
        yield kafka.address, kafka.pid


def show(rows: Mapping[str, Figures]) -> None:
    print(f"{'':14}{'fill':>10}{'join 1 %':>12}{'leave 1 %':>12}{'heartbeats/s':>15}{'µs each':>10}")
    for name, row in rows.items():
        print(
            f"{name:14}{row.fill_s:8.1f} s{row.join_s:10.2f} s{row.leave_s:10.2f} s"
            f"{row.heartbeats_s:15,.0f}{row.processor_us:10.0f}"
        )
    if len(rows) == 2:
        ours, theirs = rows.values()
        print(
            f"{'ratio':14}{theirs.fill_s / ours.fill_s:9.2f}x{theirs.join_s / ours.join_s:11.2f}x"
            f"{theirs.leave_s / ours.leave_s:11.2f}x{ours.heartbeats_s / theirs.heartbeats_s:14.2f}x"
            f"{theirs.processor_us / ours.processor_us:9.2f}x"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=5_000)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--alone", action="store_true", help="do not measure Apache Kafka")
    given = parser.parse_args()
    rows: dict[str, Figures] = {}
    brokers = {"Headrace": headrace_broker, "Apache Kafka": apache_kafka}
    if given.alone or kafka_libs() is None:
        print("" if given.alone else why_no_kafka())
        del brokers["Apache Kafka"]
    for name, start in brokers.items():
        with tempfile.TemporaryDirectory(prefix="bench-groups-") as directory, start(Path(directory)) as (at, pid):
            rows[name] = measure(at, pid, given.members, given.partitions)
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
