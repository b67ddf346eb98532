"""Who leads a partition, for those who came to the wrong broker: the replica that is here, or whom to ask instead."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from headrace.broker.partitions.partition import Partition
from headrace.cluster.records import NO_LEADER
from headrace.errors import KafkaError, NotLeaderOrFollowerError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.protocol.messages.metadata import MetadataResponseBroker


def partition_here(broker: Broker, topic: str, index: int) -> Partition:
    """The partition, or the error of one that is offline, elsewhere, or nowhere."""
    try:
        return broker.partition(topic, index)
    except UnknownTopicOrPartitionError as error:
        raise not_here(broker, topic, index, error) from None


def not_here(broker: Broker, topic: str, index: int, error: UnknownTopicOrPartitionError) -> KafkaError:
    """The error of a partition that this broker does not serve: unknown, led by another, or about to be made here."""
    state = broker.image.partition(topic, index)
    if state is None:
        return error
    where = "is not served yet" if broker.node_id in state.replicas else "has no replica here"
    return NotLeaderOrFollowerError(f"{topic}-{index} {where}; broker {state.leader} leads it")


def leader_and_epoch(broker: Broker, topic: str, index: int) -> tuple[int, int] | None:
    """Who leads, as far as this broker knows; None for a partition that it does not know."""
    state = broker.image.partition(topic, index)
    return None if state is None else (state.leader, state.leader_epoch)


def addresses(broker: Broker, listener: str, node_ids: Collection[int]) -> list[MetadataResponseBroker]:
    """Where these brokers are reached by clients of a listener."""
    wanted = set(node_ids) - {NO_LEADER}
    if not wanted:
        return []
    return [node for node in broker.answers.brokers(listener) if node.node_id in wanted]
