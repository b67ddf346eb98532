"""What is committed for topics that are gone: its tombstones, in steps that keep nobody waiting.

A topic of a thousand partitions that a hundred groups have read takes a hundred thousand of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from headrace.coordination import Now, Timer
from headrace.groups.config import GroupConfig
from headrace.groups.group import Group
from headrace.groups.offsets import OffsetChanges, is_mismatched
from headrace.groups.outcome import Outcome, TimerKind
from headrace.groups.shards import Shard, Shards
from headrace.groups.topics import TopicLookup
from headrace.topics import TopicPartition

# One step after the other, whatever partitions of `__consumer_offsets` they are for.
TIMER: Final = Timer(TimerKind.DELETED_TOPICS, -1)


class _Gone(NamedTuple):
    """A group that has offsets in a topic that is gone. `topic_id` tells them from those in a later one of its name."""

    shard: Shard
    group: Group
    topic: str
    topic_id: bytes
    partitions: list[TopicPartition] | None = None  # those that are left, once some were forgotten


class DeletedTopics:
    def __init__(self, config: GroupConfig, shards: Shards, offsets: OffsetChanges, topics: TopicLookup) -> None:
        self._config = config
        self._shards = shards
        self._offsets = offsets
        self._topics = topics
        self._left: deque[_Gone] = deque()

    def forget(self, out: Outcome, topics: Mapping[str, bytes], at: Now) -> None:
        """Topics (name → id) are gone: so are offsets in them, unless they are known to be of another of that name."""
        for shard in self._shards.all():
            for group in shard.groups.values():
                for topic in sorted(group.offsets.topics() & topics.keys()):
                    self._left.append(_Gone(shard, group, topic, topics[topic]))
        self.go_on(out, at)

    def go_on(self, out: Outcome, at: Now) -> None:
        """Write the next tombstones."""
        room = self._config.tombstones_max
        while self._left and room > 0:
            gone = self._left.popleft()
            shard, group, topic, topic_id, partitions = gone
            if shard.is_unloaded or shard.groups.get(group.group_id) is not group:
                continue  # they are known elsewhere, or were deleted with their group
            if partitions is None:
                partitions = group.offsets.partitions_of(topic)
            if len(partitions) > room:
                self._left.appendleft(gone._replace(partitions=partitions[room:]))
                partitions = partitions[:room]
            room -= len(partitions)
            is_there_again = self._topics.topic_id(topic) not in (None, topic_id)
            self._offsets.write_tombstones(
                out, group, [one for one in partitions if not _is_of_another(group, one, topic_id, is_there_again)]
            )
        if self._left:
            out.arm(TIMER, at.monotonic_ms)


def _is_of_another(group: Group, partition: TopicPartition, topic_id: bytes, is_there_again: bool) -> bool:
    """Whether an offset may be of a later topic of that name. What is kept of an earlier one then is told by its id."""
    if is_there_again and partition in group.offsets.in_flight:
        return True
    return any(is_mismatched(offset.topic_id, topic_id) for offset in group.offsets.kept_for(*partition))
