"""Topics and what is in them: create, delete, list, describe, more partitions, delete records, offsets by position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

from headrace.client.admin.core import (
    Ask,
    Context,
    Results,
    answers,
    ask_all,
    by_topic,
    change_each,
    forget_controller,
    leaders,
    metadata,
    missing,
    refused,
    retried,
    single,
    to_controller,
)
from headrace.client.admin.types import (
    CreatedTopic,
    ListOffsetsResultInfo,
    NewPartitions,
    NewTopic,
    TopicDescription,
    TopicListing,
    TopicPartitionInfo,
)
from headrace.client.flows import Flow
from headrace.client.offsets import OffsetSpec
from headrace.config import format_value
from headrace.errors import HeadraceError, KafkaStorageError, TopicAlreadyExistsError
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from headrace.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.protocol.messages.metadata import MetadataResponseTopic
from headrace.topics import TopicPartition

_CLIENT = -1
READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"


def create_topics(
    context: Context, topics: Iterable[NewTopic], *, validate_only: bool = False
) -> Flow[Results[str, CreatedTopic]]:
    """Make topics; with `validate_only` just say whether they could be made. By topic: what was made."""
    wanted = {topic.name: topic for topic in topics}
    before: dict[str, HeadraceError] = {}

    def attempt(names: list[str]) -> Flow[Mapping[str, CreatedTopic | HeadraceError]]:
        request = CreateTopicsRequest(
            topics=[_creatable(wanted[name]) for name in names],
            timeout_ms=context.request_timeout_ms,
            validate_only=validate_only,
        )
        reply = yield from to_controller(context, request)
        if reply.error is not None:
            return dict.fromkeys(names, reply.error)
        outcome: dict[str, CreatedTopic | HeadraceError] = {}
        for result in reply.response.topics:
            forget_controller(context, result.error_code)
            outcome[result.name] = refused(result.error_code, result.error_message, f"topic {result.name}") or (
                CreatedTopic(
                    result.name,
                    result.topic_id,
                    result.num_partitions,
                    result.replication_factor,
                    {config.name: config.value for config in result.configs or ()},
                )
            )
        for name, made in outcome.items():
            if isinstance(made, KafkaStorageError):
                before[name] = made
            elif isinstance(made, TopicAlreadyExistsError) and name in before:
                # It is there since the attempt before; what is to be said is why that one failed.
                outcome[name] = TopicAlreadyExistsError(f"{made} It was made now, and is not whole: {before[name]}")
        return missing(names, outcome, "CreateTopics")

    return (yield from retried(context, wanted, attempt))


def _creatable(topic: NewTopic) -> CreatableTopic:
    assigned = topic.replicas_assignments
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if assigned is not None else topic.num_partitions,
        replication_factor=-1 if assigned is not None else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=partition, broker_ids=list(brokers))
            for partition, brokers in (assigned or {}).items()
        ],
        configs=[CreatableTopicConfig(name=name, value=format_value(value)) for name, value in topic.configs.items()],
    )


def delete_topics(context: Context, topics: Iterable[str]) -> Flow[Results[str, None]]:
    """Delete topics with all that is in them."""

    def attempt(names: list[str]) -> Flow[Mapping[str, HeadraceError | None]]:
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in names],
            topic_names=names,
            timeout_ms=context.request_timeout_ms,
        )
        return (yield from change_each(context, request, names, attrgetter("responses"), _changed_topic))

    return (yield from retried(context, topics, attempt))


def _changed_topic(result: DeletableTopicResult | CreatePartitionsTopicResult) -> tuple[str, HeadraceError | None]:
    return result.name or "", refused(result.error_code, result.error_message, f"topic {result.name}")


def list_topics(context: Context, *, list_internal: bool = False) -> Flow[dict[str, TopicListing]]:
    """Every topic; Kafka's own (`__consumer_offsets` …) only if asked for."""

    def attempt() -> Flow[dict[str, TopicListing] | HeadraceError]:
        response = yield from metadata(context, None)
        if isinstance(response, HeadraceError):
            return response
        return {
            topic.name: TopicListing(topic.name, topic.topic_id, topic.is_internal)
            for topic in sorted(response.topics, key=lambda topic: topic.name or "")
            if topic.name is not None and (list_internal or not topic.is_internal)
        }

    return (yield from single(context, attempt))


def describe_topics(context: Context, topics: Iterable[str]) -> Flow[Results[str, TopicDescription]]:
    """Partitions of topics with leader, replicas and in-sync replicas."""

    def attempt(names: list[str]) -> Flow[Mapping[str, TopicDescription | HeadraceError]]:
        response = yield from metadata(context, names)
        if isinstance(response, HeadraceError):
            return dict.fromkeys(names, response)
        outcome: dict[str, TopicDescription | HeadraceError] = {}
        for topic in response.topics:
            name = topic.name or ""
            outcome[name] = refused(topic.error_code, None, f"topic {name}") or _described(topic)
        return missing(names, outcome, "Metadata")

    return (yield from retried(context, topics, attempt))


def _described(topic: MetadataResponseTopic) -> TopicDescription:
    partitions = (
        TopicPartitionInfo(
            partition.partition_index,
            partition.leader_id,
            partition.leader_epoch,
            tuple(partition.replica_nodes),
            tuple(partition.isr_nodes),
            tuple(partition.offline_replicas),
        )
        for partition in topic.partitions
    )
    ordered = tuple(sorted(partitions, key=lambda info: info.partition))
    return TopicDescription(topic.name or "", topic.topic_id, topic.is_internal, ordered)


def create_partitions(
    context: Context, new_partitions: Mapping[str, NewPartitions | int], *, validate_only: bool = False
) -> Flow[Results[str, None]]:
    """Give topics more partitions; a plain number is the total. Keys map to other partitions from then on."""

    def attempt(names: list[str]) -> Flow[Mapping[str, HeadraceError | None]]:
        request = CreatePartitionsRequest(
            topics=[_enlarged(name, new_partitions[name]) for name in names],
            timeout_ms=context.request_timeout_ms,
            validate_only=validate_only,
        )
        return (yield from change_each(context, request, names, attrgetter("results"), _changed_topic))

    return (yield from retried(context, new_partitions, attempt))


def _enlarged(name: str, wanted: NewPartitions | int) -> CreatePartitionsTopic:
    new = NewPartitions(wanted) if isinstance(wanted, int) else wanted
    assignments = new.new_assignments
    return CreatePartitionsTopic(
        name=name,
        count=new.total_count,
        assignments=None
        if assignments is None
        else [CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in assignments],
    )


def delete_records(
    context: Context, before_offsets: Mapping[TopicPartition, int]
) -> Flow[Results[TopicPartition, int]]:
    """Delete the records before an offset (-1: all there are). By partition: the first offset that is left."""

    def attempt(partitions: list[TopicPartition]) -> Flow[Mapping[TopicPartition, int | HeadraceError]]:
        by_node, errors = yield from leaders(context, partitions)
        outcome: dict[TopicPartition, int | HeadraceError] = dict(errors)
        replies = yield from ask_all(
            context,
            [
                Ask(
                    node_id,
                    DeleteRecordsRequest(
                        topics=[
                            DeleteRecordsTopic(
                                name=topic,
                                partitions=[
                                    DeleteRecordsPartition(
                                        partition_index=index, offset=before_offsets[TopicPartition(topic, index)]
                                    )
                                    for index in indexes
                                ],
                            )
                            for topic, indexes in by_topic(led).items()
                        ],
                        timeout_ms=context.request_timeout_ms,
                    ),
                )
                for node_id, led in by_node.items()
            ],
        )
        for _, response in answers(by_node, replies, outcome):
            for topic in response.topics:
                for result in topic.partitions:
                    partition = TopicPartition(topic.name, result.partition_index)
                    error = refused(result.error_code, None, str(partition))
                    outcome[partition] = error or result.low_watermark
        return missing(partitions, outcome, "DeleteRecords")

    return (yield from retried(context, before_offsets, attempt))


def list_offsets(
    context: Context, specs: Mapping[TopicPartition, OffsetSpec], *, isolation_level: str = READ_UNCOMMITTED
) -> Flow[Results[TopicPartition, ListOffsetsResultInfo]]:
    """The offsets that the specs mean: earliest, latest, at a time, of the latest timestamp."""
    if isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise ValueError(f"isolation_level is {READ_UNCOMMITTED} or {READ_COMMITTED}, not {isolation_level!r}")

    def ask(node_id: int, led: list[TopicPartition]) -> Ask:
        return Ask(
            node_id,
            ListOffsetsRequest(
                replica_id=_CLIENT,
                isolation_level=int(isolation_level == READ_COMMITTED),
                topics=[
                    ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            ListOffsetsPartition(
                                partition_index=index, timestamp=specs[TopicPartition(topic, index)].timestamp
                            )
                            for index in indexes
                        ],
                    )
                    for topic, indexes in by_topic(led).items()
                ],
                timeout_ms=context.request_timeout_ms,
            ),
        )

    def attempt(
        partitions: list[TopicPartition],
    ) -> Flow[Mapping[TopicPartition, ListOffsetsResultInfo | HeadraceError]]:
        by_node, errors = yield from leaders(context, partitions)
        outcome: dict[TopicPartition, ListOffsetsResultInfo | HeadraceError] = dict(errors)
        replies = yield from ask_all(context, [ask(node_id, led) for node_id, led in by_node.items()])
        for _, response in answers(by_node, replies, outcome):
            for topic in response.topics:
                for result in topic.partitions:
                    partition = TopicPartition(topic.name, result.partition_index)
                    outcome[partition] = refused(result.error_code, None, str(partition)) or ListOffsetsResultInfo(
                        result.offset, result.timestamp, result.leader_epoch if result.leader_epoch >= 0 else None
                    )
        return missing(partitions, outcome, "ListOffsets")

    return (yield from retried(context, specs, attempt))
