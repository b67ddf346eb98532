"""Finding the group and the member that a heartbeat is of, and refusing what cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from headrace.coordination import is_storable
from headrace.errors import ErrorCode
from headrace.groups.epochs.group import EpochGroup
from headrace.groups.epochs.member import EpochMember
from headrace.groups.epochs.refusals import RefusedError
from headrace.groups.group import Group, GroupKind
from headrace.groups.shards import Shards

GroupT = TypeVar("GroupT", bound=EpochGroup[Any, Any])
MemberT = TypeVar("MemberT", bound=EpochMember)


def served_group(shards: Shards, group_id: str) -> Group | None:
    """The group of that name, of whatever kind. Refused where this coordinator cannot speak for it."""
    group = shards.groups.get(group_id)
    if group is None:
        error = ErrorCode.NONE if is_storable(group_id) else ErrorCode.INVALID_GROUP_ID
        error = shards.error_for(group_id) if error == ErrorCode.NONE else error
        if error != ErrorCode.NONE:
            raise RefusedError(error, error.message)
        return None
    if group.is_dead:
        raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"Group {group_id} is being deleted: try again.")
    return group


def existing_group(shards: Shards, group_id: str, kind: type[GroupT], name: GroupKind) -> GroupT:
    """The group, if it is of that kind."""
    group = served_group(shards, group_id)
    if group is None:
        raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    if not isinstance(group, kind):
        raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a {name.value} group.")
    return group


def existing_member(group: EpochGroup[MemberT, Any], member_id: str) -> MemberT:
    member = group.members.get(member_id)
    if member is None:
        raise RefusedError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}."
        )
    return member


def check_room(group: EpochGroup[Any, Any], member_id: str, max_size: int) -> None:
    """Refuse whoever is no member where no more members are allowed."""
    if len(group.members) >= max_size and member_id not in group.members:
        raise RefusedError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The {group.kind.value} group has reached its maximum capacity of {max_size} members.",
        )


def check_epoch(group: EpochGroup[Any, Any], member: EpochMember, epoch: int, has_a_part: Callable[[], bool]) -> None:
    """Refuse a member in another epoch than it is known to be in.

    The one before is allowed, since the answer that told of the new one may have been lost, if `has_a_part`: if what
    the member has is part of what it was assigned.
    """
    if epoch == member.epoch or (epoch < member.epoch and epoch == member.previous_epoch and has_a_part()):
        return
    than = "greater" if epoch > member.epoch else "smaller"
    raise RefusedError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The {group.kind.value} group member has a {than} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )
