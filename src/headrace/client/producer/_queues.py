"""What waits in the producer: the batches of a partition, and rows whose topic is not known yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter

from headrace.client.cluster.view import TopicView
from headrace.client.producer._batch import ProducerBatch
from headrace.client.producer._flushes import FlushWait
from headrace.client.producer._rows import RECORD_OVERHEAD_BYTES, ColumnRows, Rows, row_sizes
from headrace.client.producer._sequences import Sequences
from headrace.client.producer.delivery import TOPIC, Delivery
from headrace.errors import HeadraceError, RetriableError, error_for

_TOPIC = itemgetter(TOPIC)


@dataclass(slots=True)
class Held:
    """Rows whose topic (or partition) is not known yet."""

    rows: Rows | ColumnRows
    deadline: float
    view_version: int
    size: int
    flushes: list[FlushWait] = field(default_factory=list)
    #: What they fail with in the end, if it is their partition that is not there.
    missing: HeadraceError | None = None


@dataclass(slots=True)
class PartitionQueue:
    """Batches of one partition that are not in flight, oldest first, and the numbers of those that are."""

    topic: str
    partition: int
    batches: deque[ProducerBatch] = field(default_factory=deque)
    in_flight: list[ProducerBatch] = field(default_factory=list)
    sequences: Sequences = field(default_factory=Sequences)


def by_topic(taken: list[Delivery]) -> Iterable[list[Delivery]]:
    """Records of one topic together, in their order."""
    topics = list(map(_TOPIC, taken))
    if topics.count(topics[0]) == len(topics):
        return (taken,)
    found: dict[str, list[Delivery]] = {}
    for delivery, topic in zip(taken, topics):
        found.setdefault(topic, []).append(delivery)
    return found.values()


def size_of(rows: Rows | ColumnRows) -> int:
    """About what rows take in batches."""
    if isinstance(rows, Rows):
        return sum(row_sizes(rows))
    return rows.payload_bytes + len(rows) * RECORD_OVERHEAD_BYTES


def fatal_topic_error(view: TopicView) -> HeadraceError | None:
    """An error of the topic that waiting will not mend."""
    if not view.error_code:
        return None
    error = error_for(view.error_code)
    return None if isinstance(error, RetriableError) else error_for(view.error_code, f"topic {view.name}: {error}")
