"""Who an idempotent producer is: it asks for a producer id once, and bumps the epoch where numbers are missing.

With a transactional id the coordinator does both (`transactions/_core.py`).
"""

from __future__ import annotations

import logging

from headrace.client.cluster.core import ANY_NODE, ClientCore
from headrace.client.producer._accumulator import Accumulator
from headrace.client.producer._batch import ProducerBatch
from headrace.client.producer._queues import PartitionQueue
from headrace.client.producer._sequences import CurrentIdentity
from headrace.client.producer.config import ProducerSettings
from headrace.errors import ErrorCode, HeadraceError, RetriableError, error_for
from headrace.net.connection import Call
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest

log = logging.getLogger("headrace.client.producer")

_FOREVER = float("inf")


class IdentityKeeper:
    """See the module. `error` is why there will be no producer id, if the brokers refuse to give one."""

    def __init__(
        self, core: ClientCore, settings: ProducerSettings, accumulator: Accumulator, identity: CurrentIdentity
    ) -> None:
        self.core = core
        self.settings = settings
        self.accumulator = accumulator
        self.identity = identity
        self.error: HeadraceError | None = None
        self._unsettled: dict[tuple[str, int], None] = {}
        self._call: Call | None = None
        self._retry_at = 0.0
        self._failures = 0

    @property
    def is_settled(self) -> bool:
        """Whether there is an id, and no number is missing anywhere."""
        return self.identity.producer_id >= 0 and not self._unsettled

    def gave_up(self, queue: PartitionQueue) -> None:
        """A batch that has a number was given up: the broker may never see that number."""
        queue.sequences.has_gap = True
        self._unsettled[queue.topic, queue.partition] = None

    def _was_refused(self, queue: PartitionQueue) -> None:
        """The broker waits for another number than that of the partition's first batch, and has not written that."""
        queue.sequences.is_refused = True
        self._unsettled[queue.topic, queue.partition] = None

    def is_worth_retrying(
        self,
        queue: PartitionQueue,
        batch: ProducerBatch,
        error: HeadraceError,
        log_start: int,
        now: float,
        *,
        in_transaction: bool,
    ) -> bool:
        """Whether a batch that was refused so may be taken under its number, or under another that it is given now.

        `log_start`: where the partition's log begins, as the broker has said with the error; -1 when it has not.
        """
        code = getattr(error, "code", None)
        is_first = queue.sequences.is_first(batch)
        # Had an earlier attempt been written, this one would have been called a duplicate; unless that is still to be
        # read by the broker, and then this one is sent under the same number until it cannot be any more.
        is_certain = is_first and batch.doubt_until <= now
        if code == ErrorCode.UNKNOWN_PRODUCER_ID and not in_transaction:
            # The broker has forgotten us (its records of us were deleted): start anew, unless it is a stale answer.
            if is_certain and log_start >= 0:
                self._was_refused(queue)
            return True
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # Expected behind a batch that is being sent again; otherwise numbers are missing for good.
            if is_first and in_transaction:
                return False
            if is_certain and batch.doubt_until and queue.sequences.was_followed(batch):
                # A broker that was restarted knows the last batch of a producer alone: this one may be there, before
                # it. What was sent behind it is settled under its numbers, and tells whether the broker has this one's.
                return False
            if is_certain:
                self._was_refused(queue)
            return True
        return isinstance(error, RetriableError)

    def keep(self, now: float) -> float:
        """Bump the epoch where numbers are missing; get a producer id when there is none and something is to be sent.

        When to look again by itself.
        """
        for key in list(self._unsettled):
            self._settle(self.accumulator.queues[key])
        if self.identity.is_known or self._call is not None or not self.accumulator.incomplete:
            return _FOREVER
        if self._retry_at > now:
            return self._retry_at
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2_147_483_647)
        self._call = self.core.submit(ANY_NODE, request, self._answered)
        if self._call.done:
            self._call = None
        return _FOREVER

    def forget_unused(self) -> None:
        """Forget partitions of topics that nothing is sent to any more (a producer may come by many in its life).

        Should one be used again, its numbers begin at 0, as those that the broker may know of it did: so it needs
        another epoch. In a transaction that is the coordinator's to give: numbers that are still good are kept.
        """
        identity, is_transactional = self.identity, self.settings.transactional_id is not None
        is_bump_needed = False
        for key, queue in self.accumulator.unused_queues().items():
            is_needed = queue.sequences.is_begun(identity)
            if key in self._unsettled or (is_needed and is_transactional):
                continue
            is_bump_needed = is_bump_needed or is_needed
            del self.accumulator.queues[key]
        if is_bump_needed:
            identity.bump()
            log.debug("partitions were forgotten: the producer's epoch is now %d", identity.epoch)

    def _settle(self, queue: PartitionQueue) -> None:
        sequences = queue.sequences
        if queue.in_flight or (sequences.assigned and not sequences.is_refused):
            # Something sent is open: it is sent again under its number until its outcome is known.
            return
        if sequences.is_whole:
            # What came after the batch that was given up has been acknowledged: so that one was written after all.
            sequences.has_gap = sequences.is_refused = False
            del self._unsettled[queue.topic, queue.partition]
            return
        identity = self.identity
        if identity.is_known and (identity.producer_id, identity.epoch) == (sequences.producer_id, sequences.epoch):
            identity.bump()
            log.info(
                "sequence numbers of %s-%d are missing: the producer's epoch is now %d",
                queue.topic,
                queue.partition,
                identity.epoch,
            )
        if identity.is_known:
            sequences.restart(identity)
            del self._unsettled[queue.topic, queue.partition]

    def _answered(self, call: Call) -> None:
        self._call = None
        error = call.error
        if error is None and call.response.error_code:
            error = error_for(call.response.error_code, "no producer id was given")
        if error is None:
            self.identity.producer_id, self.identity.epoch = call.response.producer_id, call.response.producer_epoch
            self._failures = 0
            log.debug("producer id %d, epoch %d", self.identity.producer_id, self.identity.epoch)
            return
        if not isinstance(error, RetriableError):
            self.error = error
        wait_ms = self.settings.retry_backoff.wait_ms(self._failures, self.core.rng)
        self._failures += 1
        self._retry_at = self.core.clock.monotonic() + wait_ms / 1000
