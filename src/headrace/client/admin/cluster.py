"""The cluster: brokers, features, log directories, leaders, reassignments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.client.admin.core import (
    Ask,
    Context,
    Results,
    answers,
    ask_all,
    ask_one,
    by_topic,
    forget_controller,
    metadata,
    missing,
    nodes,
    refused,
    retried,
    single,
    to_controller,
)
from headrace.client.admin.types import (
    ClusterDescription,
    ElectionType,
    FeatureMetadata,
    FeatureUpdate,
    FinalizedVersionRange,
    LogDirDescription,
    PartitionReassignment,
    ReplicaInfo,
)
from headrace.client.cluster.core import ANY_NODE
from headrace.client.flows import Flow
from headrace.errors import ErrorCode, HeadraceError, UnsupportedVersionError
from headrace.net.node import Node
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResult
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from headrace.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from headrace.topics import TopicPartition


class TopicPartitionReplica(NamedTuple):
    """One replica of a partition: the one on this broker."""

    topic: str
    partition: int
    broker_id: int


def describe_cluster(context: Context, *, include_fenced_brokers: bool = False) -> Flow[ClusterDescription]:
    """The cluster's id, controller and brokers."""

    def attempt() -> Flow[ClusterDescription | HeadraceError]:
        request = DescribeClusterRequest(include_fenced_brokers=include_fenced_brokers)
        reply = yield from ask_one(context, ANY_NODE, request)
        if isinstance(reply.error, UnsupportedVersionError):
            return (yield from _cluster_of_metadata(context))
        error = reply.error or refused(reply.response.error_code, reply.response.error_message)
        if error is not None:
            return error
        brokers = {b.broker_id: Node(b.broker_id, b.host, b.port, b.rack) for b in reply.response.brokers}
        return ClusterDescription(
            reply.response.cluster_id,
            brokers.get(reply.response.controller_id),
            tuple(brokers[node_id] for node_id in sorted(brokers)),
            frozenset(b.broker_id for b in reply.response.brokers if b.is_fenced),
        )

    return (yield from single(context, attempt))


def _cluster_of_metadata(context: Context) -> Flow[ClusterDescription | HeadraceError]:
    """Kafka before 2.8 has no DescribeCluster."""
    response = yield from metadata(context, [])
    if isinstance(response, HeadraceError):
        return response
    view = context.core.view
    known = tuple(view.nodes[node_id] for node_id in sorted(view.nodes))
    return ClusterDescription(view.cluster_id, view.nodes.get(view.controller_id), known)


def unregister_broker(context: Context, node_id: int) -> Flow[None]:
    """Let the cluster forget a broker that will not come back. One that runs registers again."""

    def attempt() -> Flow[HeadraceError | None]:
        reply = yield from to_controller(context, UnregisterBrokerRequest(broker_id=node_id))
        error = reply.error or refused(reply.response.error_code, reply.response.error_message)
        forget_controller(context, getattr(error, "code", 0))
        return error

    return (yield from single(context, attempt))


def describe_features(context: Context, node_id: int | None = None) -> Flow[FeatureMetadata]:
    """The features in effect and what a broker (None: any) supports."""

    def attempt() -> Flow[FeatureMetadata | HeadraceError]:
        if node_id is not None:
            yield from nodes(context)
        request = ApiVersionsRequest(client_software_name="headrace", client_software_version="0")
        reply = yield from ask_one(context, node_id, request)
        if reply.error is not None:
            return reply.error
        response = reply.response
        epoch = response.finalized_features_epoch
        return refused(response.error_code) or FeatureMetadata(
            {
                f.name: FinalizedVersionRange(f.min_version_level, f.max_version_level)
                for f in response.finalized_features
            },
            {f.name: FinalizedVersionRange(f.min_version, f.max_version) for f in response.supported_features},
            epoch if epoch >= 0 else None,
        )

    return (yield from single(context, attempt))


def update_features(
    context: Context, updates: Mapping[str, FeatureUpdate], *, validate_only: bool = False
) -> Flow[Results[str, None]]:
    """Change the level of features."""

    def attempt(names: list[str]) -> Flow[Mapping[str, HeadraceError | None]]:
        request = UpdateFeaturesRequest(
            timeout_ms=context.request_timeout_ms,
            feature_updates=[
                FeatureUpdateKey(
                    feature=name,
                    max_version_level=updates[name].max_version_level,
                    upgrade_type=int(updates[name].upgrade_type),
                    allow_downgrade=updates[name].upgrade_type > 1,
                )
                for name in names
            ],
            validate_only=validate_only,
        )
        reply = yield from to_controller(context, request)
        error = reply.error or refused(reply.response.error_code, reply.response.error_message)
        if error is not None:
            return dict.fromkeys(names, error)
        outcome: dict[str, HeadraceError | None] = dict.fromkeys(names)
        for result in reply.response.results:
            outcome[result.feature] = refused(result.error_code, result.error_message)
        return outcome

    return (yield from retried(context, updates, attempt))


# --- log directories --------------------------------------------------------------------------------------------------


def describe_log_dirs(
    context: Context, brokers: Iterable[int] | None = None
) -> Flow[Results[int, dict[str, LogDirDescription]]]:
    """By broker (None: all of them) and path: what is in a log directory, how large, how much room is left."""
    if brokers is None:
        brokers = yield from single(context, lambda: nodes(context))

    def attempt(wanted: list[int]) -> Flow[Mapping[int, dict[str, LogDirDescription] | HeadraceError]]:
        known = yield from nodes(context)
        if isinstance(known, HeadraceError):
            return dict.fromkeys(wanted, known)
        replies = yield from ask_all(context, [Ask(node_id, DescribeLogDirsRequest(topics=None)) for node_id in wanted])
        outcome: dict[int, dict[str, LogDirDescription] | HeadraceError] = {}
        for node_id, reply in zip(wanted, replies):
            error = reply.error or refused(reply.response.error_code, None, f"broker {node_id}")
            outcome[node_id] = error or {result.log_dir: _log_dir(result) for result in reply.response.results}
        return outcome

    return (yield from retried(context, brokers, attempt))


def _log_dir(result: DescribeLogDirsResult) -> LogDirDescription:
    replicas = {
        TopicPartition(topic.name, p.partition_index): ReplicaInfo(p.partition_size, p.offset_lag, p.is_future_key)
        for topic in result.topics
        for p in topic.partitions
    }
    error = refused(result.error_code, None, result.log_dir)
    return LogDirDescription(error, replicas, result.total_bytes, result.usable_bytes)


def alter_replica_log_dirs(
    context: Context, moves: Mapping[TopicPartitionReplica, str]
) -> Flow[Results[TopicPartitionReplica, None]]:
    """Move replicas to another log directory of their broker; done in the background (see `describe_log_dirs`)."""

    def ask(node_id: int, replicas: list[TopicPartitionReplica]) -> Ask:
        by_path: dict[str, list[TopicPartition]] = {}
        for replica in replicas:
            by_path.setdefault(moves[replica], []).append(TopicPartition(replica.topic, replica.partition))
        return Ask(
            node_id,
            AlterReplicaLogDirsRequest(
                dirs=[
                    AlterReplicaLogDir(
                        path=path,
                        topics=[
                            AlterReplicaLogDirTopic(name=topic, partitions=indexes)
                            for topic, indexes in by_topic(partitions).items()
                        ],
                    )
                    for path, partitions in by_path.items()
                ]
            ),
        )

    def attempt(wanted: list[TopicPartitionReplica]) -> Flow[Mapping[TopicPartitionReplica, HeadraceError | None]]:
        known = yield from nodes(context)
        if isinstance(known, HeadraceError):
            return dict.fromkeys(wanted, known)
        by_node: dict[int, list[TopicPartitionReplica]] = {}
        for replica in wanted:
            by_node.setdefault(replica.broker_id, []).append(replica)
        replies = yield from ask_all(context, [ask(node_id, replicas) for node_id, replicas in by_node.items()])
        outcome: dict[TopicPartitionReplica, HeadraceError | None] = {}
        for node_id, response in answers(by_node, replies, outcome):
            for topic in response.results:
                for result in topic.partitions:
                    replica = TopicPartitionReplica(topic.topic_name, result.partition_index, node_id)
                    outcome[replica] = refused(result.error_code, None, f"{replica.topic}-{replica.partition}")
        return missing(wanted, outcome, "AlterReplicaLogDirs")

    return (yield from retried(context, moves, attempt))


# --- leaders and reassignments ----------------------------------------------------------------------------------------


def elect_leaders(
    context: Context,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    election_type: ElectionType = ElectionType.PREFERRED,
) -> Flow[Results[TopicPartition, None]]:
    """Let partitions (None: all that need it) be led by their preferred replica, or by one that is out of sync.

    `ElectionNotNeededError` is the answer for a partition that is led as it should be.
    """
    wanted = None if partitions is None else list(partitions)

    def attempt() -> Flow[Results[TopicPartition, None] | HeadraceError]:
        request = ElectLeadersRequest(
            election_type=int(election_type),
            topic_partitions=None
            if wanted is None
            else [TopicPartitions(topic=topic, partitions=indexes) for topic, indexes in by_topic(wanted).items()],
            timeout_ms=context.request_timeout_ms,
        )
        reply = yield from to_controller(context, request)
        error = reply.error or refused(reply.response.error_code)
        if error is not None:
            forget_controller(context, getattr(error, "code", 0))
            return error
        ok: dict[TopicPartition, None] = {}
        errors: dict[TopicPartition, HeadraceError] = {}
        for topic in reply.response.replica_election_results:
            for result in topic.partition_result:
                partition = TopicPartition(topic.topic, result.partition_id)
                problem = refused(result.error_code, result.error_message, str(partition))
                if problem is None:
                    ok[partition] = None
                elif wanted is not None or result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                    errors[partition] = problem
        return Results(ok, errors)

    return (yield from single(context, attempt))


def alter_partition_reassignments(
    context: Context, reassignments: Mapping[TopicPartition, Sequence[int] | None]
) -> Flow[Results[TopicPartition, None]]:
    """Give partitions other replicas; None cancels a reassignment that is under way."""

    def attempt(pending: list[TopicPartition]) -> Flow[Mapping[TopicPartition, HeadraceError | None]]:
        topics = []
        for topic, indexes in by_topic(pending).items():
            partitions = []
            for index in indexes:
                brokers = reassignments[TopicPartition(topic, index)]
                replicas = None if brokers is None else list(brokers)
                partitions.append(ReassignablePartition(partition_index=index, replicas=replicas))
            topics.append(ReassignableTopic(name=topic, partitions=partitions))
        request = AlterPartitionReassignmentsRequest(timeout_ms=context.request_timeout_ms, topics=topics)
        reply = yield from to_controller(context, request)
        error = reply.error or refused(reply.response.error_code, reply.response.error_message)
        if error is not None:
            forget_controller(context, getattr(error, "code", 0))
            return dict.fromkeys(pending, error)
        outcome: dict[TopicPartition, HeadraceError | None] = {}
        for answered in reply.response.responses:
            for result in answered.partitions:
                partition = TopicPartition(answered.name, result.partition_index)
                outcome[partition] = refused(result.error_code, result.error_message, str(partition))
        return missing(pending, outcome, "AlterPartitionReassignments")

    return (yield from retried(context, reassignments, attempt))


def list_partition_reassignments(
    context: Context, partitions: Iterable[TopicPartition] | None = None
) -> Flow[dict[TopicPartition, PartitionReassignment]]:
    """The reassignments that are under way, of these partitions (None: of all)."""
    wanted = None if partitions is None else by_topic(partitions)

    def attempt() -> Flow[dict[TopicPartition, PartitionReassignment] | HeadraceError]:
        topics = (
            None
            if wanted is None
            else [ListPartitionReassignmentsTopics(name=t, partition_indexes=p) for t, p in wanted.items()]
        )
        request = ListPartitionReassignmentsRequest(timeout_ms=context.request_timeout_ms, topics=topics)
        reply = yield from to_controller(context, request)
        error = reply.error or refused(reply.response.error_code, reply.response.error_message)
        if error is not None:
            forget_controller(context, getattr(error, "code", 0))
            return error
        return {
            TopicPartition(topic.name, p.partition_index): PartitionReassignment(
                tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
            )
            for topic in reply.response.topics
            for p in topic.partitions
        }

    return (yield from single(context, attempt))
