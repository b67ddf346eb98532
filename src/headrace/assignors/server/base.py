"""What an assignor on the broker is given, and what it gives."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from headrace.errors import HeadraceError

Assignments = Mapping[str, Mapping[bytes, Collection[int]]]
"""Member id → topic id → partitions. A member that is left out gets nothing."""


class ServerAssignorError(HeadraceError):
    """No assignment can be made of this; or there is no such assignor."""


class TopicSpec(NamedTuple):
    """A topic that members are subscribed to. `racks` has those of each partition's replicas."""

    name: str
    partitions: int
    racks: tuple[tuple[str, ...], ...] = ()


class MemberSpec(NamedTuple):
    """A member: its subscription, and in `current` what it was to have so far, also of topics that are gone."""

    topics: frozenset[bytes]
    current: Mapping[bytes, Collection[int]] = {}
    instance_id: str | None = None
    rack_id: str | None = None


@dataclass(frozen=True)
class GroupSpec:
    """A group as it is to be assigned. Nothing in it may be changed."""

    members: Mapping[str, MemberSpec]
    topics: Mapping[bytes, TopicSpec] = field(default_factory=dict)
    is_homogeneous: bool = True
    """Whether all members are subscribed to the same topics."""

    @cached_property
    def holders(self) -> Mapping[bytes, Mapping[int, str]]:
        """Topic id → partition → who was to have it so far."""
        found: dict[bytes, dict[int, str]] = {}
        for member_id, member in self.members.items():
            for topic, partitions in member.current.items():
                found.setdefault(topic, {}).update(dict.fromkeys(partitions, member_id))
        return found

    def partitions_of(self, topic: bytes) -> int:
        """How many partitions a topic has."""
        known = self.topics.get(topic)
        if known is None:
            raise ServerAssignorError("Members are subscribed to a topic that does not exist.")
        return known.partitions


class ServerAssignor(Protocol):
    """An assignor. `name` is what members and `group.consumer.assignors` call it."""

    @property
    def name(self) -> str: ...
    def assign(self, group: GroupSpec) -> Assignments: ...
