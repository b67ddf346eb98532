"""The session of a member: until when it counts as alive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.coordination import Timer
from headrace.groups.outcome import Outcome, TimerKind

if TYPE_CHECKING:
    from headrace.groups.group import Group


@dataclass(slots=True)
class MemberSession:
    """Until when someone counts as alive, and for when its timer is set.

    A deadline that moves later leaves the timer alone: when it fires early, it is set again. So a heartbeat costs no
    timer change.
    """

    deadline_ms: int = 0
    armed_ms: int | None = None


def keep_alive(out: Outcome, group: Group, member_id: str, session: MemberSession, deadline_ms: int) -> None:
    session.deadline_ms = deadline_ms
    if session.armed_ms is None or deadline_ms < session.armed_ms:
        session.armed_ms = deadline_ms
        out.arm(Timer(TimerKind.SESSION, group.partition, group.group_id, member_id), deadline_ms)


def end_session(out: Outcome, group: Group, member_id: str, session: MemberSession) -> None:
    if session.armed_ms is not None:
        session.armed_ms = None
        out.cancel(Timer(TimerKind.SESSION, group.partition, group.group_id, member_id))


def is_over(out: Outcome, group: Group, member_id: str, session: MemberSession, now_ms: int) -> bool:
    """Its timer fired: whether the session has ended. If it was prolonged meanwhile, the timer is set again."""
    session.armed_ms = None
    if now_ms < session.deadline_ms:
        keep_alive(out, group, member_id, session, session.deadline_ms)
        return False
    return True
