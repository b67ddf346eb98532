"""Members of consumer groups that speak the classic protocol: joins, syncs, heartbeats and leaves.

To such a member the coordinator looks like a group whose leader is somebody else. Its generation is its member epoch.
Whenever it has to give up or may take partitions, a heartbeat tells it that a rebalance is in progress; it joins again,
which says what it still owns, and syncs, which gives it what it has now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import NamedTuple

from headrace.assignors.base import Subscription
from headrace.assignors.consumer_protocol import ConsumerProtocolError, decode_subscription
from headrace.coordination import Caller, Now
from headrace.errors import ErrorCode
from headrace.groups.classic import answers
from headrace.groups.classic.membership import LEAVE_SEVERAL_VERSION, MEMBER_ID_REQUIRED_VERSION, protocols_of
from headrace.groups.classic.state import CONSUMER_PROTOCOL_TYPE
from headrace.groups.consumer.config import MigrationPolicy
from headrace.groups.consumer.group import ClassicProtocols, ConsumerGroup, ConsumerMember
from headrace.groups.consumer.heartbeats import check_static, new_member_id
from headrace.groups.consumer.migration import assignment_bytes
from headrace.groups.consumer.moving import Moves
from headrace.groups.epochs.finding import check_room, existing_member
from headrace.groups.epochs.member import MemberProgress
from headrace.groups.epochs.refusals import RefusedError
from headrace.groups.epochs.steps import GroupStep
from headrace.groups.outcome import Outcome
from headrace.groups.settings import number
from headrace.groups.topics import TopicLookup
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


@dataclass(slots=True)
class _Join:
    """A join on its way through the steps that answer it."""

    caller: Caller
    member: ConsumerMember
    owned: Mapping[bytes, Collection[int]]
    subscription_changed: bool
    number: int  # of the member's
    replaced: bool  # whether the member takes the place of another with its instance id


class _Told(NamedTuple):
    """What a join says, read."""

    classic: ClassicProtocols
    subscription: Subscription


class ClassicMembers:
    def __init__(self, moves: Moves, topics: TopicLookup, rng: Random) -> None:
        self._moves = moves
        self._topics = topics
        self._rng = rng

    # --- join ---------------------------------------------------------------------------------------------------------

    def join(self, out: Outcome, caller: Caller, group: ConsumerGroup, request: JoinGroupRequest, at: Now) -> None:
        try:
            self._join(out, caller, group, request, at)
        except RefusedError as refused:
            answers.join_error(out, caller, refused.error, request.member_id)

    def _join(self, out: Outcome, caller: Caller, group: ConsumerGroup, request: JoinGroupRequest, at: Now) -> None:
        is_unknown = not request.member_id
        member_id = request.member_id or new_member_id(self._rng)
        check_room(group, member_id, self._moves.config.max_size)
        self._check_protocols(group, request)
        if is_unknown and request.group_instance_id is None and caller.api_version >= MEMBER_ID_REQUIRED_VERSION:
            answers.join_error(out, caller, ErrorCode.MEMBER_ID_REQUIRED, member_id)
            return
        told = _read(request)
        member = self._known_member(group, request, member_id, is_unknown)
        # Nothing is refused from here on.
        step = GroupStep(self._moves.shards, out, group, at)
        is_replaced = member is not None and member.member_id != member_id
        if member is None:
            member = ConsumerMember(member_id, request.group_instance_id)
            group.put_member(member)
            step.note(f"member {member_id} joins by the classic protocol")
        elif is_replaced:
            member = self._moves.replace_static(step, member, member_id)
        member.asked += 1
        is_other = self._update(step, caller, member, request, told)
        self._moves.bump_if(step, is_other)
        owned: dict[bytes, list[int]] = {}
        for topic, index in told.subscription.owned_partitions:
            topic_id = self._topics.topic_id(topic)
            if topic_id is not None:
                owned.setdefault(topic_id, []).append(index)
        self._moves.targets.refresh(
            step,
            number(self._moves.settings, group.group_id, "consumer.assignment.interval.ms"),
            self._moves.plan,
            partial(self._joined, _Join(caller, member, owned, is_other, member.asked, is_replaced)),
            partial(_refuse_join, caller, member_id),
        )

    def _check_protocols(self, group: ConsumerGroup, request: JoinGroupRequest) -> None:
        names = [protocol.name for protocol in request.protocols]
        fits = request.protocol_type == CONSUMER_PROTOCOL_TYPE and any(
            group.protocol_counts.get(name, 0) == group.classic_count for name in names
        )
        if not fits or self._moves.config.migration_policy is MigrationPolicy.DISABLED:
            message = f"The protocols of member {request.member_id} are not supported by the group."
            raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)

    def _known_member(
        self, group: ConsumerGroup, request: JoinGroupRequest, member_id: str, is_unknown: bool
    ) -> ConsumerMember | None:
        instance_id = request.group_instance_id
        if instance_id is None:
            return group.members.get(member_id)
        member = group.static_member(instance_id)
        if not is_unknown:
            check_static(member, member_id, instance_id)
        return member

    def _update(
        self,
        step: GroupStep[ConsumerGroup],
        caller: Caller,
        member: ConsumerMember,
        request: JoinGroupRequest,
        told: _Told,
    ) -> bool:
        """Take over what the member tells of itself; whether it is subscribed to something else now."""
        group = step.group
        before = group.member_record(member)
        topics = frozenset(told.subscription.topics)
        is_other = topics != member.topics or bool(member.regex)
        group.set_topics(member, topics)
        if member.regex:
            regex = member.regex
            group.replace_wishes(member, member.assignor, "")
            self._moves.forget_unused(step, regex)
        if told.subscription.rack_id is not None:
            member.rack_id = told.subscription.rack_id
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id, member.client_host = caller.client_id or "", caller.client_host
        group.set_classic(member, told.classic)
        group.set_revoke_timer(step.out, member, None)
        if is_other or before != group.member_record(member):
            step.put(group.member_record(member))
        return is_other

    def _joined(self, join: _Join, step: GroupStep[ConsumerGroup]) -> None:
        group, member = step.group, join.member
        classic = member.classic
        if group.members.get(member.member_id) is not member or classic is None:
            answers.join_error(step.out, join.caller, ErrorCode.UNKNOWN_MEMBER_ID, member.member_id)
            return
        if member.asked != join.number:
            answers.join_error(step.out, join.caller, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
            return
        self._moves.reconcile(step, member, join.owned, join.subscription_changed)
        group.set_join_timer(step.out, member, None)
        group.heard_from(step.out, member, step.at)
        group.set_sync_timer(step.out, member, step.at.monotonic_ms + member.rebalance_timeout_ms)
        response = JoinGroupResponse(
            generation_id=member.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=classic.name,
            member_id=member.member_id,
        )
        step.out.reply(join.caller, response)
        if join.replaced:
            self._moves.maybe_downgrade(step, is_left=False)

    # --- sync and heartbeat -------------------------------------------------------------------------------------------

    def sync(self, out: Outcome, caller: Caller, group: ConsumerGroup, request: SyncGroupRequest, at: Now) -> None:
        try:
            member, classic = self._classic_member(group, request.member_id, request.group_instance_id)
            _check_generation(member, request.generation_id)
            if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
                None,
                classic.name,
            ):
                raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "The protocol is not that of the join.")
            if group.epoch > member.epoch and member.state is not MemberProgress.UNREVOKED_PARTITIONS:
                self._expect_join(out, group, member, at)
                raise RefusedError(ErrorCode.REBALANCE_IN_PROGRESS, "The group has a newer epoch.")
        except RefusedError as refused:
            answers.sync_error(out, caller, refused.error)
            return
        group.set_sync_timer(out, member, None)
        group.heard_from(out, member, at)
        response = SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=assignment_bytes(member, classic, self._topics),
        )
        out.reply(caller, response)

    def heartbeat(self, out: Outcome, group: ConsumerGroup, request: HeartbeatRequest, at: Now) -> ErrorCode:
        try:
            member, _ = self._classic_member(group, request.member_id, request.group_instance_id)
            _check_generation(member, request.generation_id)
        except RefusedError as refused:
            return refused.error
        group.heard_from(out, member, at)
        has_to_join = (
            member.epoch < group.epoch
            or member.state is MemberProgress.UNREVOKED_PARTITIONS
            or (member.state is MemberProgress.UNRELEASED_PARTITIONS and not self._waits(group, member))
        )
        if not has_to_join:
            return ErrorCode.NONE
        self._expect_join(out, group, member, at)
        return ErrorCode.REBALANCE_IN_PROGRESS

    @staticmethod
    def _waits(group: ConsumerGroup, member: ConsumerMember) -> bool:
        """Whether others have not given up yet what it is to have."""
        is_held = group.held_by_another(member)
        return any(
            index not in member.assigned.get(topic, ()) and is_held(topic, index)
            for topic, indexes in group.targets.get(member.member_id, {}).items()
            for index in indexes
        )

    @staticmethod
    def _expect_join(out: Outcome, group: ConsumerGroup, member: ConsumerMember, at: Now) -> None:
        if member.join_deadline_ms is None:
            group.set_join_timer(out, member, at.monotonic_ms + member.rebalance_timeout_ms)

    @staticmethod
    def _classic_member(
        group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> tuple[ConsumerMember, ClassicProtocols]:
        if instance_id is None:
            member = existing_member(group, member_id)
        else:
            found = group.static_member(instance_id)
            check_static(found, member_id, instance_id)
            assert found is not None
            member = found
        if member.classic is None:
            message = f"Member {member_id} does not use the classic protocol."
            raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        return member, member.classic

    # --- leave --------------------------------------------------------------------------------------------------------

    def leave(self, out: Outcome, caller: Caller, group: ConsumerGroup, request: LeaveGroupRequest, at: Now) -> None:
        """Of members of both protocols: an administrator removes any of them in this way."""
        several = caller.api_version >= LEAVE_SEVERAL_VERSION
        leaving = request.members if several else [MemberIdentity(member_id=request.member_id)]
        gone: dict[str, ConsumerMember] = {}
        results: list[MemberResponse] = []
        for who in leaving:
            error = ErrorCode.NONE
            try:
                member = self._leaving_member(group, who)
                if member.member_id in gone:
                    raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID, "It is gone already.")
                gone[member.member_id] = member
            except RefusedError as refused:
                error = refused.error
            results.append(
                MemberResponse(member_id=who.member_id, group_instance_id=who.group_instance_id, error_code=error)
            )
        response = (
            LeaveGroupResponse(members=results) if several else LeaveGroupResponse(error_code=results[0].error_code)
        )
        if gone:
            self._moves.drop(out, group, list(gone.values()), at, "left", reply=(caller, response))
        else:
            out.reply(caller, response)

    @staticmethod
    def _leaving_member(group: ConsumerGroup, who: MemberIdentity) -> ConsumerMember:
        if who.group_instance_id is None:
            return existing_member(group, who.member_id)
        member = group.static_member(who.group_instance_id)
        # An administrator names a static member by its instance alone.
        known_id = who.member_id or (member.member_id if member is not None else "")
        check_static(member, known_id, who.group_instance_id)
        assert member is not None
        return member


def _check_generation(member: ConsumerMember, generation: int) -> None:
    if generation != member.epoch:
        message = f"The generation {generation} is not the member epoch, which is {member.epoch}."
        raise RefusedError(ErrorCode.ILLEGAL_GENERATION, message)


def _read(request: JoinGroupRequest) -> _Told:
    """Only the first protocol's metadata counts."""
    protocols = protocols_of(request)
    try:
        subscription = decode_subscription(protocols[0][1])
    except ConsumerProtocolError as error:
        raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"The subscription cannot be read: {error}") from None
    return _Told(ClassicProtocols(request.session_timeout_ms, protocols), subscription)


def _refuse_join(caller: Caller, member_id: str, out: Outcome, error: ErrorCode) -> None:
    answers.join_error(out, caller, error, member_id)
