"""A cluster for the model of the consumer: it answers late, wrongly or not at all, moves leaders and coordinators, cuts
logs back, creates topics again; and it knows what may be handed out and committed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from tests.client.consumer.fake_group import FakeGroupCluster
from tests.client.fake import CUT, CUT_BEFORE, SILENCE, VirtualClock
from tests.records.legacy_messages import message

from headrace.assignors import Assignment, decode_assignment, encode_assignment
from headrace.errors import ErrorCode
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from headrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from headrace.protocol.messages.heartbeat import HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupResponse
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.protocol.messages.metadata import MetadataResponse
from headrace.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.protocol.messages.offset_fetch import OffsetFetchResponse, OffsetFetchResponseGroup
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from headrace.protocol.messages.sync_group import SyncGroupResponse
from headrace.records import ControlType, build_batch, control_batch
from headrace.topics import TopicPartition

# What would end the consumer for good, or is no answer to a consumer of this kind.
_NEVER = {ErrorCode.NONE, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNSUPPORTED_VERSION}
CODES = [code for code in ErrorCode if code not in _NEVER]


class ModelCluster(FakeGroupCluster):
    """`hostility` is how likely each answer is not what it should be."""

    def __init__(
        self, rng: random.Random, partitions: int, commit_limit: Callable[[TopicPartition], int], protocol: str
    ) -> None:
        super().__init__(VirtualClock(), rng.randint(1, 3), {"t": partitions})
        self.is_consumer_protocol = protocol == "consumer"
        self.rng = rng
        self.hostility = rng.choice([0.02, 0.1, 0.25])
        self._loses = rng.random() < 0.6
        """Whether logs are cut back, and deleted; where they are, less can be said of what has to come next."""
        self.partitions = [TopicPartition("t", number) for number in range(partitions)]
        self.values: dict[TopicPartition, dict[int, bytes]] = {name: {} for name in self.partitions}
        """Offset → the value of the record there; offsets of markers have none."""
        self.markers: set[tuple[TopicPartition, int]] = set()
        """Where a marker ever was."""
        self.history: dict[TopicPartition, set[tuple[int, bytes]]] = {name: set() for name in self.partitions}
        """Every offset and value there ever was."""
        self.cuts: dict[TopicPartition, list[tuple[int, int]]] = {name: [] for name in self.partitions}
        """Where a log was cut back, and from which number on records were written after that."""
        self.resets: set[TopicPartition] = set()
        """Partitions whose positions were called out of range."""
        self.ever_cut: set[TopicPartition] = set()
        """Partitions whose logs were cut back, or deleted, at any time."""
        self.gone: dict[TopicPartition, dict[tuple[int, bytes], int]] = {name: {} for name in self.partitions}
        """What was cut off, and in which leader epoch."""
        self.left = ""
        """The member that left last."""
        self.epochs: dict[tuple[str, int], int] = {}
        self.written = 0
        self.failures: list[str] = []
        self._commit_limit = commit_limit
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        self._rebalancing = False
        self._ids = 0
        for name in self.partitions:
            self.leaders[name] = (rng.choice(self.brokers), 0)

    # --- what happens -------------------------------------------------------------------------------------------------

    def grow(self) -> None:
        name = self.rng.choice(self.partitions)
        base, epoch = self.end(*name), self.leaders[name][1]
        if self.rng.random() < 0.15:
            marker = control_batch(
                ControlType.COMMIT,
                producer_id=5,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=1,
                base_offset=base,
                leader_epoch=epoch,
            )
            self.batches.setdefault(name, []).append((base, base + 1, bytes(marker)))
            self.markers.add((name, base))
            return
        count = self.rng.randint(1, 12)
        values = [b"%d" % (self.written + n) for n in range(count)]
        self.written += count
        for n, value in enumerate(values):
            self.values[name][base + n] = value
            self.history[name].add((base + n, value))
        if epoch == 0 and self.rng.random() < 0.2:
            data = b"".join(message(base + n, value) for n, value in enumerate(values))
        else:
            data = bytes(build_batch([(1, None, v, ()) for v in values], base_offset=base, leader_epoch=epoch))
        self.batches.setdefault(name, []).append((base, base + count, data))

    def happen(self) -> None:
        """Something that clusters do."""
        name = self.rng.choice(self.partitions)
        epoch = self.leaders[name][1]
        what = self.rng.random()
        if what < 0.2 or (what < 0.5 and not self._loses):
            self.leaders[name] = (self.rng.choice(self.brokers), epoch + 1)
        elif what < 0.4:
            self._truncate(name, epoch)
        elif what < 0.5:
            self._recreate()
        elif what < 0.6:
            self.coordinator = self.rng.choice(self.brokers)
        elif what < 0.75:
            self._rebalancing = True
        elif what < 0.8:
            # The session is over: nobody here knows this member.
            self.member, self.generation = "nobody", self.generation + 1
            if self.newer.member:
                self.newer.forget_member()
                self.newer.epoch += 1
        elif what < 0.85:
            self.down = {self.rng.choice(self.brokers)}
        else:
            self.down = set()

    def _truncate(self, name: TopicPartition, epoch: int) -> None:
        """An unclean election: the new leader lacks the last batches."""
        batches = self.batches.get(name, [])
        kept = batches[: self.rng.randint(0, len(batches))]
        if len(kept) == len(batches):
            return
        self._commit_limit(name)
        cut = kept[-1][1] if kept else self.starts.get(name, 0)
        self.batches[name] = kept
        before = self.values[name]
        self.values[name] = {offset: value for offset, value in before.items() if offset < cut}
        self.gone[name] |= {(offset, value): epoch + 1 for offset, value in before.items() if offset >= cut}
        self.cuts[name].append((cut, self.written))
        self.ever_cut.add(name)
        self.leaders[name] = (self.rng.choice(self.brokers), epoch + 1)

    def _recreate(self) -> None:
        self._ids += 1
        self.topic_ids["t"] = b"id-%013d" % self._ids
        for name in self.partitions:
            self._commit_limit(name)
            self.batches[name], self.values[name], self.gone[name] = [], {}, {}
            self.leaders[name] = (self.rng.choice(self.brokers), 0)
            self.committed.pop(name, None)
            self.epochs.pop(name, None)
            self.cuts[name].append((0, self.written))
            self.ever_cut.add(name)

    def be_nice(self) -> None:
        self.hostility, self.down = 0.0, set()
        # Whoever else had partitions leaves.
        self._rebalancing = True

    @property
    def is_rebalancing(self) -> bool:
        """Whether the member has yet to hear that it is to join again, or to do so."""
        if self.is_consumer_protocol:
            return self._rebalancing or not self.newer.is_settled
        return self._rebalancing

    # --- answers ------------------------------------------------------------------------------------------------------

    def release(self) -> float:
        while self._later and self._later[0][0] <= self.clock.now:
            self.events.append(heapq.heappop(self._later)[2])
        due = super().release()
        return min(due, self._later[0][0]) if self._later else due

    def _answer(self, connection: Any, answer: Any, version: int, correlation_id: int) -> None:
        super()._answer(connection, answer, version, correlation_id)
        if self.events and self.hostility and self.rng.random() < self.hostility:
            event = self.events.pop()
            self._numbers += 1
            heapq.heappush(self._later, (self.clock.now + self.rng.choice([0.01, 0.3, 3, 40]), self._numbers, event))
            if self.rng.random() < 0.05:
                # Said twice: whatever the second answers, it is not what was asked next.
                heapq.heappush(self._later, (self.clock.now + 0.02, self._numbers + 1_000_000, event))

    def _handle(self, connection: Any, frame: bytes) -> None:
        if connection.node.port - 9000 in self.down:
            self._cut(connection)
            return
        if self.hostility and self.rng.random() < self.hostility / 3:
            kind = self.rng.choice([CUT, CUT_BEFORE, SILENCE])
            before, self.script = self.script, lambda *_: kind
            try:
                super()._handle(connection, frame)
            finally:
                self.script = before
            return
        super()._handle(connection, frame)

    def _work(self, node: int, name: str, request: Any, version: int) -> Any:
        if self.hostility and self.rng.random() < self.hostility:
            wrong = self._wrong(name, request, version)
            if wrong is not None:
                if self.rng.random() < 0.3:
                    # Done all the same: it is only the answer that is wrong.
                    super()._work(node, name, request, version)
                return wrong
        return super()._work(node, name, request, version)

    def _wrong(self, name: str, request: Any, version: int) -> Any:
        code = self.rng.choice(CODES)
        if name == "JoinGroup":
            return JoinGroupResponse(error_code=code, protocol_name="", member_id="member-1")
        if name == "SyncGroup":
            return SyncGroupResponse(error_code=code)
        if name == "ConsumerGroupHeartbeat":
            return ConsumerGroupHeartbeatResponse(error_code=code)
        if name == "Heartbeat":
            return HeartbeatResponse(error_code=code)
        if name == "FindCoordinator" and version >= 4:
            one = Coordinator(key="g", error_code=code, host="", error_message=None)
            return FindCoordinatorResponse(coordinators=[one])
        if name == "OffsetFetch" and version >= 8:
            return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", error_code=code)])
        if name == "OffsetCommit":
            return self._commit_answer(request, code)
        if name == "ListOffsets":
            return ListOffsetsResponse(
                topics=[
                    ListOffsetsTopicResponse(
                        name=topic.name,
                        partitions=[
                            ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=code)
                            for part in topic.partitions
                        ],
                    )
                    for topic in request.topics
                ]
            )
        if name == "OffsetForLeaderEpoch":
            return self._epoch_answer(
                request, lambda name, part: EpochEndOffset(partition=part.partition, error_code=code)
            )
        if name == "Metadata":
            return MetadataResponse(brokers=[], topics=[]) if self.rng.random() < 0.5 else None
        if name == "Fetch":
            return self._wrong_fetch(request, version, code)
        return None

    def _wrong_fetch(self, request: Any, version: int, code: ErrorCode) -> Any:
        if self.rng.random() < 0.3:
            return FetchResponse(error_code=code, session_id=0, responses=[])
        topics = []
        for topic in request.topics:
            parts = [PartitionData(partition_index=part.partition, error_code=code) for part in topic.partitions]
            topics.append(FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=parts))
            if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self.resets |= {TopicPartition("t", part.partition) for part in topic.partitions}
        return FetchResponse(session_id=0, responses=topics)

    # --- the group ----------------------------------------------------------------------------------------------------

    def _stranger(self, request: Any, generation: int) -> ErrorCode:
        if self.is_consumer_protocol:
            if request.member_id != self.newer.member:
                return ErrorCode.UNKNOWN_MEMBER_ID
            return ErrorCode.STALE_MEMBER_EPOCH if generation != self.newer.epoch else ErrorCode.NONE
        if request.member_id != self.member:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.ILLEGAL_GENERATION if generation != self.generation else ErrorCode.NONE

    def _do_JoinGroup(self, node: int, request: Any, version: int) -> Any:
        answer = super()._do_JoinGroup(node, request, version)
        if not answer.error_code:
            self._rebalancing = False
        return answer

    def _do_SyncGroup(self, node: int, request: Any, version: int) -> Any:
        code = ErrorCode.NOT_COORDINATOR if node != self.coordinator else self._stranger(request, request.generation_id)
        if code:
            return SyncGroupResponse(error_code=code)
        answer = super()._do_SyncGroup(node, request, version)
        if self.hostility and self.rng.random() < 0.2:
            # Somebody else has some of them, for as long as this generation lasts.
            whole = decode_assignment(answer.assignment)
            kept = [name for name in whole.partitions if self.rng.random() < 0.7]
            answer.assignment = encode_assignment(Assignment(kept))
        return answer

    def _do_Heartbeat(self, node: int, request: Any, version: int) -> Any:
        code = ErrorCode.NOT_COORDINATOR if node != self.coordinator else self._stranger(request, request.generation_id)
        if not code and self._rebalancing:
            code = ErrorCode.REBALANCE_IN_PROGRESS
        return HeartbeatResponse(error_code=code)

    def _do_ConsumerGroupHeartbeat(self, node: int, request: Any, version: int) -> Any:
        if node != self.coordinator:
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR)
        if self._rebalancing or request.member_epoch == 0 or self._is_of_another_topic():
            self._rebalancing = False
            # Somebody else has some of them, as long as the cluster is not well.
            self.give(*(one for one in self.partitions if not self.hostility or self.rng.random() < 0.7))
        answer = self.newer.heartbeat(request)
        self.generation = self.newer.epoch
        if self.newer.member:
            self.member = self.newer.member
        elif request.member_epoch < 0:
            self.left = request.member_id
        return answer

    def _is_of_another_topic(self) -> bool:
        return any(topic_id != self.topic_ids["t"] for topic_id, _ in self.newer.target)

    def _do_LeaveGroup(self, node: int, request: Any, version: int) -> Any:
        if node != self.coordinator:
            return LeaveGroupResponse(error_code=ErrorCode.NOT_COORDINATOR)
        self.left = request.member_id or request.members[0].member_id
        return LeaveGroupResponse()

    def _do_OffsetCommit(self, node: int, request: Any, version: int) -> Any:
        generation = request.generation_id_or_member_epoch
        code = ErrorCode.NOT_COORDINATOR if node != self.coordinator else ErrorCode.NONE
        if not code and generation >= 0:
            code = self._stranger(request, generation)
        for topic in request.topics:
            for part in topic.partitions:
                name = TopicPartition(topic.name, part.partition_index)
                if part.committed_offset > self._commit_limit(name):
                    self.failures.append(
                        f"{name} was committed at {part.committed_offset}, handed out up to {self._commit_limit(name)}"
                    )
                if not code:
                    self.committed[name] = part.committed_offset
                    self.epochs[name] = part.committed_leader_epoch
        return self._commit_answer(request, code)

    @staticmethod
    def _commit_answer(request: Any, code: int) -> OffsetCommitResponse:
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=part.partition_index, error_code=code)
                        for part in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _do_OffsetFetch(self, node: int, request: Any, version: int) -> Any:
        if node != self.coordinator:
            group = OffsetFetchResponseGroup(group_id="g", error_code=ErrorCode.NOT_COORDINATOR)
            return OffsetFetchResponse(groups=[group])
        answer = super()._do_OffsetFetch(node, request, version)
        for topic in answer.groups[0].topics:
            for part in topic.partitions:
                part.committed_leader_epoch = self.epochs.get((topic.name, part.partition_index), -1)
        return answer

    # --- leaders ------------------------------------------------------------------------------------------------------

    def _do_ListOffsets(self, node: int, request: Any, version: int) -> Any:
        answer = super()._do_ListOffsets(node, request, version)
        for topic in answer.topics:
            for part in topic.partitions:
                if self.leaders[(topic.name, part.partition_index)][0] != node:
                    part.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                    part.offset = -1
        return answer

    def _do_OffsetForLeaderEpoch(self, node: int, request: Any, version: int) -> Any:
        return self._epoch_answer(request, lambda name, part: self._epoch_end(node, name, part))

    @staticmethod
    def _epoch_answer(request: Any, answer: Callable[[TopicPartition, Any], EpochEndOffset]) -> Any:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[answer(TopicPartition(topic.topic, part.partition), part) for part in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    def _epoch_end(self, node: int, name: TopicPartition, part: Any) -> EpochEndOffset:
        leader, current = self.leaders[name]
        if leader != node:
            return EpochEndOffset(partition=part.partition, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if part.current_leader_epoch not in (-1, current):
            return EpochEndOffset(partition=part.partition, error_code=ErrorCode.FENCED_LEADER_EPOCH)
        starts: dict[int, int] = {}
        for base, _, data in self.batches.get(name, []):
            if data[16] == 2:
                starts.setdefault(int.from_bytes(data[12:16], "big"), base)
        starts.setdefault(current, self.end(*name))
        asked = part.leader_epoch
        known = [epoch for epoch in starts if epoch <= asked]
        if asked > max(starts) or not known:
            return EpochEndOffset(partition=part.partition, leader_epoch=-1, end_offset=-1)
        later = [start for epoch, start in starts.items() if epoch > asked]
        end = min(later) if later else self.end(*name)
        return EpochEndOffset(partition=part.partition, leader_epoch=max(known), end_offset=end)
