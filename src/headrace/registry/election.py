"""Which instance writes: the members of a consumer group agree, and whoever writes now goes on if it can.

The group's assignor carries each instance's address to the member that assigns, and its choice back to all. It only
saves them from competing; what keeps a former writer from writing is the producer's fencing (`log.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from headrace import RebalanceListener, aio
from headrace.assignors import AssignableTopics, Assignment, Subscription
from headrace.assignors.base import AssignorBase
from headrace.errors import HeadraceError
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.registry")

ASSIGNOR = "headrace-schema-registry"
_POLL_S = 1.0
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class InstanceIdentity:
    """An instance, as others reach it."""

    url: str
    is_eligible: bool = True

    def to_bytes(self, *, leads: bool = False) -> bytes:
        return json.dumps({"version": 1, "url": self.url, "eligible": self.is_eligible, "leads": leads}).encode()


OnLeader = Callable[[str | None], None]
"""Called with the URL of the instance that writes; None when there is none."""


class LeaderAssignor(AssignorBase):
    """Gives the topic's partition to the instance that is to write, and tells all of them which it is."""

    name = ASSIGNOR

    def __init__(self, identity: InstanceIdentity, on_leader: OnLeader) -> None:
        self._identity = identity
        self._on_leader = on_leader
        self._leader: str | None = None

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        return self._identity.to_bytes(leads=self._leader == self._identity.url)

    def assign(self, cluster: AssignableTopics, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        members = {member: _read(one.user_data) for member, one in subscriptions.items()}
        eligible = {member: one for member, one in members.items() if one.get("eligible") is True}
        chosen = min(eligible, key=lambda member: (not eligible[member].get("leads"), member), default=None)
        url = str(eligible[chosen].get("url")) if chosen is not None else None
        data = json.dumps({"version": 1, "leader": url}).encode()
        partitions = [
            TopicPartition(topic, number) for topic, count in cluster.partitions.items() for number in range(count)
        ]
        return {member: Assignment(partitions if member == chosen else [], data) for member in subscriptions}

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        leader = _read(assignment.user_data).get("leader")
        self._leader = leader if isinstance(leader, str) else None
        self._on_leader(self._leader)

    def forget(self) -> None:
        """This instance is out of the group: it does not know who writes."""
        self._leader = None
        self._on_leader(None)


class WriterElection:
    """A member of the group, for as long as the instance runs."""

    def __init__(
        self, client: Mapping[str, Any], group: str, topic: str, identity: InstanceIdentity, on_leader: OnLeader
    ) -> None:
        self._config = {
            **client,
            "group.id": group,
            "client.id": "schema-registry-election",
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 1_000,
        }
        self._topic = topic
        self._assignor = LeaderAssignor(identity, on_leader)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="headrace-registry-election")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        config = {**self._config, "partition.assignment.strategy": [self._assignor]}
        while True:
            try:
                async with aio.Consumer(config) as consumer:
                    consumer.subscribe([self._topic], listener=_Listener(consumer, self._assignor))
                    while True:
                        await consumer.poll(_POLL_S)
            except HeadraceError as error:
                log.warning("the registry's group cannot be joined: %s", error)
                self._assignor.forget()
                await asyncio.sleep(_RETRY_S)


class _Listener(RebalanceListener):
    def __init__(self, consumer: aio.Consumer, assignor: LeaderAssignor) -> None:
        self._consumer = consumer
        self._assignor = assignor

    def on_partitions_assigned(self, partitions: Any) -> None:
        # The group is there for its assignments; the records are read by everyone, elsewhere.
        self._consumer.pause(partitions)

    def on_partitions_revoked(self, partitions: Any) -> None:
        return

    def on_partitions_lost(self, partitions: Any) -> None:
        self._assignor.forget()


def _read(data: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(data or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
