"""Producer id, epoch and sequence numbers: what makes a producer idempotent, and keeps order over retries.

A batch gets its sequence number when it is first sent, and keeps it over retries. While one waits to be sent again,
nothing newer of its partition is sent, so that a broker sees every number once and in order. When numbers are lost
for good (a batch failed, or timed out after it was sent) the epoch is bumped, and the partition starts again at 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.client.producer_batch import NO_SEQUENCE, ProducerBatch
from headrace.records.batch import increment_sequence

EPOCH_MAX = 32_766
"""Java's limit: 32767 is kept for fencing by the coordinator."""


@dataclass(slots=True)
class Identity:
    """Who the producer is to the brokers. With a transactional id, the same after a restart, one epoch later."""

    producer_id: int = -1
    epoch: int = -1

    @property
    def is_known(self) -> bool:
        return self.producer_id >= 0

    def bump(self) -> bool:
        """The next epoch; False when there is none left, and a new producer id is needed."""
        if self.epoch >= EPOCH_MAX:
            self.producer_id = self.epoch = -1
            return False
        self.epoch += 1
        return True


@dataclass(slots=True)
class Sequences:
    """The sequence numbers of one partition. `assigned` are batches that have one and are not settled, in order."""

    producer_id: int = -1
    epoch: int = -1
    next: int = 0
    last_acked: int = -1
    unresolved: bool = False
    """A batch was given up that may have been written: nobody knows which number the broker expects."""
    assigned: list[ProducerBatch] = field(default_factory=list)

    def may_send(self, batch: ProducerBatch, identity: Identity) -> bool:
        """Whether it is this batch's turn."""
        if batch.sequence != NO_SEQUENCE:
            return self.assigned[0] is batch
        # Nothing new behind a batch that is being sent again, not even while that is in flight: brokers remember only
        # the last five batches of a producer, and must still know this one if it was written after all.
        if self.unresolved or any(other.attempts or not other.in_flight for other in self.assigned):
            return False
        if not self.assigned:
            return identity.is_known
        # A broker takes any number from a producer that it does not know: were the first batch refused (its leader just
        # moved) and the second taken, their order would be lost, and the first be out of order for ever.
        is_current = (self.producer_id, self.epoch) == (identity.producer_id, identity.epoch)
        return is_current and self.last_acked >= 0

    def assign(self, batch: ProducerBatch, identity: Identity) -> None:
        """Number a batch that is about to be sent for the first time."""
        if (self.producer_id, self.epoch) != (identity.producer_id, identity.epoch):
            self.producer_id, self.epoch = identity.producer_id, identity.epoch
            self.next, self.last_acked = 0, -1
        batch.identify(self.producer_id, self.epoch, self.next)
        self.next = increment_sequence(self.next, batch.count)
        self.assigned.append(batch)

    def acked(self, batch: ProducerBatch) -> None:
        if batch in self.assigned:
            self.assigned.remove(batch)
            self.last_acked = batch.last_sequence

    def forget(self, batch: ProducerBatch) -> None:
        """It failed for good, or was given up."""
        if batch in self.assigned:
            self.assigned.remove(batch)

    def replace(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """A batch was split; its parts have its numbers between them."""
        if batch in self.assigned:
            at = self.assigned.index(batch)
            self.assigned[at : at + 1] = parts

    def is_next(self, batch: ProducerBatch) -> bool:
        """Whether the broker must be expecting exactly this batch."""
        return batch.sequence == (0 if self.last_acked < 0 else increment_sequence(self.last_acked, 1))

    def restart(self, identity: Identity) -> None:
        """Begin at 0 under a new epoch: what is not settled is renumbered, in its order."""
        self.producer_id, self.epoch = identity.producer_id, identity.epoch
        self.next, self.last_acked, self.unresolved = 0, -1, False
        for batch in self.assigned:
            batch.identify(self.producer_id, self.epoch, self.next)
            self.next = increment_sequence(self.next, batch.count)
