"""A broker's metrics for Prometheus, under the names that its JMX exporter gives those of Apache Kafka.

Dashboards made for Kafka therefore work. What Kafka does not have begins with `headrace_`. Quantiles are those of the
last minute or more: of what was counted since an earlier scrape.
"""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from headrace.broker.metrics.readings import (
    PartitionReading,
    PhaseReading,
    Readable,
    Readings,
    RequestReading,
    read,
)

TIMEOUT_S = 30.0
WINDOW_S = 60.0
QUANTILES = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")
# Of the buckets by powers of two, those that are shown: from 64 µs to a minute and more.
_LOWEST_BUCKET, _HIGHEST_BUCKET = 6, 26

_OF_REQUEST: tuple[tuple[str, str, Callable[[RequestReading], int]], ...] = (
    ("kafka_network_requestmetrics_requests", "Requests.", lambda one: one.handled),
    ("headrace_request_errors", "Answers that tell an error.", lambda one: one.errors),
    ("headrace_request_throttled", "Requests over a quota.", lambda one: one.throttled),
    ("headrace_request_bytes", "Bytes of requests.", lambda one: one.request_bytes),
    ("headrace_response_bytes", "Bytes of answers.", lambda one: one.response_bytes),
)
_OF_TOPIC: tuple[tuple[str, str, Callable[[PartitionReading], int]], ...] = (
    ("messagesin", "Records appended by producers.", lambda one: one.messages_in),
    ("bytesin", "Bytes of them.", lambda one: one.bytes_in),
    ("bytesout", "Bytes of records that consumers were sent.", lambda one: one.bytes_out),
)
_PHASES: dict[str, Callable[[RequestReading], PhaseReading]] = {
    "requestqueuetimems": lambda one: one.queue,
    "localtimems": lambda one: one.local,
    "remotetimems": lambda one: one.remote,
    "responsesendtimems": lambda one: one.send,
}

_Seen: TypeAlias = dict[tuple[str, str], PhaseReading]


class BrokerCollector:
    """Reads a broker that runs on `loop` whenever it is collected, on whichever other thread."""

    def __init__(self, parts: Readable, loop: asyncio.AbstractEventLoop) -> None:
        self._parts = parts
        self._loop = loop
        self._earlier: deque[tuple[float, _Seen]] = deque()

    def describe(self) -> list[Metric]:
        """Nothing is said before the first scrape: a registry asks for this while the broker starts."""
        return []

    def collect(self) -> Iterator[Metric]:
        asked = asyncio.run_coroutine_threadsafe(read(self._parts, self._loop.time()), self._loop)
        try:
            found = asked.result(TIMEOUT_S)
        except TimeoutError:
            asked.cancel()
            raise
        yield from _topics(found)
        yield from _replicas(found)
        yield from _partitions(found)
        yield from self._requests(found)
        yield from _server(found)
        yield from _groups(found)

    def _requests(self, found: Readings) -> Iterator[Metric]:
        before = self._window(found)
        for name, text, value in _OF_REQUEST:
            family = CounterMetricFamily(name, text, labels=["request"])
            for one in found.requests:
                family.add_metric([one.request], value(one))
            yield family
        for phase, of in _PHASES.items():
            counts = CounterMetricFamily(
                f"kafka_network_requestmetrics_{phase}_count", f"Requests with a {phase}.", labels=["request"]
            )
            times = GaugeMetricFamily(
                f"kafka_network_requestmetrics_{phase}", "Milliseconds, at most.", labels=["request", "quantile"]
            )
            seconds = HistogramMetricFamily(
                f"headrace_request_{phase.removesuffix('timems')}_seconds", "The same time.", labels=["request"]
            )
            for one in found.requests:
                now = of(one)
                counts.add_metric([one.request], one.handled)
                earlier = before.get((one.request, phase))
                for quantile in QUANTILES:
                    times.add_metric([one.request, quantile], quantile_ms(now, earlier, float(quantile)))
                seconds.add_metric([one.request], *_histogram(now))
            yield counts
            yield times
            yield seconds

    def _window(self, found: Readings) -> _Seen:
        """What was counted a minute ago or more: by the newest of the earlier scrapes that is as old as that."""
        seen = {(one.request, phase): of(one) for one in found.requests for phase, of in _PHASES.items()}
        earlier = self._earlier
        while len(earlier) > 1 and found.at_s - earlier[1][0] >= WINDOW_S:
            earlier.popleft()
        before = earlier[0][1] if earlier and found.at_s - earlier[0][0] >= WINDOW_S else {}
        if not earlier or found.at_s - earlier[-1][0] >= WINDOW_S / 6:
            earlier.append((found.at_s, seen))
        return before


def quantile_ms(now: PhaseReading, before: PhaseReading | None, share: float) -> float:
    """The upper end of the bucket that so large a share of the times does not go beyond; 0 where there were none."""
    counts = now.buckets
    if before is not None:
        counts = tuple(new - old for new, old in zip(counts, before.buckets))
    wanted = share * sum(counts)
    if wanted <= 0:
        return 0.0
    for bucket, count in enumerate(counts):
        wanted -= count
        if wanted <= 0:
            return (1 << bucket) / 1000
    return (1 << len(counts)) / 1000


def _histogram(times: PhaseReading) -> tuple[list[tuple[str, float]], float]:
    buckets: list[tuple[str, float]] = []
    total = sum(times.buckets[:_LOWEST_BUCKET])
    for bucket in range(_LOWEST_BUCKET, _HIGHEST_BUCKET + 1):
        total += times.buckets[bucket] if bucket < len(times.buckets) else 0
        if bucket % 2 == 0:
            buckets.append((repr((1 << bucket) / 1e6), total))
    buckets.append(("+Inf", sum(times.buckets)))
    return buckets, times.total_s


# --- topics and partitions --------------------------------------------------------------------------------------------


def _topics(found: Readings) -> Iterator[Metric]:
    for name, text, value in _OF_TOPIC:
        family = CounterMetricFamily(f"kafka_server_brokertopicmetrics_{name}", text, labels=["topic"])
        of_topic: dict[str, int] = defaultdict(int)
        for one in found.partitions:
            of_topic[one.topic] += value(one)
        for topic, count in of_topic.items():
            family.add_metric([topic], count)
        family.add_sample(family.name + "_total", {}, sum(of_topic.values()))
        yield family
    totals = (
        ("replicationbytesin", "Bytes copied from leaders.", sum(one.replication_bytes_in for one in found.partitions)),
        ("replicationbytesout", "Bytes sent to followers.", sum(one.replication_bytes_out for one in found.partitions)),
        ("totalproducerequests", "Produce requests.", _of_request(found, "Produce", lambda one: one.handled)),
        ("totalfetchrequests", "Fetch requests.", _of_request(found, "Fetch", lambda one: one.handled)),
        ("failedproducerequests", "Those with an error.", _of_request(found, "Produce", lambda one: one.errors)),
        ("failedfetchrequests", "Those with an error.", _of_request(found, "Fetch", lambda one: one.errors)),
    )
    for name, text, count in totals:
        yield CounterMetricFamily(f"kafka_server_brokertopicmetrics_{name}", text, value=count)


def _of_request(found: Readings, request: str, value: Callable[[RequestReading], int]) -> int:
    return sum(value(one) for one in found.requests if one.request == request)


def _replicas(found: Readings) -> Iterator[Metric]:
    led = [one for one in found.partitions if one.is_leader]
    gauges = (
        ("leadercount", "Partitions that this broker leads.", len(led)),
        ("partitioncount", "Partitions with a replica here.", len(found.partitions)),
        ("offlinereplicacount", "Replicas here that cannot be served.", found.offline_replicas),
        ("underreplicatedpartitions", "Led here, and not all in sync.", sum(o.in_sync < o.replicas for o in led)),
        ("underminisrpartitioncount", "Led here, under min.insync.replicas.", sum(o.in_sync < o.needed for o in led)),
        ("atminisrpartitioncount", "Led here, none to spare.", sum(o.in_sync == o.needed for o in led)),
        ("reassigningpartitions", "Led here, being moved.", sum(o.is_reassigning for o in led)),
    )
    for name, text, value in gauges:
        yield GaugeMetricFamily(f"kafka_server_replicamanager_{name}", text, value=value)
    counters = (
        ("isrshrinks", "Times that replicas left the in-sync ones.", found.isr.shrinks),
        ("isrexpands", "Times that replicas came into sync.", found.isr.expands),
        ("failedisrupdates", "Such changes that the controller refused.", found.isr.refused),
    )
    for name, text, value in counters:
        yield CounterMetricFamily(f"kafka_server_replicamanager_{name}", text, value=value)


_OF_REPLICA: tuple[tuple[str, str, Callable[[PartitionReading], int]], ...] = (
    ("kafka_log_log_size", "Bytes of the log here.", lambda one: one.size_bytes),
    ("kafka_log_log_numlogsegments", "Segments of the log here.", lambda one: one.segments),
    ("kafka_log_log_logstartoffset", "The first offset of the log here.", lambda one: one.start_offset),
    ("kafka_log_log_logendoffset", "The next offset of the log here.", lambda one: one.end_offset),
)
_OF_LEADER: tuple[tuple[str, str, Callable[[PartitionReading], int]], ...] = (
    ("underreplicated", "1: not all replicas are in sync.", lambda one: one.in_sync < one.replicas),
    ("underminisr", "1: fewer in sync than min.insync.replicas.", lambda one: one.in_sync < one.needed),
    ("atminisr", "1: as many in sync as min.insync.replicas.", lambda one: one.in_sync == one.needed),
    ("insyncreplicascount", "Replicas in sync.", lambda one: one.in_sync),
    ("replicascount", "Replicas.", lambda one: one.replicas),
    (
        "laststableoffsetlag",
        "Records that an open transaction holds up.",
        lambda one: max(0, one.high_watermark - one.stable_offset),
    ),
)


def _partitions(found: Readings) -> Iterator[Metric]:
    led = [one for one in found.partitions if one.is_leader]
    names = [*_OF_REPLICA, *((f"kafka_cluster_partition_{name}", text, of) for name, text, of in _OF_LEADER)]
    for number, (name, text, value) in enumerate(names):
        family = GaugeMetricFamily(name, text, labels=["topic", "partition"])
        for one in found.partitions if number < len(_OF_REPLICA) else led:
            family.add_metric([one.topic, str(one.partition)], value(one))
        yield family


# --- the broker, the controller, groups -------------------------------------------------------------------------------


def _server(found: Readings) -> Iterator[Metric]:
    gauge = GaugeMetricFamily
    yield gauge("kafka_server_kafkaserver_brokerstate", "3: running.", value=3)
    yield gauge(
        "kafka_log_logmanager_offlinelogdirectorycount", "Log directories that failed.", value=found.offline_directories
    )
    yield from _cleaner(found)
    connections = gauge(
        "kafka_server_socket_server_metrics_connection_count", "Connections.", labels=["listener", "networkProcessor"]
    )
    for listener, count in sorted(found.connections.items()):
        connections.add_metric([listener, "0"], count)
    yield connections
    purgatory = gauge(
        "kafka_server_delayedoperationpurgatory_numdelayedoperations",
        "Requests that wait.",
        labels=["delayedOperation"],
    )
    purgatory.add_metric(["Fetch"], found.waiting_requests)
    yield purgatory
    yield gauge("headrace_request_memory_used_bytes", "Memory of requests under way.", value=found.held_bytes)
    yield gauge("headrace_request_memory_max_bytes", "What it is bounded by.", value=found.held_bytes_max)
    yield gauge("headrace_answer_memory_used_bytes", "Answers that clients have yet to read.", value=found.answer_bytes)
    yield gauge("headrace_answer_memory_max_bytes", "What they are bounded by.", value=found.answer_bytes_max)
    yield CounterMetricFamily("headrace_malformed_requests", "Requests that were none.", value=found.malformed_requests)
    yield CounterMetricFamily("headrace_refused_connections", "Over a limit.", value=found.refused_connections)
    late = HistogramMetricFamily("headrace_event_loop_late_seconds", "How late the event loop is.")
    if found.loop_late is not None:
        late.add_metric([], *_histogram(found.loop_late))
    yield late
    controller = found.controller
    name = "kafka_controller_kafkacontroller_"
    yield gauge(f"{name}activecontrollercount", "1: it is this broker.", value=int(controller is not None))
    if controller is None:
        return
    yield gauge(f"{name}globaltopiccount", "Topics of the cluster.", value=controller.topics)
    yield gauge(f"{name}globalpartitioncount", "Partitions of the cluster.", value=controller.partitions)
    yield gauge(f"{name}offlinepartitionscount", "Without a leader.", value=controller.offline_partitions)
    yield gauge(
        f"{name}preferredreplicaimbalancecount", "Not led by their first.", value=controller.not_led_by_preferred
    )
    yield gauge(f"{name}activebrokercount", "Brokers that serve.", value=controller.active_brokers)
    yield gauge(f"{name}fencedbrokercount", "Brokers that do not.", value=controller.fenced_brokers)


def _cleaner(found: Readings) -> Iterator[Metric]:
    cleaner = found.cleaner
    if cleaner is None:
        return
    gauge = GaugeMetricFamily
    manager, name = "kafka_log_logcleanermanager_", "kafka_log_logcleaner_"
    yield gauge(
        f"{manager}max_dirty_percent", "The most of a log that is not compacted.", value=100 * cleaner.dirty_ratio_max
    )
    yield gauge(f"{manager}time_since_last_run_ms", "Since logs were looked at.", value=cleaner.since_last_run_ms)
    uncleanable = gauge(
        f"{manager}uncleanable_partitions_count", "Logs that cannot be compacted.", labels=["logDirectory"]
    )
    for directory, count in sorted(cleaner.uncleanable.items()):
        uncleanable.add_metric([directory], count)
    yield uncleanable
    yield gauge(f"{name}max_compaction_delay_secs", "The longest overdue.", value=cleaner.overdue_s_max)
    yield gauge(f"{name}max_clean_time_secs", "The longest one.", value=cleaner.longest_s)
    yield CounterMetricFamily("headrace_compactions", "Logs that were compacted.", value=cleaner.compactions)
    yield CounterMetricFamily("headrace_compactions_given_up", "Those that were not.", value=cleaner.given_up)
    labels = ["topic", "partition"]
    compacted = gauge("headrace_log_compacted_to_offset", "Up to where a log is compacted.", labels=labels)
    broken = gauge("headrace_log_uncleanable", "1: the log cannot be compacted.", labels=labels)
    for one in found.partitions:
        if one.compacted_to is not None:
            compacted.add_metric([one.topic, str(one.partition)], one.compacted_to)
            broken.add_metric([one.topic, str(one.partition)], one.is_uncleanable)
    yield compacted
    yield broken


def _groups(found: Readings) -> Iterator[Metric]:
    kinds = GaugeMetricFamily("headrace_groups", "Groups whose coordinator is here.", labels=["kind", "state"])
    for (kind, state), count in sorted(found.groups_by_state.items()):
        kinds.add_metric([kind, state], count)
    yield kinds
    labels = ["consumergroup", "topic", "partition"]
    offsets = GaugeMetricFamily("kafka_consumergroup_current_offset", "What a group has committed.", labels=labels)
    lags = GaugeMetricFamily("kafka_consumergroup_lag", "Records behind, of partitions led here.", labels=labels)
    for one in found.offsets:
        values = [one.group, one.topic, str(one.partition)]
        offsets.add_metric(values, one.offset)
        if one.lag is not None:
            lags.add_metric(values, one.lag)
    yield offsets
    yield lags


def watch_loop(
    loop: asyncio.AbstractEventLoop, add: Callable[[float], None], every_s: float = 0.1
) -> Callable[[], None]:
    """Note how late the loop runs what is due; what is given back ends that."""
    timer: list[asyncio.TimerHandle] = []

    def look(due: float) -> None:
        now = loop.time()
        add(max(0.0, now - due))
        timer[:] = [loop.call_at(now + every_s, functools.partial(look, now + every_s))]

    begin = loop.time() + every_s
    timer.append(loop.call_at(begin, functools.partial(look, begin)))
    return lambda: timer[0].cancel()
