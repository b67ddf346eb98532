"""The bytes of the consumer protocol: subscriptions and assignments, versions 0 to 3.

Subscription: v1 added owned partitions, v2 the generation (KIP-792), v3 the rack (KIP-881). Assignments look the same
in all versions. A version above 3 is written and read as 3; bytes after the last known field are ignored, so that a
newer member can add fields.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache

from headrace.assignors._java_order import sorted_as_java, utf16_key
from headrace.assignors.base import Assignment, AssignorError, Subscription
from headrace.assignors.partition_list import DecodedPartitions, group_by_topic
from headrace.topics import TopicPartition

PROTOCOL_TYPE = "consumer"
VERSION_MAX = 3

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
# A wide group over many topics gives most members one partition of each.
_ONE_PARTITION = struct.Struct(">ii")
_STRING_BYTES_MAX = 0x7FFF


class ConsumerProtocolError(AssignorError):
    """Bytes that are no subscription or assignment, or values that cannot be written as one."""


def encode_subscription(subscription: Subscription, version: int = VERSION_MAX) -> bytes:
    """Version-prefixed bytes. Topics and owned partitions are sorted; fields that the version lacks are left out."""
    version = _known_version(version, "subscription")
    topics = sorted_as_java(subscription.topics)
    parts = [_INT16.pack(version), _INT32.pack(len(topics))]
    parts.extend(map(_string, topics))
    parts.append(_bytes(subscription.user_data))
    if version >= 1:
        owned = group_by_topic(subscription.owned_partitions)
        parts.append(_partitions({topic: sorted(owned[topic]) for topic in sorted(owned, key=utf16_key)}))
    if version >= 2:
        generation = subscription.generation_id
        parts.append(_INT32.pack(-1 if generation is None else generation))
    if version >= 3:
        parts.append(_INT16.pack(-1) if subscription.rack_id is None else _string(subscription.rack_id))
    return b"".join(parts)


def encode_assignment(assignment: Assignment, version: int = VERSION_MAX) -> bytes:
    """Version-prefixed bytes; partitions are grouped by topic in order of first appearance."""
    version = _known_version(version, "assignment")
    grouped = group_by_topic(assignment.partitions)
    return b"".join((_INT16.pack(version), _partitions(grouped), _bytes(assignment.user_data)))


def decode_subscription(data: bytes, group_instance_id: str | None = None) -> Subscription:
    """Read a subscription of any version. The instance id travels outside these bytes; it is put in for the assignor.

    A negative generation and an empty rack read as absent.
    """
    reader = _Reader(data, "subscription")
    version = _known_version(reader.int16(), "subscription")
    topics = reader.strings()
    user_data = reader.optional_bytes()
    owned: Sequence[TopicPartition] = reader.partitions() if version >= 1 else ()
    generation = reader.int32() if version >= 2 else -1
    rack = reader.optional_string() if version >= 3 else None
    return Subscription(
        topics=topics,
        user_data=user_data,
        owned_partitions=owned,
        generation_id=generation if generation >= 0 else None,
        rack_id=rack or None,
        group_instance_id=group_instance_id,
    )


def decode_topics(data: bytes) -> list[str]:
    """The topics of a subscription, whatever comes after them: some clients give a version without its fields."""
    reader = _Reader(data, "subscription")
    _known_version(reader.int16(), "subscription")
    return reader.strings()


def decode_assignment(data: bytes) -> Assignment:
    """Read an assignment of any version."""
    reader = _Reader(data, "assignment")
    _known_version(reader.int16(), "assignment")
    partitions = reader.partitions()
    return Assignment(partitions, reader.optional_bytes())


def _known_version(version: int, what: str) -> int:
    if version < 0:
        raise ConsumerProtocolError(f"{what} has version {version}: versions are 0 to {VERSION_MAX}, or newer")
    return min(version, VERSION_MAX)


@lru_cache(maxsize=4096)
def _string(text: str) -> bytes:
    """Cached: a leader writes the same topics once per member."""
    encoded = text.encode("utf-8")
    if len(encoded) > _STRING_BYTES_MAX:
        raise ConsumerProtocolError(f"a string of {len(encoded)} bytes is too long: at most {_STRING_BYTES_MAX}")
    return _INT16.pack(len(encoded)) + encoded


def _bytes(data: bytes | None) -> bytes:
    return _INT32.pack(-1) if data is None else _INT32.pack(len(data)) + data


def _int32_array(values: Sequence[int]) -> bytes:
    return struct.pack(f">{len(values) + 1}i", len(values), *values)


def _partitions(grouped: Mapping[str, Sequence[int]]) -> bytes:
    parts = [_INT32.pack(len(grouped))]
    for topic, found in grouped.items():
        parts.append(_string(topic))
        try:
            parts.append(_ONE_PARTITION.pack(1, found[0]) if len(found) == 1 else _int32_array(found))
        except struct.error as error:
            raise ConsumerProtocolError(f"a partition of {topic!r} is not a 32-bit number: {error}") from error
    return b"".join(parts)


class _Reader:
    """Reads fields one after the other, and says which part of which message was damaged."""

    __slots__ = ("_data", "_position", "_what")

    def __init__(self, data: bytes, what: str) -> None:
        # No copy when these are bytes already; views are not hashable, and topic names are looked up by their bytes.
        self._data = bytes(data)
        self._position = 0
        self._what = what

    def _refuse(self, why: str) -> ConsumerProtocolError:
        return ConsumerProtocolError(
            f"consumer protocol {self._what} of {len(self._data)} bytes is damaged at byte {self._position}: {why}"
        )

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise self._refuse(f"{size} bytes expected, {len(self._data) - self._position} left")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def int16(self) -> int:
        value: int = _INT16.unpack(self._take(2))[0]
        return value

    def int32(self) -> int:
        value: int = _INT32.unpack(self._take(4))[0]
        return value

    def length(self) -> int:
        """The length of an array, which cannot be longer than the bytes that are left."""
        length = self.int32()
        if not 0 <= length <= len(self._data) - self._position:
            raise self._refuse(f"an array of {length} does not fit")
        return length

    def strings(self) -> list[str]:
        data, end = self._data, len(self._data)
        found: list[str] = []
        for _ in range(self.length()):
            text_at = self._position + 2
            size = _INT16.unpack_from(data, self._position)[0] if text_at <= end else -1
            if not 0 <= size <= end - text_at:
                raise self._refuse("a string is missing or cut short")
            self._position = text_at + size
            found.append(_topic_name(data[text_at : self._position]))
        return found

    def optional_string(self) -> str | None:
        size = self.int16()
        # What is not UTF-8 is read with U+FFFD, as Java reads it.
        return None if size < 0 else str(self._take(size), "utf-8", "replace")

    def optional_bytes(self) -> bytes | None:
        size = self.int32()
        return None if size < 0 else self._take(size)

    def partitions(self) -> DecodedPartitions:
        """Topics with their partitions. Of a topic that comes twice only the first is kept, as in Java's keyed sets.

        The leader of a wide group reads a million of these, so this does not go through the readers of single fields.
        """
        data, end = self._data, len(self._data)
        topics: list[str] = []
        partitions: list[int] = []
        seen: set[str] = set()
        for _ in range(self.length()):
            try:
                (size,) = _INT16.unpack_from(data, self._position)
                name_at = self._position + 2
                (count,) = _INT32.unpack_from(data, name_at + size) if size >= 0 else (-1,)
            except struct.error as error:
                raise self._refuse("a topic with its partitions is cut short") from error
            numbers_at = name_at + size + 4
            if count < 0 or numbers_at + 4 * count > end:
                raise self._refuse(f"a topic of {size} bytes with {count} partitions does not fit")
            topic = _topic_name(data[name_at : name_at + size])
            self._position = numbers_at + 4 * count
            if topic not in seen:
                seen.add(topic)
                topics.extend([topic] * count)
                partitions.extend(struct.unpack_from(f">{count}i", data, numbers_at))
        return DecodedPartitions(topics, partitions)


@lru_cache(maxsize=4096)
def _topic_name(data: bytes) -> str:
    """Cached, so that all members' claims share one string per topic, and comparing them is comparing addresses."""
    return str(data, "utf-8", "replace")
