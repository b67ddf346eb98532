"""Answers made from the image alone: Metadata, DescribeCluster, DescribeTopicPartitions.

What is told about a topic is made once and kept until the topic or the brokers change, so that clients that ask for
thousands of partitions again and again cost little.
"""

from __future__ import annotations

from typing import Final

from headrace.cluster.image import Image, PartitionImage, TopicImage
from headrace.cluster.records import NO_LEADER
from headrace.cluster.topic_names import is_internal, name_problem
from headrace.error_codes import ErrorCode
from headrace.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from headrace.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from headrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

# Without an authorizer everybody may do all that can be done to a topic, and to the cluster.
TOPIC_OPERATIONS: Final = 3576
CLUSTER_OPERATIONS: Final = 8096
_ZERO_ID: Final = bytes(16)
_BROKER_ENDPOINTS: Final = 1


class Answers:
    """What clients are told about the cluster. A listener's name says which address of each broker they get."""

    def __init__(self, image: Image, cluster_id: str) -> None:
        self.image = image
        self.cluster_id = cluster_id
        self.controller_id = NO_LEADER
        self._brokers: dict[str, list[MetadataResponseBroker]] = {}
        self._topics: dict[tuple[str, str], tuple[int, MetadataResponseTopic]] = {}
        self._brokers_version = -1

    def brokers(self, listener: str) -> list[MetadataResponseBroker]:
        """The brokers that are alive and can be reached through this listener; not to be changed."""
        self._forget_old()
        found = self._brokers.get(listener)
        if found is None:
            found = []
            for broker in self.image.brokers.values():
                address = None if broker.fenced else broker.listener(listener)
                if address is not None:
                    found.append(
                        MetadataResponseBroker(
                            node_id=broker.node_id, host=address.host, port=address.port, rack=broker.rack
                        )
                    )
            self._brokers[listener] = found
        return found

    def topic(self, topic: TopicImage, listener: str) -> MetadataResponseTopic:
        """What Metadata says about a topic; not to be changed."""
        self._forget_old()
        key = (topic.name, listener)
        kept = self._topics.get(key)
        if kept is not None and kept[0] == topic.version and kept[1].topic_id == topic.topic_id:
            return kept[1]
        made = MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=is_internal(topic.name),
            partitions=[self._partition(i, partition, listener) for i, partition in enumerate(topic.partitions)],
        )
        self._topics[key] = (topic.version, made)
        return made

    def _forget_old(self) -> None:
        if self._brokers_version != self.image.brokers_version:
            self._brokers.clear()
            self._topics.clear()
            self._brokers_version = self.image.brokers_version
        elif len(self._topics) > 4 * len(self.image.topics) + 64:
            # Topics that were deleted, and listeners that were never asked for again.
            self._topics.clear()

    def _partition(self, index: int, partition: PartitionImage, listener: str) -> MetadataResponsePartition:
        error, leader = self._leader(partition, listener)
        return MetadataResponsePartition(
            error_code=error,
            partition_index=index,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            offline_replicas=self._offline(partition),
        )

    def _leader(self, partition: PartitionImage, listener: str) -> tuple[ErrorCode, int]:
        broker = self.image.brokers.get(partition.leader)
        if broker is None or broker.fenced:
            return ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
        if broker.listener(listener) is None:
            return ErrorCode.LISTENER_NOT_FOUND, NO_LEADER
        return ErrorCode.NONE, partition.leader

    def _offline(self, partition: PartitionImage) -> list[int]:
        brokers = self.image.brokers
        # An in-sync replica of a live broker would lead, if its log were not on a disk that failed.
        lost = partition.isr if partition.leader == NO_LEADER else ()
        return [
            node_id
            for node_id in partition.replicas
            if node_id in lost or node_id not in brokers or brokers[node_id].fenced
        ]

    def metadata(self, request: MetadataRequest, version: int, listener: str) -> MetadataResponse:
        """Version 0 asks for all topics with an empty list, later ones with null. Unknown topics are told as such."""
        if request.topics is None or (version == 0 and not request.topics):
            topics = [self.topic(topic, listener) for topic in self.image.topics.values()]
        else:
            asked = {(topic.name, topic.topic_id): topic for topic in request.topics}
            topics = [self._asked_topic(topic, listener) for topic in asked.values()]
        if request.include_topic_authorized_operations:
            topics = [_with_operations(topic) for topic in topics]
        response = MetadataResponse(
            brokers=self.brokers(listener),
            cluster_id=self.cluster_id,
            controller_id=self.controller_id,
            topics=topics,
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        return response

    def _asked_topic(self, asked: MetadataRequestTopic, listener: str) -> MetadataResponseTopic:
        if asked.topic_id != _ZERO_ID:
            topic = self.image.topics_by_id.get(asked.topic_id)
            if topic is None:
                return _unknown(ErrorCode.UNKNOWN_TOPIC_ID, None, asked.topic_id)
            return self.topic(topic, listener)
        name = asked.name or ""
        topic = self.image.topics.get(name)
        if topic is not None:
            return self.topic(topic, listener)
        invalid = name_problem(name) is not None
        return _unknown(ErrorCode.INVALID_TOPIC_EXCEPTION if invalid else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)

    def describe_cluster(self, request: DescribeClusterRequest, listener: str) -> DescribeClusterResponse:
        if request.endpoint_type != _BROKER_ENDPOINTS:
            code = (
                ErrorCode.MISMATCHED_ENDPOINT_TYPE
                if request.endpoint_type == 2
                else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            )
            message = "This is an endpoint of brokers; controllers have none of their own."
            return DescribeClusterResponse(error_code=code, error_message=message, endpoint_type=_BROKER_ENDPOINTS)
        response = DescribeClusterResponse(
            endpoint_type=request.endpoint_type, cluster_id=self.cluster_id, controller_id=self.controller_id
        )
        for broker in self.image.brokers.values():
            address = broker.listener(listener)
            if address is not None and (request.include_fenced_brokers or not broker.fenced):
                response.brokers.append(
                    DescribeClusterBroker(
                        broker_id=broker.node_id,
                        host=address.host,
                        port=address.port,
                        rack=broker.rack,
                        is_fenced=broker.fenced,
                    )
                )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        return response

    def describe_topic_partitions(
        self, request: DescribeTopicPartitionsRequest, listener: str, limit_max: int
    ) -> DescribeTopicPartitionsResponse:
        """A page of partitions, topics in the order of their names; `limit_max` is the broker's own limit."""
        names = {topic.name for topic in request.topics} or set(self.image.topics)
        cursor = request.cursor
        first = 0
        response = DescribeTopicPartitionsResponse()
        if cursor is not None:
            if cursor.partition_index < 0:
                response.topics += [
                    DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=name)
                    for name in sorted(names)
                ]
                return response
            names = {name for name in names if name >= cursor.topic_name}
            first = cursor.partition_index
        left = max(1, min(request.response_partition_limit, limit_max))
        for name in sorted(names):
            begin = first if cursor is not None and name == cursor.topic_name else 0
            if left == 0:
                response.next_cursor = Cursor(topic_name=name, partition_index=begin)
                break
            described, next_partition = self._described(name, begin, left, listener)
            response.topics.append(described)
            left -= len(described.partitions)
            if next_partition is not None:
                response.next_cursor = Cursor(topic_name=name, partition_index=next_partition)
                break
        return response

    def _described(
        self, name: str, begin: int, limit: int, listener: str
    ) -> tuple[DescribeTopicPartitionsResponseTopic, int | None]:
        topic = self.image.topics.get(name)
        if topic is None:
            invalid = name_problem(name) is not None
            code = ErrorCode.INVALID_TOPIC_EXCEPTION if invalid else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            found = DescribeTopicPartitionsResponseTopic(error_code=code, name=name)
            if invalid:
                found.topic_authorized_operations = TOPIC_OPERATIONS
            return found, None
        end = min(begin + limit, len(topic.partitions))
        described = DescribeTopicPartitionsResponseTopic(
            name=name,
            topic_id=topic.topic_id,
            is_internal=is_internal(name),
            topic_authorized_operations=TOPIC_OPERATIONS,
        )
        for index in range(begin, end):
            partition = topic.partitions[index]
            error, leader = self._leader(partition, listener)
            described.partitions.append(
                DescribeTopicPartitionsResponsePartition(
                    error_code=error,
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=partition.leader_epoch,
                    replica_nodes=list(partition.replicas),
                    isr_nodes=list(partition.isr),
                    eligible_leader_replicas=[],
                    last_known_elr=[],
                    offline_replicas=self._offline(partition),
                )
            )
        return described, end if end < len(topic.partitions) else None


def _unknown(code: ErrorCode, name: str | None, topic_id: bytes = _ZERO_ID) -> MetadataResponseTopic:
    internal = name is not None and is_internal(name)
    return MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id, is_internal=internal)


def _with_operations(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    if topic.error_code != ErrorCode.NONE:
        return topic
    return MetadataResponseTopic(
        error_code=topic.error_code,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=topic.partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
