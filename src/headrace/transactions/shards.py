"""Which partitions of `__transaction_state` this coordinator serves, the ids that live in them, and their writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headrace import coordination
from headrace.coordination import BATCH_OVERHEAD_BYTES, Effect, Now, Timer, record_bytes
from headrace.errors import ErrorCode
from headrace.topics import TopicPartition
from headrace.transactions.config import TransactionConfig
from headrace.transactions.loading import Loader
from headrace.transactions.outcome import MarkerRequest, Outcome, TimerKind
from headrace.transactions.records import snapshot_record, tombstone
from headrace.transactions.state import NO_PRODUCER_EPOCH, TransactionSnapshot, TransactionState

# How much larger than that of an open transaction the record of its end may be: with the id and epoch to go on with.
ENDING_ROOM_BYTES = 64


@dataclass(slots=True, eq=False)
class TransactionEntry:
    """One transactional id: what is recorded of it, and what is under way."""

    transactional_id: str
    shard: Shard
    current: TransactionSnapshot
    opened_ms: int = 0  # when its open transaction began, by the monotonic clock
    pending: TransactionSnapshot | None = None  # what it becomes once that is written
    unmarked: set[TopicPartition] = field(default_factory=set)  # partitions whose marker is not known to be written
    awaited: set[TopicPartition] = field(default_factory=set)  # those of them that were asked for
    retries: int = 0  # of its markers, or of the record after them
    attempt: int = 0  # of the marker request that counts

    @property
    def is_changing(self) -> bool:
        return self.pending is not None

    @property
    def is_busy(self) -> bool:
        """A change is being written, or a decided transaction is being ended: nobody else may interfere."""
        return self.is_changing or self.current.state.is_prepared

    @property
    def is_ending(self) -> bool:
        """The transaction's outcome is decided, or about to be: nothing more belongs to it."""
        state = self.current.state if self.pending is None else self.pending.state
        return state.is_prepared or self.current.state.is_prepared

    @property
    def is_new(self) -> bool:
        return self.current.producer_epoch == NO_PRODUCER_EPOCH

    @property
    def timer(self) -> Timer:
        return Timer(TimerKind.MARKERS, self.shard.partition, self.transactional_id)


@dataclass(slots=True, eq=False)
class Shard(coordination.Shard[Loader]):
    entries: dict[str, TransactionEntry] = field(default_factory=dict)
    ongoing: set[str] = field(default_factory=set)
    watches_time: bool = False  # whether the timer that aborts late transactions is set


class Shards(coordination.Shards[Shard]):
    """All of them, and how an id's state changes: only once the record that says so is written."""

    def __init__(
        self, config: TransactionConfig, transaction_version: int, batch_bytes_max: Callable[[int], int]
    ) -> None:
        super().__init__(config.state_topic_partitions, lambda partition, epoch: Shard(partition, epoch, Loader()))
        self.config = config
        self._batch_bytes_max = batch_bytes_max
        self.transaction_version = transaction_version
        self._attempts = 0

    def find(self, transactional_id: str) -> TransactionEntry | None:
        shard = self._shards.get(self.partition_of(transactional_id))
        return None if shard is None else shard.entries.get(transactional_id)

    def add(self, shard: Shard, transactional_id: str, snapshot: TransactionSnapshot) -> TransactionEntry:
        entry = shard.entries[transactional_id] = TransactionEntry(transactional_id, shard, snapshot)
        if snapshot.state is TransactionState.ONGOING:
            shard.ongoing.add(transactional_id)
        return entry

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(
        self,
        out: Outcome,
        entry: TransactionEntry,
        target: TransactionSnapshot,
        *,
        refuse: Callable[[ErrorCode], None],
        then: Callable[[Outcome, Now], None] | None = None,
        otherwise: Callable[[Outcome, Now], None] | None = None,
    ) -> None:
        """Record that `entry` becomes `target`; let it, and do what comes `then`. If that fails, do `otherwise`.

        `refuse` puts an error into the reply that waits for the write.
        """
        shard = entry.shard
        record = snapshot_record(shard.partition, entry.transactional_id, target, self.transaction_version)
        if target.state is TransactionState.ONGOING:
            # What is let in has to get out again: the records of its end are larger by a few bytes.
            size = BATCH_OVERHEAD_BYTES + record_bytes(record) + ENDING_ROOM_BYTES
            if size > self._batch_bytes_max(shard.partition):
                out.notes.append(
                    f"the transaction of {entry.transactional_id!r} cannot have {len(target.partitions)} partitions: "
                    f"its record would have {size} bytes, more than max.message.bytes or segment.bytes of "
                    "__transaction_state; use smaller transactions, or raise these"
                )
                refuse(ErrorCode.RECORD_LIST_TOO_LARGE)
                return
        entry.pending = target

        def written(next_out: Outcome, at: Now) -> None:
            if shard.is_unloaded:
                # Whoever reads the log now goes on from the record; what it leads to is not known here.
                refuse(ErrorCode.NOT_COORDINATOR)
                return
            entry.pending = None
            entry.current = target
            self._watch(next_out, entry, at)
            if then is not None:
                then(next_out, at)

        def failed(next_out: Outcome, error: ErrorCode, at: Now) -> None:
            entry.pending = None
            if entry.is_new:
                shard.entries.pop(entry.transactional_id, None)
            refuse(error)
            if otherwise is not None and not shard.is_unloaded:
                otherwise(next_out, at)

        out.effects.append(Effect((record,), written, failed))

    def remove(self, out: Outcome, entry: TransactionEntry) -> None:
        """Record that nothing is known of this id any more, then forget it."""
        entry.pending = entry.current
        shard = entry.shard

        def written(next_out: Outcome, at: Now) -> None:
            shard.entries.pop(entry.transactional_id, None)

        def failed(next_out: Outcome, error: ErrorCode, at: Now) -> None:
            entry.pending = None

        out.effects.append(Effect((tombstone(shard.partition, entry.transactional_id),), written, failed))

    def _watch(self, out: Outcome, entry: TransactionEntry, at: Now) -> None:
        shard = entry.shard
        if entry.current.state is TransactionState.ONGOING:
            if entry.transactional_id not in shard.ongoing:
                shard.ongoing.add(entry.transactional_id)
                entry.opened_ms = at.monotonic_ms
            self.watch_time(out, shard, at)
        else:
            shard.ongoing.discard(entry.transactional_id)

    def watch_time(self, out: Outcome, shard: Shard, at: Now) -> None:
        """See to it that late transactions are aborted, as long as there are transactions at all."""
        if shard.ongoing and not shard.watches_time:
            shard.watches_time = True
            out.arm(Timer(TimerKind.ABORT, shard.partition), at.monotonic_ms + self.config.abort_interval_ms)

    # --- markers ------------------------------------------------------------------------------------------------------

    def ask_for_markers(self, out: Outcome, entry: TransactionEntry, partitions: Iterable[TopicPartition]) -> None:
        """Of a transaction that is prepared: its outcome has to get into these partitions."""
        self._attempts += 1
        entry.attempt = self._attempts
        entry.awaited = set(partitions)
        now = entry.current
        out.markers.append(
            MarkerRequest(
                entry.transactional_id,
                now.producer_id,
                now.producer_epoch,
                entry.shard.leader_epoch,
                now.state is TransactionState.PREPARE_COMMIT,
                now.client_version,
                tuple(sorted(entry.awaited)),
                entry.attempt,
                entry.shard.partition,
            )
        )
