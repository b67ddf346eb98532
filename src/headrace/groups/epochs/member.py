"""A member of a group that the coordinator assigns by itself: what it tells of itself, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from headrace.groups.sessions import MemberSession

LEAVING_EPOCH = -1  # what a member says that leaves
STATIC_LEAVING_EPOCH = -2  # and a static member that will be back


class MemberProgress(IntEnum):
    """How far a member has come towards its target, by the numbers of Kafka's records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # it has something to give up, and stays in its epoch until then
    UNRELEASED_PARTITIONS = 2  # it is in the epoch of the target, and waits for what others have to give up
    UNKNOWN = 127

    @classmethod
    def of(cls, number: int) -> MemberProgress:
        """The state of a record; one that a newer broker wrote may be none of these."""
        return cls(number) if number in cls._value2member_map_ else cls.UNKNOWN


class UnknownStateError(Exception):
    """The member is in a state that a newer broker left it in: it has to begin again, without anything assigned."""


@dataclass(slots=True, eq=False)
class EpochMember:
    """One member. `epoch` is what it has reached, 0 until it has been given one."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()  # the names that it is subscribed to
    rebalance_timeout_ms: int = -1
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberProgress = MemberProgress.STABLE
    session: MemberSession = field(default_factory=MemberSession)
    revoke_deadline_ms: int | None = None  # until when it has to give up what it was told to
    # How often it has asked. One that waits for a target and asks again has given up waiting: what it said first is
    # outdated by then, above all what it owned.
    asked: int = 0

    @property
    def is_away(self) -> bool:
        """Whether it is a static member that said that it will be back."""
        return self.epoch == STATIC_LEAVING_EPOCH

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberProgress.STABLE and self.epoch == epoch
