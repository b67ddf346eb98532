"""A cluster in memory that serves consumers, and a consumer core over it, under a clock that is moved by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.client.consumer.fake_consumer_group import FakeConsumerGroup
from tests.client.fake import FakeCluster, VirtualClock

from headrace.client.cluster.core import ClientCore, coordinator_key
from headrace.client.configs import ConnectionConfig
from headrace.client.consumer._base import ConsumerSetup
from headrace.client.consumer._core import ConsumerCore
from headrace.client.flows import Task
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from headrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from headrace.protocol.messages.heartbeat import HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from headrace.protocol.messages.leave_group import LeaveGroupResponse
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from headrace.protocol.messages.sync_group import SyncGroupResponse
from headrace.records import build_batch
from headrace.topics import TopicPartition

CONSUMER_APIS = {
    ApiKey.FETCH: (4, 18),
    ApiKey.LIST_OFFSETS: (1, 11),
    ApiKey.OFFSET_COMMIT: (2, 10),
    ApiKey.OFFSET_FETCH: (1, 10),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.JOIN_GROUP: (0, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1),
}


class FakeGroupCluster(FakeCluster):
    """One group with one member, as its coordinator sees it; and logs that are lists of batches."""

    def __init__(self, clock: VirtualClock, brokers: int = 1, topics: dict[str, int] | None = None) -> None:
        super().__init__(clock, brokers, topics)
        self.served |= CONSUMER_APIS
        self.coordinator = 1
        self.generation = 0
        self.member = ""
        self.assignment = b""
        self.newer = FakeConsumerGroup()
        """The group of the consumer protocol."""
        self.committed: dict[tuple[str, int], int] = {}
        self.starts: dict[tuple[str, int], int] = {}
        self.batches: dict[tuple[str, int], list[tuple[int, int, bytes]]] = {}
        self.epoch_ends: dict[tuple[str, int], tuple[int, int]] = {}
        self.aborted: dict[tuple[str, int], list[Any]] = {}
        self.sessions = 0
        self.session: dict[int, dict[tuple[Any, int], Any]] = {}
        """By node."""
        self.held: dict[int, tuple[float, list[Callable[[], None]]]] = {}
        """Connections whose fetch waits for data, as brokers do: until when, and the answers that wait behind it."""

    def _answer(self, connection: Any, answer: Any, version: int, correlation_id: int) -> None:
        super()._answer(connection, answer, version, correlation_id)
        event = self.events.pop()
        waiting = self.held.get(id(connection))
        if waiting is not None:
            waiting[1].append(event)
        elif isinstance(answer, FetchResponse) and not answer.error_code and not _has_news(answer):
            self.held[id(connection)] = (self.clock.now + 0.5, [event])
        else:
            self.events.append(event)

    def release(self) -> float:
        """Let answers go whose time has come; when the next one's comes."""
        for connection, (until, events) in list(self.held.items()):
            if until <= self.clock.now:
                del self.held[connection]
                self.events.extend(events)
        return min((until for until, _ in self.held.values()), default=self.clock.now + 5)

    def write(self, topic: str, partition: int, count: int, epoch: int = 0, **options: Any) -> None:
        base = self.end(topic, partition)
        batch = build_batch(
            [(1, None, b"%d" % (base + i), ()) for i in range(count)],
            base_offset=base,
            leader_epoch=epoch,
            **options,
        )
        self.batches.setdefault((topic, partition), []).append((base, base + count, bytes(batch)))

    def end(self, topic: str, partition: int) -> int:
        found = self.batches.get((topic, partition))
        return found[-1][1] if found else self.starts.get((topic, partition), 0)

    def names(self, kind: str) -> list[Any]:
        return [request for _, name, _, request in self.requests if name == kind]

    def _work(self, node: int, name: str, request: Any, version: int) -> Any:
        method = getattr(self, f"_do_{name}", None)
        return super()._work(node, name, request, version) if method is None else method(node, request, version)

    def _do_FindCoordinator(self, node: int, request: Any, version: int) -> Any:
        found = {"node_id": self.coordinator, "host": "fake", "port": 9000 + self.coordinator}
        if version < 4:
            return FindCoordinatorResponse(**found)
        return FindCoordinatorResponse(coordinators=[Coordinator(key=request.coordinator_keys[0], **found)])

    def _do_JoinGroup(self, node: int, request: Any, version: int) -> Any:
        if node != self.coordinator:
            return JoinGroupResponse(error_code=ErrorCode.NOT_COORDINATOR, protocol_name="")
        if not request.member_id and version >= 4 and request.group_instance_id is None:
            return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="member-1", protocol_name="")
        self.generation += 1
        self.member = request.member_id or "member-static"
        chosen = request.protocols[0]
        members = [JoinGroupResponseMember(member_id=self.member, metadata=chosen.metadata)]
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name=chosen.name,
            leader=self.member,
            member_id=self.member,
            members=members,
        )

    def _do_SyncGroup(self, node: int, request: Any, version: int) -> Any:
        for one in request.assignments:
            self.assignment = bytes(one.assignment)
        return SyncGroupResponse(assignment=self.assignment)

    def _do_Heartbeat(self, node: int, request: Any, version: int) -> Any:
        if node != self.coordinator:
            return HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR)
        return HeartbeatResponse()

    def give(self, *partitions: TopicPartition) -> None:
        """What the member of a group of the consumer protocol is to have."""
        self.newer.target = frozenset((self.topic_ids[name.topic], name.partition) for name in partitions)

    def _do_ConsumerGroupHeartbeat(self, node: int, request: Any, version: int) -> Any:
        if node != self.coordinator:
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR)
        return self.newer.heartbeat(request)

    def _do_LeaveGroup(self, node: int, request: Any, version: int) -> Any:
        return LeaveGroupResponse()

    def _do_OffsetCommit(self, node: int, request: Any, version: int) -> Any:
        topics = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                self.committed[(topic.name, part.partition_index)] = part.committed_offset
                parts.append(OffsetCommitResponsePartition(partition_index=part.partition_index))
            topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=parts))
        return OffsetCommitResponse(topics=topics)

    def _do_OffsetFetch(self, node: int, request: Any, version: int) -> Any:
        topics = [
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=p,
                        committed_offset=self.committed.get((topic.name, p), -1),
                        committed_leader_epoch=0 if (topic.name, p) in self.committed else -1,
                        metadata="",
                    )
                    for p in topic.partition_indexes
                ],
            )
            for topic in request.groups[0].topics
        ]
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=topics)])

    def _do_ListOffsets(self, node: int, request: Any, version: int) -> Any:
        topics = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                key = (topic.name, part.partition_index)
                offset = self.starts.get(key, 0) if part.timestamp == -2 else self.end(*key)
                parts.append(
                    ListOffsetsPartitionResponse(
                        partition_index=part.partition_index, offset=offset, leader_epoch=self.leaders[key][1]
                    )
                )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=parts))
        return ListOffsetsResponse(topics=topics)

    def _do_OffsetForLeaderEpoch(self, node: int, request: Any, version: int) -> Any:
        topics = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                epoch, end = self.epoch_ends.get((topic.topic, part.partition), (part.leader_epoch, 1 << 40))
                parts.append(EpochEndOffset(partition=part.partition, leader_epoch=epoch, end_offset=end))
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=parts))
        return OffsetForLeaderEpochResponse(topics=topics)

    def _do_Fetch(self, node: int, request: Any, version: int) -> Any:
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        is_whole = request.session_epoch in (0, -1)
        if request.session_epoch == 0:
            self.sessions += 1
            self.session[node] = {}
        elif not is_whole and node not in self.session:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0, responses=[])
        session = self.session.setdefault(node, {}) if request.session_epoch >= 0 else {}
        for topic in request.topics:
            for part in topic.partitions:
                # By what names the topic: another one of the same name is not in the session.
                named = topic.topic_id if version >= 13 else topic.topic
                session[(named, part.partition)] = part
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                session.pop((topic.topic_id if version >= 13 else topic.topic, index), None)
        responses = []
        for (named, index), part in session.items():
            name = names.get(named) if version >= 13 else named
            topic_id = named if version >= 13 else bytes(16)
            if name not in self.topic_ids:
                code = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                data: PartitionData | None = PartitionData(partition_index=index, error_code=code)
            else:
                data = self._read(node, (name, index), part)
                if data is None and is_whole:
                    data = PartitionData(partition_index=index, high_watermark=self.end(name, index))
            if data is not None:
                responses.append(FetchableTopicResponse(topic=name or "", topic_id=topic_id, partitions=[data]))
        return FetchResponse(session_id=77 if request.session_epoch >= 0 else 0, responses=responses)

    def _read(self, node: int, key: tuple[str, int], part: Any) -> PartitionData | None:
        index = key[1]
        leader, epoch = self.leaders[key]
        if leader != node:
            return PartitionData(partition_index=index, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if part.current_leader_epoch not in (-1, epoch):
            return PartitionData(partition_index=index, error_code=ErrorCode.FENCED_LEADER_EPOCH)
        if not self.starts.get(key, 0) <= part.fetch_offset <= self.end(*key):
            return PartitionData(partition_index=index, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        found = b"".join(data for _, end, data in self.batches.get(key, []) if end > part.fetch_offset)
        if not found:
            return None
        end = self.end(*key)
        return PartitionData(
            partition_index=index,
            high_watermark=end,
            last_stable_offset=end,
            aborted_transactions=self.aborted.get(key),
            records=found,
        )


def _has_news(answer: FetchResponse) -> bool:
    parts = [part for topic in answer.responses for part in topic.partitions]
    return any(part.records or part.error_code or part.preferred_read_replica >= 0 for part in parts)


def prefers_broker_2(cluster: FakeGroupCluster) -> list[int]:
    """Broker 1 leads, and sends consumers on to broker 2, which has the same log. Gives who was fetched from.

    Whoever does not say where it is gets its answers from the leader.
    """
    name = ("t", 0)
    cluster.leaders[name] = (1, 0)
    asked: list[int] = []

    def script(node: int, kind: str, request: Any) -> Any:
        if kind != "Fetch":
            return None
        asked.append(node)
        if node == 2:
            cluster.leaders[name] = (2, 0)
            try:
                return cluster._do_Fetch(2, request, 13)
            finally:
                cluster.leaders[name] = (1, 0)
        if not request.rack_id:
            return None
        data = PartitionData(partition_index=0, high_watermark=cluster.end(*name), preferred_read_replica=2)
        topic = FetchableTopicResponse(topic="t", topic_id=cluster.topic_ids["t"], partitions=[data])
        return FetchResponse(session_id=0, responses=[topic])

    cluster.script = script
    return asked


class ConsumerWorld:
    """A consumer core over a fake cluster. Heartbeats go out as they do on asyncio, on the same core."""

    def __init__(self, cluster: FakeGroupCluster, **keywords: Any) -> None:
        self.cluster, self.clock = cluster, cluster.clock
        keywords.setdefault("bootstrap_servers", ",".join(f"fake:{9000 + b}" for b in cluster.brokers))
        self.setup = ConsumerSetup(None, keywords)
        self.core = ClientCore(ConnectionConfig.of(self.setup.values), self.clock, random.Random(3), cluster)
        cluster.client = self.core
        self.consumer = ConsumerCore(
            self.core, self.setup.settings, self.setup.assignors, self.setup.deserializers, lambda: None
        )
        self.records: list[Any] = []
        self.is_polling = True

    def settle(self) -> float:
        """Everything that can happen now; seconds until something is due."""
        for _ in range(10_000):
            due = self.core.tick()
            if self.is_polling:
                self.consumer.polled()
                while (pending := self.consumer.advance()) is not None:
                    task, code = pending
                    try:
                        task.resume(code.function(*code.arguments))
                    except Exception as error:  # noqa: BLE001 - as the drivers do
                        task.resume(error=error)
                self.records.extend(self.consumer.collector.collect(500))
                due = min(due, self.consumer.due_s())
            due = min(due, self._beat(), self.cluster.release() - self.clock.now)
            if not self.cluster.events:
                return due
            self.cluster.events.popleft()()
        raise AssertionError("this does not come to rest")

    def _beat(self) -> float:
        beats = self.consumer.heartbeats
        if beats is None:
            return 5.0
        due = beats.next_request(self.clock.now)
        if due is not None:
            node, request, identity = due
            self.core.learn_node(node)

            def done(call: Any) -> None:
                beats.answered(identity, call.response, call.error, self.clock.now)

            self.core.submit(coordinator_key(node.id), request, done)
        return max(0.0, beats.due_at() - self.clock.now)

    def run_until(self, condition: Callable[[], Any], limit_s: float = 120.0) -> None:
        deadline = self.clock.now + limit_s
        while True:
            due = self.settle()
            if condition():
                return
            if self.cluster.events:
                continue
            assert self.clock.now < deadline, f"not reached within {limit_s} virtual seconds"
            self.clock.now += max(0.001, min(due, 1.0))

    def run(self, flow: Any, limit_s: float = 120.0) -> Any:
        """A flow to its end; what it gives or raises."""
        task: Task[Any] = Task(flow)
        polling, self.is_polling = self.is_polling, False

        def moved() -> bool:
            code = task.advance(self.clock.now)
            if code is not None:
                task.resume(code.function(*code.arguments))
                return moved()
            return task.done

        try:
            self.run_until(moved, limit_s)
        finally:
            self.is_polling = polling
        if task.error is not None:
            raise task.error
        return task.result

    def assigned(self) -> set[TopicPartition]:
        return set(self.consumer.subscriptions.assigned())
