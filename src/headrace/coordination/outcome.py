"""What a coordinator answers with: records to write, replies, timers, and what follows once the records are written.

The order of things, for whoever drives a coordinator:

1. A call gives an `Outcome`. Its timers take effect at once: a change with a deadline sets that timer (in place of an
   earlier deadline), one without cancels it. A timer that fires is gone, and is handed to `on_timer`.
2. Without effects, its replies are sent. With effects, their records are appended to their partitions, in the order
   of the calls that gave them, in one batch or several, but those of one effect together; then `written(outcome)` is
   called, or `failed(outcome, errors)`, in that same order for each partition. Both give an outcome to be treated like
   any other: the replies of the one that was written come back in it, and so do those that waited for it. `failed` has
   every reply too, turned into Kafka's error for it.
3. A job is run away from the event loop, from the moment of the call that gave it, whatever becomes of its records.
   When it has ended, `finished(job, result)` is called, or `finished(job, error)`: one more call like any other.
4. Every append is made with the leader epoch that its partition was loaded for (`begin_load`), and fails if that epoch
   is over. When it is, the partition is unloaded, and what was not written then has failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from headrace.coordination.values import Caller, CoordinatorRecord, Now, Reply
from headrace.errors import ErrorCode

OutcomeT = TypeVar("OutcomeT", bound="Outcome")


class Timer(NamedTuple):
    """The name of a timer, of a kind that its coordinator knows: at most one of each name is set at a time."""

    kind: Enum
    partition: int
    name: str = ""  # the group or transactional id that it is about
    member_id: str = ""


class TimerChange(NamedTuple):
    timer: Timer
    deadline_ms: int | None


@dataclass(slots=True)
class Effect(Generic[OutcomeT]):
    """Records of one partition, and what becomes of the state once they are written, or could not be.

    They are written together or not at all. Those of several effects may be torn apart: by a failure, by a crash, or
    because they do not fit one batch. So an effect has as few records as make sense without each other.
    """

    records: tuple[CoordinatorRecord, ...]
    written: Callable[[OutcomeT, Now], None]
    failed: Callable[[OutcomeT, ErrorCode, Now], None]

    @property
    def partition(self) -> int:
        return self.records[0].partition


@dataclass(slots=True)
class Job(Generic[OutcomeT]):
    """Work that takes long: `run` uses nothing but values that nobody changes, so that any thread may run it.

    `done` is given what it returned, `failed` what it raised. Meanwhile everything else may have changed.
    """

    what: str
    run: Callable[[], Any]
    done: Callable[[OutcomeT, Any, Now], None]
    failed: Callable[[OutcomeT, Exception, Now], None]


@dataclass(slots=True)
class Outcome:
    """What a call leads to. `notes` are for the broker's log: why a group rebalances, who was removed.

    `effects` are the records to write; what they lead to is the coordinator's own, for `written` and `failed`.
    """

    replies: list[Reply] = field(default_factory=list)
    timers: list[TimerChange] = field(default_factory=list)
    effects: list[Effect[Self]] = field(default_factory=list)
    jobs: list[Job[Self]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def records(self) -> list[CoordinatorRecord]:
        """All that is to be written, in this order."""
        return [record for effect in self.effects for record in effect.records]

    def reply(self, caller: Caller, response: object) -> None:
        self.replies.append(Reply(caller.token, response))

    def arm(self, timer: Timer, deadline_ms: int) -> None:
        self.timers.append(TimerChange(timer, deadline_ms))

    def cancel(self, timer: Timer) -> None:
        self.timers.append(TimerChange(timer, None))


def error_after_failed_write(error: ErrorCode) -> ErrorCode:
    """What a client is told when its record was not written: to look for another coordinator, or to retry."""
    return _AFTER_FAILED_WRITE.get(error, error)


_AFTER_FAILED_WRITE: Final = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
