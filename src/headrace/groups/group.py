"""What all kinds of groups have in common, and what the coordinator asks each of them.

A group is of one kind at a time, and may become of another: the offsets that are committed for it go along.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, NamedTuple

from headrace.coordination import CoordinatorRecord, Now
from headrace.errors import ErrorCode
from headrace.groups.group_offsets import CommittedOffset, GroupOffsets
from headrace.groups.outcome import Outcome
from headrace.groups.write_book import WriteBook

DEAD_STATE = "Dead"


class GroupKind(Enum):
    """The kinds, by the names that Kafka shows to people."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class CommitClaim(NamedTuple):
    """Who wants to commit: a member in a generation or epoch, or somebody without any."""

    member_id: str
    instance_id: str | None
    epoch: int
    api_version: int
    is_transactional: bool


@dataclass(slots=True, eq=False)
class Group(ABC):
    """One group. `is_dead` while its tombstones are being written: nobody may join it or commit."""

    kind: ClassVar[GroupKind]

    group_id: str
    partition: int
    offsets: GroupOffsets = field(default_factory=GroupOffsets, kw_only=True)
    is_dead: bool = field(default=False, kw_only=True)
    book: WriteBook = field(default_factory=WriteBook, kw_only=True)

    @property
    @abstractmethod
    def state_name(self) -> str:
        """Kafka's name for its state."""

    @property
    @abstractmethod
    def type_name(self) -> str:
        """The protocol type that it is listed with."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether it has no members."""

    @property
    def is_awaited(self) -> bool:
        """Whether somebody is about to become a member."""
        return False

    @property
    @abstractmethod
    def is_vacant(self) -> bool:
        """Whether nothing would be lost without it."""

    @abstractmethod
    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads the topic, or may."""

    @abstractmethod
    def may_commit(self, claim: CommitClaim) -> ErrorCode:
        """Whether offsets may be committed now by whoever makes the claim."""

    def may_commit_partition(self, claim: CommitClaim, topic_id: bytes, partition: int) -> ErrorCode:
        """The same for one partition, where `may_commit` has found nothing."""
        return ErrorCode.NONE

    def may_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether a member that says its epoch may be given offsets."""
        return ErrorCode.NONE

    def committed_by(self, out: Outcome, member_id: str, at: Now) -> None:  # noqa: B027 - most have nothing to do
        """A member has shown by a commit that it is alive."""

    @abstractmethod
    def may_delete_offsets(self) -> ErrorCode:
        """Whether offsets of topics that nobody is subscribed to may be deleted."""

    @abstractmethod
    def unwanted_since_ms(self, offset: CommittedOffset) -> int | None:
        """Since when an offset of a topic without subscribers counts as unwanted; None: it does not."""

    @abstractmethod
    def tombstones(self) -> list[CoordinatorRecord]:
        """What ends all that the log has of it but its offsets."""

    @abstractmethod
    def start_timers(self, out: Outcome, at: Now) -> None:
        """It was loaded: its members have a whole session to be heard from."""

    @abstractmethod
    def cancel_timers(self, out: Outcome) -> None: ...

    @abstractmethod
    def give_up(self, out: Outcome) -> None:
        """It is served here no more: cancel its timers, and send away whoever waits."""
