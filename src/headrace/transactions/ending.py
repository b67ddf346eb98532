"""How transactions end: by EndTxn, by a newer producer, by time; in two phases, with markers in between.

First the outcome is recorded, from then on it is certain. Then it is written to every partition of the transaction.
When the last one is done, that is recorded too, and the id is free for the next transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace.coordination import Caller, Now
from headrace.errors import ErrorCode
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.topics import TopicPartition
from headrace.transactions import answers
from headrace.transactions.lookup import PartitionLookup
from headrace.transactions.outcome import MarkerRequest, Outcome
from headrace.transactions.shards import Shard, Shards, TransactionEntry
from headrace.transactions.state import (
    EPOCH_BUMP_VERSION,
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionSnapshot,
    TransactionState,
    completed,
    prepared,
)

# The first EndTxn whose clients know the newer protocol.
BUMP_VERSION = 5

# What goes wrong again and again is tried less and less often, but often enough that nobody waits long when it is over.
RETRY_DOUBLINGS_MAX = 4

# Answers to a marker that will never change: the partition knows of a newer epoch, or of a newer coordinator.
_SUPERSEDED = frozenset((ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED))


class Endings:
    def __init__(self, shards: Shards, ids: Callable[[], int | None], topics: PartitionLookup) -> None:
        self._shards = shards
        self._ids = ids
        self._topics = topics

    # --- by the producer ----------------------------------------------------------------------------------------------

    def end(self, out: Outcome, caller: Caller, request: EndTxnRequest, at: Now) -> None:
        version = EPOCH_BUMP_VERSION if caller.api_version >= BUMP_VERSION else 0
        entry, verdict = self._judge(request, version)
        if entry is None or verdict is not None:
            error = verdict or ErrorCode.NONE
            response = EndTxnResponse(error_code=answers.fenced(error, caller.api_version))
            if entry is not None and error == ErrorCode.NONE:
                # A repeated request: it is told what it missed.
                response.producer_id = entry.current.producer_id
                response.producer_epoch = entry.current.producer_epoch
            out.reply(caller, response)
            return
        next_producer_id = self._next_id(out, entry, version)
        if next_producer_id is None:
            return
        target = prepared(
            entry.current,
            commit=request.committed,
            client_version=version,
            next_producer_id=next_producer_id,
            now_ms=at.wall_ms,
        )
        after = completed(target, at.wall_ms)
        response = EndTxnResponse(producer_id=after.producer_id, producer_epoch=after.producer_epoch)

        def refuse(error: ErrorCode) -> None:
            response.error_code = error
            response.producer_id, response.producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH

        self._prepare(out, entry, target, refuse)
        out.reply(caller, response)

    def _judge(self, request: EndTxnRequest, version: int) -> tuple[TransactionEntry | None, ErrorCode | None]:
        """The id, and the answer, or None when the transaction is to be ended."""
        if not request.transactional_id:
            return None, ErrorCode.INVALID_REQUEST
        error = self._shards.error_for(request.transactional_id)
        if error != ErrorCode.NONE:
            return None, error
        entry = self._shards.find(request.transactional_id)
        if entry is None or entry.is_new:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        judge = _judge_newer if version >= EPOCH_BUMP_VERSION else _judge_older
        return entry, judge(entry, request)

    # --- by others ----------------------------------------------------------------------------------------------------

    def fence(self, out: Outcome, entry: TransactionEntry, at: Now, refuse: Callable[[ErrorCode], None]) -> bool:
        """Abort an open transaction and bump its epoch. False when that needs a producer id, and there is none."""
        now, version = entry.current, self._shards.transaction_version
        if version < EPOCH_BUMP_VERSION:
            version = 0
            epoch = min(now.producer_epoch + 1, EPOCH_MAX)
            now = replace(now, producer_epoch=epoch, last_producer_epoch=NO_PRODUCER_EPOCH)
        next_producer_id = self._next_id(out, entry, version)
        if next_producer_id is None:
            return False
        target = prepared(
            now, commit=False, client_version=version, next_producer_id=next_producer_id, now_ms=at.wall_ms
        )
        self._prepare(out, entry, target, refuse)
        return True

    def abort_late_ones(self, out: Outcome, shard: Shard, at: Now) -> None:
        """A producer that takes longer than it said is fenced with its transaction."""
        shard.watches_time = False
        for transactional_id in sorted(shard.ongoing):
            entry = shard.entries[transactional_id]
            now = entry.current
            open_ms = at.monotonic_ms - entry.opened_ms
            if not entry.is_busy and open_ms > now.timeout_ms:
                out.notes.append(
                    f"transaction of {transactional_id!r} (producer {now.producer_id}, epoch {now.producer_epoch}) is "
                    f"aborted: it is open for {open_ms} ms, and was to take at most {now.timeout_ms} ms"
                )
                # Whatever goes wrong, the next round tries again.
                self.fence(out, entry, at, lambda error: None)
        self._shards.watch_time(out, shard, at)

    def _next_id(self, out: Outcome, entry: TransactionEntry, version: int) -> int | None:
        """The id to go on with when this end uses up the epochs of the present one; None when there is none to have."""
        if version < EPOCH_BUMP_VERSION or not entry.current.is_epoch_exhausted:
            return NO_PRODUCER_ID
        producer_id = self._ids()
        if producer_id is None:
            out.needs_producer_id = True
        return producer_id

    # --- two phases ---------------------------------------------------------------------------------------------------

    def _prepare(
        self, out: Outcome, entry: TransactionEntry, target: TransactionSnapshot, refuse: Callable[[ErrorCode], None]
    ) -> None:
        def decided(next_out: Outcome, at: Now) -> None:
            self.go_on(next_out, entry)

        self._shards.write(out, entry, target, refuse=refuse, then=decided)

    def go_on(self, out: Outcome, entry: TransactionEntry) -> None:
        """A transaction is decided, as was just written or read from the log: its partitions are to know."""
        entry.unmarked = set(entry.current.partitions)
        entry.retries = 0
        self._shards.ask_for_markers(out, entry, entry.unmarked)

    def markers_written(
        self, out: Outcome, request: MarkerRequest, errors: Mapping[TopicPartition, ErrorCode], at: Now
    ) -> None:
        shard = self._shards.get(request.state_partition)
        entry = None if shard is None else shard.entries.get(request.transactional_id)
        if entry is None or entry.attempt != request.attempt:
            return  # of an earlier life of this coordinator
        for partition, error in errors.items():
            if partition not in entry.awaited:
                continue
            entry.awaited.discard(partition)
            if self._is_settled(out, request, partition, error):
                entry.unmarked.discard(partition)
        if entry.awaited:
            return
        entry.attempt = 0
        if entry.unmarked:
            self._try_again_later(out, entry, at)
        else:
            self._complete(out, entry, at)

    def _is_settled(self, out: Outcome, request: MarkerRequest, partition: TopicPartition, error: ErrorCode) -> bool:
        if error == ErrorCode.NONE:
            return True
        if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            count = self._topics.partition_count(partition.topic)
            return count is None or partition.partition >= count  # else its leader has not heard of it yet
        if error in _SUPERSEDED:
            # To ask again is no use, and to wait would block the id for good.
            out.notes.append(
                f"the end of the transaction of {request.transactional_id!r} (producer {request.producer_id}, epoch "
                f"{request.producer_epoch}) was refused by {partition} with {error.name}: it was ended by someone else"
            )
            return True
        return False

    def _complete(self, out: Outcome, entry: TransactionEntry, at: Now) -> None:
        def failed(next_out: Outcome, at: Now) -> None:
            self._try_again_later(next_out, entry, at)

        target = completed(entry.current, at.wall_ms)
        self._shards.write(out, entry, target, refuse=lambda error: None, otherwise=failed)

    def _try_again_later(self, out: Outcome, entry: TransactionEntry, at: Now) -> None:
        backoff_ms = self._shards.config.retry_backoff_ms << min(entry.retries, RETRY_DOUBLINGS_MAX)
        entry.retries += 1
        out.arm(entry.timer, at.monotonic_ms + backoff_ms)

    def on_markers_timer(self, out: Outcome, shard: Shard, transactional_id: str, at: Now) -> None:
        entry = shard.entries.get(transactional_id)
        if entry is None or not entry.current.state.is_prepared or entry.attempt or entry.is_changing:
            return  # a timer of an earlier life of this coordinator
        if entry.unmarked:
            self._shards.ask_for_markers(out, entry, entry.unmarked)
        else:
            self._complete(out, entry, at)


def _judge_older(entry: TransactionEntry, request: EndTxnRequest) -> ErrorCode | None:
    """The epoch stays the same over transactions, so a repeated end can only be told by its outcome."""
    now = entry.current
    if now.producer_id != request.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if now.producer_epoch != request.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if entry.is_busy:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if now.state is TransactionState.ONGOING:
        return None
    return _repeated(now, request)


def _judge_newer(entry: TransactionEntry, request: EndTxnRequest) -> ErrorCode | None:
    """The epoch was bumped by the end before: an end with the epoch before the present one is a repeated one."""
    now = entry.current
    if entry.is_busy:
        # First of all: the id itself may be about to change.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    ended_newer = now.state.is_complete and now.bumps_epoch
    if now.producer_id != request.producer_id:
        was_rotated = (
            now.previous_producer_id == request.producer_id
            and request.producer_epoch == EPOCH_MAX - 1
            and now.producer_epoch == 0
        )
        if not was_rotated:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return _repeated(now, request) if ended_newer else ErrorCode.PRODUCER_FENCED
    if ended_newer and now.producer_epoch == request.producer_epoch + 1:
        return _repeated(now, request)
    if now.producer_epoch != request.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if now.state is TransactionState.ONGOING or not request.committed:
        return None  # an abort of nothing is how a producer gets rid of what it sent and nobody heard of
    return ErrorCode.INVALID_TXN_STATE


def _repeated(now: TransactionSnapshot, request: EndTxnRequest) -> ErrorCode:
    wanted = TransactionState.COMPLETE_COMMIT if request.committed else TransactionState.COMPLETE_ABORT
    return ErrorCode.NONE if now.state is wanted else ErrorCode.INVALID_TXN_STATE
