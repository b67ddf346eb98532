"""Responses of the group APIs: how an answer and an error look in each, in every version."""

from __future__ import annotations

from headrace.coordination import Caller, Reply
from headrace.errors import ErrorCode
from headrace.groups.outcome import Outcome
from headrace.groups.state import Group, Member
from headrace.protocol.messages.delete_groups import DeleteGroupsResponse
from headrace.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from headrace.protocol.messages.leave_group import LeaveGroupResponse
from headrace.protocol.messages.offset_commit import OffsetCommitResponse
from headrace.protocol.messages.offset_delete import OffsetDeleteResponse
from headrace.protocol.messages.sync_group import SyncGroupResponse
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitResponse

NULL_PROTOCOL_VERSION = 7  # the first JoinGroup in which the protocol's name may be null


def join_error(out: Outcome, caller: Caller, error: ErrorCode, member_id: str) -> None:
    name = None if caller.api_version >= NULL_PROTOCOL_VERSION else ""
    out.reply(caller, JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=name))


def join_answer(
    out: Outcome,
    caller: Caller,
    group: Group,
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


def sync_answer(out: Outcome, caller: Caller, group: Group, member: Member) -> None:
    response = SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )
    out.reply(caller, response)


def refused(reply: Reply, error: ErrorCode) -> Reply:
    """The same reply, now that records could not be written. An error that it tells already stays.

    What was asked of several groups or partitions is answered for each: by the effects whose records failed.
    """
    response = reply.response
    match response:
        case JoinGroupResponse():
            if response.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                name = None if response.protocol_name is None else ""
                return Reply(reply.token, JoinGroupResponse(error_code=error, protocol_name=name))
        case LeaveGroupResponse():
            if response.error_code == ErrorCode.NONE:
                return Reply(reply.token, LeaveGroupResponse(error_code=error))
        case SyncGroupResponse():
            if response.error_code == ErrorCode.NONE:
                return Reply(reply.token, SyncGroupResponse(error_code=error))
        case OffsetDeleteResponse():
            if response.error_code == ErrorCode.NONE:
                return Reply(reply.token, OffsetDeleteResponse(error_code=error))
        case OffsetCommitResponse() | TxnOffsetCommitResponse() | DeleteGroupsResponse():
            pass
        case _:
            raise TypeError(f"{type(response).__name__} does not depend on a write")
    return reply
