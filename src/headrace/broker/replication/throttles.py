"""Replication throttles (KIP-73): how many bytes a second are copied of replicas that are on their way into sync.

A broker has two rates, one for what it sends as a leader and one for what it fetches as a follower. They count for the
replicas that a topic names (`leader.replication.throttled.replicas` and `follower.…`: `partition:broker,…` or `*`),
and only while these are not in sync: whoever waits for acks=all never waits for a throttle. Which rates and names count
is looked up again after each change of the metadata.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from headrace.broker.view import ClusterView
from headrace.config import INT64_MAX
from headrace.runtime import Clock

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition
    from headrace.cluster.changes import Changes

#: The keys of a broker's rate, and of a topic's replicas.
LEADER: Final = ("leader.replication.throttled.rate", "leader.replication.throttled.replicas")
FOLLOWER: Final = ("follower.replication.throttled.rate", "follower.replication.throttled.replicas")
EVERY_REPLICA: Final = "*"


class Rate:
    """Bytes a second over the last few windows, as Kafka measures it.

    What has just begun counts as if it had gone on for all windows but the last: so a first burst may take as much.
    """

    __slots__ = ("_count", "_samples", "_total", "_window_s")

    def __init__(self, window_count: int, window_s: float) -> None:
        self._count = window_count
        self._window_s = window_s
        #: When a window began, and the bytes in it.
        self._samples: deque[tuple[float, int]] = deque()
        self._total = 0

    def record(self, nbytes: int, now: float) -> None:
        samples = self._samples
        if samples and now - samples[-1][0] < self._window_s:
            began, counted = samples.pop()
            samples.append((began, counted + nbytes))
        else:
            samples.append((now, nbytes))
        self._total += nbytes

    def measure(self, now: float) -> float:
        samples = self._samples
        while samples and now - samples[0][0] >= self._count * self._window_s:
            self._total -= samples.popleft()[1]
        if not samples:
            return 0.0
        return self._total / max(now - samples[0][0], max(1, self._count - 1) * self._window_s)


class ReplicationThrottle:
    """One of a broker's two: its rate, and whose copies it counts for."""

    def __init__(self, cluster: ClusterView, clock: Clock, keys: tuple[str, str]) -> None:
        self._cluster = cluster
        self._rate_key, self._replicas_key = keys
        self.bytes_per_s = INT64_MAX
        config = cluster.started_with
        self._rate = Rate(
            config.get_int("replication.quota.window.num"),
            float(config.get_int("replication.quota.window.size.seconds")),
        )
        self._now: Callable[[], float] = clock.monotonic
        # The partitions of a topic whose replica here is throttled; None for all of them.
        self._named: dict[str, frozenset[int] | None] = {}

    @property
    def is_limited(self) -> bool:
        return self.bytes_per_s < INT64_MAX

    def look_up(self, changed_topics: Iterable[str]) -> None:
        """After a change of the metadata: the rate may be another, and so may be what these topics say."""
        found = self._cluster.config.values.get(self._rate_key)
        self.bytes_per_s = found if isinstance(found, int) else INT64_MAX
        for topic in changed_topics:
            self._named.pop(topic, None)

    def names(self, partition: Partition) -> bool:
        """Whether the replica here of a partition is one that its topic wants throttled."""
        topic, index = partition.key
        if topic not in self._named:
            self._named[topic] = self._find(topic)
        named = self._named[topic]
        return named is None or index in named

    def _find(self, topic: str) -> frozenset[int] | None:
        values = self._cluster.topic_values(topic)[self._replicas_key]
        assert isinstance(values, tuple)
        if EVERY_REPLICA in values:
            return None
        pairs = (str(value).split(":") for value in values)
        return frozenset(int(index) for index, node_id in pairs if int(node_id) == self._cluster.node_id)

    def holds_back(self, partition: Partition, replica_id: int) -> bool:
        """Whether a replica gets nothing more of a partition for now."""
        return (
            replica_id not in partition.leadership.isr
            and self.names(partition)
            and self._rate.measure(self._now()) > self.bytes_per_s
        )

    def count(self, partition: Partition, nbytes: int) -> None:
        """So much of a partition was copied; what is not throttled does not count."""
        if self.names(partition):
            self._rate.record(nbytes, self._now())


class Throttles:
    """Both of a broker's. Each is None as long as there is no rate to keep, which is nearly always."""

    def __init__(self, cluster: ClusterView, clock: Clock) -> None:
        self._leader = ReplicationThrottle(cluster, clock, LEADER)
        self._follower = ReplicationThrottle(cluster, clock, FOLLOWER)
        self.leader: ReplicationThrottle | None = None
        self.follower: ReplicationThrottle | None = None

    def follow(self, changes: Changes) -> None:
        changed = {*changes.configured, *(topic.name for topic in changes.deleted)}
        for throttle in (self._leader, self._follower):
            throttle.look_up(changed)
        self.leader = self._leader if self._leader.is_limited else None
        self.follower = self._follower if self._follower.is_limited else None
