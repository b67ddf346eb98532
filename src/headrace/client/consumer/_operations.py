"""What a consumer does that takes requests and an answer: each written once, as a flow, and made a method of both.

All take a time-out, in seconds; without one, `default.api.timeout.ms` holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.client.arguments import whole_number
from headrace.client.cluster.view import PartitionView
from headrace.client.consumer._core import ConsumerCore
from headrace.client.consumer.config import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from headrace.client.consumer.records import OffsetAndMetadata, OffsetAndTimestamp
from headrace.client.flows import Flow
from headrace.errors import RequestTimedOutError
from headrace.topics import TopicPartition

_TIMESTAMP_MAX = 2**63 - 1


class ConsumerOperation:
    """What an operation looks at: the core; and how long it may take, which it says itself, with its name."""

    __slots__ = ("_begun", "_check_wakeup", "_seconds", "_what", "core")

    def __init__(self, core: ConsumerCore, check_wakeup: Callable[[], None]) -> None:
        self.core = core
        self._check_wakeup = check_wakeup
        self._begun = core.core.clock.monotonic()
        core.core.retried = None
        self.limit(None, "this")

    def limit(self, timeout: float | None, what: str) -> None:
        self._seconds = self.core.settings.api_timeout_s if timeout is None else timeout
        self._what = what

    @property
    def deadline(self) -> float:
        return self._begun + self._seconds

    def check(self, now: float) -> float:
        """Seconds that are left; raises when the time is over, or `wakeup()` was called."""
        self._check_wakeup()
        left = self.deadline - now
        if left <= 0:
            raise RequestTimedOutError(f"{self._what} did not end within {self._seconds} s.{self.core.core.why_late}")
        return left


def commit_sync(
    operation: ConsumerOperation, offsets: Mapping[Any, Any] | None = None, timeout: float | None = None
) -> Flow[None]:
    """Commit what was handed out so far, or given offsets ({partition: offset or OffsetAndMetadata}), and wait.

    The offset committed is the next to read. Errors that may pass are tried again until the time-out
    (`default.api.timeout.ms`); `CommitFailedError` when the group gave the partitions to others.
    """
    operation.limit(timeout, "the commit")
    yield from operation.core.commit(offsets)


def committed(
    operation: ConsumerOperation, partitions: Iterable[TopicPartition | tuple[str, int]], timeout: float | None = None
) -> Flow[dict[TopicPartition, OffsetAndMetadata | None]]:
    """The offsets that the group has committed; None where there is none."""
    operation.limit(timeout, "reading committed offsets")
    commits = operation.core.need_commits("committed")
    return (yield from commits.fetch([TopicPartition(*partition) for partition in partitions]))


def position(
    operation: ConsumerOperation, partition: TopicPartition | tuple[str, int], timeout: float | None = None
) -> Flow[int]:
    """The offset of the next record that will be handed out."""
    operation.limit(timeout, "looking up the position")
    return (yield from operation.core.position(partition))


def offsets_for_times(
    operation: ConsumerOperation, timestamps: Mapping[Any, int], timeout: float | None = None
) -> Flow[dict[TopicPartition, OffsetAndTimestamp | None]]:
    """Per partition, the first record at or after a time (milliseconds since 1970); None if there is none."""
    operation.limit(timeout, "looking up offsets by time")
    wanted: dict[TopicPartition, int] = {}
    for partition, timestamp in timestamps.items():
        number = whole_number(timestamp)
        if number is None or not 0 <= number <= _TIMESTAMP_MAX:
            raise ValueError(f"{timestamp!r} is not a time in milliseconds since 1970 (for {partition})")
        wanted[TopicPartition(*partition)] = number
    return (yield from operation.core.lookup.lookup(wanted))


def beginning_offsets(
    operation: ConsumerOperation, partitions: Iterable[TopicPartition | tuple[str, int]], timeout: float | None = None
) -> Flow[dict[TopicPartition, int]]:
    """The first offset there is."""
    operation.limit(timeout, "looking up offsets")
    return (yield from _bounds(operation, partitions, EARLIEST_TIMESTAMP))


def end_offsets(
    operation: ConsumerOperation, partitions: Iterable[TopicPartition | tuple[str, int]], timeout: float | None = None
) -> Flow[dict[TopicPartition, int]]:
    """The end of what this consumer may read: the high watermark, or the last stable offset for read_committed."""
    operation.limit(timeout, "looking up offsets")
    return (yield from _bounds(operation, partitions, LATEST_TIMESTAMP))


def _bounds(
    operation: ConsumerOperation, partitions: Iterable[TopicPartition | tuple[str, int]], timestamp: int
) -> Flow[dict[TopicPartition, int]]:
    wanted = {TopicPartition(*partition): timestamp for partition in partitions}
    found = yield from operation.core.lookup.lookup(wanted)
    return {partition: one.offset for partition, one in found.items() if one is not None}


def partitions_for(operation: ConsumerOperation, topic: str, timeout: float | None = None) -> Flow[list[PartitionView]]:
    """The partitions of a topic with their leaders; none if there is no such topic."""
    operation.limit(timeout, f"asking for topic {topic}")
    return (yield from operation.core.topics.partitions_for(topic))


def list_topics(operation: ConsumerOperation, timeout: float | None = None) -> Flow[dict[str, list[PartitionView]]]:
    """Every topic that this consumer may see, with its partitions."""
    operation.limit(timeout, "asking for topics")
    return (yield from operation.core.topics.list_topics())


def unsubscribe(operation: ConsumerOperation, timeout: float | None = None) -> Flow[None]:
    """Give up what is subscribed or assigned; leaves the group."""
    operation.limit(timeout, "unsubscribing")
    yield from operation.core.unsubscribe()
