"""Groups that change their protocol while they have members: classic ones to consumer groups, and back."""

from __future__ import annotations

from collections.abc import Callable

from headrace.assignors.base import Assignment
from headrace.assignors.consumer_protocol import (
    ConsumerProtocolError,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from headrace.coordination import Now
from headrace.errors import ErrorCode
from headrace.groups.classic import answers
from headrace.groups.classic.records import group_record, group_tombstone
from headrace.groups.classic.state import CONSUMER_PROTOCOL_TYPE, ClassicGroup, GroupState, Member
from headrace.groups.consumer.group import ClassicProtocols, ConsumerGroup, ConsumerMember
from headrace.groups.consumer.reconcile import with_epoch
from headrace.groups.epochs.refusals import RefusedError
from headrace.groups.epochs.steps import GroupStep
from headrace.groups.outcome import Outcome
from headrace.groups.shards import Shards
from headrace.groups.topics import TopicLookup
from headrace.topics import TopicPartition

# A rebalance of a classic group that was a consumer group until now, with the reason for it.
Rebalance = Callable[[Outcome, ClassicGroup, Now, str], None]


def from_classic(old: ClassicGroup, group: ConsumerGroup, topics: TopicLookup) -> None:
    """Fill a consumer group with the members of a classic one: they have what their leader assigned them.

    Refused where what they say of themselves cannot be read; nothing is changed then.
    """
    try:
        members = [_from_classic(old, member, topics) for member in old.members.values()]
    except ConsumerProtocolError as error:
        raise RefusedError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {old.group_id} to consumer group because the embedded consumer protocol is "
            f"malformed: {error}.",
        ) from None
    group.epoch = group.assignment_epoch = old.generation
    for member in members:
        group.put_member(member)
        group.targets[member.member_id] = {topic: tuple(sorted(found)) for topic, found in member.assigned.items()}


def _from_classic(old: ClassicGroup, member: Member, topics: TopicLookup) -> ConsumerMember:
    name = old.protocol_name
    subscription = decode_subscription(member.metadata(name) if name is not None else member.protocols[0][1])
    assigned: dict[bytes, list[int]] = {}
    if member.assignment:
        for topic, index in decode_assignment(member.assignment).partitions:
            topic_id = topics.topic_id(topic)
            if topic_id is not None:
                assigned.setdefault(topic_id, []).append(index)
    return ConsumerMember(
        member.member_id,
        member.instance_id,
        subscription.rack_id,
        member.client_id,
        member.client_host,
        frozenset(subscription.topics),
        member.rebalance_timeout_ms,
        old.generation,
        old.generation,
        assigned=with_epoch(assigned, old.generation),
        classic=ClassicProtocols(member.session_timeout_ms, member.protocols),
    )


def upgrade(step: GroupStep[ConsumerGroup], shards: Shards, old: ClassicGroup) -> None:
    """The consumer group that was filled takes the classic one's place. Whoever waits there is to join again."""
    out, group = step.out, step.group
    for member in old.members.values():
        waiting = old.set_join(member, None)
        if waiting is not None:
            answers.join_error(out, waiting, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        if member.sync is not None:
            answers.sync_error(out, member.sync, ErrorCode.REBALANCE_IN_PROGRESS)
            member.sync = None
    old.cancel_timers(out)
    shards.replace(old, group)
    if old.is_recorded:
        tombstone = group_tombstone(old)
        step.put_encoded(tombstone.key, tombstone.value)
    for member_id in group.members:
        step.put(group.member_record(group.members[member_id]))
    step.put(group.epoch_record())
    for member_id in group.members:
        step.put(group.target_record(member_id))
    step.put(group.target_epoch_record(step.at.wall_ms))
    for upgraded in group.members.values():
        step.put(group.current_record(upgraded))
        group.heard_from(out, upgraded, step.at)
    step.note("it speaks the consumer protocol from now on")


def downgrade(
    step: GroupStep[ConsumerGroup], shards: Shards, topics: TopicLookup, rebalance: Rebalance | None
) -> ClassicGroup:
    """A consumer group whose members all speak the classic protocol becomes a classic one, in their last epoch."""
    out, old, at = step.out, step.group, step.at
    group = ClassicGroup(
        old.group_id,
        old.partition,
        state=GroupState.STABLE,
        previous_state=GroupState.STABLE,
        state_timestamp_ms=at.wall_ms,
        generation=old.epoch,
    )
    assignments: dict[str, bytes] = {}
    for member in old.members.values():
        assert member.classic is not None, "all others have left"
        assignments[member.member_id] = assignment_bytes(member, member.classic, topics)
        group.add(
            Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.classic.session_timeout_ms,
                member.classic.protocols,
                assignments[member.member_id],
            ),
            CONSUMER_PROTOCOL_TYPE,
        )
    group.protocol_name = group.select_protocol()
    group.find_subscriptions()
    for key, value in old.records_of_end():
        step.put((key, value))
    old.cancel_timers(out)
    shards.replace(old, group)
    step.put_once(group_record(group, assignments))
    group.start_timers(out, at)
    step.note("it speaks the classic protocol from now on")
    if rebalance is not None:
        step.end()
        rebalance(out, group, at, "the last member of the consumer protocol left")
    return group


def assignment_bytes(member: ConsumerMember, classic: ClassicProtocols, topics: TopicLookup) -> bytes:
    """What a member has, as its own version of the consumer protocol writes it."""
    named = ((topics.topic_name(topic), indexes) for topic, indexes in member.assigned.items())
    partitions = [
        TopicPartition(name, index) for name, indexes in named if name is not None for index in sorted(indexes)
    ]
    return encode_assignment(Assignment(partitions), int.from_bytes(classic.protocols[0][1][:2], "big"))
