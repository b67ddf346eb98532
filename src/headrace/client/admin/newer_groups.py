"""Groups whose coordinator assigns, as they are described: consumer groups of KIP-848, share groups, streams groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from headrace.client.admin.types import GroupDescription, MemberDescription
from headrace.net.node import Node
from headrace.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from headrace.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from headrace.topics import TopicPartition

_PROTOCOL_OF_MEMBER = {0: "classic", 1: "consumer"}


@dataclass(frozen=True, slots=True)
class NewerKind:
    """A kind of groups with a request of its own that describes them."""

    request: Callable[[list[str]], Any]
    read: Callable[[Any, Node], GroupDescription]


def _partitions(parts: Iterable[Any]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(one.topic_name, number) for one in parts for number in one.partitions))


def _consumer(group: Any, coordinator: Node) -> GroupDescription:
    members = tuple(
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            _partitions(member.assignment.topic_partitions),
            tuple(member.subscribed_topic_names),
            epoch=member.member_epoch,
            target=_partitions(member.target_assignment.topic_partitions),
            protocol=_PROTOCOL_OF_MEMBER.get(member.member_type),
            topic_pattern=member.subscribed_topic_regex or None,
        )
        for member in group.members
    )
    return _described(group, "consumer", group.assignor_name, members, coordinator)


def _share(group: Any, coordinator: Node) -> GroupDescription:
    members = tuple(
        MemberDescription(
            member.member_id,
            None,
            member.client_id,
            member.client_host,
            _partitions(member.assignment.topic_partitions),
            tuple(member.subscribed_topic_names),
            epoch=member.member_epoch,
        )
        for member in group.members
    )
    return _described(group, "share", group.assignor_name, members, coordinator)


def _streams(group: Any, coordinator: Node) -> GroupDescription:
    """Of tasks, the partitions of the topics that the subtopology reads."""
    sources: dict[str, list[str]] = {}
    for one in () if group.topology is None else group.topology.subtopologies or ():
        repartition = [topic.name for topic in one.repartition_source_topics]
        sources[one.subtopology_id] = sorted({*one.source_topics, *repartition})

    def partitions(tasks: Iterable[Any]) -> tuple[TopicPartition, ...]:
        found = {
            TopicPartition(topic, number)
            for one in tasks
            for topic in sources.get(one.subtopology_id, ())
            for number in one.partitions
        }
        return tuple(sorted(found))

    members = tuple(
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            partitions(member.assignment.active_tasks),
            epoch=member.member_epoch,
            target=partitions(member.target_assignment.active_tasks),
            tasks=_tasks(member.assignment.active_tasks),
            standby_tasks=_tasks(member.assignment.standby_tasks),
        )
        for member in group.members
    )
    return _described(group, "streams", "sticky", members, coordinator)


def _tasks(told: Iterable[Any]) -> tuple[str, ...]:
    """As Kafka Streams names them: subtopology and number."""
    return tuple(f"{one.subtopology_id}_{number}" for one in told for number in sorted(one.partitions))


def _described(
    group: Any, kind: str, assignor: str, members: tuple[MemberDescription, ...], coordinator: Node
) -> GroupDescription:
    return GroupDescription(
        group.group_id,
        group.group_state,
        kind,
        assignor,
        members,
        coordinator,
        type=kind,
        epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
    )


NEWER_KINDS = (
    NewerKind(lambda names: ConsumerGroupDescribeRequest(group_ids=names), _consumer),
    NewerKind(lambda names: ShareGroupDescribeRequest(group_ids=names), _share),
    NewerKind(lambda names: StreamsGroupDescribeRequest(group_ids=names), _streams),
)
