"""InitProducerId: who is the producer of a transactional id, and with which epoch; older ones are fenced."""

from __future__ import annotations

from collections.abc import Callable

from headrace.coordination import Caller, Now, is_storable
from headrace.errors import ErrorCode
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.transactions import answers
from headrace.transactions.ending import Endings
from headrace.transactions.outcome import Outcome
from headrace.transactions.shards import Shards, TransactionEntry
from headrace.transactions.state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionSnapshot,
    TransactionState,
    initialized,
    is_epoch_exhausted,
    rotated,
)

ProducerIdSupply = Callable[[], int | None]


class Producers:
    def __init__(self, shards: Shards, endings: Endings, ids: ProducerIdSupply) -> None:
        self._shards = shards
        self._endings = endings
        self._ids = ids

    def init(self, out: Outcome, caller: Caller, request: InitProducerIdRequest, at: Now) -> None:
        error = self._check(request)
        if error != ErrorCode.NONE:
            out.reply(caller, answers.init_error(error, caller.api_version))
            return
        if request.transactional_id is None:
            producer_id = self._ids()
            if producer_id is None:
                out.needs_producer_id = True
            else:
                out.reply(caller, InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))
            return
        entry = self._find_or_create(out, request.transactional_id, request.transaction_timeout_ms, at)
        if entry is None:
            return
        error = self._admit(entry, request)
        if error != ErrorCode.NONE:
            out.reply(caller, answers.init_error(error, caller.api_version))
        elif entry.current.state is TransactionState.ONGOING:
            self._fence(out, caller, entry, at)
        else:
            self._initialize(out, caller, entry, request, at)

    def _check(self, request: InitProducerIdRequest) -> ErrorCode:
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
            return ErrorCode.INVALID_REQUEST
        if request.transactional_id is None:
            return ErrorCode.NONE
        if not request.transactional_id or not is_storable(request.transactional_id):
            return ErrorCode.INVALID_REQUEST
        if not 0 < request.transaction_timeout_ms <= self._shards.config.max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return self._shards.error_for(request.transactional_id)

    def _find_or_create(self, out: Outcome, transactional_id: str, timeout_ms: int, at: Now) -> TransactionEntry | None:
        shard = self._shards.serving(transactional_id)
        entry = shard.entries.get(transactional_id)
        if entry is not None:
            return entry
        producer_id = self._ids()
        if producer_id is None:
            out.needs_producer_id = True
            return None
        new = TransactionSnapshot(producer_id, NO_PRODUCER_EPOCH, timeout_ms, at.wall_ms)
        return self._shards.add(shard, transactional_id, new)

    @staticmethod
    def _admit(entry: TransactionEntry, request: InitProducerIdRequest) -> ErrorCode:
        """Whether this producer may have the id now. One that says who it was (KIP-360) must not have been replaced."""
        now = entry.current
        if entry.is_busy:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if request.producer_id == NO_PRODUCER_ID or entry.is_new:
            return ErrorCode.NONE
        # The previous id counts at the end of its epochs: the answer that told of the new id may have been lost.
        is_known = request.producer_id == now.producer_id or (
            request.producer_id == now.previous_producer_id and is_epoch_exhausted(request.producer_epoch)
        )
        # So does the epoch before, until the present one is in use. An older one must not end anyone's transaction.
        epochs = {now.producer_epoch}
        if now.state is not TransactionState.ONGOING:
            epochs.add(now.last_producer_epoch)
        return ErrorCode.NONE if is_known and request.producer_epoch in epochs else ErrorCode.PRODUCER_FENCED

    def _fence(self, out: Outcome, caller: Caller, entry: TransactionEntry, at: Now) -> None:
        """End the open transaction first. The client is to ask again, and is given a still higher epoch then."""
        response = answers.init_error(ErrorCode.CONCURRENT_TRANSACTIONS, caller.api_version)

        def refuse(error: ErrorCode) -> None:
            response.error_code = error

        if self._endings.fence(out, entry, at, refuse):
            out.reply(caller, response)

    def _initialize(
        self, out: Outcome, caller: Caller, entry: TransactionEntry, request: InitProducerIdRequest, at: Now
    ) -> None:
        now, timeout_ms = entry.current, request.transaction_timeout_ms
        continues = request.producer_id != NO_PRODUCER_ID
        if continues and not entry.is_new and request.producer_epoch != now.producer_epoch:
            # The last epoch is the one that asked for the present one: it did not hear the answer. Here it is again.
            target = initialized(now, now.producer_epoch, now.last_producer_epoch, timeout_ms, at.wall_ms)
        elif now.is_epoch_exhausted:
            producer_id = self._ids()
            if producer_id is None:
                out.needs_producer_id = True
                return
            last_epoch = now.producer_epoch if continues else NO_PRODUCER_EPOCH
            target = rotated(now, producer_id, last_epoch, timeout_ms, at.wall_ms)
        else:
            # Without the last epoch no earlier producer can take this for an answer to itself.
            last_epoch = now.producer_epoch if continues else NO_PRODUCER_EPOCH
            target = initialized(now, now.producer_epoch + 1, last_epoch, timeout_ms, at.wall_ms)
        response = InitProducerIdResponse(producer_id=target.producer_id, producer_epoch=target.producer_epoch)

        def refuse(error: ErrorCode) -> None:
            response.error_code = error
            response.producer_id, response.producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH

        self._shards.write(out, entry, target, refuse=refuse)
        out.reply(caller, response)
