"""What the simulation of groups is made of: clients, requests, what was said and written; and when a group is sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.errors import ErrorCode
from headrace.groups import GroupState, Outcome, StoredRecord
from headrace.groups.classic.state import ClassicGroup as Group
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.protocol.stored.consumer_offsets import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_record,
)
from headrace.protocol.stored.coordinator import Unknown


@dataclass
class Client:
    """A consumer, alive or not. `life` counts its restarts: answers to an earlier life mean nothing to it."""

    name: str
    group_id: str
    instance_id: str | None
    version: int
    protocols: list[str]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str = ""
    generation: int = -1
    generation_epoch: int = -1  # of the coordinator that told it of its generation
    phase: str = "out"
    life: int = 0
    waiting: int | None = None  # the token that it waits for
    asked_ms: int = 0
    in_transaction: bool = False
    turn: int = 0  # only the latest plan for what it does next counts

    def join_request(self, metadata: bytes) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in self.protocols],
        )

    def sync_request(self, assignments: list[SyncGroupRequestAssignment]) -> SyncGroupRequest:
        return SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            assignments=assignments,
        )

    def heartbeat_request(self) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )

    def leave_request(self) -> LeaveGroupRequest:
        who = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
        return LeaveGroupRequest(group_id=self.group_id, members=[who])

    def commit_request(self, topic: str, offsets: dict[int, int]) -> OffsetCommitRequest:
        partitions = [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
            for index, offset in offsets.items()
        ]
        return OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=partitions)],
        )

    def transactional_commit_request(
        self, producer_id: int, topic: str, offsets: dict[int, int]
    ) -> TxnOffsetCommitRequest:
        partitions = [
            TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
            for index, offset in offsets.items()
        ]
        return TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.group_id,
            producer_id=producer_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=partitions)],
        )


@dataclass
class Sent:
    """A request as the coordinator saw it."""

    client: Client
    life: int
    method: str
    request: Any
    epoch: int  # a request and its answer travel on a connection, which ends with the coordinator at its other end
    expected: bool = True  # False: nobody waits for the answer (a repeated message)
    arrived: bool = False


@dataclass
class Facts:
    """What was answered in one epoch of one group: from a start of the coordinator to the next."""

    leaders: dict[int, str] = field(default_factory=dict)  # generation → who was asked for the assignment
    assigned: dict[int, str] = field(default_factory=dict)  # generation → mark of the assignment that was handed out
    generation: int = -1  # the latest that anyone was told


class Written(NamedTuple):
    """An offset in the log, and its place there."""

    offset: int
    place: int


@dataclass(eq=False)
class Write:
    """Records on their way to the log; of those whose partition was led elsewhere meanwhile, with what they failed."""

    outcome: Outcome
    given_up: dict[int, ErrorCode] = field(default_factory=dict)


@dataclass(eq=False)
class Marker:
    """The end of a transaction in one partition, on its way to the log."""

    partition: int
    producer_id: int
    committed: bool
    end: Callable[[], None]


class Books:
    """What the log says of offsets, worked out record by record, and not by the coordinator's loader."""

    def __init__(self) -> None:
        self.committed: dict[tuple[str, int], Written] = {}  # group, partition → offset
        self.pending: dict[int, dict[tuple[str, int], Written]] = {}  # the same of open transactions, by producer
        self.writes = 0

    def note(self, record: StoredRecord) -> str | None:
        """Take in a record; if it is a group's tombstone, its name."""
        found = decode_record(record.key, record.value)
        assert not isinstance(found, Unknown)
        if isinstance(found.key, GroupMetadataKey):
            return found.key.group if record.value is None else None
        assert isinstance(found.key, OffsetCommitKey)
        name = (found.key.group, found.key.partition)
        self.writes += 1
        if found.value is None:
            self.committed.pop(name, None)
            for table in self.pending.values():
                table.pop(name, None)
            return None
        assert isinstance(found.value, OffsetCommitValue)
        table = self.committed if record.producer_id < 0 else self.pending.setdefault(record.producer_id, {})
        table[name] = Written(found.value.offset, self.writes)
        return None

    def end(self, marker: Marker, is_here: Callable[[str], bool]) -> None:
        """A transaction has ended, for the groups of one partition."""
        table = self.pending.get(marker.producer_id, {})
        for name in [name for name in table if is_here(name[0])]:
            written = table.pop(name)
            if marker.committed and written.place > self.committed.get(name, Written(0, -1)).place:
                self.committed[name] = written

    def offsets(self, is_wanted: Callable[[str], bool]) -> dict[tuple[str, int, int], int]:
        """By group, producer (-1: committed) and partition."""
        return {
            (group_id, producer_id, index): written.offset
            for producer_id, table in {-1: self.committed, **self.pending}.items()
            for (group_id, index), written in table.items()
            if is_wanted(group_id)
        }


def check_group(group: Group) -> None:
    assert group.joining == sum(member.join is not None for member in group.members.values())
    assert all(member_id == member.member_id for member_id, member in group.members.items())
    statics = {m.instance_id: m.member_id for m in group.members.values() if m.instance_id is not None}
    assert group.static_members == statics
    support: dict[str, int] = {}
    for member in group.members.values():
        for name, _ in member.protocols:
            support[name] = support.get(name, 0) + 1
    assert group._support == support
    assert not group.pending.keys() & group.members.keys()
    assert group.pending_sync <= group.members.keys()
    if group.members:
        assert group.leader in group.members
    waits_for_sync = [member for member in group.members.values() if member.sync is not None]
    match group.state:
        case GroupState.EMPTY:
            assert not group.members
        case GroupState.PREPARING_REBALANCE:
            assert group.join_deadline_ms is not None, "a rebalance without an end"
            assert not waits_for_sync
        case GroupState.COMPLETING_REBALANCE:
            leader = group.members[group.leader or ""]
            assert group.sync_deadline_ms is not None or group.storing is not None or leader.sync is None
            if leader.sync is not None:
                assert group.storing == group.generation, "the leader synced, but nothing is being written"
            else:
                assert group.sync_deadline_ms is not None or group.storing is not None, "nobody waits for the leader"
        case GroupState.STABLE:
            assert not waits_for_sync
