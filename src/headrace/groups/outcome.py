"""What the group coordinator answers with, beyond what all coordinators do (`headrace.coordination.outcome`).

Markers that end transactions are appended among its records, in the order of the log: see
`GroupCoordinator.ending_transaction`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from headrace import coordination
from headrace.coordination import CoordinatorRecord, Effect, Now
from headrace.errors import ErrorCode


class TransactionalProducer(NamedTuple):
    """Whose transaction the records of an outcome belong to."""

    producer_id: int
    producer_epoch: int


class TimerKind(Enum):
    SESSION = "session"
    JOIN = "join"
    SYNC = "sync"
    REVOKE = "revoke"  # until when a member has to give up partitions
    DELAY = "delay"  # until when a new group waits for more members
    EXPIRY = "expiry"
    DELETED_TOPICS = "deleted topics"


class StateBeginning(NamedTuple):
    """States of partitions (topic id and number) that the share coordinator is to begin for a share group, each with
    the offset at which it starts. What becomes of it, `ShareGroups.states_begun` is to be told."""

    group_id: str
    state_epoch: int
    start_offsets: Mapping[tuple[bytes, int], int]


@dataclass(slots=True)
class Outcome(coordination.Outcome):
    producer: TransactionalProducer | None = None
    beginnings: list[StateBeginning] = field(default_factory=list)


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
