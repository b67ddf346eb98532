"""Groups: list, describe, delete, remove members; the offsets that they committed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from headrace.client.admin.core import (
    Ask,
    Context,
    Results,
    answers,
    ask_all,
    ask_one,
    by_topic,
    coordinators,
    missing,
    nodes,
    refused,
    retried,
    single,
)
from headrace.client.admin.newer_groups import NEWER_KINDS, NewerKind
from headrace.client.admin.types import GroupDescription, GroupListing, MemberDescription
from headrace.client.flows import Flow
from headrace.client.offsets import OffsetAndMetadata
from headrace.errors import GroupIdNotFoundError, HeadraceError, UnsupportedVersionError
from headrace.net.node import Node
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember, DescribeGroupsRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from headrace.topics import TopicPartition

V = TypeVar("V")

DEAD = "Dead"
_CONSUMER_PROTOCOL = "consumer"
# Version 10 of both names topics by id only, and a group may have offsets of topics that are gone.
_BY_NAME_VERSION_MAX = 9

GroupOffsets = dict[TopicPartition, OffsetAndMetadata]


def list_groups(context: Context, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> Flow[list[GroupListing]]:
    """Every group of every broker, sorted by id; `states` and `types` (Kafka's words) narrow it down."""
    wanted_states, wanted_types = sorted(states), sorted(types)

    def attempt() -> Flow[list[GroupListing] | HeadraceError]:
        brokers = yield from nodes(context)
        if isinstance(brokers, HeadraceError):
            return brokers
        request = ListGroupsRequest(states_filter=wanted_states, types_filter=wanted_types)
        replies = yield from ask_all(context, [Ask(node_id, request) for node_id in brokers])
        found: dict[str, GroupListing] = {}
        for reply in replies:
            error = reply.error or refused(reply.response.error_code)
            if error is not None:
                return error
            for group in reply.response.groups:
                found[group.group_id] = GroupListing(
                    group.group_id, group.protocol_type, group.group_state, group.group_type
                )
        return [found[name] for name in sorted(found)]

    return (yield from single(context, attempt))


def _per_coordinator(
    context: Context,
    groups: Iterable[str],
    request: Callable[[list[str]], Any],
    read: Callable[[Any, int], Mapping[str, V | HeadraceError]],
    what: str,
) -> Flow[Results[str, V]]:
    """One request to each coordinator for all of its groups; `read` takes the answer (and the node) apart."""

    def attempt(names: list[str]) -> Flow[Mapping[str, V | HeadraceError]]:
        by_node, errors = yield from coordinators(context, names)
        outcome: dict[str, V | HeadraceError] = dict(errors)
        replies = yield from ask_all(context, [Ask(node_id, request(led)) for node_id, led in by_node.items()])
        for node_id, response in answers(by_node, replies, outcome):
            outcome.update(read(response, node_id))
        return missing(names, outcome, what)

    return (yield from retried(context, groups, attempt))


def describe_groups(context: Context, groups: Iterable[str]) -> Flow[Results[str, GroupDescription]]:
    """State, strategy and members of groups of any type, each member with what it was assigned."""
    described: Results[str, GroupDescription] = yield from _describe_classic(context, groups)
    found, errors = dict(described.ok), dict(described.errors)
    for kind in NEWER_KINDS:
        # To a broker that has other types, those are none of the classic protocol.
        unknown = [name for name, error in errors.items() if isinstance(error, GroupIdNotFoundError)]
        if not unknown:
            break
        newer = yield from _describe_newer(context, unknown, kind)
        if any(isinstance(error, UnsupportedVersionError) for error in newer.errors.values()):
            continue
        found |= newer.ok
        errors = {name: newer.errors.get(name, error) for name, error in errors.items() if name not in newer.ok}
    return Results(found, errors)


def _describe_newer(context: Context, groups: list[str], kind: NewerKind) -> Flow[Results[str, GroupDescription]]:
    def read(response: Any, node_id: int) -> Mapping[str, GroupDescription | HeadraceError]:
        node = context.core.node(node_id) or Node(node_id, "", 0)
        return {
            group.group_id: refused(group.error_code, group.error_message, f"group {group.group_id}")
            or kind.read(group, node)
            for group in response.groups
        }

    return (yield from _per_coordinator(context, groups, kind.request, read, "describing groups"))


def _describe_classic(context: Context, groups: Iterable[str]) -> Flow[Results[str, GroupDescription]]:
    def read(response: Any, node_id: int) -> Mapping[str, GroupDescription | HeadraceError]:
        node = context.core.node(node_id) or Node(node_id, "", 0)
        outcome: dict[str, GroupDescription | HeadraceError] = {}
        for group in response.groups:
            error = refused(group.error_code, group.error_message, f"group {group.group_id}")
            if error is None and group.group_state == DEAD:
                # Brokers before Kafka 4.0 answer like this for a group that does not exist.
                error = GroupIdNotFoundError(f"group {group.group_id} does not exist")
            outcome[group.group_id] = error or _group(group, node)
        return outcome

    return (
        yield from _per_coordinator(
            context, groups, lambda names: DescribeGroupsRequest(groups=names), read, "DescribeGroups"
        )
    )


def _group(group: DescribedGroup, coordinator: Node) -> GroupDescription:
    is_consumer = group.protocol_type == _CONSUMER_PROTOCOL
    members = tuple(_member(member, is_consumer) for member in group.members)
    return GroupDescription(
        group.group_id, group.group_state, group.protocol_type, group.protocol_data, members, coordinator
    )


def _member(member: DescribedGroupMember, is_consumer: bool) -> MemberDescription:
    partitions: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    if is_consumer:
        # Here, because the assignors are a quarter of what an Admin imports, and few operations look at members.
        from headrace.assignors.base import AssignorError
        from headrace.assignors.consumer_protocol import decode_assignment, decode_topics

        # There are clients with a protocol of their own under the consumers' name: what can be read of a member is
        # shown, whatever cannot.
        if member.member_assignment:
            with contextlib.suppress(AssignorError):
                partitions = tuple(sorted(decode_assignment(bytes(member.member_assignment)).partitions))
        if member.member_metadata:
            with contextlib.suppress(AssignorError):
                topics = tuple(decode_topics(bytes(member.member_metadata)))
    return MemberDescription(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, partitions, topics
    )


def delete_groups(context: Context, groups: Iterable[str]) -> Flow[Results[str, None]]:
    """Delete groups that have no members, with their offsets."""

    def read(response: Any, node_id: int) -> Mapping[str, HeadraceError | None]:
        return {
            result.group_id: refused(result.error_code, None, f"group {result.group_id}") for result in response.results
        }

    return (
        yield from _per_coordinator(
            context, groups, lambda names: DeleteGroupsRequest(groups_names=names), read, "DeleteGroups"
        )
    )


def remove_members(
    context: Context,
    group_id: str,
    group_instance_ids: Iterable[str] | None = None,
    *,
    reason: str = "removed by an administrator",
) -> Flow[Results[str, None]]:
    """Make static members leave a group; without names, every member. By instance id, or by member id."""
    if group_instance_ids is None:
        described = yield from describe_groups(context, [group_id])
        wanted = [(m.member_id, m.group_instance_id) for m in described[group_id].members]
    else:
        wanted = [("", name) for name in group_instance_ids]
    if not wanted:
        return Results({}, {})
    request = LeaveGroupRequest(
        group_id=group_id,
        members=[MemberIdentity(member_id=m, group_instance_id=i, reason=reason) for m, i in wanted],
    )

    def attempt(_: list[str]) -> Flow[Mapping[str, dict[str, HeadraceError | None] | HeadraceError]]:
        by_node, errors = yield from coordinators(context, [group_id])
        if errors:
            return errors
        [coordinator] = by_node
        reply = yield from ask_one(context, coordinator, request)
        error = reply.error or refused(reply.response.error_code, None, f"group {group_id}")
        if error is not None:
            return {group_id: error}
        return {group_id: {m.group_instance_id or m.member_id: refused(m.error_code) for m in reply.response.members}}

    results: Results[str, dict[str, HeadraceError | None]] = yield from retried(context, [group_id], attempt)
    per_member = results[group_id]
    errors = {name: error for name, error in per_member.items() if error is not None}
    return Results({name: None for name in per_member if name not in errors}, errors)


# --- committed offsets ------------------------------------------------------------------------------------------------


def list_group_offsets(
    context: Context, groups: Iterable[str], *, require_stable: bool = False
) -> Flow[Results[str, GroupOffsets]]:
    """The committed offsets of groups, by partition. A group that nobody knows has none."""

    def request(name: str) -> OffsetFetchRequest:
        return OffsetFetchRequest(
            group_id=name,
            topics=None,
            groups=[OffsetFetchRequestGroup(group_id=name, topics=None)],
            require_stable=require_stable,
        )

    return (yield from _fetch_offsets(context, groups, request))


def list_partition_offsets(context: Context, group_id: str, partitions: Iterable[TopicPartition]) -> Flow[GroupOffsets]:
    """A group's committed offsets of these partitions; those without one are left out."""
    grouped = by_topic(partitions)

    def request(name: str) -> OffsetFetchRequest:
        return OffsetFetchRequest(
            group_id=name,
            topics=[OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in grouped.items()],
            groups=[
                OffsetFetchRequestGroup(
                    group_id=name,
                    topics=[OffsetFetchRequestTopics(name=t, partition_indexes=p) for t, p in grouped.items()],
                )
            ],
        )

    results = yield from _fetch_offsets(context, [group_id], request)
    return results[group_id]


def _fetch_offsets(
    context: Context, groups: Iterable[str], request: Callable[[str], OffsetFetchRequest]
) -> Flow[Results[str, GroupOffsets]]:
    def attempt(names: list[str]) -> Flow[Mapping[str, GroupOffsets | HeadraceError]]:
        by_node, errors = yield from coordinators(context, names)
        outcome: dict[str, GroupOffsets | HeadraceError] = dict(errors)
        wanted = [(node_id, name) for node_id, led in by_node.items() for name in led]
        asks = [Ask(node_id, request(name), _BY_NAME_VERSION_MAX) for node_id, name in wanted]
        replies = yield from ask_all(context, asks)
        for (_, name), reply in zip(wanted, replies):
            outcome[name] = reply.error or _offsets(name, reply.response)
        return outcome

    return (yield from retried(context, groups, attempt))


def _offsets(group_id: str, response: Any) -> GroupOffsets | HeadraceError:
    answer = response.groups[0] if response.groups else response
    error = refused(answer.error_code, None, f"group {group_id}")
    if error is not None:
        return error
    found: GroupOffsets = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            name = TopicPartition(topic.name, partition.partition_index)
            problem = refused(partition.error_code, None, f"offset of {name} in group {group_id}")
            if problem is not None:
                return problem
            if partition.committed_offset >= 0:
                epoch = partition.committed_leader_epoch
                found[name] = OffsetAndMetadata(
                    partition.committed_offset, partition.metadata or "", epoch if epoch >= 0 else None
                )
    return dict(sorted(found.items()))


def alter_group_offsets(
    context: Context, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
) -> Flow[Results[TopicPartition, None]]:
    """Set committed offsets. The group must have no members (or be known to no one yet)."""

    def request(partitions: list[TopicPartition]) -> OffsetCommitRequest:
        return OffsetCommitRequest(
            group_id=group_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic, partitions=[_commit(index, offsets[TopicPartition(topic, index)]) for index in indexes]
                )
                for topic, indexes in by_topic(partitions).items()
            ],
        )

    return (yield from _change_offsets(context, group_id, offsets, request, "OffsetCommit"))


def _commit(index: int, wanted: OffsetAndMetadata | int) -> OffsetCommitRequestPartition:
    offset = OffsetAndMetadata(wanted) if isinstance(wanted, int) else wanted
    return OffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=-1 if offset.leader_epoch is None else offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


def delete_group_offsets(
    context: Context, group_id: str, partitions: Iterable[TopicPartition]
) -> Flow[Results[TopicPartition, None]]:
    """Forget committed offsets. No member of the group may be subscribed to the topic."""

    def request(pending: list[TopicPartition]) -> OffsetDeleteRequest:
        return OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
                )
                for topic, indexes in by_topic(pending).items()
            ],
        )

    return (yield from _change_offsets(context, group_id, partitions, request, "OffsetDelete"))


def _change_offsets(
    context: Context,
    group_id: str,
    partitions: Iterable[TopicPartition],
    request: Callable[[list[TopicPartition]], Any],
    what: str,
) -> Flow[Results[TopicPartition, None]]:
    def attempt(pending: list[TopicPartition]) -> Flow[Mapping[TopicPartition, HeadraceError | None]]:
        by_node, errors = yield from coordinators(context, [group_id])
        if errors:
            return dict.fromkeys(pending, errors[group_id])
        [coordinator] = by_node
        reply = yield from ask_one(context, coordinator, request(pending), _BY_NAME_VERSION_MAX)
        failure = reply.error or refused(getattr(reply.response, "error_code", 0), None, f"group {group_id}")
        if failure is not None:
            return dict.fromkeys(pending, failure)
        outcome: dict[TopicPartition, HeadraceError | None] = {}
        for topic in reply.response.topics:
            for result in topic.partitions:
                partition = TopicPartition(topic.name, result.partition_index)
                outcome[partition] = refused(result.error_code, None, f"{partition} of group {group_id}")
        return missing(pending, outcome, what)

    return (yield from retried(context, partitions, attempt))
