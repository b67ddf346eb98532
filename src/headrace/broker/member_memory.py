"""The memory of group members: what each tells of itself is kept as long as it is a member.

Kafka has no bound on it but on the number of members. Here a member that tells much finds no place when others have
told much already, while small ones still do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from headrace.groups.state import Group
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.runtime.rarely import Rarely

log = logging.getLogger("headrace.broker.groups")

MEMBER_OVERHEAD_BYTES = 1024
# What a member may tell of itself, under all its protocols: the record of its group has room for a megabyte.
MEMBER_BYTES_MAX = 4 * 1024 * 1024
SMALL_MEMBER_BYTES = 16 * 1024
LARGE_PERCENT = 75
RECOUNT_S = 0.1


def _bytes_of(request: JoinGroupRequest) -> int:
    told = sum(len(protocol.name) + len(protocol.metadata) for protocol in request.protocols)
    return MEMBER_OVERHEAD_BYTES + told + len(request.group_id) + len(request.group_instance_id or "")


class MemberMemory:
    """Counts anew only when the joins since it was last counted could be too many."""

    def __init__(self, bytes_max: int, groups: Callable[[], Iterable[Group]], monotonic: Callable[[], float]) -> None:
        self.bytes_max = bytes_max
        self._groups = groups
        self._now = monotonic
        self._counted = self._joined = 0
        self._counted_at = float("-inf")
        self._refusals = Rarely(monotonic)

    def has_room(self, request: JoinGroupRequest) -> bool:
        nbytes = _bytes_of(request)
        limit = self.bytes_max if nbytes < SMALL_MEMBER_BYTES else self.bytes_max * LARGE_PERCENT // 100
        if nbytes <= MEMBER_BYTES_MAX:
            if self._counted + self._joined + nbytes > limit and self._now() - self._counted_at > RECOUNT_S:
                self._counted, self._joined, self._counted_at = self._count(), 0, self._now()
            if self._counted + self._joined + nbytes <= limit:
                self._joined += nbytes
                return True
        refused = self._refusals.happened()
        if refused:
            log.warning(
                "%d members were refused since this was last said, now one of group %r that tells %d bytes of itself: "
                "at most %d are taken of one, and %d of all (headrace.memory.max)",
                *(refused, request.group_id[:100], nbytes, MEMBER_BYTES_MAX, self.bytes_max),
            )
        return False

    def _count(self) -> int:
        return sum(
            MEMBER_OVERHEAD_BYTES
            + len(group.group_id)
            + len(member.assignment)
            + sum(len(name) + len(metadata) for name, metadata in member.protocols)
            for group in self._groups()
            for member in group.members.values()
        )
