"""The sticky assignor's user data: what a member had, and in which generation (KIP-341).

V1 is an array of (string topic, array of int32) and an int32 generation; V0 has no
generation. What is neither is ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, itemgetter, lt
from typing import Any

from headrace.assignors._group import Numbering
from headrace.assignors._java_order import computed_hash_order
from headrace.assignors.partition_list import group_by_topic
from headrace.topics import TopicPartition

NO_GENERATION = -1

_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
# Below this many topics, reading one by one is as fast as matching against a mould.
_MOULD_TOPICS_MIN = 8
_MOULDS_MAX = 16


def encode_sticky_user_data(partitions: Sequence[TopicPartition], generation: int) -> bytes:
    """V1, with the topics in the order of Java's hash table so that the bytes are Java's too."""
    grouped = group_by_topic(partitions)
    parts = [_INT32.pack(len(grouped))]
    newest = next(reversed(grouped), None)
    asked_again = newest is not None and not (partitions[-1].topic == newest and len(grouped[newest]) == 1)
    for topic in computed_hash_order(grouped, asked_again):
        name = topic.encode("utf-8")
        own = grouped[topic]
        parts.append(struct.pack(f">h{len(name)}si{len(own)}i", len(name), name, len(own), *own))
    parts.append(_INT32.pack(generation))
    return b"".join(parts)


class _MalformedError(Exception):
    """Not user data of a sticky assignor."""


@dataclass(slots=True)
class _Template:
    """The fixed bytes of one member's user data. Another member's that fits differs in partitions and generation only.

    Members of a group tend to own the same topics in the same numbers, so one struct reads nearly all of them.
    """

    layout: struct.Struct
    fixed_at: itemgetter[Any]
    fixed: tuple[bytes, ...]
    partitions_at: itemgetter[Any]
    starts: tuple[int, ...]
    counts: tuple[int, ...]

    def read(self, data: bytes) -> tuple[list[int], int] | None:
        values = self.layout.unpack(data)
        if self.fixed_at(values) != self.fixed:
            return None
        partitions = self.partitions_at(values)
        if min(partitions) < 0 or not all(map(lt, partitions, self.counts)):
            return None
        return list(map(add, self.starts, partitions)), values[-1]


class StickyUserDataReader:
    """Reads the user data of a group's members into partition numbers."""

    __slots__ = ("_bounds", "_moulds", "_moulds_made", "_numbering")

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering
        self._bounds = {topic.encode("utf-8", "surrogatepass"): bounds for topic, bounds in numbering.bounds.items()}
        self._moulds: dict[int, _Template] = {}
        self._moulds_made = 0

    def read(self, data: bytes | None) -> tuple[Sequence[int], int | None]:
        """Numbers of the partitions, and the generation: None when there is none (V0, or no user data at all)."""
        if not data:
            return (), None
        mould = self._moulds.get(len(data))
        if mould is not None:
            fitted = mould.read(data)
            if fitted is not None:
                return fitted
        try:
            topics, end = _split(data)
        except _MalformedError:
            return (), NO_GENERATION
        generation = _INT32.unpack_from(data, end)[0] if end + 4 <= len(data) else None
        if (
            self._moulds_made < _MOULDS_MAX
            and len(topics) >= _MOULD_TOPICS_MIN
            and end + 4 == len(data)
            and all(name in self._bounds and own for name, own in topics)
        ):
            self._moulds_made += 1
            self._moulds[len(data)] = self._make_template(data, topics)
        return self._numbers(topics), generation

    def _numbers(self, topics: Sequence[tuple[bytes, tuple[int, ...]]]) -> list[int]:
        found: list[int] = []
        for name, partitions in topics:
            bounds = self._bounds.get(name)
            if bounds is None:
                # Java reads bytes that are not UTF-8 as U+FFFD; Python does the same when told to.
                topic = name.decode("utf-8", "replace")
                if topic not in self._numbering.bounds:
                    continue
                bounds = self._numbering.bounds[topic]
            start, count = bounds
            for partition in partitions:
                if 0 <= partition < count:
                    found.append(start + partition)
                else:
                    found.append(self._numbering.gone(name.decode("utf-8", "replace"), partition))
        return found

    def _make_template(self, data: bytes, topics: Sequence[tuple[bytes, tuple[int, ...]]]) -> _Template:
        codes: list[str] = [">"]
        fixed_at: list[int] = []
        partitions_at: list[int] = []
        starts: list[int] = []
        counts: list[int] = []
        position = 0
        for index, (name, own) in enumerate(topics):
            codes.append(f"{len(name) + (10 if index == 0 else 6)}s{len(own)}i")
            fixed_at.append(position)
            partitions_at.extend(range(position + 1, position + 1 + len(own)))
            position += 1 + len(own)
            start, count = self._bounds[name]
            starts.extend([start] * len(own))
            counts.extend([count] * len(own))
        layout = struct.Struct("".join(codes) + "i")
        # At least eight topics, so both getters give tuples.
        getter = itemgetter(*fixed_at)
        return _Template(
            layout, getter, getter(layout.unpack(data)), itemgetter(*partitions_at), tuple(starts), tuple(counts)
        )


def _split(data: bytes) -> tuple[list[tuple[bytes, tuple[int, ...]]], int]:
    """The topics' names and partitions, and where the array ends."""
    try:
        (length,) = _INT32.unpack_from(data, 0)
        # Six bytes are the least a topic takes, which bounds the loop by the data.
        if not 0 <= length <= len(data) // 6:
            raise _MalformedError
        position = 4
        topics: list[tuple[bytes, tuple[int, ...]]] = []
        for _ in range(length):
            (size,) = _INT16.unpack_from(data, position)
            position += 2
            (count,) = _INT32.unpack_from(data, position + size) if size >= 0 else (-1,)
            if count < 0 or position + size + 4 + 4 * count > len(data):
                raise _MalformedError
            name = data[position : position + size]
            position += size + 4
            topics.append((name, struct.unpack_from(f">{count}i", data, position)))
            position += 4 * count
    except struct.error as error:
        raise _MalformedError from error
    return topics, position
