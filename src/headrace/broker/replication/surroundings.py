"""What a partition's replication needs of the broker around it, in one place that tests can put another into."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.replication.leader import LeaderState, Proposal


class Surroundings(Protocol):
    @property
    def lag_time_max_ms(self) -> float:
        """How long a follower may be behind before it leaves the in-sync replicas."""
        ...

    def now_ms(self) -> float:
        """By the monotonic clock."""
        ...

    def broker_epoch(self, node_id: int) -> int | None:
        """The epoch of a broker that is active; None for one that is fenced, stopping or not registered."""
        ...

    def is_alive(self, node_id: int) -> bool:
        """Whether a broker is registered and not fenced; it may be stopping."""
        ...

    def propose(self, partition: Partition, leader: LeaderState, proposal: Proposal) -> None:
        """Ask the controller for other in-sync replicas."""
        ...

    def role_changed(self, partition: Partition) -> None:
        """A partition leads, follows another leader or is followed from now on."""
        ...

    def cutting(self, partition: Partition, offset: int) -> AbstractAsyncContextManager[None]:
        """While this lasts, a log is cut at that offset: what was durable behind it is not any more."""
        ...


class Alone:
    """A broker without others: nobody follows, and nobody is asked."""

    lag_time_max_ms = 30_000.0

    def now_ms(self) -> float:
        return 0.0

    def broker_epoch(self, node_id: int) -> int | None:
        return None

    def is_alive(self, node_id: int) -> bool:
        return False

    def propose(self, partition: Partition, leader: LeaderState, proposal: Proposal) -> None:
        """There is nobody to ask: the change stays pending."""

    def role_changed(self, partition: Partition) -> None:
        """Nobody has to know."""

    def cutting(self, partition: Partition, offset: int) -> AbstractAsyncContextManager[None]:
        return nullcontext()


ALONE = Alone()
