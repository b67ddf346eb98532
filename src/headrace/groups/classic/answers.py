"""Answers to members of the classic protocol: how one and an error look, in every version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination import Caller
from headrace.errors import ErrorCode
from headrace.groups.outcome import Outcome
from headrace.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from headrace.protocol.messages.sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from headrace.groups.classic.state import ClassicGroup, Member

NULL_PROTOCOL_VERSION = 7  # the first JoinGroup in which the protocol's name may be null


def join_error(out: Outcome, caller: Caller, error: ErrorCode, member_id: str) -> None:
    name = None if caller.api_version >= NULL_PROTOCOL_VERSION else ""
    out.reply(caller, JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=name))


def join_answer(
    out: Outcome,
    caller: Caller,
    group: ClassicGroup,
    member_id: str,
    *,
    with_members: bool,
    leader: str | None = None,
    skip_assignment: bool = False,
) -> None:
    """The generation as it stands. `leader` is told instead of the group's own when it is given."""
    members = []
    if with_members:
        members = [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(group.protocol_name),
            )
            for member in group.members.values()
        ]
    name = group.protocol_name
    if name is None and caller.api_version < NULL_PROTOCOL_VERSION:
        name = ""
    response = JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=name,
        leader=leader or group.leader or "",
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=members,
    )
    out.reply(caller, response)


def sync_error(out: Outcome, caller: Caller, error: ErrorCode) -> None:
    out.reply(caller, SyncGroupResponse(error_code=error))


def sync_answer(out: Outcome, caller: Caller, group: ClassicGroup, member: Member) -> None:
    response = SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )
    out.reply(caller, response)
