"""Who leads a partition, and what of it a reader may see, in the words of those who serve it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from headrace.broker.replication.leader import Term
from headrace.errors import FencedLeaderEpochError, UnknownLeaderEpochError
from headrace.topics import TopicPartition

NO_LEADER: Final = -1
NO_LEADER_EPOCH: Final = -1


class Isolation(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(slots=True)
class Leadership:
    """What the cluster's metadata says about a partition, as far as serving it needs."""

    leader_id: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    partition_epoch: int = -1

    def term(self) -> Term:
        return Term(self.leader_id, self.leader_epoch, self.partition_epoch, tuple(self.replicas), tuple(self.isr))

    def check_epoch(self, key: TopicPartition, current: int) -> None:
        """Refuse a client that knows of an older leader epoch of this partition, or of a newer one."""
        epoch = self.leader_epoch
        if NO_LEADER_EPOCH != current < epoch:
            raise FencedLeaderEpochError(f"{key}: leader epoch {current} is over; it is {epoch}")
        if NO_LEADER_EPOCH != current > epoch:
            raise UnknownLeaderEpochError(f"{key}: leader epoch {current} is not known here yet ({epoch})")

    @classmethod
    def of(cls, term: Term) -> Leadership:
        return cls(term.leader_id, term.leader_epoch, list(term.replicas), list(term.isr), term.partition_epoch)
