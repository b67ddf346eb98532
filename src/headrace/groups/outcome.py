"""What a coordinator is asked by and what it answers with: callers, records, replies, timers, and their bundle.

The order of things, for whoever drives a coordinator:

1. A call gives an `Outcome`. Its timers take effect at once: a change with a deadline sets that timer (in place of an
   earlier deadline), one without cancels it. A timer that fires is gone, and is handed to `on_timer`.
2. Without effects, its replies are sent. With effects, their records are appended to their partitions, in the order
   of the calls that gave them, in one batch or several, but those of one effect together; then `written(outcome)` is
   called, or `failed(outcome, errors)`, in that same order for each partition. `written` is an outcome to be treated
   like any other: the replies of the one that was written come back in it, and so do those that waited for it (members
   of a group whose assignment is now stored). `failed` likewise has every reply, turned into Kafka's error for it.
3. Markers that end transactions are appended in that order too: see `GroupCoordinator.ending_transaction`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from headrace.coordination import Caller, CoordinatorRecord, Effect, Now, Reply
from headrace.errors import ErrorCode


class Producer(NamedTuple):
    """Whose transaction the records of an outcome belong to."""

    producer_id: int
    producer_epoch: int


class TimerKind(Enum):
    SESSION = "session"
    JOIN = "join"
    SYNC = "sync"
    EXPIRY = "expiry"


class Timer(NamedTuple):
    """The name of a timer: at most one of each name is set at a time."""

    kind: TimerKind
    partition: int
    group_id: str = ""
    member_id: str = ""


class TimerChange(NamedTuple):
    timer: Timer
    deadline_ms: int | None


@dataclass(slots=True)
class Outcome:
    """What a call leads to. `notes` are for the log: why a group rebalances, who was removed.

    `effects` are the records to write; what they lead to is the coordinator's own, for `written` and `failed`.
    """

    replies: list[Reply] = field(default_factory=list)
    timers: list[TimerChange] = field(default_factory=list)
    producer: Producer | None = None
    effects: list[Effect[Outcome]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

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


def one_record(
    record: CoordinatorRecord,
    written: Callable[[Outcome, Now], None],
    failed: Callable[[Outcome, ErrorCode, Now], None],
) -> Effect[Outcome]:
    return Effect((record,), written, failed)


def nothing_written(out: Outcome, at: Now) -> None:
    """For effects that need nothing when their records are written."""


def nothing_failed(out: Outcome, error: ErrorCode, at: Now) -> None:
    """For effects that need nothing when their records are not written."""
