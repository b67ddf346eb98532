"""The heartbeats of the classic protocol: one of a generation, answered by a code; leaving is a request of its own."""

from __future__ import annotations

from typing import Any

from headrace.client.consumer._heartbeats import RETRY_S, GroupIdentity, Heartbeats, HeartbeatVerdict, News
from headrace.client.consumer.errors import is_retriable
from headrace.errors import ErrorCode, HeadraceError
from headrace.net.node import Node
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity


class ClassicHeartbeats(Heartbeats):
    """`start` and `stop` come from the consumer, with each generation."""

    def __init__(self, group_id: str, *, interval_ms: int, session_timeout_ms: int, max_poll_interval_ms: int) -> None:
        super().__init__(group_id, session_timeout_ms=session_timeout_ms, max_poll_interval_ms=max_poll_interval_ms)
        self._interval_s = interval_ms / 1000

    def start(self, identity: GroupIdentity, node: Node, now: float) -> None:
        """Send heartbeats for this member from now on, to this coordinator."""
        with self._lock:
            self._identity, self._node = identity, node
            self._answered_at = self._polled_at = now
            self._next_at = now + self._interval_s
            self._in_flight = False
            self._news = None
        self.on_change()

    def farewell(self, reason: str) -> tuple[Node, LeaveGroupRequest] | None:
        # A static one leaves nothing: it may come back.
        with self._lock:
            identity, node = self._identity, self._node
        if identity is None or node is None or identity.instance_id is not None or not identity.member_id:
            return None
        return node, leave_request(self._group_id, identity.member_id, None, reason)

    def next_request(self, now: float) -> tuple[Node, Any, GroupIdentity] | None:
        with self._lock:
            identity, node = self._identity, self._node
            if identity is None or self._news_ends_it():
                return None
            if now >= self._polled_at + self._poll_s:
                self._news = News(HeartbeatVerdict.POLL_TIMEOUT, identity)
                self._identity = None
                if identity.instance_id is not None or node is None:
                    # A static member's place is kept until its session is over: it may come back.
                    return None
                reason = "the time between two polls exceeded max.poll.interval.ms"
                return node, leave_request(self._group_id, identity.member_id, None, reason), identity
            if node is None:
                return None
            if now >= self._answered_at + self._session_s:
                self._news = News(HeartbeatVerdict.COORDINATOR_UNKNOWN, identity)
                return None
            if self._in_flight or now < self._next_at:
                return None
            self._in_flight, self._sent_to = True, node
            self._next_at = now + self._interval_s
            self.sent += 1
            request = HeartbeatRequest(
                group_id=self._group_id,
                generation_id=identity.generation_id,
                member_id=identity.member_id,
                group_instance_id=identity.instance_id,
            )
            return node, request, identity

    def answered(
        self, identity: GroupIdentity, response: HeartbeatResponse | None, error: HeadraceError | None, now: float
    ) -> bool:
        with self._lock:
            self._in_flight = False
            if identity != self._identity or self._sent_to is not self._node:
                return False
            if response is None:
                # Tried again soon, on a new connection, until the session is over.
                self._next_at = min(self._next_at, now + RETRY_S)
                return False
            code = response.error_code
            if not code:
                self._answered_at = now
                return False
            verdict = _VERDICTS.get(code, HeartbeatVerdict.FAILED)
            if verdict is HeartbeatVerdict.FAILED and is_retriable(code):
                self._next_at = min(self._next_at, now + RETRY_S)
                return False
            if verdict is HeartbeatVerdict.REJOIN:
                # Still a member: heartbeats go on until the rebalance begins.
                self._answered_at = now
            self._news = News(verdict, identity, code)
            return True


_VERDICTS: dict[int, HeartbeatVerdict] = {
    ErrorCode.REBALANCE_IN_PROGRESS: HeartbeatVerdict.REJOIN,
    ErrorCode.NOT_COORDINATOR: HeartbeatVerdict.COORDINATOR_UNKNOWN,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: HeartbeatVerdict.COORDINATOR_UNKNOWN,
    ErrorCode.ILLEGAL_GENERATION: HeartbeatVerdict.LOST,
    ErrorCode.UNKNOWN_MEMBER_ID: HeartbeatVerdict.LOST,
    ErrorCode.FENCED_INSTANCE_ID: HeartbeatVerdict.FENCED,
}


def leave_request(group_id: str, member_id: str, instance_id: str | None, reason: str) -> LeaveGroupRequest:
    """A member gives up its place. Versions before 3 know only the first two fields."""
    member = MemberIdentity(member_id=member_id, group_instance_id=instance_id, reason=reason[:255])
    return LeaveGroupRequest(group_id=group_id, member_id=member_id, members=[member])
