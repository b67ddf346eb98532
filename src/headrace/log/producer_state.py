"""What each producer last wrote to one partition: the rules of idempotence, and which transactions are open."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from headrace.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceNumberError,
    TransactionCoordinatorFencedError,
    UnknownProducerIdError,
)
from headrace.log.transaction_index import AbortedTransaction
from headrace.log.view import NEVER
from headrace.records import BatchHeader
from headrace.records.batch import MAX_SEQUENCE, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from headrace.topics import TopicPartition

BATCHES_KEPT = 5
MAX_PRODUCER_EPOCH = 32_767
NO_COORDINATOR_EPOCH = -1
EPOCH_BUMP_VERSION = 2
"""The `transaction.version` from which on the end of every transaction bumps the producer's epoch (KIP-890)."""
DEFAULT_EXPIRATION_MS = 86_400_000
_new_tuple = tuple.__new__


class Origin(Enum):
    """Who appends, which decides what is checked."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class WrittenBatch(NamedTuple):
    """One of a producer's last batches, enough to recognise it when it is sent again."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        first = self.last_sequence - self.offset_delta
        return first if first >= 0 else first + MAX_SEQUENCE + 1

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry(NamedTuple):
    """What is known of one producer id. A change puts another in its place: whoever has this one may read on."""

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp_ms: int = -1
    txn_first_offset: int = -1
    batches: tuple[WrittenBatch, ...] = ()

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def in_transaction(self) -> bool:
        return self.txn_first_offset >= 0

    def before(self, offset: int) -> ProducerEntry | None:
        """What is known by this of what came before `offset`; None when that is nothing.

        Of a producer that wrote after it, that is a transaction which was open there already, and still is.
        """
        batches = tuple(batch for batch in self.batches if batch.last_offset < offset)
        if len(batches) == len(self.batches) or 0 <= self.txn_first_offset < offset:
            return self._replace(batches=batches)
        return None


class EndedTransaction(NamedTuple):
    """A transaction that counts as unstable until its end is below the high watermark: it may still be lost."""

    first_offset: int
    marker_offset: int


@dataclass(slots=True, frozen=True)
class EndMarker:
    """A transaction's end as it stands in a control batch."""

    commit: bool
    coordinator_epoch: int
    timestamp_ms: int


@dataclass(slots=True, frozen=True)
class Verification:
    """Proof, good for one transaction, that the coordinator was asked whether this partition is part of it (KIP-890).

    Compared by identity: a guard of an earlier transaction must not pass for the present one.
    """

    producer_id: int
    token: object = field(default_factory=object, repr=False)


UNVERIFIED: Final = Verification(NO_PRODUCER_ID)
"""Proof of nothing: a batch that comes with it may continue a transaction, but not open one."""


class _Verifying(NamedTuple):
    guard: Verification
    since_ms: int
    lowest_sequence: int
    epoch: int
    from_zero: bool
    """Whether every epoch of the producer begins with 0 in every partition: the end of each transaction bumps it."""


class LogProducers:
    """The producers of one partition and its open transactions; changed by the log's writer, kept in snapshots.

    Others may look at `producers`, whose values never change. Only the verifications are begun elsewhere, by the event
    loop: `_verifying` is changed under its lock, together with the transactions that make a verification worthless.
    """

    __slots__ = (
        "_lock",
        "_partition",
        "_verifying",
        "end_offset",
        "ended",
        "expiration_ms",
        "loaded_at",
        "ongoing",
        "producers",
    )

    def __init__(self, partition: TopicPartition, expiration_ms: int = DEFAULT_EXPIRATION_MS) -> None:
        self._partition = partition
        self.expiration_ms = expiration_ms
        self.producers: dict[int, ProducerEntry] = {}
        # First offset → producer id. Offsets are given in order, so the first key is the smallest.
        self.ongoing: dict[int, int] = {}
        # Transactions that were not known to be ended for good when this was last looked at (`committed_up_to`).
        self.ended: tuple[EndedTransaction, ...] = ()
        # The state is that after every batch below this offset.
        self.end_offset = 0
        # Where the snapshot was taken from which this comes: of each producer that has only the last batch, though the
        # four before it may be sent again as well. -1 when there is nothing to look up any more (`recall`).
        self.loaded_at = -1
        self._verifying: dict[int, _Verifying] = {}
        self._lock = threading.Lock()

    # ---- reading -------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many are remembered, those included of which only a verification is under way, or was refused."""
        return len(self.producers) + len(self._verifying)

    @property
    def undecided(self) -> int:
        """The first offset of the earliest open transaction; `NEVER` when none is open."""
        return next(iter(self.ongoing), NEVER)

    def find_duplicate(self, header: BatchHeader) -> WrittenBatch | None:
        """The batch that has these sequence numbers already, if it is one of the producer's last five."""
        producer = self.producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return None
        first = header.base_sequence
        if producer.batches and first == producer.batches[-1].last_sequence + 1:
            return None  # the next one, as nearly always
        last = header.last_sequence
        for batch in producer.batches:
            if batch.last_sequence == last and batch.first_sequence == first:
                return batch
        return None

    def check_duplicate(self, header: BatchHeader, found: WrittenBatch) -> None:
        """Raise if the batch with these sequence numbers is one of a transaction that has ended.

        Whoever sends it as part of another transaction has numbered other records so: librdkafka does, after an abort
        that gave up what was in flight. What it sent is not in the log, and must not be taken for what is there. With
        this error it aborts and begins another epoch; OUT_OF_ORDER_SEQUENCE_NUMBER ends it for good.
        """
        producer = self.producers[header.producer_id]
        if header.is_transactional and not 0 <= producer.txn_first_offset <= found.last_offset:
            raise UnknownProducerIdError(
                f"{self._partition}: producer {header.producer_id} sent sequence {header.base_sequence}, which the "
                f"batch at offset {found.first_offset} has, of an earlier transaction: abort, and begin a new epoch"
            )

    def may_be_older(self, header: BatchHeader) -> bool:
        """Whether this may be a batch that is in the log, from before what a snapshot knew of its producer."""
        producer = self.producers.get(header.producer_id)
        if self.loaded_at < 0 or producer is None or producer.epoch != header.producer_epoch:
            return False
        known = producer.batches
        if not known or len(known) >= BATCHES_KEPT:
            return False
        before = (known[0].first_sequence - header.last_sequence) % (MAX_SEQUENCE + 1)
        return 0 < before <= MAX_SEQUENCE // 2

    def recall(self, written: Iterable[tuple[BatchHeader, WrittenBatch]]) -> None:
        """Take in batches that are in the log from before the snapshot, in their order."""
        earlier: dict[int, list[WrittenBatch]] = {}
        for header, batch in written:
            producer = self.producers.get(header.producer_id)
            if producer is None or producer.epoch != header.producer_epoch or not producer.batches:
                continue
            if batch.last_offset < producer.batches[0].first_offset:
                earlier.setdefault(header.producer_id, []).append(batch)
        for producer_id, batches in earlier.items():
            producer = self.producers[producer_id]
            batches = [*batches[-BATCHES_KEPT:], *producer.batches][-BATCHES_KEPT:]
            self.producers[producer_id] = producer._replace(batches=tuple(batches))

    # ---- checking ------------------------------------------------------------------------------------------------

    def check(self, header: BatchHeader, origin: Origin, offset: int, verification: Verification | None) -> None:
        """Raise unless this data batch may be written at `offset`."""
        producer = self.producers.get(header.producer_id)
        self._check_epoch(producer, header, offset)
        if origin is Origin.CLIENT:
            self._check_sequence(producer, header, offset)
        in_transaction = producer is not None and producer.in_transaction
        if in_transaction and not header.is_transactional:
            raise InvalidTxnStateError(
                f"{self._partition}: producer {header.producer_id} has an open transaction, but this batch is not in it"
            )
        if in_transaction and producer is not None and header.producer_epoch != producer.epoch:
            # The marker that ends the older one is still on its way: nothing may slip in before it.
            raise InvalidTxnStateError(
                f"{self._partition}: the transaction of producer {header.producer_id} with epoch {producer.epoch} is "
                f"still open, so none can begin with epoch {header.producer_epoch}"
            )
        if verification is not None and header.is_transactional and not in_transaction:
            verifying = self._verifying.get(header.producer_id)
            if verifying is None or verifying.guard is not verification:
                raise InvalidTxnStateError(
                    f"{self._partition}: the batch of producer {header.producer_id} is not part of an open transaction"
                )

    def check_marker(self, header: BatchHeader, marker: EndMarker, offset: int, transaction_version: int = 0) -> None:
        """Raise unless this end of a transaction may be written at `offset`."""
        producer = self.producers.get(header.producer_id)
        self._check_epoch(producer, header, offset)
        if (
            transaction_version >= EPOCH_BUMP_VERSION
            and producer is not None
            and header.producer_epoch == producer.epoch
            and producer.in_transaction
            and header.producer_epoch != MAX_PRODUCER_EPOCH
        ):
            # Each end has an epoch of its own there, so this one ended an earlier transaction and comes late. With no
            # transaction open it is the same end once more, which does no harm; the last epoch has none above it.
            raise InvalidProducerEpochError(
                f"{self._partition}: the end of a transaction of producer {header.producer_id} at offset {offset} has "
                f"epoch {header.producer_epoch}, in which another transaction is open: it must be higher"
            )
        written = NO_COORDINATOR_EPOCH if producer is None else producer.coordinator_epoch
        if written > marker.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"{self._partition}: marker for producer {header.producer_id} at offset {offset} has coordinator epoch "
                f"{marker.coordinator_epoch}, but {written} wrote already"
            )

    def _check_epoch(self, producer: ProducerEntry | None, header: BatchHeader, offset: int) -> None:
        known = NO_PRODUCER_EPOCH if producer is None else producer.epoch
        if header.producer_epoch < known:
            raise InvalidProducerEpochError(
                f"{self._partition}: producer {header.producer_id} wrote with epoch {header.producer_epoch} at offset "
                f"{offset}, but epoch {known} is known: another producer has taken over"
            )

    def _check_sequence(self, producer: ProducerEntry | None, header: BatchHeader, offset: int) -> None:
        first = header.base_sequence
        verifying = self._verifying.get(header.producer_id)
        # Who asks with another epoch is another producer of the same id, whose batches say nothing about these.
        if verifying is not None and verifying.epoch == header.producer_epoch and first > verifying.lowest_sequence:
            raise OutOfOrderSequenceNumberError(
                f"{self._partition}: producer {header.producer_id} sent sequence {first} at offset {offset} "
                f"while {verifying.lowest_sequence} is still on its way"
            )
        if first and verifying is not None and verifying.from_zero and (producer is None or not producer.batches):
            # What came before it in this epoch is not here; taken now, it would be before that for ever.
            raise OutOfOrderSequenceNumberError(
                f"{self._partition}: producer {header.producer_id} sent sequence {first} at offset {offset}, "
                f"but nothing of epoch {header.producer_epoch} is here yet: it begins with 0"
            )
        if producer is None or producer.epoch == NO_PRODUCER_EPOCH:
            return  # nothing is known (any more) of this producer: any sequence is accepted
        if header.producer_epoch != producer.epoch:
            if first != 0:
                raise OutOfOrderSequenceNumberError(
                    f"{self._partition}: producer {header.producer_id} began epoch {header.producer_epoch} with "
                    f"sequence {first} instead of 0 (known epoch: {producer.epoch})"
                )
            return
        last = producer.last_sequence
        if first != last + 1 and not (first == 0 and last == MAX_SEQUENCE):
            raise OutOfOrderSequenceNumberError(
                f"{self._partition}: producer {header.producer_id} sent sequence {first} at offset {offset}, "
                f"but the last one written is {last}"
            )

    # ---- changing ------------------------------------------------------------------------------------------------

    def apply_batch(self, header: BatchHeader, base_offset: int, timestamp_ms: int | None = None) -> None:
        """Take in a data batch that is in the log at `base_offset` (the header may still say 0)."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        if timestamp_ms is None:
            timestamp_ms = header.max_timestamp
        delta = header.last_offset_delta
        written: WrittenBatch = _new_tuple(
            WrittenBatch, (header.last_sequence, base_offset + delta, delta, timestamp_ms)
        )
        known = self.producers.get(producer_id)
        coordinator_epoch = first_offset = -1
        batches: tuple[WrittenBatch, ...] = (written,)
        if known is not None:
            coordinator_epoch, first_offset = known.coordinator_epoch, known.txn_first_offset
            if known.epoch == epoch:
                batches = (*known.batches[1 - BATCHES_KEPT :], written)
        elif producer_id == NO_PRODUCER_ID:
            raise ValueError("a batch without a producer id has no producer state")
        opens = first_offset < 0 and header.is_transactional
        if opens:
            first_offset = base_offset
        producer: ProducerEntry = _new_tuple(
            ProducerEntry, (producer_id, epoch, coordinator_epoch, timestamp_ms, first_offset, batches)
        )
        if not opens:
            self.producers[producer_id] = producer
            return
        self.ongoing[base_offset] = producer_id
        with self._lock:
            self.producers[producer_id] = producer
            self._verifying.pop(producer_id, None)

    def apply_marker(self, header: BatchHeader, marker_offset: int, marker: EndMarker) -> AbortedTransaction | None:
        """Take in a transaction's end that is in the log; what the transaction index must hold, if it is an abort."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        known = self.producers.get(producer_id) or ProducerEntry(producer_id)
        first_offset = known.txn_first_offset
        producer = ProducerEntry(
            producer_id,
            epoch,
            marker.coordinator_epoch,
            marker.timestamp_ms,
            -1,
            known.batches if known.epoch == epoch else (),
        )
        with self._lock:
            self.producers[producer_id] = producer
            self._verifying.pop(producer_id, None)
        if first_offset < 0:
            return None
        self.ongoing.pop(first_offset, None)
        self.ended = (*self.ended, EndedTransaction(first_offset, marker_offset))
        if marker.commit:
            return None
        stable = next(iter(self.ongoing), marker_offset + 1)
        return AbortedTransaction(producer_id, first_offset, marker_offset, stable)

    def committed_up_to(self, high_watermark: int) -> None:
        """Ends of transactions below the high watermark can no longer be lost."""
        if self.ended and self.ended[0].marker_offset < high_watermark:
            self.ended = tuple(entry for entry in self.ended if entry.marker_offset >= high_watermark)

    def load(self, producers: list[ProducerEntry], end_offset: int, now_ms: int) -> None:
        """Start over from what a snapshot holds, without those who have been idle for too long."""
        self.clear(end_offset)
        for producer in producers:
            if not self._expired(producer, now_ms):
                self.producers[producer.producer_id] = producer
        opened = sorted((p.txn_first_offset, p.producer_id) for p in self.producers.values() if p.in_transaction)
        self.ongoing = dict(opened)
        self.loaded_at = end_offset if self.producers else -1

    def clear(self, end_offset: int) -> None:
        self.producers = {}
        self.ongoing = {}
        self.ended = ()
        self.end_offset = end_offset
        self.loaded_at = -1

    def remove_expired(self, now_ms: int) -> None:
        for producer_id in [p.producer_id for p in self.producers.values() if self._expired(p, now_ms)]:
            del self.producers[producer_id]
        with self._lock:
            for producer_id in [i for i, v in self._verifying.items() if now_ms - v.since_ms >= self.expiration_ms]:
                del self._verifying[producer_id]

    def remove_oldest(self, left: int) -> None:
        """Keep so many, those that wrote last, and all whose transactions are open.

        By where their last batch is: times are what producers say, of records that may be old, or not yet. Before them
        go the verifications that began first: whoever still waits for one asks again.
        """
        with self._lock:
            for producer_id in list(islice(self._verifying, max(0, self.count - left))):
                del self._verifying[producer_id]
        idle = [producer for producer in self.producers.values() if not producer.in_transaction]
        idle.sort(key=lambda producer: producer.batches[-1].last_offset if producer.batches else -1)
        for producer in idle[: max(0, self.count - left)]:
            del self.producers[producer.producer_id]

    def _expired(self, producer: ProducerEntry, now_ms: int) -> bool:
        return not producer.in_transaction and now_ms - producer.last_timestamp_ms >= self.expiration_ms

    # ---- verification of transactions ----------------------------------------------------------------------------

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, now_ms: int, *, from_zero: bool = False
    ) -> Verification | None:
        """A guard to append the transaction's first batch with; None when its transaction is open here already."""
        with self._lock:
            producer = self.producers.get(producer_id)
            if producer is not None and producer.in_transaction and producer.epoch == epoch:
                return None
            verifying = self._verifying.get(producer_id)
            if verifying is None:
                verifying = _Verifying(Verification(producer_id), now_ms, sequence, epoch, from_zero)
            elif epoch > verifying.epoch or (epoch == verifying.epoch and sequence < verifying.lowest_sequence):
                verifying = verifying._replace(epoch=epoch, lowest_sequence=sequence, from_zero=from_zero)
            self._verifying[producer_id] = verifying
            return verifying.guard

    def take_verifications(self, other: LogProducers) -> None:
        """Those of a log that this one's takes the place of, with the same batches."""
        with other._lock:
            verifying = dict(other._verifying)
        with self._lock:
            self._verifying = verifying

    def is_verifying(self, guard: Verification) -> bool:
        """Whether a batch can be appended with this guard: no transaction of its producer has begun or ended since."""
        verifying = self._verifying.get(guard.producer_id)
        return verifying is not None and verifying.guard is guard
