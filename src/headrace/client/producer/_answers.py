"""What a broker's answer to a Produce request says: of each partition, and of the cluster."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.client.cluster.view import ClusterView
from headrace.errors import ErrorCode
from headrace.net.node import Node
from headrace.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from headrace.topics import TopicPartition

STALE_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""With these, whoever was asked does not lead the partition, or not any more."""


def read_answers(
    response: ProduceResponse, topic_names: Mapping[bytes, str], view: ClusterView
) -> dict[tuple[str, int], PartitionProduceResponse]:
    """The answer for each partition, by the topic's name, which the newer versions leave out.

    `topic_names` are those of the request: what the view knows may have changed since it was sent. Errors may name the
    broker that leads the partition now (KIP-951), which the view takes in.
    """
    found: dict[tuple[str, int], PartitionProduceResponse] = {}
    for topic in response.responses:
        name = topic.name or topic_names.get(topic.topic_id)
        if name is None:
            continue
        for answer in topic.partition_responses:
            found[name, answer.index] = answer
            if answer.error_code:
                _learn_leader(TopicPartition(name, answer.index), answer, response, view)
    return found


def _learn_leader(
    partition: TopicPartition, answer: PartitionProduceResponse, response: ProduceResponse, view: ClusterView
) -> None:
    leader = answer.current_leader
    if leader.leader_epoch < 0:
        return
    told = next((node for node in response.node_endpoints if node.node_id == leader.leader_id), None)
    node = None if told is None else Node(told.node_id, told.host, told.port, told.rack)
    view.learn_leader(partition, leader.leader_id, leader.leader_epoch, node)
