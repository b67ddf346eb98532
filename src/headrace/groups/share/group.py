"""A share group: its members, and of which partitions it has a state. Values and their changes, no decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from headrace.errors import ErrorCode
from headrace.groups.epochs.group import EpochGroup, KeyAndValue
from headrace.groups.epochs.member import EpochMember
from headrace.groups.group import CommitClaim, GroupKind
from headrace.groups.share import records
from headrace.groups.topics import TopicLookup

Target = dict[bytes, tuple[int, ...]]
"""Topic id → partitions, sorted."""


@dataclass(slots=True, eq=False)
class ShareMember(EpochMember):
    assigned: Target = field(default_factory=dict)
    is_told_late: bool = False  # whether its last answer had to wait for a target


@dataclass(slots=True)
class TopicStates:
    """Partitions of one topic. `since_ms`: when it was last asked that their states begin."""

    name: str
    partitions: set[int]
    since_ms: int = 0


@dataclass(slots=True, eq=False)
class ShareGroup(EpochGroup[ShareMember, Target]):
    """Members may only be given partitions whose state is begun: the leader of a partition reads it first."""

    kind: ClassVar[GroupKind] = GroupKind.SHARE

    session_timeout_of: Callable[[str], int] = field(kw_only=True)
    begun: dict[bytes, TopicStates] = field(default_factory=dict)
    beginning: dict[bytes, TopicStates] = field(default_factory=dict)
    deleting: dict[bytes, str] = field(default_factory=dict)  # topic id → name

    @property
    def has_states(self) -> bool:
        return bool(self.begun or self.beginning or self.deleting)

    @property
    def state_name(self) -> str:
        return "Stable" if self.members else "Empty"

    # --- states of partitions -----------------------------------------------------------------------------------------

    def begin(self, topic_id: bytes, name: str, partitions: set[int], now_ms: int) -> None:
        known = self.beginning.get(topic_id)
        together = partitions if known is None else known.partitions | partitions
        self.beginning[topic_id] = TopicStates(name, set(together), now_ms)
        self.deleting.pop(topic_id, None)

    def has_begun(self, topic_id: bytes, partitions: set[int]) -> None:
        """The share coordinator has them now."""
        asked = self.beginning.get(topic_id)
        if asked is None:
            return
        self._take_from(self.beginning, topic_id, partitions)
        known = self.begun.setdefault(topic_id, TopicStates(asked.name, set()))
        known.partitions |= partitions

    def has_not_begun(self, topic_id: bytes, partitions: set[int]) -> None:
        self._take_from(self.beginning, topic_id, partitions)

    def forget_topic(self, topic_id: bytes) -> bool:
        """Nothing is kept of it any more; whether there was something."""
        found = [states.pop(topic_id, None) for states in (self.begun, self.beginning)]
        return any((*found, self.deleting.pop(topic_id, None)))

    @staticmethod
    def _take_from(topics: dict[bytes, TopicStates], topic_id: bytes, partitions: set[int]) -> None:
        known = topics.get(topic_id)
        if known is not None:
            known.partitions -= partitions
            if not known.partitions:
                del topics[topic_id]

    def is_known(self, topic_id: bytes, asked_since_ms: int) -> set[int]:
        """Partitions that have a state, or for which one was asked for at that time or later."""
        begun, asked = self.begun.get(topic_id), self.beginning.get(topic_id)
        found = set() if begun is None else set(begun.partitions)
        if asked is not None and asked.since_ms >= asked_since_ms:
            found |= asked.partitions
        return found

    def state_partitions(self) -> list[tuple[bytes, int]]:
        """All that the share coordinator has of the group, or may have."""
        return sorted(
            {
                (topic_id, partition)
                for states in (self.begun, self.beginning)
                for topic_id, found in states.items()
                for partition in found.partitions
            }
        )

    def is_unassigned(self, topics: TopicLookup) -> bool:
        """Whether there are partitions of wanted topics that nobody is to have, although their states are begun.

        States of a topic that was deleted while nobody coordinated the group may still be there: nobody gets those.
        """
        assigned: dict[bytes, set[int]] = {}
        for target in self.targets.values():
            for topic_id, partitions in target.items():
                assigned.setdefault(topic_id, set()).update(partitions)
        return any(
            states.name in self.topic_counts
            and topics.topic_id(states.name) == topic_id
            and assigned.get(topic_id) != states.partitions
            for topic_id, states in self.begun.items()
        )

    # --- records ------------------------------------------------------------------------------------------------------

    def epoch_record(self) -> KeyAndValue:
        return records.epoch(self.group_id, self.epoch, self.metadata_hash)

    def target_epoch_record(self, now_ms: int) -> KeyAndValue:
        return records.target_epoch(self.group_id, self.assignment_epoch, now_ms)

    def target_record(self, member_id: str) -> KeyAndValue:
        return records.target(self.group_id, member_id, self.targets.get(member_id))

    def member_record(self, member: ShareMember) -> KeyAndValue:
        return records.member(self.group_id, member)

    def current_record(self, member: ShareMember) -> KeyAndValue:
        return records.current(self.group_id, member)

    def states_record(self) -> KeyAndValue:
        return records.states(self)

    def records_of_end(self) -> list[KeyAndValue]:
        ids = list(self.members)
        return [
            *(records.no_current(self.group_id, member_id) for member_id in ids),
            *(records.target(self.group_id, member_id, None) for member_id in ids),
            records.no_target_epoch(self.group_id),
            *(records.no_member(self.group_id, member_id) for member_id in ids),
            records.no_states(self.group_id),
            records.no_epoch(self.group_id),
        ]

    # --- what all kinds of groups are asked ---------------------------------------------------------------------------

    def session_timeout_ms(self, member: ShareMember) -> int:
        return self.session_timeout_of(self.group_id)

    def may_commit(self, claim: CommitClaim) -> ErrorCode:
        """How far it has got is not an offset."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def may_delete_offsets(self) -> ErrorCode:
        return ErrorCode.GROUP_ID_NOT_FOUND
