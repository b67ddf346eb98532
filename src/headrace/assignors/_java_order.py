"""The order in which Java walks its hash tables and sorts its strings.

Some of Kafka's assignors visit members in the order of a `java.util.HashMap`, and who is visited first may keep an
extra partition. Groups with Java members expect the same answer whoever leads, so that order is rebuilt here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from headrace.topics import java_string_hash

_INITIAL_BUCKETS = 16
# Java turns a bucket of more than eight into a tree, but doubles the table instead while it has fewer than 64 buckets.
_BUCKET_LENGTH_MAX = 8
_TREE_BUCKETS_MIN = 64


def utf16_key(text: str) -> bytes:
    """A sort key that orders strings as Java does, by UTF-16 unit: U+1F600 comes before U+FF21."""
    return text.encode("utf-16-be", "surrogatepass")


def sorted_as_java(names: Iterable[str]) -> list[str]:
    """The names in `String.compareTo` order."""
    found = list(names)
    # For ASCII the two orders agree, and comparing the strings themselves is several times faster.
    if all(map(str.isascii, found)):
        return sorted(found)
    return sorted(found, key=utf16_key)


def spread(value: int) -> int:
    """What HashMap makes of a hash code before it takes the low bits as the bucket."""
    value &= 0xFFFFFFFF
    return value ^ value >> 16


@lru_cache(maxsize=16_384)
def _string_spread(name: str) -> int:
    """Cached: the same members and topics come back with every rebalance."""
    return spread(java_string_hash(name))


def partition_hash(topic_hash: int, partition: int) -> int:
    """`TopicPartition.hashCode`, spread."""
    return spread(31 * (31 + partition) + topic_hash)


def hash_order(names: Iterable[str], capacity: int = _INITIAL_BUCKETS) -> list[str]:
    """The names, each once, in the order of a `java.util.HashMap` into which they were put one by one.

    `capacity` is what the table was made with.
    """
    distinct = list(dict.fromkeys(names))
    if len(distinct) < 2:
        return distinct
    spreads = list(map(_string_spread, distinct))
    mask = table_size(spreads, 1 << (capacity - 1).bit_length()) - 1
    # sorted() is stable, as a bucket is: it keeps the order of insertion, and so does doubling.
    order = sorted(range(len(distinct)), key=[value & mask for value in spreads].__getitem__)
    return [distinct[index] for index in order]


def computed_hash_order(names: Iterable[str], asked_again: bool) -> list[str]:
    """The same for a HashMap filled by `computeIfAbsent`, which differs from `put` in two ways.

    It puts a new entry before the others of its bucket, and it doubles a table that is too full at the next call, not
    at once. `asked_again` tells whether there was such a call after the last name was put in.
    """
    distinct = list(dict.fromkeys(names))
    if len(distinct) < 2:
        return distinct
    spreads = list(map(_string_spread, distinct))
    buckets = _INITIAL_BUCKETS
    for index, value in enumerate(spreads):
        if index * 4 > buckets * 3:
            buckets *= 2
        if buckets < _TREE_BUCKETS_MIN and index >= _BUCKET_LENGTH_MAX - 1:
            before = sum(1 for other in spreads[:index] if other & buckets - 1 == value & buckets - 1)
            if before >= _BUCKET_LENGTH_MAX - 1:
                buckets *= 2
    if asked_again and len(distinct) * 4 > buckets * 3:
        buckets *= 2
    # Backwards, because in a bucket the newest comes first.
    backwards = range(len(distinct) - 1, -1, -1)
    order = sorted(backwards, key=[value & buckets - 1 for value in spreads].__getitem__)
    return [distinct[index] for index in order]


def table_size(spreads: Sequence[int], buckets: int = _INITIAL_BUCKETS) -> int:
    """How many buckets a HashMap has, of so many at first, once entries with these hashes were put, in this order."""
    for index, value in enumerate(spreads):
        if buckets < _TREE_BUCKETS_MIN and index >= _BUCKET_LENGTH_MAX:
            mask = buckets - 1
            before = sum(1 for other in spreads[:index] if other & mask == value & mask)
            if before >= _BUCKET_LENGTH_MAX:
                buckets *= 2
        if (index + 1) * 4 > buckets * 3:
            buckets *= 2
    return buckets


class PartitionHashSet:
    """A `java.util.HashSet` of partitions, as far as its first element: the one Kafka moves back when it has a choice.

    Elements are partition ids with their spread hash. A table never shrinks, so its size depends on the past.
    """

    __slots__ = ("_buckets", "_members")

    def __init__(self) -> None:
        self._members: dict[int, int] = {}
        self._buckets = _INITIAL_BUCKETS

    def __bool__(self) -> bool:
        return bool(self._members)

    def add(self, partition_id: int, spread_hash: int) -> None:
        if partition_id in self._members:
            return
        if self._buckets < _TREE_BUCKETS_MIN:
            mask = self._buckets - 1
            same = sum(1 for other in self._members.values() if other & mask == spread_hash & mask)
            if same >= _BUCKET_LENGTH_MAX:
                self._buckets *= 2
        self._members[partition_id] = spread_hash
        if len(self._members) * 4 > self._buckets * 3:
            self._buckets *= 2

    def discard(self, partition_id: int) -> None:
        self._members.pop(partition_id, None)

    def first(self) -> int:
        """The element that `iterator().next()` gives: lowest bucket, and in it the one put first."""
        mask = self._buckets - 1
        return min(self._members, key=lambda partition_id: self._members[partition_id] & mask)
