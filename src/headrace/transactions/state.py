"""What is known of a transactional id, and how it may change. Values only: no request, no record, no clock.

A `TransactionSnapshot` is what one record of `__transaction_state` says. Every change is a function from the
present snapshot to the next one, which counts once it is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from headrace.topics import TopicPartition

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
EPOCH_MAX = 32_767
# The newer protocol (KIP-890): the epoch is bumped with every transaction's end, so that nothing late can be mistaken.
EPOCH_BUMP_VERSION = 2


class TransactionState(Enum):
    """The states that are ever recorded, by Kafka's numbers; `title` is what users see."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def title(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """The outcome is decided, but not all partitions know it yet."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


# Kafka names two more states. They are passing ones that no record shows, but they may be asked for as filters.
TITLES = frozenset(state.title for state in TransactionState) | {"Dead", "PrepareEpochFence"}


@dataclass(frozen=True, slots=True)
class TransactionSnapshot:
    """What a record says. The last epoch is not in it: after a restart no one can say which one was asked to bump."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    update_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = field(default=NO_PRODUCER_EPOCH, compare=False)
    client_version: int = 0

    @property
    def bumps_epoch(self) -> bool:
        return self.client_version >= EPOCH_BUMP_VERSION

    @property
    def is_epoch_exhausted(self) -> bool:
        return is_epoch_exhausted(self.producer_epoch)


def is_epoch_exhausted(epoch: int) -> bool:
    """No producer is given the very last epoch: the coordinator must always be able to fence with one more."""
    return epoch >= EPOCH_MAX - 1


def initialized(
    now: TransactionSnapshot, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
) -> TransactionSnapshot:
    """A producer has taken over, or goes on with, this id."""
    return replace(
        now,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        timeout_ms=timeout_ms,
        update_ms=now_ms,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        start_ms=-1,
        previous_producer_id=now.producer_id,
    )


def rotated(
    now: TransactionSnapshot, producer_id: int, last_epoch: int, timeout_ms: int, now_ms: int
) -> TransactionSnapshot:
    """The same with another producer id, since the epochs of this one are used up."""
    return replace(initialized(now, 0, last_epoch, timeout_ms, now_ms), producer_id=producer_id)


def extended(
    now: TransactionSnapshot, partitions: frozenset[TopicPartition], client_version: int, now_ms: int
) -> TransactionSnapshot:
    """The transaction, perhaps a new one, writes to these partitions too."""
    return replace(
        now,
        state=TransactionState.ONGOING,
        partitions=now.partitions | partitions,
        start_ms=now.start_ms if now.state is TransactionState.ONGOING else now_ms,
        update_ms=now_ms,
        previous_producer_id=now.producer_id,
        client_version=client_version,
    )


def prepared(
    now: TransactionSnapshot, *, commit: bool, client_version: int, next_producer_id: int, now_ms: int
) -> TransactionSnapshot:
    """The outcome is decided. In the newer protocol the markers have the next epoch: the old one is over for good."""
    epoch, last_epoch = now.producer_epoch, now.last_producer_epoch
    if client_version >= EPOCH_BUMP_VERSION:
        epoch, last_epoch = min(epoch + 1, EPOCH_MAX), epoch
    return replace(
        now,
        state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        next_producer_id=next_producer_id,
        # An abort of nothing has no start of its own.
        start_ms=now.start_ms if now.state is TransactionState.ONGOING else now_ms,
        update_ms=now_ms,
        previous_producer_id=now.producer_id,
        client_version=client_version,
    )


def completed(now: TransactionSnapshot, now_ms: int) -> TransactionSnapshot:
    """All partitions know the outcome. If the epochs were used up by it, the producer goes on with the next id."""
    rotates = now.bumps_epoch and now.next_producer_id != NO_PRODUCER_ID
    commit = now.state is TransactionState.PREPARE_COMMIT
    return replace(
        now,
        state=TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT,
        producer_id=now.next_producer_id if rotates else now.producer_id,
        producer_epoch=0 if rotates else now.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
        update_ms=now_ms,
        previous_producer_id=now.producer_id,
    )
