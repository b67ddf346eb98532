"""The memory of group members: what each tells of itself, and is told, is kept as long as it is a member.

Kafka has no bound on it but on the number of members. Here a member that tells much finds no place when others have
told much already, while small ones still do. Those count too that were only given an id, and what a leader assigns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from sys import getsizeof

from headrace.groups.classic.state import ClassicGroup, Member
from headrace.groups.epochs.group import EpochGroup
from headrace.groups.epochs.member import EpochMember
from headrace.groups.group import Group
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest
from headrace.runtime.rarely import Rarely

log = logging.getLogger("headrace.broker.groups")

MEMBER_OVERHEAD_BYTES = 1024
# Of one that its coordinator assigns, with a few partitions; and of each name that it tells, besides the name.
EPOCH_MEMBER_OVERHEAD_BYTES = 3 * 1024
NAME_OVERHEAD_BYTES = 64
# Of one that was given an id, and has not joined with it yet.
PENDING_OVERHEAD_BYTES = 512
# What a member may tell of itself, under all its protocols: the record of its group has room for a megabyte.
MEMBER_BYTES_MAX = 4 * 1024 * 1024
SMALL_MEMBER_BYTES = 16 * 1024
LARGE_PERCENT = 75
RECOUNT_S = 0.1
# So many are counted in one go of the event loop, which is a millisecond or two.
COUNTED_AT_ONCE = 2_000


def _bytes_of(request: JoinGroupRequest, client_id: str | None) -> int:
    told = sum(getsizeof(protocol.name) + len(protocol.metadata) for protocol in request.protocols)
    # Its id is made of either; the name of the client is kept besides.
    names = 2 * getsizeof(client_id or "") + 2 * getsizeof(request.group_instance_id or "")
    return MEMBER_OVERHEAD_BYTES + told + names + getsizeof(request.group_id) + getsizeof(request.protocol_type)


def _bytes_of_member(member: Member) -> int:
    told = sum(getsizeof(name) + len(metadata) for name, metadata in member.protocols)
    names = getsizeof(member.member_id) + getsizeof(member.client_id) + getsizeof(member.instance_id or "")
    return MEMBER_OVERHEAD_BYTES + told + names + len(member.assignment)


def _bytes_of_epoch_member(member: EpochMember) -> int:
    names = (member.member_id, member.client_id, member.instance_id or "", member.rack_id or "", *member.topics)
    return EPOCH_MEMBER_OVERHEAD_BYTES + sum(map(getsizeof, names)) + getsizeof(member.topics)


def _each(groups: Iterable[Group]) -> Iterator[int]:
    """What every member takes, and every group that has any."""
    for group in groups:
        if isinstance(group, EpochGroup):
            for epoch_member in list(group.members.values()):
                yield _bytes_of_epoch_member(epoch_member)
        if not isinstance(group, ClassicGroup):
            continue
        if group.members or group.pending:
            yield getsizeof(group.group_id) + getsizeof(group.protocol_type or "")
        for member in list(group.members.values()):
            yield _bytes_of_member(member)
        for member_id in list(group.pending):
            yield PENDING_OVERHEAD_BYTES + getsizeof(member_id)


class MemberMemory:
    """Counts anew only when what was added since it was last counted could be too much, and not all in one go."""

    def __init__(self, bytes_max: int, groups: Callable[[], Iterable[Group]], monotonic: Callable[[], float]) -> None:
        self.bytes_max = bytes_max
        self._groups = groups
        self._now = monotonic
        self._counted = self._added = self._added_meanwhile = 0
        self._counted_at = float("-inf")
        self._counting: Iterator[int] | None = None
        self._counted_so_far = 0
        self._refusals = Rarely(monotonic)

    def held_bytes(self) -> int:
        """What all members take, counted in one go."""
        return sum(_each(self._groups()))

    def has_room(self, request: JoinGroupRequest, client_id: str | None = None) -> bool:
        """Whether somebody may become a member, or be given an id."""
        nbytes = _bytes_of(request, client_id)
        return (nbytes <= MEMBER_BYTES_MAX and self._take(nbytes)) or self._refused(request.group_id, nbytes)

    def has_room_for(self, group_id: str, client_id: str | None, *names: str | None) -> bool:
        """Whether somebody may become a member of a group that its coordinator assigns, or tell these names."""
        told = sum(getsizeof(name) + NAME_OVERHEAD_BYTES for name in (client_id, *names) if name is not None)
        nbytes = EPOCH_MEMBER_OVERHEAD_BYTES + told
        return (nbytes <= MEMBER_BYTES_MAX and self._take(nbytes)) or self._refused(group_id, nbytes)

    def has_room_to_assign(self, request: SyncGroupRequest) -> bool:
        """Whether what a leader assigns may be kept."""
        nbytes = sum(len(assigned.assignment) for assigned in request.assignments)
        return not nbytes or self._take(nbytes) or self._refused(request.group_id, nbytes)

    def _take(self, nbytes: int) -> bool:
        limit = self.bytes_max if nbytes < SMALL_MEMBER_BYTES else self.bytes_max * LARGE_PERCENT // 100
        if self._counted + self._added + nbytes > limit:
            if self._counting is None and self._now() - self._counted_at > RECOUNT_S:
                self._counting = _each(list(self._groups()))
                self._counted_so_far = self._added_meanwhile = 0
                self._count()
            if self._counted + self._added + nbytes > limit:
                return False
        self._added += nbytes
        self._added_meanwhile += nbytes
        return True

    def _count(self) -> None:
        """Count some of them; what comes until all are counted may count twice."""
        assert self._counting is not None
        for done, nbytes in enumerate(self._counting, 1):
            self._counted_so_far += nbytes
            if done == COUNTED_AT_ONCE:
                asyncio.get_running_loop().call_soon(self._count)
                return
        self._counting = None
        self._counted, self._added, self._counted_at = self._counted_so_far, self._added_meanwhile, self._now()

    def _refused(self, group_id: str, nbytes: int) -> bool:
        refused = self._refusals.happened()
        if refused:
            log.warning(
                "%d members were refused since this was last said, now one of group %r that tells %d bytes of itself: "
                "at most %d are taken of one, and %d of all (headrace.memory.max)",
                *(refused, group_id[:100], nbytes, MEMBER_BYTES_MAX, self.bytes_max),
            )
        return False
