"""What the transaction coordinator answers with, beyond what all coordinators do (`headrace.coordination.outcome`).

1. If `needs_producer_id` is set, the supply of producer ids was empty. Nothing has changed and no one was answered:
   fill the supply, then make the same call again. (After `on_timer` nothing needs to be repeated.)
2. Markers are written when the replies are sent: only once the outcome's records are written. A `MarkerRequest` asks
   for a control batch in each of its partitions, appended by their leaders. What became of it is told to
   `markers_written`, at once or bit by bit, but for every partition in the end; a request without partitions is told at
   once. The coordinator asks again for those that failed. Of the older protocol (`transaction_version` below 2) no
   second copy of a marker may be under way: its epoch does not tell it from a marker for a later transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from headrace import coordination
from headrace.topics import TopicPartition


class TimerKind(Enum):
    ABORT = "abort"  # look for transactions that ran out of time
    EXPIRY = "expiry"  # look for ids that are not used any more
    MARKERS = "markers"  # try again to write the markers, or the record after them


class MarkerRequest(NamedTuple):
    """Ends a producer's transaction in these partitions. `attempt` tells one request from another.

    `state_partition` is where the transaction is recorded. If `__transaction_state` was given more partitions since,
    that is not the one which the id belongs to.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]
    attempt: int
    state_partition: int


@dataclass(slots=True)
class Outcome(coordination.Outcome):
    markers: list[MarkerRequest] = field(default_factory=list)
    needs_producer_id: bool = False
