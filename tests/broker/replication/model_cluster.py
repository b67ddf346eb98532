"""A cluster without codec, disk and sockets: the real decisions of controller, leaders and followers, joined by
messages that are lost, late and out of order; and the invariants, which are checked after every step.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.broker.replication.model_log import ModelLog, Record
from tests.broker.replication.model_node import (
    CONTROLLER,
    MIN_ISR_CONFIG,
    PARTITION,
    Altered,
    Fetch,
    Fetched,
    Message,
    Node,
    Replica,
    ViolationError,
)

from headrace.broker.replication.leader import LeaderState
from headrace.cluster import brokers, features, leadership
from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.brokers import Registration
from headrace.cluster.configs import BrokerLayers
from headrace.cluster.controller import Controller
from headrace.cluster.decision import Decision
from headrace.cluster.image import Endpoint, Image, PartitionImage
from headrace.cluster.partitions import RulesOf
from headrace.cluster.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
)
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

TOPIC = "t"


class Cluster:
    """Nodes 1, 2, 3, one controller that is always right, and a network. `check` holds the invariants."""

    def __init__(
        self,
        chance: Callable[[int, int], int],
        *,
        nodes: int = 3,
        min_isr: int = 2,
        faults: frozenset[str] = frozenset(),
        leader_state: type[LeaderState] = LeaderState,
    ) -> None:
        """`chance(low, high)` is a random number, both ends included."""
        self.chance = chance
        self.min_isr = min_isr
        self.faults = faults
        self.leader_state = leader_state
        self.now_ms = 0.0
        self.image = Image()
        self.decisions: list[list[MetadataRecord]] = []
        self.messages: list[Message] = []
        self.committed: dict[bytes, list[Record]] = {}
        self.written: dict[tuple[bytes, int, int], int] = {}
        self.acknowledged: dict[bytes, dict[int, int]] = {}
        self.to_check: list[tuple[bytes, int, int]] = []
        self.deleted: dict[bytes, int] = {}
        self.leaders: dict[tuple[bytes, int], int] = {}
        self.in_sync_since: dict[tuple[bytes, int], int] = {}
        #: The leader epoch of the last unclean election: what leaders before it showed and promised may be lost.
        self.unclean: dict[bytes, int] = {}
        self.unclean_elections = 0
        self.topics_made = 0
        self._rules: RulesOf | None = None
        self.controller = Controller(CONTROLLER, BrokerConfig.parse({}), random.Random(0), lambda: bytes(16))
        minimum = ConfigRecord(
            resource_type=ResourceType.BROKER, resource_name="", name=MIN_ISR_CONFIG, value=str(min_isr)
        )
        self.decide(Decision(None, [*features.initial_records(), minimum]))
        self.nodes = {node_id: Node(self, node_id) for node_id in range(1, nodes + 1)}
        for node in self.nodes.values():
            node.restart()
        for node_id in self.nodes:
            self.unfence(node_id)
        self.create_topic()
        self.spread_metadata()

    # --- controller

    def decide(self, decision: Decision[Any]) -> Any:
        if decision.records:
            before = {topic_id: topic.partitions[0] for topic_id, topic in self.image.topics_by_id.items()}
            for record in decision.records:
                self.image.apply(record)
                self.image.offset += 1
            self.decisions.append(decision.records)
            self._check_decision(before, decision.records)
        return decision.response

    @property
    def rules(self) -> RulesOf:
        """What the controller goes by: read anew when the configuration has changed."""
        if self._rules is None:
            self._rules = leadership.rules_of(
                self.image, BrokerLayers({}, self.image.config(ResourceType.BROKER, ""), {})
            )
        return self._rules

    def register(self, node_id: int, life: int, stopped_in_epoch: int) -> int:
        incarnation = node_id.to_bytes(8, "big") + life.to_bytes(8, "big")
        listeners = [Endpoint("PLAINTEXT", "host", 9000 + node_id, 0)]
        broker = Registration(node_id, incarnation, listeners, stopped_in_epoch=stopped_in_epoch)
        epoch: int = self.decide(brokers.register(self.image, broker, fenced=True, rules_of=self.rules))
        return epoch

    def fence(self, node_id: int) -> None:
        if node_id in self.image.brokers:
            self.decide(brokers.fence(self.image, node_id, self.rules))

    def unfence(self, node_id: int) -> None:
        self.decide(brokers.unfence(self.image, node_id, self.rules))

    def shut_down(self, node_id: int) -> None:
        """A node wants to stop, and hands over what it leads."""
        self.decide(brokers.shut_down(self.image, node_id, self.rules))

    def set_min_isr(self, min_isr: int) -> None:
        config = AlterableConfig(name=MIN_ISR_CONFIG, config_operation=0, value=str(min_isr))
        resource = AlterConfigsResource(resource_type=ResourceType.BROKER, resource_name="", configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        self.min_isr, self._rules = min_isr, None
        self.decide(self.controller.incremental_alter_configs(self.image, request))

    def elect_preferred(self) -> None:
        wanted = [TopicPartitions(topic=TOPIC, partitions=[PARTITION])]
        if TOPIC in self.image.topics:
            request = ElectLeadersRequest(election_type=0, topic_partitions=wanted)
            self.decide(leadership.elect_leaders(self.image, request, self.rules))

    def create_topic(self) -> bytes:
        self.topics_made += 1
        topic_id = self.topics_made.to_bytes(16, "big")
        replicas = sorted(self.nodes)
        first = self.chance(0, len(replicas) - 1)
        replicas = replicas[first:] + replicas[:first]
        active = [node_id for node_id in replicas if self.image.is_active(node_id)]
        if not active:
            return b""
        record = PartitionRecord(
            partition_id=0,
            topic_id=topic_id,
            replicas=replicas,
            isr=active,
            leader=active[0],
            leader_epoch=0,
            partition_epoch=0,
        )
        self.decide(Decision(None, [TopicRecord(name=TOPIC, topic_id=topic_id), record]))
        return topic_id

    def delete_topic(self) -> None:
        topic = self.image.topics.get(TOPIC)
        if topic is not None:
            self.decide(Decision(None, [RemoveTopicRecord(topic_id=topic.topic_id)]))

    @property
    def topic_id(self) -> bytes:
        topic = self.image.topics.get(TOPIC)
        return b"" if topic is None else topic.topic_id

    @property
    def partition(self) -> PartitionImage:
        return self.image.topics[TOPIC].partitions[PARTITION]

    # --- metadata and network

    def spread_metadata(self, *node_ids: int) -> None:
        """Let nodes (all that run) learn everything."""
        for node_id in node_ids or tuple(self.nodes):
            node = self.nodes[node_id]
            while node.runs and node.applied < len(self.decisions):
                node.apply(self.decisions[node.applied])

    def send(self, source: int, target: int, body: Any) -> None:
        life = self.nodes[target].life if target in self.nodes else -1
        self.messages.append(Message(source, target, body, life))

    def deliver(self, message: Message) -> None:
        body, target = message.body, self.nodes.get(message.target)
        if target is None:
            response = self.decide(leadership.alter_partition(self.image, body, self.rules))
            self.send(CONTROLLER, message.source, Altered(body, response))
        elif not target.is_ready or target.life != message.target_life:
            return
        elif isinstance(body, Fetch):
            target.was_fetched_from(message.source, body)
        elif isinstance(body, Fetched):
            target.was_answered(body)
        else:
            target.was_altered(body)

    # --- what is promised

    def was_written(self, topic_id: bytes, offset: int, record: Record) -> None:
        known = self.written.setdefault((topic_id, offset, record.epoch), record.value)
        if known != record.value:
            raise ViolationError(f"6: offset {offset} of epoch {record.epoch} is {known} and {record.value}")

    def was_acknowledged(self, replica: Replica, offset: int, value: int) -> None:
        topic_id = replica.topic_id
        if replica.wanted.leader_epoch < self.unclean.get(topic_id, 0):
            return  # by one that does not know yet of the unclean election after it
        known = self.acknowledged.setdefault(topic_id, {})
        first = known.setdefault(value, offset)
        # What was deleted is no duplicate of what is written later: these logs know of nothing else than their records.
        if first != offset and min(first, offset) >= self.deleted.get(topic_id, 0):
            raise ViolationError(f"7: {value} was acknowledged at {first} and at {offset}")
        self.to_check.append((topic_id, offset, value))

    def is_cut(self, node: Node, replica: Replica, offset: int) -> None:
        topic = self.image.topics_by_id.get(replica.topic_id)
        if topic is not None:
            state = topic.partitions[PARTITION]
            is_trusted = node.id in state.isr or node.id in state.eligible
            if not is_trusted and replica.wanted.leader_epoch < state.leader_epoch:
                return  # by the word of a leader that was replaced since: nobody counts on this copy any more
        common = replica.log.common_prefix(self._committed(replica.topic_id))
        if offset < common:
            raise ViolationError(f"8: node {node.id} cuts its log to {offset}, and has {common} of what is committed")

    def _committed(self, topic_id: bytes) -> list[Record]:
        return self.committed.setdefault(topic_id, [])

    def _check_decision(self, before: dict[bytes, PartitionImage], records: list[MetadataRecord]) -> None:
        restarted = {record.broker_id for record in records if isinstance(record, RegisterBrokerRecord)}
        for topic_id, topic in self.image.topics_by_id.items():
            state, earlier = topic.partitions[PARTITION], before.get(topic_id)
            if state.leader >= 0 and state.leader not in state.isr:
                raise ViolationError(f"3: the leader {state.leader} is not in sync {state.isr}")
            if not state.isr and not state.eligible and not state.last_known:
                raise ViolationError(f"11: nobody may ever lead again: {state}")
            if earlier is not None:
                self._check_change(topic_id, earlier, state, restarted)
            for node_id in state.isr:
                epoch = self.image.brokers[node_id].epoch
                if earlier is None or node_id not in earlier.isr:
                    self.in_sync_since[topic_id, node_id] = epoch
                    self._check_came_in(topic_id, node_id)
                elif self.in_sync_since[topic_id, node_id] != epoch:
                    raise ViolationError(f"10: {node_id} is in sync since another life")

    def _check_change(
        self, topic_id: bytes, earlier: PartitionImage, state: PartitionImage, restarted: set[int]
    ) -> None:
        if state.partition_epoch - earlier.partition_epoch not in (0, 1):
            raise ViolationError(f"10: partition epoch {earlier.partition_epoch} → {state.partition_epoch}")
        trusted = {*earlier.isr, *earlier.eligible}
        if len(state.isr) >= self.min_isr:
            if state.eligible:
                raise ViolationError(f"11: {state.eligible} stay eligible though {state.isr} commit without them")
        elif (lost := trusted - {*state.isr, *state.eligible} - restarted) and not state.recovering:
            raise ViolationError(f"11: {lost} have everything and are forgotten: {earlier}, {state}")
        if state.leader >= 0 and state.leader_epoch > earlier.leader_epoch and state.leader not in trusted:
            left = trusted - restarted
            if left or state.leader not in earlier.last_known or not state.recovering:
                raise ViolationError(
                    f"11: unclean election without a mark, or while {left} may lead: {earlier}, {state}"
                )
            self._lose(topic_id, state)
        elif state.recovering and not earlier.recovering:
            raise ViolationError(f"11: marked as recovering without an unclean election: {earlier}, {state}")

    def _lose(self, topic_id: bytes, state: PartitionImage) -> None:
        """An unclean election: what the new leader lacks is lost, and only this may lose anything."""
        self.unclean_elections += 1
        self.unclean[topic_id] = state.leader_epoch
        log, committed = self.nodes[state.leader].logs.get(topic_id), self._committed(topic_id)
        left = 0 if log is None else log.common_prefix(committed)
        del committed[left:]
        known = self.acknowledged.get(topic_id, {})
        self.acknowledged[topic_id] = {value: offset for value, offset in known.items() if offset < left}
        self.to_check = [one for one in self.to_check if one[0] != topic_id or one[1] < left]

    def _check_came_in(self, topic_id: bytes, node_id: int) -> None:
        log, committed = self.nodes[node_id].logs.get(topic_id), self._committed(topic_id)
        if self.nodes[node_id].has_lost:
            return  # it is dead: a fetch of its former life came late, and nobody knows of its end yet
        if committed and (log is None or log.common_prefix(committed) < len(committed)):
            raise ViolationError(
                f"4: {node_id} becomes in sync without everything that is committed: {log}, {committed}"
            )

    def check(self) -> None:
        """The invariants that are about states, after every step."""
        for node in self.nodes.values():
            for replica in node.replicas.values():
                self.check_replica(node, replica)
        for topic_id, offset, value in self.to_check:
            committed = self._committed(topic_id)
            if offset >= len(committed) or committed[offset].value != value:
                raise ViolationError(f"7: {value} is acknowledged at {offset}, but {committed} is committed")
        self.to_check.clear()
        for topic_id, topic in self.image.topics_by_id.items():
            committed = self._committed(topic_id)
            if not committed:
                continue
            state = topic.partitions[PARTITION]
            for node_id in (*state.isr, *state.eligible):
                node = self.nodes[node_id]
                log = node.logs.get(topic_id)
                if node.has_lost:
                    continue
                if log is None or len(log.records) < len(committed) or not _holds(log, committed):
                    raise ViolationError(
                        f"4: {node_id} is in sync or eligible and has {log} where {committed} is committed"
                    )
                if log.start_offset > self.deleted.get(topic_id, 0):
                    raise ViolationError(f"7: {node_id} has deleted up to {log.start_offset}, which nobody asked for")

    def check_replica(self, node: Node, replica: Replica) -> None:
        topic_id, log, leader = replica.topic_id, replica.log, replica.leader
        committed, unclean = self._committed(topic_id), self.unclean.get(topic_id, 0)
        if leader is None:
            # What was shown before an unclean election goes when the log is cut to that of the new leader.
            if replica.follows is not None and replica.agreed_in >= unclean:
                end = min(log.high_watermark, len(committed))
                if log.records[log.start_offset : end] != committed[log.start_offset : end]:
                    raise ViolationError(f"8: follower {node.id} shows {log} where {committed} is committed")
                if log.high_watermark > len(committed):
                    raise ViolationError(
                        f"8: follower {node.id} shows more than was ever committed: {log}, {committed}"
                    )
            return
        epoch = leader.term.leader_epoch
        if self.leaders.setdefault((topic_id, epoch), node.id) != node.id:
            raise ViolationError(f"3: {node.id} and {self.leaders[topic_id, epoch]} lead in epoch {epoch}")
        high_watermark = leader.high_watermark
        if high_watermark < replica.seen_high_watermark:
            raise ViolationError(f"9: the watermark of {node.id} fell to {high_watermark} in epoch {epoch}")
        if high_watermark > len(log.records):
            raise ViolationError(f"9: the watermark of {node.id} is behind its log's end: {high_watermark}, {log}")
        replica.seen_high_watermark = high_watermark
        if epoch < unclean:
            return
        shown = min(high_watermark, len(committed))
        if log.records[log.start_offset : shown] != committed[log.start_offset : shown]:
            raise ViolationError(f"8: leader {node.id} of epoch {epoch} shows {log} where {committed} is committed")
        if high_watermark > len(committed):
            self._commit(topic_id, log.records[len(committed) : high_watermark])

    def _commit(self, topic_id: bytes, records: list[Record]) -> None:
        committed = self._committed(topic_id)
        # Of what was deleted nobody remembers the sequences for certain, nor does Kafka.
        values = {record.value for record in committed[self.deleted.get(topic_id, 0) :]}
        for record in records:
            if record.value in values:
                raise ViolationError(f"7: {record.value} is committed twice")
            values.add(record.value)
            committed.append(record)


def _holds(log: ModelLog, committed: list[Record]) -> bool:
    start = log.start_offset
    return log.records[start : len(committed)] == committed[start:]
