"""Sticky assignment when members subscribe to different topics: keep what is valid, pour the rest, then even out.

Kafka's algorithm looks at one partition and all members at a time. Here topics with the same subscribers form a class:
within a class only the counts of its members matter, so partitions are poured by whole levels, and balance is a
comparison of two numbers per class.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress, groupby

from headrace.assignors._claims import Claims
from headrace.assignors._evening import Evening
from headrace.assignors._group import AssignmentInput
from headrace.assignors._racks import RackTable
from headrace.assignors._sticky_user_data import NO_GENERATION


@dataclass(slots=True)
class TopicClasses:
    """Topics with the same subscribers. Members are ranks: their places in the order of their names."""

    class_of_topic: list[int]
    # Per class its members, ascending; and how often topics of it were subscribed to (a member may list one twice).
    members: list[list[int]]
    subscribed: list[int]
    # Per member its classes.
    classes_of: list[list[int]]
    # Topics in the order in which Java deals with them: fewest subscribers first, then by name.
    topic_order: list[int]


@dataclass(slots=True)
class UnequalAssignment:
    """The assignment while it is made; members are ranks."""

    group: AssignmentInput
    racks: RackTable
    ranks: list[int]
    classes: TopicClasses
    numbers: list[list[int]]
    # Java first tries to even out with new partitions only, unless somebody lost a partition anyway.
    must_revoke: bool


def assign_unequal(
    group: AssignmentInput, claims: Claims, racks: RackTable, generation_max: int, strict: bool
) -> list[list[int]]:
    """Partition numbers per member. `strict` keeps members from getting back what they no longer subscribe to."""
    members_by_rank = group.members_by_name()
    ranks = [0] * len(members_by_rank)
    for rank, member in enumerate(members_by_rank):
        ranks[member] = rank
    classes = _classify(group, ranks)
    pool = UnequalAssignment(group, racks, ranks, classes, [[] for _ in ranks], False)
    _keep_valid(pool, claims)
    starting = not any(pool.numbers)
    free = _free_runs(pool)
    _pour_free(pool, free)
    previous = _previous_owners(pool, claims, generation_max)
    _even_out(pool, free, previous, starting, strict)
    return [pool.numbers[rank] for rank in ranks]


def _classify(group: AssignmentInput, ranks: Sequence[int]) -> TopicClasses:
    by_shape = group.members_by_shape()
    class_index: dict[tuple[int, ...], int] = {}
    members: list[list[int]] = []
    subscribed: list[int] = []
    class_of_topic: list[int] = []
    for shapes in group.topic_shapes():
        index = class_index.setdefault(shapes, len(members))
        if index == len(members):
            found = [ranks[member] for shape in set(shapes) for member in by_shape[shape]]
            members.append(sorted(found))
            subscribed.append(sum(len(by_shape[shape]) for shape in shapes))
        class_of_topic.append(index)
    classes_of: list[list[int]] = [[] for _ in ranks]
    for index, own in enumerate(members):
        for rank in own:
            classes_of[rank].append(index)
    # Topics of the layout are sorted by name, and sorting is stable.
    order = sorted(range(len(class_of_topic)), key=lambda topic: subscribed[class_of_topic[topic]])
    return TopicClasses(class_of_topic, members, subscribed, classes_of, order)


def _keep_valid(pool: UnequalAssignment, claims: Claims) -> None:
    """Members keep what they own, still subscribe to, and have near."""
    group, racks = pool.group, pool.racks
    total = group.layout.total
    allowed = [set(topics) for topics in group.shape_topics()]
    names = [set(shape) for shape in group.shapes]
    all_topics = len(group.layout.topics)
    topic_of = group.number_topics() if any(claims.owned) else []
    for member, owned in enumerate(claims.owned):
        shape = group.shape_of[member]
        kept = list(owned)
        if claims.gone_topics:
            kept = [number for number in kept if number < total]
            gone = (claims.gone_topics[number - total] for number in owned if number >= total)
            # To Java, a partition that is gone is one to revoke if its owner does not want the topic any more.
            pool.must_revoke |= any(topic not in names[shape] or racks.is_far(member, total) for topic in gone)
        before = len(kept)
        if len(allowed[shape]) < all_topics:
            kept = [number for number in kept if topic_of[number] in allowed[shape]]
        if racks.member_racks is not None:
            kept = [number for number in kept if not racks.is_far(member, number)]
        pool.must_revoke |= len(kept) < before
        pool.numbers[pool.ranks[member]] = kept


def _free_runs(pool: UnequalAssignment) -> list[tuple[int, list[int]]]:
    """(class, its free partitions) in the order in which they are given away."""
    layout, classes = pool.group.layout, pool.classes
    marks = bytearray(b"\x01") * layout.total
    for own in pool.numbers:
        for number in own:
            marks[number] = 0
    runs: list[tuple[int, list[int]]] = []
    for index, topics in groupby(classes.topic_order, key=classes.class_of_topic.__getitem__):
        numbers: list[int] = []
        for topic in topics:
            start = layout.starts[topic]
            end = start + layout.counts[topic]
            numbers.extend(compress(range(start, end), marks[start:end]))
        if numbers:
            runs.append((index, numbers))
    return runs


def _pour_free(pool: UnequalAssignment, free: Sequence[tuple[int, list[int]]]) -> None:
    """Every partition goes to the subscriber with fewest, the first by name among equals; near ones come first."""
    if pool.racks.member_racks is not None:
        free = _pour_near(pool, free)
    for index, numbers in free:
        _pour(pool.numbers, pool.classes.members[index], numbers)


def _pour(held: list[list[int]], members: Sequence[int], numbers: Sequence[int]) -> None:
    """Like water into connected vessels: the lowest rise together, in order of name, until they reach the next ones."""
    # Stable, so members of one level stay in order of name.
    waiting = sorted(members, key=lambda rank: len(held[rank]))
    levels = [len(held[rank]) for rank in waiting]
    level, arrived, position, end = levels[0], 0, 0, len(numbers)
    rising: list[int] = []
    while position < end:
        first = arrived
        while arrived < len(waiting) and levels[arrived] == level:
            arrived += 1
        if arrived > first:
            rising = sorted(rising + waiting[first:arrived])
        width = len(rising)
        # A level that lasts to the end of the numbers needs no more rounds than this.
        rounds = -(-(end - position) // width)
        if arrived < len(waiting):
            rounds = min(rounds, levels[arrived] - level)
        stop = min(end, position + rounds * width)
        for offset, rank in enumerate(rising[: stop - position]):
            held[rank].extend(numbers[position + offset : stop : width])
        position = stop
        level += rounds


def _pour_near(pool: UnequalAssignment, free: Sequence[tuple[int, list[int]]]) -> list[tuple[int, list[int]]]:
    """Give partitions to subscribers that are not far from them; return those that have none."""
    held, racks = pool.numbers, pool.racks
    assert racks.member_racks is not None
    rack_of: list[str | None] = [None] * len(held)
    for member, rank in enumerate(pool.ranks):
        rack_of[rank] = racks.member_racks[member]
    # Counts only grow here, so an outdated entry of a heap is merely too low, and is renewed when it surfaces.
    heaps: dict[tuple[int, frozenset[str]], list[tuple[int, int]]] = {}
    left: list[tuple[int, list[int]]] = []
    for index, numbers in free:
        unowned: list[int] = []
        for number in numbers:
            near = racks.partition_racks[number]
            heap = heaps.get((index, near))
            if heap is None:
                members = pool.classes.members[index]
                heap = [(len(held[rank]), rank) for rank in members if rack_of[rank] is None or rack_of[rank] in near]
                heapq.heapify(heap)
                heaps[index, near] = heap
            if not heap:
                unowned.append(number)
                continue
            while heap[0][0] != len(held[heap[0][1]]):
                rank = heap[0][1]
                heapq.heapreplace(heap, (len(held[rank]), rank))
            rank = heap[0][1]
            held[rank].append(number)
            heapq.heapreplace(heap, (len(held[rank]), rank))
        if unowned:
            left.append((index, unowned))
    return left


def _previous_owners(pool: UnequalAssignment, claims: Claims, generation_max: int) -> dict[int, int]:
    """Who had a partition before its present claimant: the newest claim older than the newest generation."""
    owners: dict[int, tuple[int, int]] = {}
    for member, generation in enumerate(claims.generations):
        weight = NO_GENERATION if generation is None else generation
        if weight >= generation_max:
            continue
        rank = pool.ranks[member]
        for number in claims.claimed[member]:
            known = owners.get(number)
            if known is None or weight > known[1]:
                owners[number] = (rank, weight)
    return {number: rank for number, (rank, _) in owners.items()}


def _participants(pool: UnequalAssignment) -> list[bool]:
    """Members that can give or take: they lack some partition they could have, or hold one that others could have."""
    group, classes = pool.group, pool.classes
    counts = group.layout.counts
    shape_topics = group.shape_topics()
    # As many topics as there are counts as all of them, even if one is listed twice: Java's shortcut.
    most = [
        group.layout.total if len(topics) == len(counts) else sum(counts[topic] for topic in topics)
        for topics in shape_topics
    ]
    shared_topic = [classes.subscribed[index] >= 2 for index in classes.class_of_topic]
    topic_of: list[int] | None = None
    result = [True] * len(pool.ranks)
    for member, rank in enumerate(pool.ranks):
        held = pool.numbers[rank]
        if len(held) >= most[group.shape_of[member]]:
            topic_of = topic_of or group.number_topics()
            result[rank] = any(shared_topic[topic_of[number]] for number in held)
    return result


def _even_out(
    pool: UnequalAssignment,
    free: Sequence[tuple[int, list[int]]],
    previous: dict[int, int],
    starting: bool,
    strict: bool,
) -> None:
    """Move partitions from members with many to members with few, and take it back if nothing was gained."""
    taking_part = _participants(pool)
    sizes = [len(own) for own, part in zip(pool.numbers, taking_part) if part]
    if not sizes or min(sizes) >= max(sizes) - 1:
        return
    classes, layout = pool.classes, pool.group.layout
    evening = Evening(pool.group, classes.class_of_topic, classes.members, classes.classes_of, pool.numbers)
    evening.remember(previous, taking_part, strict)
    if evening.is_even:
        return
    before = [list(own) for own in pool.numbers]
    shared = [count >= 2 for count in classes.subscribed]
    if not pool.must_revoke:
        evening.run([run for run in free if shared[run[0]]])
    everything = [
        (index, list(chain.from_iterable(range(layout.starts[t], layout.starts[t] + layout.counts[t]) for t in topics)))
        for index, topics in groupby(
            (topic for topic in classes.topic_order if shared[classes.class_of_topic[topic]]),
            key=classes.class_of_topic.__getitem__,
        )
    ]
    moved = evening.run(everything)
    if not starting and moved:
        score = balance_score([len(own) for own, part in zip(pool.numbers, taking_part) if part])
        score_before = balance_score([len(own) for own, part in zip(before, taking_part) if part])
        if score >= score_before:
            pool.numbers[:] = before


def balance_score(sizes: Sequence[int]) -> int:
    """Sum over all pairs of members of the difference in partitions, in Java's 32 bits."""
    score = 0
    for position, size in enumerate(sorted(sizes)):
        score += size * (2 * position - len(sizes) + 1)
    return (score + (1 << 31)) % (1 << 32) - (1 << 31)
