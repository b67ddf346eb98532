"""A member of a share group: it finds the coordinator, joins, stays by heartbeats, and hears what it is assigned."""

from __future__ import annotations

import base64
import logging
import uuid
from collections.abc import Callable, Collection

from headrace.client.cluster.coordinator import (
    NOT_THE_COORDINATOR,
    CoordinatorKind,
    find_coordinator,
    found_coordinator,
)
from headrace.client.cluster.core import ANY_NODE, ClientCore, coordinator_key
from headrace.errors import ErrorCode, HeadraceError, RetriableError, error_for
from headrace.net.backoff import Backoff
from headrace.net.connection import Call
from headrace.net.node import Node
from headrace.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

log = logging.getLogger("headrace.client.share")

LEAVE_EPOCH = -1
_REJOIN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND)

_LOOK_SOON_S = 0.1
"""A member that has nothing looks again so soon, and then less and less often: of a new group, the coordinator begins
the states of partitions first, and assigns them with a later heartbeat."""

PartitionKey = tuple[bytes, int]


class ShareMembership:
    """`notify` is called when something has changed. `fatal` is what keeps it from the group for good."""

    def __init__(
        self, client: ClientCore, group_id: str, rack: str, backoff: Backoff, notify: Callable[[], None]
    ) -> None:
        drawn = uuid.UUID(int=client.rng.getrandbits(128), version=4)
        self.member_id = base64.urlsafe_b64encode(drawn.bytes).decode().rstrip("=")
        self.assigned: frozenset[PartitionKey] = frozenset()
        self.fatal: HeadraceError | None = None
        self._client = client
        self._group_id = group_id
        self._rack = rack or None
        self._backoff = backoff
        self._notify = notify
        self._topics: tuple[str, ...] = ()
        self._coordinator: Node | None = None
        self._epoch = 0
        self._is_member = False
        self._answered_topics: tuple[str, ...] | None = None
        self._call: Call | None = None
        self._failures = 0
        self._next_at = 0.0
        self._look_soon_s = _LOOK_SOON_S

    @property
    def topics(self) -> tuple[str, ...]:
        return self._topics

    def subscribe(self, topics: Collection[str]) -> None:
        self._topics = tuple(sorted(set(topics)))
        for topic in self._topics:
            self._client.add_topic(topic)
        self._next_at = 0.0

    def tick(self, now: float) -> float:
        """Do what is due; in how many seconds there is something to do again."""
        if self._call is not None or not self._topics or self.fatal is not None:
            return 60.0
        if now < self._next_at:
            return self._next_at - now
        if self._coordinator is None:
            self._call = self._client.submit(
                ANY_NODE, find_coordinator(CoordinatorKind.GROUP, self._group_id), self._found
            )
        else:
            changed = self._answered_topics != self._topics
            request = ShareGroupHeartbeatRequest(
                group_id=self._group_id,
                member_id=self.member_id,
                member_epoch=self._epoch,
                rack_id=self._rack if self._epoch == 0 else None,
                subscribed_topic_names=list(self._topics) if changed or self._epoch == 0 else None,
            )
            sent = self._topics
            self._call = self._client.submit(
                coordinator_key(self._coordinator.id), request, lambda call: self._answered(call, sent)
            )
        return 60.0

    def leave(self) -> Call | None:
        """Say that this member goes; None where nobody is to be told."""
        if self._coordinator is None or not self._is_member:
            return None
        self._is_member = False
        self._topics, self.assigned = (), frozenset()
        request = ShareGroupHeartbeatRequest(
            group_id=self._group_id, member_id=self.member_id, member_epoch=LEAVE_EPOCH
        )
        return self._client.submit(coordinator_key(self._coordinator.id), request, lambda _: self._notify())

    def _found(self, call: Call) -> None:
        self._call = None
        error = call.error
        if error is None:
            found = found_coordinator(call.response)
            if isinstance(found, Node):
                self._coordinator, self._failures = found, 0
                self._client.learn_node(found)
                self._next_at = 0.0
            else:
                error = found
        if error is not None:
            self._failed(error)
        self._notify()

    def _answered(self, call: Call, sent: tuple[str, ...]) -> None:
        self._call = None
        if call.error is not None:
            self._coordinator = None
            self._failed(call.error)
        else:
            self._take(call.response, sent)
        self._notify()

    def _take(self, response: ShareGroupHeartbeatResponse, sent: tuple[str, ...]) -> None:
        error = ErrorCode(response.error_code)
        if error is ErrorCode.NONE:
            self._failures, self._is_member = 0, True
            self._epoch, self._answered_topics = response.member_epoch, sent
            wait_s = response.heartbeat_interval_ms / 1000
            assignment = response.assignment
            if not (self.assigned if assignment is None else assignment.topic_partitions):
                wait_s = min(wait_s, self._look_soon_s)
                self._look_soon_s *= 2
            else:
                self._look_soon_s = _LOOK_SOON_S
            self._next_at = self._client.clock.monotonic() + wait_s
            if sent != self._topics:
                self._next_at = 0.0
            if assignment is not None:
                self.assigned = frozenset(
                    (topic.topic_id, partition)
                    for topic in assignment.topic_partitions
                    for partition in topic.partitions
                )
                if any(topic_id not in self._client.view.topic_names for topic_id, _ in self.assigned):
                    self._client.refresh_metadata()
        elif error in NOT_THE_COORDINATOR:
            self._coordinator = None
            self._failed(error_for(error, response.error_message))
        elif error in _REJOIN:
            log.info("%s is out of share group %s (%s), and joins again", self.member_id, self._group_id, error.name)
            self._epoch, self._answered_topics, self.assigned = 0, None, frozenset()
            self._next_at = 0.0
        else:
            self._failed(error_for(error, response.error_message))

    def _failed(self, error: HeadraceError) -> None:
        if not isinstance(error, RetriableError):
            self.fatal = error
            return
        log.info("share group %s: %s", self._group_id, error)
        # What it is assigned may have been in the answer that was lost: who tells all is told all.
        self._answered_topics = None
        self._next_at = self._client.clock.monotonic() + self._backoff.wait_ms(self._failures, self._client.rng) / 1000
        self._failures = min(self._failures + 1, 30)
