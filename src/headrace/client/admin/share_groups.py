"""Share groups: describe them, and where they start in partitions; set that, or forget it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.client.admin.core import (
    Ask,
    Context,
    Results,
    answers,
    ask_all,
    by_topic,
    coordinators,
    missing,
    refused,
    retried,
)
from headrace.client.admin.types import ShareGroupDescription, ShareGroupOffset, ShareMemberDescription
from headrace.client.flows import Flow
from headrace.errors import HeadraceError
from headrace.net.node import Node
from headrace.protocol.messages import alter_share_group_offsets as altering
from headrace.protocol.messages import delete_share_group_offsets as deleting
from headrace.protocol.messages import describe_share_group_offsets as describing
from headrace.protocol.messages.share_group_describe import DescribedGroup, ShareGroupDescribeRequest
from headrace.topics import TopicPartition

NO_OFFSET = -1


def describe_share_groups(context: Context, groups: Iterable[str]) -> Flow[Results[str, ShareGroupDescription]]:
    """State, epochs and members of share groups, each member with what it was assigned."""

    def attempt(names: list[str]) -> Flow[Mapping[str, ShareGroupDescription | HeadraceError]]:
        by_node, errors = yield from coordinators(context, names)
        outcome: dict[str, ShareGroupDescription | HeadraceError] = dict(errors)
        asks = [Ask(node_id, ShareGroupDescribeRequest(group_ids=led)) for node_id, led in by_node.items()]
        replies = yield from ask_all(context, asks)
        for node_id, response in answers(by_node, replies, outcome):
            node = context.core.node(node_id) or Node(node_id, "", 0)
            for group in response.groups:
                error = refused(group.error_code, group.error_message, f"group {group.group_id}")
                outcome[group.group_id] = error or _group(group, node)
        return missing(names, outcome, "ShareGroupDescribe")

    return (yield from retried(context, groups, attempt))


def _group(group: DescribedGroup, coordinator: Node) -> ShareGroupDescription:
    return ShareGroupDescription(
        group.group_id,
        group.group_state,
        group.group_epoch,
        group.assignment_epoch,
        group.assignor_name,
        tuple(
            ShareMemberDescription(
                member.member_id,
                member.client_id,
                member.client_host,
                member.member_epoch,
                tuple(sorted(member.subscribed_topic_names)),
                tuple(
                    TopicPartition(topic.topic_name, partition)
                    for topic in member.assignment.topic_partitions
                    for partition in sorted(topic.partitions)
                ),
            )
            for member in group.members
        ),
        coordinator,
    )


def list_share_group_offsets(
    context: Context, groups: Iterable[str]
) -> Flow[Results[str, dict[TopicPartition, ShareGroupOffset]]]:
    """Where share groups start in each partition that they have read, and how many records are left for them."""

    def attempt(
        names: list[str],
    ) -> Flow[Mapping[str, dict[TopicPartition, ShareGroupOffset] | HeadraceError]]:
        by_node, errors = yield from coordinators(context, names)
        outcome: dict[str, dict[TopicPartition, ShareGroupOffset] | HeadraceError] = dict(errors)
        asks = [
            Ask(
                node_id,
                describing.DescribeShareGroupOffsetsRequest(
                    groups=[
                        describing.DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None) for name in led
                    ]
                ),
            )
            for node_id, led in by_node.items()
        ]
        replies = yield from ask_all(context, asks)
        for _, response in answers(by_node, replies, outcome):
            for group in response.groups:
                error = refused(group.error_code, group.error_message, f"group {group.group_id}")
                outcome[group.group_id] = error or _offsets(group)
        return missing(names, outcome, "DescribeShareGroupOffsets")

    return (yield from retried(context, groups, attempt))


def _offsets(group: describing.DescribeShareGroupOffsetsResponseGroup) -> dict[TopicPartition, ShareGroupOffset]:
    return {
        TopicPartition(topic.topic_name, part.partition_index): ShareGroupOffset(
            None if part.start_offset == NO_OFFSET else part.start_offset, None if part.lag < 0 else part.lag
        )
        for topic in group.topics
        for part in topic.partitions
        if not part.error_code
    }


def alter_share_group_offsets(
    context: Context, group_id: str, offsets: Mapping[TopicPartition, int]
) -> Flow[Results[TopicPartition, None]]:
    """Set where a share group without members starts. A group that does not exist is made."""
    request = altering.AlterShareGroupOffsetsRequest(
        group_id=group_id,
        topics=[
            altering.AlterShareGroupOffsetsRequestTopic(
                topic_name=topic,
                partitions=[
                    altering.AlterShareGroupOffsetsRequestPartition(
                        partition_index=index, start_offset=offsets[TopicPartition(topic, index)]
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(offsets).items()
        ],
    )

    def attempt(wanted: list[TopicPartition]) -> Flow[Mapping[TopicPartition, HeadraceError | None]]:
        response = yield from _ask(context, group_id, request)
        if isinstance(response, HeadraceError):
            return dict.fromkeys(wanted, response)
        outcome: dict[TopicPartition, HeadraceError | None] = {
            TopicPartition(topic.topic_name, part.partition_index): refused(part.error_code, part.error_message)
            for topic in response.responses
            for part in topic.partitions
        }
        return missing(wanted, outcome, "AlterShareGroupOffsets")

    return (yield from retried(context, list(offsets), attempt))


def delete_share_group_offsets(context: Context, group_id: str, topics: Iterable[str]) -> Flow[Results[str, None]]:
    """Forget where a share group without members has got to in topics: it begins there anew."""

    def attempt(wanted: list[str]) -> Flow[Mapping[str, HeadraceError | None]]:
        request = deleting.DeleteShareGroupOffsetsRequest(
            group_id=group_id,
            topics=[deleting.DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in wanted],
        )
        response = yield from _ask(context, group_id, request)
        if isinstance(response, HeadraceError):
            return dict.fromkeys(wanted, response)
        outcome: dict[str, HeadraceError | None] = {
            topic.topic_name: refused(topic.error_code, topic.error_message) for topic in response.responses
        }
        return missing(wanted, outcome, "DeleteShareGroupOffsets")

    return (yield from retried(context, topics, attempt))


def _ask(context: Context, group_id: str, request: Any) -> Flow[Any]:
    """The coordinator's answer, or why there is none."""
    by_node, errors = yield from coordinators(context, [group_id])
    if errors:
        return errors[group_id]
    [reply] = yield from ask_all(context, [Ask(node_id, request) for node_id in by_node])
    if reply.error is not None:
        return reply.error
    return refused(reply.response.error_code, reply.response.error_message, f"group {group_id}") or reply.response
