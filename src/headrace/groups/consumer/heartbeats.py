"""ConsumerGroupHeartbeat: members that join, stay, change what they want and leave."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

from headrace.coordination import Caller, Now, is_storable
from headrace.errors import ErrorCode
from headrace.groups.consumer.group import ConsumerGroup, ConsumerMember
from headrace.groups.consumer.moving import Begin, Moves
from headrace.groups.consumer.reconcile import same_partitions
from headrace.groups.consumer.regexes import Regexes
from headrace.groups.epochs.finding import check_epoch, check_room, existing_group, existing_member
from headrace.groups.epochs.member import LEAVING_EPOCH, STATIC_LEAVING_EPOCH
from headrace.groups.epochs.refusals import RefusedError
from headrace.groups.epochs.steps import GroupStep
from headrace.groups.group import GroupKind
from headrace.groups.outcome import Outcome
from headrace.groups.settings import number
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)

NOT_TOLD = -1  # a rebalance time-out that has not changed
OWN_ID_VERSION = 1  # the first in which members bring their own ids

Owned = Mapping[bytes, frozenset[int]]


@dataclass(slots=True)
class _Heartbeat:
    """A heartbeat on its way through the steps that answer it."""

    caller: Caller
    member: ConsumerMember
    owned: Owned | None
    is_full: bool  # whether the member tells everything, and is told everything
    step: GroupStep[ConsumerGroup]  # in which it came
    number: int  # of the member's
    subscription_changed: bool = False


class ConsumerHeartbeats:
    def __init__(self, moves: Moves, regexes: Regexes, rng: Random) -> None:
        self._moves = moves
        self._regexes = regexes
        self._rng = rng
        self._shards = moves.shards
        self._config = moves.config

    def heartbeat(self, out: Outcome, caller: Caller, request: ConsumerGroupHeartbeatRequest, at: Now) -> None:
        try:
            self._check(caller, request)
            if request.member_epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
                self._leave(out, caller, request, at)
            else:
                self._stay(out, caller, request, at)
        except RefusedError as refused:
            refuse(out, caller, refused.error, refused.message)

    # --- checks -------------------------------------------------------------------------------------------------------

    def _check(self, caller: Caller, request: ConsumerGroupHeartbeatRequest) -> None:
        """What can be wrong with a request, whoever sends it; in Kafka's order."""
        epoch = request.member_epoch
        if caller.api_version >= OWN_ID_VERSION or epoch > 0 or epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
            _not_empty(request.member_id, "MemberId")
        _not_empty(request.group_id, "GroupId")
        _not_empty(request.instance_id, "InstanceId")
        _not_empty(request.rack_id, "RackId")
        if epoch == 0:
            if request.rebalance_timeout_ms == NOT_TOLD:
                raise _invalid("RebalanceTimeoutMs must be provided in first request.")
            if request.topic_partitions is None or request.topic_partitions:
                raise _invalid("TopicPartitions must be empty when (re-)joining.")
            if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
                raise _invalid(
                    "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
                )
        elif epoch == STATIC_LEAVING_EPOCH:
            if request.instance_id is None:
                raise _invalid("InstanceId can't be null.")
        elif epoch < LEAVING_EPOCH:
            raise _invalid(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
        assignor = request.server_assignor
        if assignor is not None and assignor not in self._moves.assignors:
            known = ", ".join(self._moves.assignors)
            raise RefusedError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {assignor} is not supported. Supported assignors: {known}.",
            )
        names = (*(request.subscribed_topic_names or ()), request.subscribed_topic_regex, request.rack_id)
        if not all(map(is_storable, (request.member_id, request.instance_id, caller.client_id, *names))):
            raise _invalid("A name in the request is longer than a record can hold, which is 32767 bytes.")

    # --- join and stay ------------------------------------------------------------------------------------------------

    def _stay(self, out: Outcome, caller: Caller, request: ConsumerGroupHeartbeatRequest, at: Now) -> None:
        joins = request.member_epoch == 0
        begin: Begin | None = None
        if joins:
            group, begin = self._moves.group_to_join(request.group_id)
        else:
            group = existing_group(self._shards, request.group_id, ConsumerGroup, GroupKind.CONSUMER)
        member_id = request.member_id or new_member_id(self._rng)
        check_room(group, member_id, self._config.max_size)
        owned = _owned(request)
        member = self._known_member(group, request, member_id, owned, joins)
        self._regexes.check(group, request.subscribed_topic_regex)
        # Nothing is refused from here on.
        step = GroupStep(self._shards, out, group, at)
        if begin is not None:
            begin(step)
        if member is None:
            member = ConsumerMember(member_id, request.instance_id)
            group.put_member(member)
            step.note(f"member {member_id} joins")
        elif member.member_id != member_id:
            member = self._moves.replace_static(step, member, member_id)
        is_full = joins or (
            request.rebalance_timeout_ms != NOT_TOLD
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and owned is not None
        )
        member.asked += 1
        beat = _Heartbeat(caller, member, owned, is_full or member.is_told_late, step, member.asked)
        member.is_told_late = False
        is_other = self._update(step, beat, request)
        self._regexes.look(step, caller.may_know)
        self._moves.bump_if(step, is_other)
        self._moves.targets.refresh(
            step,
            number(self._moves.settings, group.group_id, "consumer.assignment.interval.ms"),
            self._moves.plan,
            partial(self._answer, beat),
            partial(_refuse_waiting, caller),
        )

    def _known_member(
        self,
        group: ConsumerGroup,
        request: ConsumerGroupHeartbeatRequest,
        member_id: str,
        owned: Owned | None,
        joins: bool,
    ) -> ConsumerMember | None:
        """The member that this is of, or whose place it takes; None when it is new."""
        instance_id, epoch = request.instance_id, request.member_epoch
        if instance_id is None:
            member = group.members.get(member_id)
            if member is None:
                return None if joins else existing_member(group, member_id)
            if not joins:
                check_epoch(group, member, epoch, lambda: group.is_own(member_id, owned))
            return member
        member = group.static_member(instance_id)
        if joins:
            if member is None:
                return group.members.get(member_id)
            if member.member_id != member_id and not member.is_away and member.classic is None:
                raise RefusedError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
                    f"instance id is owned by {member.member_id} member.",
                )
            return member
        check_static(member, member_id, instance_id)
        assert member is not None
        check_epoch(group, member, epoch, lambda: group.is_own(member_id, owned))
        return member

    def _update(self, step: GroupStep[ConsumerGroup], beat: _Heartbeat, request: ConsumerGroupHeartbeatRequest) -> bool:
        """Take over what the member tells of itself; whether that begins a new epoch.

        A new expression does only once it is known what it matches.
        """
        group, member, caller = step.group, beat.member, beat.caller
        before = _told_by(member)
        topics, regex = member.topics, member.regex
        if request.instance_id is not None and member.instance_id != request.instance_id:
            member.instance_id = request.instance_id
            group.static_members[request.instance_id] = member.member_id
        if request.subscribed_topic_names is not None:
            topics = frozenset(request.subscribed_topic_names)
        names_changed = topics != member.topics
        if names_changed:
            group.set_topics(member, topics)
        if request.subscribed_topic_regex is not None:
            regex = request.subscribed_topic_regex
        regex_before = member.regex
        regex_changed = regex != regex_before
        assignor = member.assignor if request.server_assignor is None else request.server_assignor
        if regex_changed or assignor != member.assignor:
            group.replace_wishes(member, assignor, regex)
            self._moves.forget_unused(step, regex_before)
        if request.rack_id is not None:
            member.rack_id = request.rack_id
        if request.rebalance_timeout_ms != NOT_TOLD:
            member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id, member.client_host = caller.client_id or "", caller.client_host
        if member.classic is not None:
            group.set_classic(member, None)
            group.set_join_timer(step.out, member, None)
            group.set_sync_timer(step.out, member, None)
        if before != _told_by(member):
            step.put(group.member_record(member))
        beat.subscription_changed = names_changed or regex_changed
        return names_changed or (regex_changed and self._regexes.is_known(group, regex))

    def _answer(self, beat: _Heartbeat, step: GroupStep[ConsumerGroup]) -> None:
        """The target is what it is: bring the member nearer to it, and say what it has now."""
        group, member = step.group, beat.member
        if group.members.get(member.member_id) is not member:
            message = f"Member {member.member_id} is not a member of group {group.group_id}."
            refuse(step.out, beat.caller, ErrorCode.UNKNOWN_MEMBER_ID, message)
            return
        if member.asked != beat.number:
            message = "The member has asked again meanwhile."
            refuse(step.out, beat.caller, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
            return
        before = member.assigned
        # If it had to wait, it may have given up waiting: then it is told by the next answer, too.
        member.is_told_late = step is not beat.step
        try:
            self._moves.reconcile(step, member, beat.owned, beat.subscription_changed)
        except RefusedError as refused:
            refuse(step.out, beat.caller, refused.error, refused.message)
            return
        group.heard_from(step.out, member, step.at)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=number(self._moves.settings, group.group_id, "consumer.heartbeat.interval.ms"),
        )
        if beat.is_full or not same_partitions(before, member.assigned):
            response.assignment = HeartbeatAssignment(
                topic_partitions=[
                    HeartbeatTopicPartitions(topic_id=topic, partitions=sorted(found))
                    for topic, found in member.assigned.items()
                ]
            )
        step.out.reply(beat.caller, response)

    # --- leave --------------------------------------------------------------------------------------------------------

    def _leave(self, out: Outcome, caller: Caller, request: ConsumerGroupHeartbeatRequest, at: Now) -> None:
        group = existing_group(self._shards, request.group_id, ConsumerGroup, GroupKind.CONSUMER)
        member_id, instance_id = request.member_id, request.instance_id
        if instance_id is None:
            member = existing_member(group, member_id)
        else:
            static = group.static_member(instance_id)
            check_static(static, member_id, instance_id)
            assert static is not None
            member = static
        response = ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=request.member_epoch)
        if request.member_epoch == STATIC_LEAVING_EPOCH:
            step = GroupStep(self._shards, out, group, at)
            self._moves.set_away(step, member)
            out.reply(caller, response)
            step.end()
        else:
            self._moves.drop(out, group, [member], at, "left", reply=(caller, response))


def new_member_id(rng: Random) -> str:
    """As Kafka's uuids are written."""
    drawn = uuid.UUID(int=rng.getrandbits(128), version=4)
    return base64.urlsafe_b64encode(drawn.bytes).decode().rstrip("=")


def check_static(member: ConsumerMember | None, member_id: str, instance_id: str) -> None:
    if member is None:
        raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise RefusedError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
        )


def refuse(out: Outcome, caller: Caller, error: ErrorCode, message: str) -> None:
    out.reply(caller, ConsumerGroupHeartbeatResponse(error_code=error, error_message=message))


def _refuse_waiting(caller: Caller, out: Outcome, error: ErrorCode) -> None:
    refuse(out, caller, error, error.message)


def _told_by(member: ConsumerMember) -> tuple[object, ...]:
    """What a member says of itself, and its record keeps; first its subscription."""
    return (
        member.topics,
        member.regex,
        member.assignor,
        member.rack_id,
        member.rebalance_timeout_ms,
        member.client_id,
        member.client_host,
        member.instance_id,
        member.classic,
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> Owned | None:
    if request.topic_partitions is None:
        return None
    return {owned.topic_id: frozenset(owned.partitions) for owned in request.topic_partitions}


def _not_empty(text: str | None, name: str) -> None:
    if text is not None and not text.strip():
        raise _invalid(f"{name} can't be empty.")


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, message)
