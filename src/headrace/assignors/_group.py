"""A group as the built-in assignors see it: members in Java's order, partitions as numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, compress, repeat

from headrace.assignors._java_order import hash_order, sorted_as_java, utf16_key
from headrace.assignors.base import AssignableTopics, Assignment, GroupAssignment, Subscription
from headrace.assignors.partition_list import CompactPartitions, PartitionList, TopicLayout


@dataclass(slots=True)
class AssignmentInput:
    """The input of one assignment.

    `members` are in the order in which Java visits them. Most members of a group subscribe to the same topics, so work
    is done per distinct list of topics: `shapes` has those, and `shape_of` says which one a member has.
    """

    members: list[str]
    subscriptions: list[Subscription]
    shapes: list[tuple[str, ...]]
    shape_of: list[int]
    # Subscribed topics that exist, in the order of Java's hash table; the layout has them sorted.
    hashed_topics: list[str]
    layout: TopicLayout
    cluster: AssignableTopics

    def topic_index(self) -> dict[str, int]:
        return {topic: index for index, topic in enumerate(self.layout.topics)}

    def shape_topics(self) -> list[list[int]]:
        """Per shape, the indexes of its existing topics; a topic listed twice is there twice, as in Java."""
        index = self.topic_index()
        return [[index[topic] for topic in shape if topic in index] for shape in self.shapes]

    def topic_shapes(self) -> list[tuple[int, ...]]:
        """Per topic of the layout, the shapes that have it, with repetitions."""
        found: list[list[int]] = [[] for _ in self.layout.topics]
        for shape, topics in enumerate(self.shape_topics()):
            for topic in topics:
                found[topic].append(shape)
        return list(map(tuple, found))

    def readers_per_topic(self, order: Sequence[int]) -> list[list[int]]:
        """Per topic of the layout, the places in `order` of the members that subscribe to it; lists may be shared."""
        shape_topics = self.shape_topics()
        if len(self.shapes) * 4 > len(order):
            # Hardly any two members have the same topics: go through the members.
            readers: list[list[int]] = [[] for _ in self.layout.topics]
            for place, member in enumerate(order):
                for topic in set(shape_topics[self.shape_of[member]]):
                    readers[topic].append(place)
            return readers
        shared: dict[tuple[int, ...], list[int]] = {}
        topic_shapes = self.topic_shapes()
        for shapes in topic_shapes:
            if shapes not in shared:
                shared[shapes] = [place for place, member in enumerate(order) if self.shape_of[member] in shapes]
        return [shared[shapes] for shapes in topic_shapes]

    def members_by_shape(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.shapes]
        for member, shape in enumerate(self.shape_of):
            found[shape].append(member)
        return found

    def number_topics(self) -> list[int]:
        """The topic's index of every partition number."""
        return list(chain.from_iterable(map(repeat, range(len(self.layout.topics)), self.layout.counts)))

    def members_by_name(self) -> list[int]:
        """Members sorted by id as Java sorts strings."""
        if all(map(str.isascii, self.members)):
            return sorted(range(len(self.members)), key=self.members.__getitem__)
        return sorted(range(len(self.members)), key=list(map(utf16_key, self.members)).__getitem__)

    def members_static_first(self) -> list[int]:
        """Static members by instance id, then dynamic ones by member id: the order of range and round-robin."""

        def key(member: int) -> tuple[bool, bytes]:
            instance = self.subscriptions[member].group_instance_id
            return (instance is None, utf16_key(self.members[member] if instance is None else instance))

        return sorted(range(len(self.members)), key=key)

    def partition_racks(self, topic: int) -> list[frozenset[str]]:
        """Per partition of a topic, the racks that hold a replica."""
        count = self.layout.counts[topic]
        known = (self.cluster.replica_racks or {}).get(self.layout.topics[topic], ())
        racks = [_distinct_racks(tuple(replicas)) for replicas in known[:count]]
        return racks + [frozenset[str]()] * (count - len(racks))

    def result(self, numbers: Sequence[Sequence[int]]) -> GroupAssignment:
        layout = self.layout
        return {member: Assignment(PartitionList(layout, own)) for member, own in zip(self.members, numbers)}


@lru_cache(maxsize=4096)
def _distinct_racks(replicas: tuple[str | None, ...]) -> frozenset[str]:
    """Cached: many partitions, few combinations of racks, and sets that are the same object compare at once."""
    return frozenset(rack for rack in replicas if rack is not None)


def read_group(cluster: AssignableTopics, subscriptions: Mapping[str, Subscription]) -> AssignmentInput:
    """Put the members into Java's order and number the partitions of every topic that exists and is wanted."""
    members = hash_order(subscriptions)
    shapes: list[tuple[str, ...]] = []
    shape_index: dict[tuple[str, ...], int] = {}
    shape_of: list[int] = []
    ordered = [subscriptions[member] for member in members]
    for subscription in ordered:
        topics = tuple(subscription.topics)
        index = shape_index.setdefault(topics, len(shapes))
        if index == len(shapes):
            shapes.append(topics)
        shape_of.append(index)
    subscribed = hash_order(chain.from_iterable(shapes))
    counts = cluster.partitions
    hashed_topics = hash_order(topic for topic in subscribed if counts.get(topic, 0) > 0)
    layout_topics = sorted_as_java(hashed_topics)
    layout = TopicLayout(layout_topics, [counts[topic] for topic in layout_topics])
    return AssignmentInput(members, ordered, shapes, shape_of, hashed_topics, layout, cluster)


class Numbering:
    """Turns partitions that members name into numbers of a layout.

    A partition of a known topic that is not there (the topic was made anew with fewer) gets a number from the layout's
    total on: two members may dispute it like any other before it is dropped.
    """

    __slots__ = ("_gone", "bounds", "gone_topics", "layout")

    def __init__(self, layout: TopicLayout) -> None:
        self.layout = layout
        self.bounds = dict(zip(layout.topics, zip(layout.starts, layout.counts)))
        self.gone_topics: list[str] = []
        self._gone: dict[tuple[str, int], int] = {}

    def gone(self, topic: str, partition: int) -> int:
        number = self._gone.setdefault((topic, partition), self.layout.total + len(self._gone))
        if number == self.layout.total + len(self.gone_topics):
            self.gone_topics.append(topic)
        return number

    def numbers(self, partitions: Iterable[tuple[str, int]]) -> Sequence[int]:
        """The numbers of those partitions whose topic is known, in the given order."""
        if isinstance(partitions, PartitionList) and partitions.layout == self.layout:
            return partitions.numbers
        bounds = self.bounds
        found: list[int] = []
        # Columns are read as they are: making tuples of them first would cost more than all the rest.
        for topic, partition in zip(*partitions.columns()) if isinstance(partitions, CompactPartitions) else partitions:
            if topic in bounds:
                start, count = bounds[topic]
                found.append(start + partition if 0 <= partition < count else self.gone(topic, partition))
        return found


def unmarked(marks: bytearray) -> list[int]:
    """The numbers whose mark is not zero, in order."""
    return list(compress(range(len(marks)), marks))
