"""What is read of a broker for one scrape: plain numbers, taken on its event loop a slice at a time.

Formatting them is left to the thread of whoever asks, so that a broker of thousands of partitions answers requests in
between. Nothing is counted for this on the way of a request but what the broker counts anyway.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.broker.metadata.service import MetadataService
from headrace.broker.partitions.replicas import Replicas
from headrace.broker.replication.isr_changes import IsrCounts
from headrace.broker.requests.request_metrics import ApiMetrics, Times
from headrace.broker.server.acceptor import Acceptor
from headrace.broker.view import ClusterView
from headrace.groups import GroupCoordinator
from headrace.log import LogDirectories
from headrace.log.cleaner import Cleaner
from headrace.protocol.api import ApiKey

#: Partitions, or groups, that are looked at before others have their turn: about a millisecond.
SLICE = 200


class PartitionReading(NamedTuple):
    topic: str
    partition: int
    start_offset: int
    end_offset: int
    high_watermark: int
    stable_offset: int
    size_bytes: int
    segments: int
    is_leader: bool
    replicas: int
    in_sync: int
    needed: int
    is_reassigning: bool
    messages_in: int
    bytes_in: int
    bytes_out: int
    replication_bytes_in: int
    replication_bytes_out: int
    #: Up to where the log is compacted; None where it is not to be.
    compacted_to: int | None = None
    is_uncleanable: bool = False


class CleanerReading(NamedTuple):
    """What the log cleaner has done and has to do."""

    dirty_ratio_max: float
    overdue_s_max: float
    longest_s: float
    since_last_run_ms: int
    compactions: int
    given_up: int
    #: Of each log directory, the partitions that cannot be compacted.
    uncleanable: dict[str, int]


class OffsetReading(NamedTuple):
    group: str
    topic: str
    partition: int
    offset: int
    #: How far behind the end; None where this broker does not lead the partition.
    lag: int | None


class PhaseReading(NamedTuple):
    total_s: float
    buckets: tuple[int, ...]


class RequestReading(NamedTuple):
    request: str
    handled: int
    errors: int
    throttled: int
    request_bytes: int
    response_bytes: int
    queue: PhaseReading
    local: PhaseReading
    remote: PhaseReading
    send: PhaseReading


class ClusterReading(NamedTuple):
    """What the active controller says of the cluster; nothing of it is true of another broker."""

    topics: int
    partitions: int
    offline_partitions: int
    not_led_by_preferred: int
    active_brokers: int
    fenced_brokers: int


@dataclass(slots=True)
class Readings:
    """One scrape."""

    at_s: float
    partitions: list[PartitionReading] = field(default_factory=list)
    offsets: list[OffsetReading] = field(default_factory=list)
    groups_by_state: Counter[tuple[str, str]] = field(default_factory=Counter)
    requests: list[RequestReading] = field(default_factory=list)
    connections: dict[str, int] = field(default_factory=dict)
    controller: ClusterReading | None = None
    cleaner: CleanerReading | None = None
    offline_replicas: int = 0
    offline_directories: int = 0
    waiting_requests: int = 0
    malformed_requests: int = 0
    refused_connections: int = 0
    held_bytes: int = 0
    held_bytes_max: int = 0
    answer_bytes: int = 0
    answer_bytes_max: int = 0
    isr: IsrCounts = field(default_factory=IsrCounts)
    loop_late: PhaseReading | None = None


@dataclass(slots=True)
class Readable:
    """The parts of a broker that are read."""

    cluster: ClusterView
    replicas: Replicas
    groups: GroupCoordinator
    metadata: MetadataService
    directories: LogDirectories
    acceptor: Acceptor
    requests: dict[int, ApiMetrics]
    isr: IsrCounts
    cleaner: Cleaner
    loop_late: Times
    now_ms: Callable[[], int]
    listeners: tuple[str, ...]


async def read(parts: Readable, at_s: float) -> Readings:
    """Read a broker, on its event loop."""
    found = Readings(at_s)
    acceptor = parts.acceptor
    found.connections = dict.fromkeys(parts.listeners, 0)
    for connection in acceptor.connections:
        found.connections[connection.listener] += 1
        found.waiting_requests += connection.is_only_waiting
    found.malformed_requests = acceptor.pipeline.malformed
    found.refused_connections = acceptor.refused
    found.held_bytes, found.held_bytes_max = acceptor.held_bytes, acceptor.limits.frames.held_bytes_max
    found.answer_bytes, found.answer_bytes_max = acceptor.answers.held_bytes, acceptor.limits.answers_bytes_max
    found.isr = parts.isr.copied()
    found.loop_late = _phase(parts.loop_late)
    found.offline_replicas = parts.replicas.offline_count
    found.offline_directories = parts.directories.offline_count
    for api_key, metrics in parts.requests.items():
        if metrics.count:
            found.requests.append(_request(api_key, metrics))
    if parts.metadata.active.is_active:
        found.controller = await _cluster(parts)
    for number, key in enumerate(list(parts.replicas.partitions)):
        if number % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        reading = _partition(parts, key)
        if reading is not None:
            found.partitions.append(reading)
    found.cleaner = _cleaner(parts)
    await _read_groups(parts, found)
    return found


def _phase(times: Times) -> PhaseReading:
    return PhaseReading(times.total_s, tuple(times.buckets))


def _request(api_key: int, metrics: ApiMetrics) -> RequestReading:
    return RequestReading(
        "".join(part.capitalize() for part in ApiKey(api_key).name.split("_")),
        metrics.count,
        metrics.errors,
        metrics.throttled,
        metrics.request_bytes,
        metrics.response_bytes,
        _phase(metrics.queue),
        _phase(metrics.local),
        _phase(metrics.remote),
        _phase(metrics.send),
    )


def _cleaner(parts: Readable) -> CleanerReading:
    done = parts.cleaner.metrics
    uncleanable = Counter(dict.fromkeys(parts.directories.paths, 0))
    for partition in done.uncleanable:
        replica = parts.replicas.partitions.get((partition.topic, partition.partition))
        if replica is not None:
            uncleanable[os.path.dirname(replica.log.directory)] += 1
    # Kafka has no number for a cleaner that has not looked yet.
    since_ms = 0 if done.last_run_ms < 0 else max(0, parts.now_ms() - done.last_run_ms)
    return CleanerReading(
        done.dirtiest_ratio,
        done.overdue_ms_max / 1000,
        done.longest_s,
        since_ms,
        done.cleaned,
        done.given_up,
        dict(uncleanable),
    )


async def _cluster(parts: Readable) -> ClusterReading:
    image = parts.cluster.image
    count = offline = elsewhere = 0
    for number, topic in enumerate(list(image.topics.values())):
        if number % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        for partition in topic.partitions:
            count += 1
            offline += partition.leader < 0
            elsewhere += bool(partition.replicas) and partition.leader != partition.replicas[0]
    fenced = sum(broker.fenced for broker in image.brokers.values())
    return ClusterReading(len(image.topics), count, offline, elsewhere, len(image.brokers) - fenced, fenced)


def _partition(parts: Readable, key: tuple[str, int]) -> PartitionReading | None:
    partition = parts.replicas.partitions.get(key)
    if partition is None:
        return None
    log, leadership, traffic = partition.log, partition.leadership, partition.traffic
    traffic.look(log.end_offset)
    start, stable, high_watermark = log.offsets()
    isr = leadership.isr if partition.state is None else partition.state.term.isr
    image = parts.cluster.image.partition(*key)
    return PartitionReading(
        key[0],
        key[1],
        start,
        log.end_offset,
        high_watermark,
        stable,
        log.size_bytes,
        len(log.segments),
        partition.is_leader,
        len(leadership.replicas),
        len(isr),
        min(log.config.min_insync_replicas, len(leadership.replicas)),
        image is not None and image.is_reassigning,
        traffic.messages_in,
        traffic.bytes_in,
        traffic.bytes_out,
        traffic.replication_bytes_in,
        traffic.replication_bytes_out,
        (parts.cleaner.checkpoint_of(log) or start) if log.config.compact else None,
        log.partition in parts.cleaner.metrics.uncleanable,
    )


async def _read_groups(parts: Readable, found: Readings) -> None:
    for number, group in enumerate(list(parts.groups.groups())):
        if number % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        found.groups_by_state[group.kind.value, group.state_name] += 1
        for topic, partitions in group.offsets.committed.items():
            for index, committed in partitions.items():
                partition = parts.replicas.partitions.get((topic, index))
                lag = None
                if partition is not None and partition.is_leader:
                    lag = max(0, partition.high_watermark - committed.offset)
                found.offsets.append(OffsetReading(group.group_id, topic, index, committed.offset, lag))
