"""By lag: members get about the same number of unread records, not of partitions."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence

from headrace.assignors._group import AssignmentInput, Numbering, read_group
from headrace.assignors._sticky_user_data import NO_GENERATION, StickyUserDataReader, encode_sticky_user_data
from headrace.assignors.base import NEED_LAG, AssignableTopics, Assignment, AssignorBase, GroupAssignment, Subscription
from headrace.topics import TopicPartition


class LagAssignor(AssignorBase):
    """Largest lag first, each partition to the subscriber with the least lag so far.

    That keeps the most loaded member within 4/3 of the best possible when subscriptions are equal. Among members with
    equal lag the previous owner is preferred, unless it would get more than its share of partitions; then the member
    with fewest partitions, then the first by name. A lag that is unknown or negative counts as none.
    """

    name = "lag"
    needs = frozenset({NEED_LAG})

    def __init__(self) -> None:
        self._partitions: Sequence[TopicPartition] | None = None
        self._generation = NO_GENERATION

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        return None if self._partitions is None else encode_sticky_user_data(self._partitions, self._generation)

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        self._partitions = assignment.partitions
        self._generation = generation

    def assign(self, cluster: AssignableTopics, subscriptions: Mapping[str, Subscription]) -> GroupAssignment:
        group = read_group(cluster, subscriptions)
        if not group.members:
            return {}
        owner = _previous_owners(group)
        lags = [max(0, cluster.lag.get(TopicPartition(*partition), 0)) for partition in _named(group)]
        # Sorting is stable: among equal lags partitions stay in order of topic and partition.
        order = sorted(range(group.layout.total), key=lags.__getitem__, reverse=True)
        ranks = group.members_by_name()
        rank_of = [0] * len(ranks)
        for rank, member in enumerate(ranks):
            rank_of[member] = rank
        share = -(-group.layout.total // len(group.members))
        owner_rank = {number: rank_of[member] for number, member in owner.items()}
        numbers = _spread(group, order, lags, owner_rank, share, ranks)
        return group.result([sorted(numbers[rank]) for rank in rank_of])


def _named(group: AssignmentInput) -> zip[tuple[str, int]]:
    return zip(group.layout.topic_column(), group.layout.partition_column())


def _previous_owners(group: AssignmentInput) -> dict[int, int]:
    """The claimant with the newest generation; two of the same generation cancel each other."""
    numbering = Numbering(group.layout)
    reader = StickyUserDataReader(numbering)
    best: dict[int, tuple[int, int | None]] = {}
    for member, subscription in enumerate(group.subscriptions):
        numbers, generation = reader.read(subscription.user_data)
        weight = NO_GENERATION if generation is None else generation
        for number in numbers:
            known = best.get(number)
            if known is None or weight > known[0]:
                best[number] = (weight, member)
            elif weight == known[0] and known[1] != member:
                best[number] = (weight, None)
    total = group.layout.total
    return {number: member for number, (_, member) in best.items() if member is not None and number < total}


def _spread(
    group: AssignmentInput,
    order: Sequence[int],
    lags: Sequence[int],
    owner: Mapping[int, int],
    share: int,
    ranks: Sequence[int],
) -> list[list[int]]:
    """Greedy, with one heap of (lag, partitions, rank) per set of subscribers.

    Loads only grow, so an outdated entry of a heap is merely too low, and is renewed when it surfaces.
    """
    numbers: list[list[int]] = [[] for _ in ranks]
    load = [0] * len(ranks)
    topic_of = group.number_topics()
    shapes = list(map(frozenset, group.topic_shapes()))
    heaps: dict[frozenset[int], list[tuple[int, int, int]]] = {}
    for number in order:
        wanted = shapes[topic_of[number]]
        heap = heaps.get(wanted)
        if heap is None:
            members = [rank for rank, member in enumerate(ranks) if group.shape_of[member] in wanted]
            heap = heaps[wanted] = [(load[rank], len(numbers[rank]), rank) for rank in members]
            heapq.heapify(heap)
        while True:
            entry = heap[0]
            rank = entry[2]
            current = (load[rank], len(numbers[rank]), rank)
            if entry == current:
                break
            heapq.heapreplace(heap, current)
        before = owner.get(number)
        if (
            before is not None
            and load[before] == load[rank]
            and len(numbers[before]) < share
            and group.shape_of[ranks[before]] in wanted
        ):
            rank = before
        numbers[rank].append(number)
        load[rank] += lags[number]
    return numbers
