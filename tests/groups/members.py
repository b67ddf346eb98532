"""Short words for what members of a group do, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.errors import ErrorCode
from headrace.groups import GroupConfig
from headrace.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

from .driver import Driver

GROUP = "group"
SESSION_MS = 10_000
REBALANCE_MS = 60_000


def subscription(*topics: str) -> bytes:
    """A consumer's subscription, as it tells it to its leader."""
    body = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\x00\x00" + len(topics).to_bytes(4, "big") + body + b"\xff\xff\xff\xff"


def join_request(
    member_id: str = "",
    *,
    group: str = GROUP,
    instance: str | None = None,
    protocols: dict[str, bytes] | None = None,
    protocol_type: str = "consumer",
    session_ms: int = SESSION_MS,
    rebalance_ms: int = REBALANCE_MS,
) -> JoinGroupRequest:
    chosen = {"range": b"meta"} if protocols is None else protocols
    return JoinGroupRequest(
        group_id=group,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in chosen.items()],
    )


@dataclass
class Members:
    """A driver that speaks of members instead of messages."""

    driver: Driver

    @classmethod
    def of(cls, **config: Any) -> Members:
        return cls(Driver(GroupConfig(**{"initial_rebalance_delay_ms": 0, "offsets_topic_partitions": 4} | config)))

    # --- one request each; those that may wait give a token

    def join(self, member_id: str = "", *, version: int = 9, **more: Any) -> int:
        return self.driver.send("join_group", join_request(member_id, **more), version)

    def joined(self, member_id: str = "", *, version: int = 9, **more: Any) -> JoinGroupResponse:
        return self.driver.wait(self.join(member_id, version=version, **more))

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        version: int = 5,
        group: str = GROUP,
    ) -> int:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            assignments=[
                SyncGroupRequestAssignment(member_id=who, assignment=what) for who, what in (assignments or {}).items()
            ],
        )
        return self.driver.send("sync_group", request, version)

    def synced(self, *arguments: Any, **more: Any) -> SyncGroupResponse:
        return self.driver.wait(self.sync(*arguments, **more))

    def heartbeat(
        self, member_id: str, generation: int, *, instance: str | None = None, group: str = GROUP
    ) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        return ErrorCode(self.driver.ask("heartbeat", request, 4).error_code)

    def leave(self, *members: str | tuple[str, str | None], group: str = GROUP) -> LeaveGroupResponse:
        who = [m if isinstance(m, tuple) else (m, None) for m in members]
        identities = [MemberIdentity(member_id=member, group_instance_id=instance) for member, instance in who]
        return self.driver.ask("leave_group", LeaveGroupRequest(group_id=group, members=identities), 5)

    def describe(self, group: str = GROUP, version: int = 5) -> DescribedGroup:
        return self.driver.ask("describe_groups", DescribeGroupsRequest(groups=[group]), version).groups[0]

    def state(self, group: str = GROUP) -> str:
        return self.describe(group).group_state

    def commit_request(
        self,
        offset: int,
        *,
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        topic: str = "topic",
        partition: int = 0,
        metadata: str | None = "",
        group: str = GROUP,
        retention_ms: int = -1,
    ) -> OffsetCommitRequest:
        wanted = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )
        return OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=[wanted])],
        )

    def commit(self, offset: int, *, version: int = 8, **more: Any) -> ErrorCode:
        response = self.driver.ask("offset_commit", self.commit_request(offset, **more), version)
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def txn_commit(
        self,
        offset: int,
        *,
        producer_id: int = 7,
        member_id: str = "",
        generation: int = -1,
        topic: str = "topic",
        partition: int = 0,
        group: str = GROUP,
        version: int = 3,
    ) -> ErrorCode:
        wanted = TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id="txn",
            group_id=group,
            producer_id=producer_id,
            generation_id=generation,
            member_id=member_id,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[wanted])],
        )
        response = self.driver.ask("txn_offset_commit", request, version)
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def offsets(self, group: str = GROUP, *, stable: bool = False) -> dict[tuple[str, int], int | ErrorCode]:
        """All offsets of a group; where there is none because of an error, the error."""
        request = OffsetFetchRequest(group_id=group, topics=None, require_stable=stable)
        return {
            (topic.name, p.partition_index): ErrorCode(p.error_code) if p.error_code else p.committed_offset
            for topic in self.driver.ask("offset_fetch", request, 7).topics
            for p in topic.partitions
        }

    # --- whole groups

    def new_member(self, **more: Any) -> str:
        """An id for a member that has not joined yet."""
        response = self.joined(**more)
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return response.member_id

    def stable(self, count: int = 1, **more: Any) -> tuple[list[str], int]:
        """A group of so many members, each assigned `of <member>`: their ids, the leader first, and the generation."""
        members = [self.new_member(**more) for _ in range(count)]
        tokens = [self.join(member_id, **more) for member_id in members]
        generation = self.driver.wait(tokens[0]).generation_id
        leader = self.driver.wait(tokens[0]).leader
        for token in tokens:
            assert self.driver.wait(token).generation_id == generation
        members.sort(key=lambda member_id: member_id != leader)
        group = more.get("group", GROUP)
        waiting = [self.sync(member_id, generation, group=group) for member_id in members[1:]]
        shares = {member_id: f"of {member_id}".encode() for member_id in members}
        assert self.synced(leader, generation, shares, group=group).error_code == ErrorCode.NONE
        for token in waiting:
            assert self.driver.wait(token).error_code == ErrorCode.NONE
        return members, generation
