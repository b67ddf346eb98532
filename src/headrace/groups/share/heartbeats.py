"""ShareGroupHeartbeat: members that join, stay, change what they want and leave."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from headrace.coordination import Caller, Now, is_storable
from headrace.errors import ErrorCode
from headrace.groups.epochs.finding import check_epoch, check_room, existing_group, existing_member
from headrace.groups.epochs.member import LEAVING_EPOCH
from headrace.groups.epochs.refusals import RefusedError
from headrace.groups.epochs.steps import GroupStep
from headrace.groups.group import GroupKind
from headrace.groups.outcome import Outcome
from headrace.groups.settings import number
from headrace.groups.share.group import ShareGroup, ShareMember
from headrace.groups.share.moving import ShareMoves
from headrace.protocol.messages.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)


@dataclass(slots=True)
class _Heartbeat:
    """A heartbeat on its way through the steps that answer it."""

    caller: Caller
    member: ShareMember
    is_full: bool  # whether the member tells everything, and is told everything
    step: GroupStep[ShareGroup]  # in which it came
    number: int  # of the member's


class ShareHeartbeats:
    def __init__(self, moves: ShareMoves) -> None:
        self._moves = moves
        self._shards = moves.shards

    def heartbeat(self, out: Outcome, caller: Caller, request: ShareGroupHeartbeatRequest, at: Now) -> None:
        try:
            _check(caller, request)
            if request.member_epoch == LEAVING_EPOCH:
                self._leave(out, caller, request, at)
            else:
                self._stay(out, caller, request, at)
        except RefusedError as refused:
            _refuse(caller, out, refused.error, refused.message)

    def _stay(self, out: Outcome, caller: Caller, request: ShareGroupHeartbeatRequest, at: Now) -> None:
        joins, member_id = request.member_epoch == 0, request.member_id
        is_new = False
        if joins:
            group, is_new = self._moves.group_to_join(request.group_id)
        else:
            group = existing_group(self._shards, request.group_id, ShareGroup, GroupKind.SHARE)
        check_room(group, member_id, self._moves.config.max_size)
        member = group.members.get(member_id) if joins else existing_member(group, member_id)
        if member is not None and not joins:
            check_epoch(group, member, request.member_epoch, lambda: True)
        # Nothing is refused from here on.
        step = GroupStep(self._shards, out, group, at)
        if is_new:
            self._moves.begin(step)
        if member is None:
            member = ShareMember(member_id)
            group.put_member(member)
            step.note(f"member {member_id} joins")
        member.asked += 1
        is_other = self._update(step, caller, member, request)
        self._moves.bump_if(step, is_other)
        is_full = joins or request.subscribed_topic_names is not None or member.is_told_late
        member.is_told_late = False
        beat = _Heartbeat(caller, member, is_full, step, member.asked)
        self._moves.targets.refresh(
            step,
            number(self._moves.settings, group.group_id, "share.assignment.interval.ms"),
            self._moves.plan,
            partial(self._answer, beat),
            partial(_refuse_waiting, caller),
        )

    @staticmethod
    def _update(
        step: GroupStep[ShareGroup], caller: Caller, member: ShareMember, request: ShareGroupHeartbeatRequest
    ) -> bool:
        """Take over what the member tells of itself; whether that begins a new epoch."""
        group = step.group
        before = (member.topics, member.rack_id, member.client_id, member.client_host)
        if request.subscribed_topic_names is not None:
            topics = frozenset(request.subscribed_topic_names)
            if topics != member.topics:
                group.set_topics(member, topics)
        if request.rack_id is not None:
            member.rack_id = request.rack_id
        member.client_id, member.client_host = caller.client_id or "", caller.client_host
        if before != (member.topics, member.rack_id, member.client_id, member.client_host):
            step.put(group.member_record(member))
        return before[0] != member.topics

    def _answer(self, beat: _Heartbeat, step: GroupStep[ShareGroup]) -> None:
        group, member = step.group, beat.member
        if group.members.get(member.member_id) is not member:
            message = f"Member {member.member_id} is not a member of group {group.group_id}."
            _refuse(beat.caller, step.out, ErrorCode.UNKNOWN_MEMBER_ID, message)
            return
        if member.asked != beat.number:
            message = "The member has asked again meanwhile."
            _refuse(beat.caller, step.out, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
            return
        before = member.assigned
        # If it had to wait, it may have given up waiting: then it is told by the next answer, too.
        member.is_told_late = step is not beat.step
        self._moves.reconcile(step, member)
        self._moves.begin_states(step)
        group.heard_from(step.out, member, step.at)
        response = ShareGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=number(self._moves.settings, group.group_id, "share.heartbeat.interval.ms"),
        )
        if beat.is_full or before != member.assigned:
            response.assignment = Assignment(
                topic_partitions=[
                    TopicPartitions(topic_id=topic_id, partitions=list(found))
                    for topic_id, found in member.assigned.items()
                ]
            )
        step.out.reply(beat.caller, response)

    def _leave(self, out: Outcome, caller: Caller, request: ShareGroupHeartbeatRequest, at: Now) -> None:
        group = existing_group(self._shards, request.group_id, ShareGroup, GroupKind.SHARE)
        member = existing_member(group, request.member_id)
        response = ShareGroupHeartbeatResponse(member_id=member.member_id, member_epoch=LEAVING_EPOCH)
        self._moves.drop(out, group, [member], at, "left", reply=(caller, response))


def _check(caller: Caller, request: ShareGroupHeartbeatRequest) -> None:
    for text, name in ((request.member_id, "MemberId"), (request.group_id, "GroupId"), (request.rack_id, "RackId")):
        if text is not None and not text.strip():
            raise _invalid(f"{name} can't be empty.")
    if request.member_epoch == 0 and not request.subscribed_topic_names:
        raise _invalid("SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVING_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    names = (request.member_id, request.rack_id, caller.client_id, *(request.subscribed_topic_names or ()))
    if not all(map(is_storable, names)):
        raise _invalid("A name in the request is longer than a record can hold, which is 32767 bytes.")


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, message)


def _refuse(caller: Caller, out: Outcome, error: ErrorCode, message: str) -> None:
    out.reply(caller, ShareGroupHeartbeatResponse(error_code=error, error_message=message))


def _refuse_waiting(caller: Caller, out: Outcome, error: ErrorCode) -> None:
    _refuse(caller, out, error, error.message)
