"""What the transaction coordinator answers with: records, replies, timers, markers to write, and their bundle.

The order of things, for whoever drives it:

1. A call gives an `Outcome`. Its timers take effect at once: a change with a deadline sets that timer (in place of an
   earlier deadline), one without cancels it. A timer that fires is gone, and is handed to `on_timer`.
2. If `needs_producer_id` is set, the supply of producer ids was empty. Nothing has changed and no one was answered:
   fill the supply, then make the same call again. (After `on_timer` nothing needs to be repeated.)
3. Without effects, its replies are sent and its markers written. With effects, their records are appended to their
   partitions, in the order of the calls that gave them, in one batch or several, but those of one effect together; then
   `written(outcome)` is called, or `failed(outcome, errors)`, in that same order for each partition. Both give an
   outcome to be treated like any other: the replies come back in it.
4. A `MarkerRequest` asks for a control batch in each of its partitions, appended by their leaders. What became of it is
   told to `markers_written`, at once or bit by bit, but for every partition in the end; a request without partitions is
   told at once. The coordinator asks again for those that failed. Of the older protocol (`transaction_version` below
   2) no second copy of a marker may be under way: its epoch does not tell it from a marker for a later transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from headrace.coordination import Caller, CoordinatorRecord, Effect, Reply
from headrace.topics import TopicPartition


class TimerKind(Enum):
    ABORT = "abort"  # look for transactions that ran out of time
    EXPIRY = "expiry"  # look for ids that are not used any more
    MARKERS = "markers"  # try again to write the markers, or the record after them


class Timer(NamedTuple):
    """The name of a timer: at most one of each name is set at a time."""

    kind: TimerKind
    partition: int
    transactional_id: str = ""


class TimerChange(NamedTuple):
    timer: Timer
    deadline_ms: int | None


class MarkerRequest(NamedTuple):
    """Ends a producer's transaction in these partitions. `attempt` tells one request from another."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]
    attempt: int


@dataclass(slots=True)
class Outcome:
    """What a call leads to. `notes` are for the log. `effects` are the records to write, and what follows."""

    replies: list[Reply] = field(default_factory=list)
    timers: list[TimerChange] = field(default_factory=list)
    markers: list[MarkerRequest] = field(default_factory=list)
    needs_producer_id: bool = False
    notes: list[str] = field(default_factory=list)
    effects: list[Effect[Outcome]] = field(default_factory=list)

    @property
    def records(self) -> list[CoordinatorRecord]:
        """All that is to be written, in this order."""
        return [record for effect in self.effects for record in effect.records]

    def reply(self, caller: Caller, response: Any) -> None:
        self.replies.append(Reply(caller.token, response))

    def arm(self, timer: Timer, deadline_ms: int) -> None:
        self.timers.append(TimerChange(timer, deadline_ms))

    def cancel(self, timer: Timer) -> None:
        self.timers.append(TimerChange(timer, None))
