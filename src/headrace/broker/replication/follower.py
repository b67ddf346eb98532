"""What a follower does with its leader's answers: append, cut its log, begin anew, or wait.

A fetch says where our log ends, the epoch of our last record and the epoch of the leader that we follow. An answer is
about the log as it was then: when any of the three has changed since, it is thrown away. The log is only cut where the
leader says that epochs part (KIP-101, KIP-279), never to the watermark; and batches of an epoch above the leader's are
refused, since nobody could have written them in this epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headrace.broker.replication.truncation import UNKNOWN, LogWithEpochs, cut_at
from headrace.error_codes import ErrorCode


class FollowedLog(LogWithEpochs, Protocol):
    """What is looked at of a follower's log."""

    @property
    def leader_epoch(self) -> int:
        """The latest epoch that wrote something, or began here; -1 for none."""
        ...


@dataclass(frozen=True, slots=True)
class Position:
    """What a fetch is about: which log, followed in which epoch, from where on."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One partition's part of a leader's answer, but for its records."""

    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = UNKNOWN
    log_start_offset: int = UNKNOWN
    diverging_epoch: int = UNKNOWN
    diverging_end_offset: int = UNKNOWN
    #: Where the first batch begins, and the epoch of the last one; UNKNOWN without records.
    first_offset: int = UNKNOWN
    last_epoch: int = UNKNOWN


class Act(Enum):
    """What an answer asks for."""

    NOTHING = "nothing"  #: it is about a log that is no longer so
    APPEND = "append"  #: the records, if any; then the watermark and the log's start
    TRUNCATE = "truncate"  #: cut the log to `offset`, and ask again
    FIND_RANGE = "find range"  #: ask for the leader's start and end
    START_AT = "start at"  #: drop everything; what comes next has `offset`
    BEGIN_WITH = "begin with"  #: append the records, the first of which are deleted; then as with APPEND
    BACK_OFF = "back off"
    WAIT_FOR_METADATA = "wait for metadata"


@dataclass(frozen=True, slots=True)
class FollowerStep:
    act: Act
    offset: int = UNKNOWN
    reason: str = ""


_NOTHING = FollowerStep(Act.NOTHING)
_APPEND = FollowerStep(Act.APPEND)

_STALE_METADATA = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


def position(topic_id: bytes, partition: int, leader_epoch: int, log: FollowedLog) -> Position:
    """Where a follower of that leader epoch goes on."""
    return Position(topic_id, partition, leader_epoch, log.end_offset, log.leader_epoch, log.start_offset)


def step(asked: Position, now: Position, answer: Answer, log: FollowedLog) -> FollowerStep:
    """What to do with an answer to `asked`, when the log is followed from `now`."""
    if not is_about(asked, now):
        return _NOTHING
    if answer.error is ErrorCode.NONE:
        if answer.diverging_epoch != UNKNOWN or answer.diverging_end_offset != UNKNOWN:
            offset = cut_at(log, answer.diverging_epoch, answer.diverging_end_offset)
            if offset <= answer.log_start_offset:
                # What would be left is deleted at the leader, and by its epochs nobody can tell whether it is the same.
                return FollowerStep(Act.START_AT, answer.log_start_offset, "what is common is deleted at the leader")
            return FollowerStep(Act.TRUNCATE, offset)
        if answer.last_epoch > asked.leader_epoch:
            return FollowerStep(
                Act.WAIT_FOR_METADATA, reason=f"a batch of leader epoch {answer.last_epoch}, which is to come"
            )
        if UNKNOWN < answer.first_offset < asked.offset:
            if log.start_offset == log.end_offset:
                return FollowerStep(Act.BEGIN_WITH)
            # Where the leader has one batch, another ends here.
            return FollowerStep(Act.TRUNCATE, answer.first_offset)
        return _APPEND
    if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        return FollowerStep(Act.FIND_RANGE)
    if answer.error in _STALE_METADATA:
        return FollowerStep(Act.WAIT_FOR_METADATA, reason=answer.error.name)
    return FollowerStep(Act.BACK_OFF, reason=answer.error.name)


def is_about(asked: Position, now: Position) -> bool:
    """Whether an answer to `asked` is about the log as it is. Its start may have moved: no record changes with that."""
    return (
        asked.offset == now.offset
        and asked.leader_epoch == now.leader_epoch
        and asked.last_fetched_epoch == now.last_fetched_epoch
        and asked.topic_id == now.topic_id
        and asked.partition == now.partition
    )


def out_of_range(asked: Position, now: Position, leader_start: int, leader_end: int, log: FollowedLog) -> FollowerStep:
    """What to do when the leader does not have our offset: its log is shorter than ours, or begins behind our end.

    A leader's log is shorter only after an unclean election. Where it is within the range after all, we ask again.
    """
    if not is_about(asked, now):
        return _NOTHING
    if leader_start < leader_end < log.end_offset:
        return FollowerStep(Act.TRUNCATE, leader_end, "the leader's log is shorter")
    if leader_end < log.end_offset or leader_start > log.end_offset:
        return FollowerStep(Act.START_AT, leader_start, "the leader has nothing of what is here")
    return FollowerStep(Act.BACK_OFF, reason="the leader's log has our offset, but not the epoch before it")


def watermark(answer: Answer, end_offset: int) -> int:
    """A follower's high watermark: what the leader has committed, as far as it is here."""
    return min(answer.high_watermark, end_offset)
