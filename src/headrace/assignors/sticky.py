"""The sticky assignors: balanced first, and among balanced ones the assignment that moves least (KIP-54, 341, 429)."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence

from headrace.assignors._claims import Claims, field_generation, java_takes_as_equal, settle_claims
from headrace.assignors._equal import assign_equal
from headrace.assignors._group import AssignmentInput, Numbering, read_group
from headrace.assignors._racks import read_racks
from headrace.assignors._sticky_user_data import NO_GENERATION, StickyUserDataReader, encode_sticky_user_data
from headrace.assignors._unequal import assign_unequal
from headrace.assignors.base import (
    AssignableTopics,
    Assignment,
    AssignorBase,
    GroupAssignment,
    RebalanceProtocol,
    Subscription,
)
from headrace.topics import TopicPartition

_INT32 = struct.Struct(">i")


class _StickyBase(AssignorBase):
    """What both share. The highest generation seen is remembered by the leader's object, as in Java."""

    def __init__(self) -> None:
        self._generation = NO_GENERATION
        self._generation_max = NO_GENERATION

    def _plan(self, group: AssignmentInput, claims: Claims) -> tuple[list[list[int]], dict[int, int] | None]:
        """Numbers per member; and what is moving between members where that is known already."""
        for generation in claims.generations:
            if generation is not None and generation > self._generation_max:
                self._generation_max = generation
        racks = read_racks(group)
        equal, certain = java_takes_as_equal(group)
        if equal:
            result = assign_equal(group, claims, racks)
            if certain or self._is_valid(group, result.numbers, result.moving):
                return result.numbers, result.moving
        numbers = assign_unequal(group, claims, racks, self._generation_max, strict=False)
        if not _all_subscribed(group, numbers):
            numbers = assign_unequal(group, claims, racks, self._generation_max, strict=True)
        return numbers, None

    def _is_valid(self, group: AssignmentInput, numbers: Sequence[Sequence[int]], moving: Mapping[int, int]) -> bool:
        return _all_subscribed(group, numbers)


def _all_subscribed(group: AssignmentInput, numbers: Sequence[Sequence[int]]) -> bool:
    """Whether nobody got a partition of a topic that it does not want."""
    wanted = [set(topics) for topics in group.shape_topics()]
    all_topics = len(group.layout.topics)
    topic_of: list[int] = []
    for member, own in enumerate(numbers):
        allowed = wanted[group.shape_of[member]]
        if own and len(allowed) < all_topics:
            topic_of = topic_of or group.number_topics()
            if not allowed.issuperset(map(topic_of.__getitem__, own)):
                return False
    return True


class StickyAssignor(_StickyBase):
    """Equal to Kafka's StickyAssignor: eager, members tell what they had in their user data."""

    name = "sticky"

    def __init__(self) -> None:
        super().__init__()
        self._partitions: Sequence[TopicPartition] | None = None

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        return None if self._partitions is None else encode_sticky_user_data(self._partitions, self._generation)

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        self._partitions = assignment.partitions
        self._generation = generation

    def assign(self, cluster: AssignableTopics, subscriptions: Mapping[str, Subscription]) -> GroupAssignment:
        group = read_group(cluster, subscriptions)
        if not group.members:
            return {}
        numbering = Numbering(group.layout)
        reader = StickyUserDataReader(numbering)
        claimed: list[Sequence[int]] = []
        generations: list[int | None] = []
        for subscription in group.subscriptions:
            numbers, generation = reader.read(subscription.user_data)
            claimed.append(numbers)
            generations.append(generation)
        numbers_of, _ = self._plan(group, settle_claims(group, claimed, generations, numbering))
        return group.result(numbers_of)


class CooperativeStickyAssignor(_StickyBase):
    """Equal to Kafka's CooperativeStickyAssignor: a partition that changes hands is given to nobody until the next
    rebalance, when its old owner has let go of it."""

    name = "cooperative-sticky"
    supported_protocols = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        # For leaders that do not know the subscription's generation field (before version 2).
        return _INT32.pack(self._generation)

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        self._generation = generation

    def _is_valid(self, group: AssignmentInput, numbers: Sequence[Sequence[int]], moving: Mapping[int, int]) -> bool:
        # What is withheld now may have been meant for a member that does not want it: the next rebalance sees to that.
        return _all_subscribed(group, _without_moving(numbers, moving))

    def assign(self, cluster: AssignableTopics, subscriptions: Mapping[str, Subscription]) -> GroupAssignment:
        group = read_group(cluster, subscriptions)
        if not group.members:
            return {}
        numbering = Numbering(group.layout)
        claimed = [numbering.numbers(subscription.owned_partitions) for subscription in group.subscriptions]
        generations = list(map(_told_generation, group.subscriptions))
        numbers, moving = self._plan(group, settle_claims(group, claimed, generations, numbering))
        if moving is None:
            moving = _moving(claimed, numbers)
        return group.result(_without_moving(numbers, moving))


def _without_moving(numbers: Sequence[Sequence[int]], moving: Mapping[int, int]) -> list[Sequence[int]]:
    kept = list(numbers)
    for member in set(moving.values()):
        kept[member] = [number for number in numbers[member] if moving.get(number) != member]
    return kept


def _told_generation(subscription: Subscription) -> int | None:
    generation = field_generation(subscription)
    if generation is not None or subscription.user_data is None:
        return generation
    if len(subscription.user_data) < _INT32.size:
        return NO_GENERATION
    found: int = _INT32.unpack_from(subscription.user_data)[0]
    return found


def _moving(claimed: Sequence[Sequence[int]], numbers: Sequence[Sequence[int]]) -> dict[int, int]:
    """Partitions that one member is to get and another one said it has."""
    added: dict[int, int] = {}
    revoked: set[int] = set()
    for member, own in enumerate(numbers):
        had = set(claimed[member])
        if len(had) == len(own) and had.issuperset(own):
            continue
        for number in own:
            if number not in had:
                added[number] = member
        revoked.update(had.difference(own))
    return {number: member for number, member in added.items() if number in revoked}
