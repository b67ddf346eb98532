"""The coordinator of a group of the consumer protocol (KIP-848), with one member; others are what the test says."""

from __future__ import annotations

from headrace.errors import ErrorCode
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)

Partitions = frozenset[tuple[bytes, int]]


class FakeConsumerGroup:
    """`target` is what the member is to have. What it loses goes to others when it has said that it gave it up."""

    def __init__(self) -> None:
        self.member = ""
        self.epoch = 0
        self.left = ""
        self.left_at_epoch = 0
        self.target: Partitions = frozenset()
        self.assigned: Partitions = frozenset()
        self.to_revoke: Partitions = frozenset()
        self.interval_ms = 1000

    @property
    def is_settled(self) -> bool:
        return bool(self.member) and not self.to_revoke and self.assigned == self.target

    def forget_member(self) -> None:
        """As when its session is over: others have all of it."""
        self.member, self.assigned, self.to_revoke = "", frozenset(), frozenset()

    def heartbeat(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        if request.member_epoch < 0:
            self.left, self.left_at_epoch = request.member_id, request.member_epoch
            if request.member_id == self.member:
                self.forget_member()
            return ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
        owned = None
        if request.topic_partitions is not None:
            owned = frozenset((one.topic_id, number) for one in request.topic_partitions for number in one.partitions)
        is_whole = request.rebalance_timeout_ms >= 0 and owned is not None
        if request.member_epoch == 0:
            self.member, self.assigned, self.to_revoke = request.member_id, frozenset(), frozenset()
            owned = frozenset()
            self.epoch += 1
        elif request.member_id != self.member:
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        elif request.member_epoch != self.epoch:
            is_previous = request.member_epoch == self.epoch - 1 and owned is not None
            if not is_previous or not owned <= self.assigned:
                return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH)
        has_changed = self._go_on(owned) or is_whole
        assignment = HeartbeatAssignment(topic_partitions=self._told()) if has_changed else None
        return ConsumerGroupHeartbeatResponse(
            member_id=self.member,
            member_epoch=self.epoch,
            heartbeat_interval_ms=self.interval_ms,
            assignment=assignment,
        )

    def _go_on(self, owned: Partitions | None) -> bool:
        """One step towards the target; whether what the member is told has changed."""
        if self.to_revoke and (owned is None or owned & self.to_revoke):
            return False
        self.to_revoke = self.assigned - self.target
        if self.to_revoke:
            self.assigned -= self.to_revoke
            if owned is None or owned & self.to_revoke:
                return True
            # It never had them: there is nothing to wait for.
            self.to_revoke = frozenset()
        if self.assigned == self.target:
            return False
        self.epoch += 1
        self.assigned = self.target
        return True

    def _told(self) -> list[HeartbeatTopicPartitions]:
        found: dict[bytes, list[int]] = {}
        for topic_id, number in sorted(self.assigned):
            found.setdefault(topic_id, []).append(number)
        return [HeartbeatTopicPartitions(topic_id=one, partitions=numbers) for one, numbers in found.items()]
