"""What a client knows of the cluster: nodes, topics with their ids, leaders and epochs, as the brokers last told it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from headrace.errors import ErrorCode
from headrace.net.node import Node
from headrace.protocol.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from headrace.protocol.schema import ZERO_UUID
from headrace.topics import TopicPartition

NO_NODE = -1
NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition. `leader` is -1 while it has none."""

    index: int
    leader: int
    leader_epoch: int = NO_EPOCH
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()
    error_code: int = 0


@dataclass(slots=True)
class TopicView:
    """One topic. `error_code` says why nothing is known of it; partitions are in order of their numbers."""

    name: str
    topic_id: bytes = ZERO_UUID
    is_internal: bool = False
    error_code: int = 0
    partitions: list[PartitionView] = field(default_factory=list)
    available: list[int] = field(default_factory=list)
    """The partitions that have a leader."""

    def partition(self, index: int) -> PartitionView | None:
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


class ClusterView:
    """The newest metadata, folded: an answer with an older leader epoch does not overwrite a newer one."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, TopicView] = {}
        self.topic_names: dict[bytes, str] = {}
        self.cluster_id: str | None = None
        self.controller_id = NO_NODE
        self.version = 0
        """Counts the answers taken in: who waits for news compares it."""

    def update(self, response: MetadataResponse, *, keep: Iterable[str] | None = None) -> None:
        """Take in an answer. Topics not in it stay when `keep` names them (None: only what is in the answer stays)."""
        self.nodes = {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers
        }
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        answered: dict[str, TopicView] = {}
        for topic in response.topics:
            view = self._topic(topic)
            if view is not None:
                answered[view.name] = view
        kept = {name: self.topics[name] for name in keep or () if name in self.topics}
        self.topics = kept | answered
        self.topic_names = {view.topic_id: name for name, view in self.topics.items() if view.topic_id != ZERO_UUID}
        self.version += 1

    def _topic(self, topic: MetadataResponseTopic) -> TopicView | None:
        name = topic.name if topic.name is not None else self.topic_names.get(topic.topic_id)
        if name is None:
            return None
        known = self.topics.get(name)
        if topic.error_code != ErrorCode.NONE and topic.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
            return TopicView(name, topic.topic_id, topic.is_internal, topic.error_code)
        recreated = (
            known is not None and ZERO_UUID not in (known.topic_id, topic.topic_id) and known.topic_id != topic.topic_id
        )
        older = {} if known is None or recreated else {partition.index: partition for partition in known.partitions}
        partitions = sorted((_newer(older.get(p.partition_index), p) for p in topic.partitions), key=lambda p: p.index)
        available = [p.index for p in partitions if p.leader != NO_NODE]
        return TopicView(name, topic.topic_id, topic.is_internal, topic.error_code, partitions, available)

    def learn_leader(self, partition: TopicPartition, leader: int, leader_epoch: int, node: Node | None = None) -> bool:
        """A produce or fetch answer named a new leader (KIP-951); False when that is not news."""
        topic = self.topics.get(partition.topic)
        known = None if topic is None else topic.partition(partition.partition)
        if topic is None or known is None or leader_epoch <= known.leader_epoch:
            return False
        if node is not None:
            self.nodes = {**self.nodes, node.id: node}
        if leader not in self.nodes:
            return False
        topic.partitions[partition.partition] = replace(known, leader=leader, leader_epoch=leader_epoch)
        topic.available = [p.index for p in topic.partitions if p.leader != NO_NODE]
        return True

    def leader_of(self, topic: str, partition: int) -> Node | None:
        """The node that leads the partition, or None while nobody does or nothing is known."""
        view = self.topics.get(topic)
        found = None if view is None else view.partition(partition)
        return None if found is None else self.nodes.get(found.leader)

    def partition_count(self, topic: str) -> int | None:
        """How many partitions the topic has; None when the topic is not known (or the brokers answered an error)."""
        view = self.topics.get(topic)
        return len(view.partitions) if view is not None and view.partitions else None


def _newer(known: PartitionView | None, told: MetadataResponsePartition) -> PartitionView:
    """What was told, unless it is older than what is known: a broker that lags behind may answer too."""
    if (
        known is not None
        and NO_EPOCH not in (known.leader_epoch, told.leader_epoch)
        and told.leader_epoch < known.leader_epoch
    ):
        return known
    return PartitionView(
        told.partition_index,
        NO_NODE if told.error_code == ErrorCode.LEADER_NOT_AVAILABLE else told.leader_id,
        told.leader_epoch,
        tuple(told.replica_nodes),
        tuple(told.isr_nodes),
        tuple(told.offline_replicas),
        told.error_code,
    )
