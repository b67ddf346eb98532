"""Who leads a partition, for those who came to the wrong broker: the replica that is here, or whom to ask instead."""

from __future__ import annotations

from collections.abc import Collection

from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.replicas import Replicas
from headrace.broker.view import ClusterView
from headrace.cluster.answers import Answers
from headrace.cluster.records import NO_LEADER
from headrace.errors import KafkaError, NotLeaderOrFollowerError, UnknownTopicOrPartitionError
from headrace.protocol.messages.metadata import MetadataResponseBroker


class Leaders:
    """Looks in what is here first, and then in the metadata."""

    def __init__(self, cluster: ClusterView, replicas: Replicas, answers: Answers) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._answers = answers

    def partition_here(self, topic: str, index: int) -> Partition:
        """The partition, or the error of one that is offline, elsewhere, or nowhere."""
        try:
            return self._replicas.get(topic, index)
        except UnknownTopicOrPartitionError as error:
            raise self.not_here(topic, index, error) from None

    def not_here(self, topic: str, index: int, error: UnknownTopicOrPartitionError) -> KafkaError:
        """The error of a partition that is not served here: unknown, led by another, or about to be made here."""
        state = self._cluster.image.partition(topic, index)
        if state is None:
            return error
        where = "is not served yet" if self._cluster.node_id in state.replicas else "has no replica here"
        return NotLeaderOrFollowerError(f"{topic}-{index} {where}; broker {state.leader} leads it")

    def leader_and_epoch(self, topic: str, index: int) -> tuple[int, int] | None:
        """Who leads, as far as this broker knows; None for a partition that it does not know."""
        state = self._cluster.image.partition(topic, index)
        return None if state is None else (state.leader, state.leader_epoch)

    def addresses(self, listener: str, node_ids: Collection[int]) -> list[MetadataResponseBroker]:
        """Where these brokers are reached by clients of a listener."""
        wanted = set(node_ids) - {NO_LEADER}
        if not wanted:
            return []
        return [node for node in self._answers.brokers(listener) if node.node_id in wanted]
