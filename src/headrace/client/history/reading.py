"""A group's records in `__consumer_offsets`: who was a member, of which generation, and when it committed.

Any Kafka keeps them, and who may read that topic may see them. The topic is compacted: of long ago only the last
generation is left.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.assignors.base import AssignorError
from headrace.assignors.consumer_protocol import decode_assignment, decode_topics
from headrace.client.consumer.records import PartitionColumns
from headrace.client.ranges import RangeReader
from headrace.errors import HeadraceError
from headrace.protocol.stored.consumer_offsets import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    decode_record,
)
from headrace.protocol.stored.coordinator import KeyAndValue
from headrace.protocol.wire import MalformedMessageError
from headrace.topics import TopicPartition, partition_for_group

OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_MAX = 2_000_000
"""Records that are looked through, the newest: a busy partition has millions of commits."""
READ_TIMEOUT_S = 30.0
CAUSES_HEADER = "headrace.causes"
"""Why the generation before ended, as a Headrace coordinator knows it: JSON, beside the record of the generation."""

_COMMITS = (b"\0\0", b"\0\1")
_STATES = tuple(bytes((0, kind)) for kind in (2, 3, 5, 6, 7, 8))


class HistoryError(HeadraceError):
    """The history of a group cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member in one generation."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    topics: tuple[str, ...]
    owns: frozenset[TopicPartition]
    session_timeout_ms: int
    rebalance_timeout_ms: int

    @property
    def name(self) -> str:
        """What stays the same when it comes back."""
        return self.instance_id or self.client_id


@dataclass(frozen=True, slots=True)
class Generation:
    """A group as it was from some time on."""

    number: int
    at_ms: int
    members: Mapping[str, Member]
    protocol: str
    causes: tuple[str, ...] | None = None
    """As the coordinator said them; None: it is not one that says any."""
    began_ms: int | None = None
    """When the rebalance that led here began, where that was said."""


@dataclass(frozen=True, slots=True)
class Owned:
    """From then on, a member of a group of the newer protocol has these partitions."""

    at_ms: int
    member_id: str
    epoch: int
    owns: frozenset[TopicPartition]


@dataclass(slots=True)
class GroupLog:
    """All that the log still has of a group."""

    group: str
    is_consumer_protocol: bool = False
    """Whether its coordinator assigns (KIP-848)."""
    generations: list[Generation] = field(default_factory=list)
    owned: list[Owned] = field(default_factory=list)
    commits: dict[TopicPartition, list[int]] = field(default_factory=dict)
    """When offsets of a partition were committed, in milliseconds."""
    begins_ms: int | None = None
    """The time of the oldest record that was looked at."""
    is_cut: bool = False
    """Whether older records are there that were not looked at."""


def read_group(
    group: str, client: Mapping[str, Any], partitions: int, bounds: tuple[int, int], topic_names: Mapping[bytes, str]
) -> GroupLog:
    """Read what is there of a group, with a client's settings.

    `partitions` is how many `__consumer_offsets` has, `bounds` where the group's (`log_partition`) begins and ends.
    """
    start, end = bounds
    begin = max(start, end - OFFSETS_MAX)
    folder = _Folder(GroupLog(group, is_cut=begin > start), topic_names)
    partition = log_partition(group, partitions)
    settings = {**client, "isolation.level": "read_uncommitted"}
    with RangeReader(settings) as reader:
        pieces = reader.read({partition: (begin, end)}, timeout=READ_TIMEOUT_S, fail_on_data_loss=False)
        for at_ms, key, value, causes in _own(pieces, group.encode()):
            folder.add(at_ms, key, value, causes)
    return folder.finish()


def log_partition(group: str, partitions: int) -> TopicPartition:
    """Where a group's records are."""
    return TopicPartition(OFFSETS_TOPIC, partition_for_group(group, partitions))


def _own(pieces: Iterator[PartitionColumns], name: bytes) -> Iterator[tuple[int, bytes, bytes | None, bytes | None]]:
    """The records of one group. All others, which are most, are told by the first bytes of their keys."""
    stored = len(name).to_bytes(2, "big") + name
    wanted = {kind + stored for kind in (*_COMMITS, *_STATES)}
    size = 2 + len(stored)
    for piece in pieces:
        columns = piece.columns
        for row, key in enumerate(columns.keys.to_list()):
            if key is None or key[:size] not in wanted:
                continue
            causes = None
            if key[:2] == b"\0\2":
                causes = next((v for header, v in columns.headers_of(row) if header == CAUSES_HEADER), None)
            yield columns.timestamps[row], key, columns.values[row], causes


class _Folder:
    """Takes the records in the order of the log."""

    def __init__(self, log: GroupLog, topic_names: Mapping[bytes, str]) -> None:
        self.log = log
        self._names = topic_names
        self._members: dict[str, Any] = {}
        self._targets: dict[str, frozenset[TopicPartition]] = {}
        self._bumped: Generation | None = None
        """An epoch that nothing was assigned in yet: as when the last members leave."""

    def add(self, at_ms: int, key_bytes: bytes, value_bytes: bytes | None, causes: bytes | None) -> None:
        if self.log.begins_ms is None:
            self.log.begins_ms = at_ms
        try:
            found = decode_record(key_bytes, value_bytes)
        except (MalformedMessageError, ValueError):
            return
        if not isinstance(found, KeyAndValue):
            return
        key, value = found.key, found.value
        if isinstance(key, OffsetCommitKey):
            if value is not None:
                self.log.commits.setdefault(TopicPartition(key.topic, key.partition), []).append(at_ms)
        elif isinstance(key, GroupMetadataKey):
            if value is not None:
                self.log.is_consumer_protocol = False
                self.log.generations.append(_classic(value, at_ms, causes))
        elif isinstance(key, ConsumerGroupMemberMetadataKey):
            if value is None:
                self._members.pop(key.member_id, None)
            else:
                self._members[key.member_id] = value
        elif isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
            if value is None:
                self._targets.pop(key.member_id, None)
            else:
                self._targets[key.member_id] = self._partitions(value.topic_partitions)
        elif isinstance(key, ConsumerGroupTargetAssignmentMetadataKey):
            if value is not None:
                self.log.is_consumer_protocol = True
                if self._bumped is not None and self._bumped.number == value.assignment_epoch:
                    self._bumped = None
                self.finish()
                self.log.generations.append(self._epoch(value.assignment_epoch, at_ms))
        elif isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
            owns = frozenset() if value is None else self._partitions(value.assigned_partitions)
            epoch = -1 if value is None else value.member_epoch
            self.log.owned.append(Owned(at_ms, key.member_id, epoch, owns))
        elif isinstance(key, ConsumerGroupMetadataKey) and value is not None:
            self.log.is_consumer_protocol = True
            self.finish()
            self._bumped = self._epoch(value.epoch, at_ms)

    def finish(self) -> GroupLog:
        """What was begun is told as far as it came."""
        if self._bumped is not None:
            self.log.generations.append(self._bumped)
            self._bumped = None
        return self.log

    def _epoch(self, number: int, at_ms: int) -> Generation:
        members = {
            member_id: Member(
                member_id,
                value.client_id,
                value.client_host.lstrip("/"),
                value.instance_id,
                tuple(sorted(value.subscribed_topic_names)),
                self._targets.get(member_id, frozenset()),
                0,
                value.rebalance_timeout_ms,
            )
            for member_id, value in self._members.items()
        }
        return Generation(number, at_ms, members, "consumer")

    def _partitions(self, topics: Any) -> frozenset[TopicPartition]:
        return frozenset(
            TopicPartition(self._names.get(bytes(one.topic_id), bytes(one.topic_id).hex()[:8]), index)
            for one in topics
            for index in one.partitions
        )


def _classic(value: GroupMetadataValue, at_ms: int, causes: bytes | None) -> Generation:
    members = {
        one.member_id: Member(
            one.member_id,
            one.client_id,
            one.client_host.lstrip("/"),
            one.group_instance_id,
            _topics(bytes(one.subscription)),
            _assigned(bytes(one.assignment)),
            one.session_timeout,
            one.rebalance_timeout,
        )
        for one in value.members
    }
    said, began_ms = _causes(causes)
    return Generation(value.generation, at_ms, members, value.protocol or "", said, began_ms)


def _causes(data: bytes | None) -> tuple[tuple[str, ...] | None, int | None]:
    if data is None:
        return None, None
    try:
        found = json.loads(data)
        return tuple(map(str, found["causes"])), int(found["began_ms"])
    except (ValueError, KeyError, TypeError):
        return None, None


def _topics(subscription: bytes) -> tuple[str, ...]:
    try:
        return tuple(sorted(decode_topics(subscription)))
    except AssignorError:
        return ()


def _assigned(assignment: bytes) -> frozenset[TopicPartition]:
    if not assignment:
        return frozenset()
    try:
        return frozenset(TopicPartition(*one) for one in decode_assignment(assignment).partitions)
    except AssignorError:
        return frozenset()
