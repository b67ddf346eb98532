"""What a group remembers of its topics: a hash, by which it notices that they are others than before."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from xxhash import xxh3_64

from headrace.groups.topics import TopicLookup

NO_TOPICS = 0
MISSING_TOPIC = 0
_int32 = struct.Struct("<i").pack
_uint64 = struct.Struct("<Q").pack
_REMEMBERED_MAX = 10_000


def topic_hash(topic_id: bytes, name: str, racks: Sequence[Sequence[str]]) -> int:
    """Kafka's hash of one topic; `racks` has those of each partition."""
    parts = [b"\0", topic_id[7::-1], topic_id[15:7:-1], _text(name), _int32(len(racks))]
    for partition, of_partition in enumerate(racks):
        parts.append(_int32(partition))
        for rack in sorted(of_partition):
            parts += (_int32(len(rack.encode("utf-16-le")) // 2), _text(rack))
    return xxh3_64(b"".join(parts)).intdigest()


def group_hash(hashes: Iterable[tuple[str, int]]) -> int:
    """Of all topics (name and hash); as a signed number, as records have it."""
    found = sorted(hashes)
    if not found:
        return NO_TOPICS
    number = xxh3_64(b"".join(_uint64(of_topic) for _, of_topic in found)).intdigest()
    return number - (1 << 64) if number >> 63 else number


def _text(text: str) -> bytes:
    units = text.encode("utf-16-le")
    return units + _int32(len(units) // 2)


class TopicHashes:
    """The hashes of topics, each worked out once for as long as the topic does not change."""

    def __init__(self, topics: TopicLookup) -> None:
        self._topics = topics
        self._known: dict[str, tuple[int, int]] = {}  # name → version of the topic, its hash

    def of(self, names: Iterable[str]) -> int:
        return group_hash((name, self._of_one(name)) for name in names)

    def _of_one(self, name: str) -> int:
        topic_id = self._topics.topic_id(name)
        if topic_id is None:
            self._known.pop(name, None)
            return MISSING_TOPIC
        version = self._topics.topic_version(name)
        known = self._known.get(name)
        if known is None or known[0] != version:
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            known = self._known[name] = (version, topic_hash(topic_id, name, self._topics.partition_racks(name)))
        return known[1]
