"""Answers made from the image alone: Metadata, DescribeCluster, DescribeTopicPartitions.

What is told about a topic is made once and kept until the topic or the brokers change, so that clients that ask for
thousands of partitions again and again cost little.
"""

from __future__ import annotations

from copy import copy
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
_LISTENERS_SINCE_VERSION: Final = 6
_IDS_SINCE_VERSION: Final = 12


class Answers:
    """What clients are told about the cluster. A listener's name says which address of each broker they get."""

    def __init__(self, image: Image, cluster_id: str) -> None:
        self.image = image
        self.cluster_id = cluster_id
        self.controller_id = NO_LEADER
        self._brokers: dict[str, list[MetadataResponseBroker]] = {}
        self._reached: dict[str, frozenset[int]] = {}
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
            self._reached.clear()
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
            offline_replicas=self._offline(partition, listener),
        )

    def _leader(self, partition: PartitionImage, listener: str) -> tuple[ErrorCode, int]:
        broker = self.image.brokers.get(partition.leader)
        if broker is None or broker.fenced:
            return ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
        if broker.listener(listener) is None:
            return ErrorCode.LISTENER_NOT_FOUND, NO_LEADER
        return ErrorCode.NONE, partition.leader

    def _offline(self, partition: PartitionImage, listener: str) -> list[int]:
        reached = self._reachable(listener)
        return [n for n in partition.replicas if n not in reached or partition.is_lost_at(n)]

    def _reachable(self, listener: str) -> frozenset[int]:
        brokers = self.brokers(listener)
        found = self._reached.get(listener)
        if found is None:
            found = self._reached[listener] = frozenset(broker.node_id for broker in brokers)
        return found

    def metadata(self, request: MetadataRequest, version: int, listener: str) -> MetadataResponse:
        """Version 0 asks for all topics with an empty list, later ones with null. Unknown topics are told as such."""
        if request.topics is None or (version == 0 and not request.topics):
            topics = [self.topic(topic, listener) for topic in self.image.topics.values()]
        else:
            refusal = _refusal(request.topics, version)
            if refusal is not ErrorCode.NONE:
                return _refused_whole(request.topics, refusal)
            topics = self._asked_topics(request.topics, listener)
        if version < _LISTENERS_SINCE_VERSION:
            topics = [_without_listeners(topic) for topic in topics]
        if version == 0:
            topics = [self._with_live_replicas(topic, listener) for topic in topics]
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

    def _with_live_replicas(self, topic: MetadataResponseTopic, listener: str) -> MetadataResponseTopic:
        """As version 0 has it, which cannot tell who is away: replicas that are not, and an error where some are."""
        if not any(partition.offline_replicas for partition in topic.partitions):
            return topic
        told = copy(topic)
        told.partitions = []
        reached = self._reachable(listener)
        for partition in topic.partitions:
            shown = copy(partition)
            shown.replica_nodes = [n for n in partition.replica_nodes if n in reached]
            shown.isr_nodes = [n for n in partition.isr_nodes if n in reached]
            if partition.error_code == ErrorCode.NONE and len(shown.replica_nodes) < len(partition.replica_nodes):
                shown.error_code = ErrorCode.REPLICA_NOT_AVAILABLE
            told.partitions.append(shown)
        return told

    def _asked_topics(self, asked: list[MetadataRequestTopic], listener: str) -> list[MetadataResponseTopic]:
        """Each topic once: first those whose ids are unknown, then those that are there, then the names that are not.

        One id is enough to make it a request by ids: then the names count for nothing.
        """
        ids = dict.fromkeys(topic.topic_id for topic in asked if topic.topic_id != _ZERO_ID)
        unknown = [_unknown(ErrorCode.UNKNOWN_TOPIC_ID, None, one) for one in ids if one not in self.image.topics_by_id]
        if ids:
            by_id = self.image.topics_by_id
            return unknown + [self.topic(by_id[one], listener) for one in ids if one in by_id]
        names = dict.fromkeys(topic.name or "" for topic in asked)
        known = self.image.topics
        found = [self.topic(known[name], listener) for name in names if name in known]
        return found + [_unknown(_why_unknown(name), name) for name in names if name not in known]

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
        asked = [topic.name for topic in request.topics]
        cursor = request.cursor
        after = "" if cursor is None else cursor.topic_name
        names = {name for name in asked or self.image.topics if name >= after}
        first = 0 if cursor is None else cursor.partition_index
        if first < 0 or (asked and cursor is not None and after not in names):
            return _described_as(asked, ErrorCode.INVALID_REQUEST)
        if cursor is None and "" in names:
            return _described_as(asked, ErrorCode.UNKNOWN_SERVER_ERROR)
        response = DescribeTopicPartitionsResponse()
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
            found = DescribeTopicPartitionsResponseTopic(
                error_code=_why_unknown(name),
                name=name,
                is_internal=is_internal(name),
                topic_authorized_operations=TOPIC_OPERATIONS,
            )
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
            _, leader = self._leader(partition, listener)
            described.partitions.append(
                DescribeTopicPartitionsResponsePartition(
                    # Also without a leader: that there is none is an answer here.
                    error_code=ErrorCode.NONE,
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=partition.leader_epoch,
                    replica_nodes=list(partition.replicas),
                    isr_nodes=list(partition.isr),
                    eligible_leader_replicas=list(partition.eligible),
                    last_known_elr=list(partition.last_known),
                    offline_replicas=self._offline(partition, listener),
                )
            )
        return described, end if end < len(topic.partitions) else None


def _without_listeners(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    """As those who do not know that error are told: for them there is no leader."""
    if all(partition.error_code != ErrorCode.LISTENER_NOT_FOUND for partition in topic.partitions):
        return topic
    told = copy(topic)
    told.partitions = [copy(partition) for partition in topic.partitions]
    for partition in told.partitions:
        if partition.error_code == ErrorCode.LISTENER_NOT_FOUND:
            partition.error_code = ErrorCode.LEADER_NOT_AVAILABLE
    return told


def _refusal(asked: list[MetadataRequestTopic], version: int) -> ErrorCode:
    """Why nothing of a request for topics is answered."""
    by_id = any(topic.topic_id != _ZERO_ID for topic in asked)
    nameless = any(topic.name is None for topic in asked)
    if version < _IDS_SINCE_VERSION:
        # Two versions have a field for an id that must not be used.
        return ErrorCode.INVALID_REQUEST if by_id or nameless else ErrorCode.NONE
    return ErrorCode.UNKNOWN_SERVER_ERROR if nameless and not by_id else ErrorCode.NONE


def _refused_whole(asked: list[MetadataRequestTopic], code: ErrorCode) -> MetadataResponse:
    topics = [MetadataResponseTopic(error_code=code, name=t.name or "", topic_id=t.topic_id) for t in asked]
    return MetadataResponse(error_code=code, topics=topics)


def _described_as(names: list[str], code: ErrorCode) -> DescribeTopicPartitionsResponse:
    """The same error for all that was asked for."""
    topics = [DescribeTopicPartitionsResponseTopic(error_code=code, name=name) for name in names]
    return DescribeTopicPartitionsResponse(topics=topics)


def _why_unknown(name: str) -> ErrorCode:
    invalid = name_problem(name) is not None
    return ErrorCode.INVALID_TOPIC_EXCEPTION if invalid else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _unknown(code: ErrorCode, name: str | None, topic_id: bytes = _ZERO_ID) -> MetadataResponseTopic:
    internal = name is not None and is_internal(name)
    return MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id, is_internal=internal)


def _with_operations(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    if topic.name is None:  # an unknown id says nothing about who asks
        return topic
    return MetadataResponseTopic(
        error_code=topic.error_code,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=topic.partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
