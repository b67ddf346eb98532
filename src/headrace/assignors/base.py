"""What every assignor takes and gives, and the interface a custom one has to meet."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol, TypeAlias, runtime_checkable

from headrace.errors import HeadraceError
from headrace.topics import TopicPartition


class AssignorError(HeadraceError):
    """An assignor was misused, is unknown, or cannot work with what it was given."""


class RebalanceProtocol(IntEnum):
    """How a member gives up partitions: all of them before each rebalance, or only those that move (KIP-429)."""

    EAGER = 0
    COOPERATIVE = 1


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member tells the leader of its group: what it wants to read, and what it has."""

    topics: Sequence[str]
    user_data: bytes | None = None
    owned_partitions: Sequence[TopicPartition] = ()
    generation_id: int | None = None
    rack_id: str | None = None
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the leader gives to one member."""

    partitions: Sequence[TopicPartition]
    user_data: bytes | None = None


@dataclass(slots=True)
class AssignableTopics:
    """What an assignor may know of the cluster.

    `partitions` has the number of partitions per topic; a topic that is missing or has none cannot be assigned.
    `replica_racks` has, per topic and partition, the racks of its replicas (None: a broker without rack).
    `lag` and `size_bytes` are filled by the caller for an assignor whose `needs` ask for them.
    """

    partitions: Mapping[str, int]
    replica_racks: Mapping[str, Sequence[Sequence[str | None]]] | None = None
    broker_racks: Mapping[int, str | None] = field(default_factory=dict)
    lag: Mapping[TopicPartition, int] = field(default_factory=dict)
    size_bytes: Mapping[TopicPartition, int] = field(default_factory=dict)


GroupAssignment: TypeAlias = dict[str, Assignment]

# What an assignor may ask its caller to look up before `assign`.
NEED_LAG = "lag"
NEED_SIZE = "size"


@runtime_checkable
class Assignor(Protocol):
    """Decides which member of a group reads which partition. The group's leader calls `assign`, every member the rest.

    One object serves one consumer: what it remembers between rebalances is its own, never the class's.

    `assign` may be a plain function or a coroutine: a caller awaits the result if it is awaitable (`settle` does that),
    so an assignor can ask a database or an HTTP service while the group waits. It must be done well within the
    rebalance time-out (`max.poll.interval.ms`). It gets members in the order in which the coordinator listed them.
    """

    @property
    def name(self) -> str:
        """What members of a group must agree on."""

    @property
    def version(self) -> int:
        """Version of the subscription's user data, for the assignor's own use."""

    @property
    def supported_protocols(self) -> Sequence[RebalanceProtocol]:
        """Best one last by number: a group uses the highest that all its assignors support."""

    @property
    def needs(self) -> Collection[str]:
        """What the caller must fill in the `AssignableTopics` first: any of "lag" and "size"; mostly nothing."""

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        """What this member sends to the leader with its subscription."""

    def assign(
        self, cluster: AssignableTopics, subscriptions: Mapping[str, Subscription]
    ) -> GroupAssignment | Awaitable[GroupAssignment]:
        """Member id → assignment, for every member of the group."""

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        """This member's own assignment has arrived, before the application hears of it."""


class AssignorBase:
    """The parts of the interface that most assignors leave as they are. Inheriting from it is a convenience."""

    version: int = 0
    supported_protocols: Sequence[RebalanceProtocol] = (RebalanceProtocol.EAGER,)
    needs: Collection[str] = frozenset()

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        return None

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        return None


async def settle(result: GroupAssignment | Awaitable[GroupAssignment]) -> GroupAssignment:
    """The assignment, whether `assign` gave it at once or has to be awaited."""
    if isinstance(result, Awaitable):
        return await result
    return result
