"""In which log directories of their brokers replicas are; and what follows when one of those has failed.

Only this is told so far: that a replica's log cannot be used, and that it can be again. A replica whose directory
failed is not in sync, and does not lead, though its broker is alive. It may stay eligible as one that has all that was
committed; when its broker comes back with the directory, not having been stopped cleanly, it is no longer.
"""

from __future__ import annotations

from headrace.cluster.decision import Decision
from headrace.cluster.image import BrokerImage, Image, PartitionImage, TopicImage
from headrace.cluster.partitions import RulesOf, change, plain_rules
from headrace.cluster.records import DIRECTORY_LOST, MetadataRecord
from headrace.errors import ErrorCode
from headrace.protocol.messages.assign_replicas_to_dirs import (
    AssignedDirectoryResult,
    AssignedPartitionResult,
    AssignedTopicResult,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)


def assign_replicas(
    image: Image, request: AssignReplicasToDirsRequest, rules_of: RulesOf = plain_rules
) -> Decision[AssignReplicasToDirsResponse]:
    """A broker tells where its replicas are: those in a directory that it does not have are led by others."""
    decision = Decision(AssignReplicasToDirsResponse())
    broker = image.broker_of_epoch(request.broker_id, request.broker_epoch)
    if broker is None:
        decision.response.error_code = ErrorCode.STALE_BROKER_EPOCH
        return decision
    for directory in request.directories:
        told = AssignedDirectoryResult(id=directory.id)
        decision.response.directories.append(told)
        directory_id = directory.id if directory.id in broker.directories else DIRECTORY_LOST
        for asked in directory.topics:
            results = AssignedTopicResult(topic_id=asked.topic_id)
            told.topics.append(results)
            topic = image.topics_by_id.get(asked.topic_id)
            for partition in asked.partitions:
                index = partition.partition_index
                error = _assign(image, broker, topic, index, directory_id, rules_of, decision.records)
                results.partitions.append(AssignedPartitionResult(partition_index=index, error_code=error))
    return decision


def _assign(
    image: Image,
    broker: BrokerImage,
    topic: TopicImage | None,
    index: int,
    directory_id: bytes,
    rules_of: RulesOf,
    records: list[MetadataRecord],
) -> ErrorCode:
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partition = topic.partitions[index]
    node_id = broker.node_id
    if node_id not in partition.replicas:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    directories = _with(partition, node_id, directory_id)
    if directories == list(partition.directories):
        return ErrorCode.NONE
    rules = rules_of(topic.name)
    isr = partition.isr
    if directory_id == DIRECTORY_LOST:
        isr = tuple(member for member in isr if member != node_id)
    record = change(
        topic.topic_id,
        index,
        partition,
        image.is_active,
        rules,
        election=rules.election,
        isr=isr,
        directories=directories,
    )
    if record is not None:
        records.append(record)
    return ErrorCode.NONE


def _with(partition: PartitionImage, node_id: int, directory_id: bytes) -> list[bytes]:
    return [
        directory_id if replica == node_id else known
        for replica, known in zip(partition.replicas, partition.directories)
    ]
