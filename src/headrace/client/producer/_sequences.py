"""Producer id, epoch and sequence numbers: what makes a producer idempotent, and keeps order over retries.

A batch gets its sequence number when it is first sent, and keeps it until its outcome is known. While one waits to be
sent again, nothing newer of its partition is sent, so that a broker sees every number once and in order. When a batch
is given up, its number may be missing at the broker: what was sent behind it is settled first, under the numbers it
has; only then, and only if a number is missing, is the epoch bumped, and the partition starts again at 0. A batch gets
another number only where the broker has said that it did not write it: one that was written would be there twice. That
it is out of order does not say so of a batch that may have been written before others were: brokers remember the last
five batches of a producer, but after a restart only the last one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.client.producer._batch import NO_SEQUENCE, ProducerBatch
from headrace.errors import ErrorCode
from headrace.records.batch import increment_sequence

EPOCH_MAX = 32_766
"""Java's limit: 32767 is kept for fencing by the coordinator."""
_SEQUENCES = 1 << 31
REMEMBERED_MAX = 5
"""As many batches of a producer a broker remembers by partition, to tell one that comes again from one out of order."""
NEVER_WRITTEN = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""With these a broker refuses a batch before it writes any of it. Every other one may come after it was written: a
leader answers so too when it was replaced, or its followers were slow, while it waited for them."""


@dataclass(slots=True)
class CurrentIdentity:
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
    has_gap: bool = False
    """A batch was given up: nobody knows yet whether the broker has its number."""
    is_refused: bool = False
    """The broker waits for another number than that of the first of `assigned`: it has none of them."""
    assigned: list[ProducerBatch] = field(default_factory=list)
    remembered: list[ProducerBatch] = field(default_factory=list)
    """The first of `assigned` and everything numbered since, settled or not: what a broker has to remember."""

    def may_send(self, batch: ProducerBatch, identity: CurrentIdentity) -> bool:
        """Whether it is this batch's turn."""
        if self.is_refused:
            return False
        if batch.sequence != NO_SEQUENCE:
            return self.assigned[0] is batch
        # Nothing new behind a batch that is being sent again, not even while that is in flight: brokers remember only
        # the last five batches of a producer, and must still know this one if it was written after all.
        if self.has_gap or any(other.attempts or not other.in_flight for other in self.assigned):
            return False
        if not self.assigned:
            return identity.is_known
        # An unanswered batch behind which a broker has forgotten it (others overtook it by the way of a new leader)
        # would be called out of order when it is sent again, as if it had never been written.
        if len(self.remembered) >= REMEMBERED_MAX:
            return False
        # A broker takes any number from a producer that it does not know: were the first batch refused (its leader just
        # moved) and the second taken, their order would be lost, and the first be out of order for ever.
        return self._is_of(identity) and self.last_acked >= 0

    def _is_of(self, identity: CurrentIdentity) -> bool:
        return (self.producer_id, self.epoch) == (identity.producer_id, identity.epoch)

    def is_begun(self, identity: CurrentIdentity) -> bool:
        """Whether numbers were given under this identity: the next batch goes on from there."""
        return self._is_of(identity) and identity.is_known and self.next > 0

    def following(self, identity: CurrentIdentity) -> tuple[int, int, int]:
        """Producer id, epoch and number of the next batch that is sent for the first time. None of it is taken yet."""
        if not self._is_of(identity):
            self.producer_id, self.epoch = identity.producer_id, identity.epoch
            self.next, self.last_acked = 0, -1
        return self.producer_id, self.epoch, self.next

    def assign(self, batch: ProducerBatch) -> None:
        """A batch that has the following number is on its way: nothing can keep it from being sent any more."""
        self.next = increment_sequence(self.next, batch.count)
        self.assigned.append(batch)
        self.remembered.append(batch)

    def acked(self, batch: ProducerBatch) -> None:
        if batch in self.assigned:
            self.forget(batch)
            # An answer to an earlier batch may come after that to a later one, when it was sent again.
            if self.last_acked < 0 or (batch.last_sequence - self.last_acked) % _SEQUENCES < _SEQUENCES // 2:
                self.last_acked = batch.last_sequence

    def forget(self, batch: ProducerBatch) -> None:
        """It is settled: acknowledged, failed for good, or given up."""
        if batch in self.assigned:
            self.assigned.remove(batch)
            while self.remembered and self.remembered[0] not in self.assigned:
                del self.remembered[0]

    def replace(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """A batch was split; its parts have its numbers between them."""
        if batch in self.assigned:
            at = self.assigned.index(batch)
            self.assigned[at : at + 1] = parts
            at = self.remembered.index(batch)
            self.remembered[at : at + 1] = parts

    def is_first(self, batch: ProducerBatch) -> bool:
        """Whether nothing before this batch can still be written."""
        return self.assigned[:1] == [batch]

    def was_followed(self, batch: ProducerBatch) -> bool:
        """Whether anything was sent behind this batch, the first of those that are not settled."""
        return self.remembered[-1:] != [batch]

    @property
    def is_whole(self) -> bool:
        """Whether the broker has acknowledged the last number that was given."""
        return not self.assigned and self.next == (0 if self.last_acked < 0 else increment_sequence(self.last_acked, 1))

    def restart(self, identity: CurrentIdentity) -> None:
        """Begin at 0 under a new epoch. What is assigned still was not written, and is renumbered in its order."""
        self.producer_id, self.epoch = identity.producer_id, identity.epoch
        self.next, self.last_acked, self.has_gap, self.is_refused = 0, -1, False, False
        self.remembered = list(self.assigned)
        for batch in self.assigned:
            batch.identify(self.producer_id, self.epoch, self.next)
            batch.doubt_until = 0.0
            self.next = increment_sequence(self.next, batch.count)
