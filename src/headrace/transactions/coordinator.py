"""The transaction coordinator: one method per API, and what its driver tells it. Pure: no clock, no socket, no disk.

See `headrace.coordination.outcome` and `headrace.transactions.outcome` for the order in which a driver must do things.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from headrace.cluster.topic_names import TRANSACTION_STATE
from headrace.config import INT32_MAX
from headrace.coordination import Caller, Coordinator, Now, Timer
from headrace.errors import ErrorCode
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from headrace.topics import TopicPartition
from headrace.transactions.administration import Administration
from headrace.transactions.config import TransactionConfig
from headrace.transactions.ending import Endings
from headrace.transactions.lookup import PartitionLookup
from headrace.transactions.outcome import MarkerRequest, Outcome, TimerKind
from headrace.transactions.partitions import Partitions
from headrace.transactions.producers import ProducerIdSupply, Producers
from headrace.transactions.shards import Shard, Shards
from headrace.transactions.state import EPOCH_BUMP_VERSION, TransactionSnapshot


class TransactionCoordinator(Coordinator[Outcome, Shard]):
    """All transactional ids of the partitions of `__transaction_state` that this broker leads.

    `ids` hands out producer ids that no one was given before, or None when its supply is empty. `transaction_version`
    is the finalized feature `transaction.version`: how records look, and how the coordinator itself ends transactions.
    `batch_bytes_max` says how large a batch for that partition of `__transaction_state` may be: a transaction is one
    record, so it may not have more partitions than fit.
    """

    _shards: Shards

    def __init__(
        self,
        config: TransactionConfig,
        ids: ProducerIdSupply,
        topics: PartitionLookup,
        transaction_version: int = EPOCH_BUMP_VERSION,
        batch_bytes_max: Callable[[int], int] = lambda partition: INT32_MAX,
    ) -> None:
        super().__init__(TRANSACTION_STATE, Outcome, Shards(config, transaction_version, batch_bytes_max))
        self._endings = Endings(self._shards, ids, topics)
        self._producers = Producers(self._shards, self._endings, ids)
        self._partitions = Partitions(self._shards, topics)
        self._administration = Administration(self._shards)

    @property
    def transaction_version(self) -> int:
        return self._shards.transaction_version

    @transaction_version.setter
    def transaction_version(self, version: int) -> None:
        self._shards.transaction_version = version

    @property
    def offsets_partition_count(self) -> int:
        """How many partitions `__consumer_offsets` has, as groups are spread over them."""
        return self._partitions.offsets_partition_count

    @offsets_partition_count.setter
    def offsets_partition_count(self, count: int) -> None:
        self._partitions.offsets_partition_count = count

    # --- partitions come and go ---------------------------------------------------------------------------------------

    def _serve(self, out: Outcome, shard: Shard, at: Now) -> None:
        """Transactions whose outcome is decided go on from there."""
        loader, shard.loader = shard.loader, None
        assert loader is not None
        for transactional_id, snapshot in loader.snapshots():
            entry = self._shards.add(shard, transactional_id, snapshot)
            # How long it has been open only the wall clock can tell. It may have been set: not longer than it may be.
            entry.opened_ms = at.monotonic_ms - min(max(0, at.wall_ms - snapshot.start_ms), snapshot.timeout_ms + 1)
            if snapshot.state.is_prepared:
                self._endings.go_on(out, entry)
        self._shards.watch_time(out, shard, at)
        self._administration.schedule_expiry(out, shard, at)

    def _give_up(self, out: Outcome, shard: Shard) -> None:
        out.cancel(Timer(TimerKind.EXPIRY, shard.partition))
        out.cancel(Timer(TimerKind.ABORT, shard.partition))
        for entry in shard.entries.values():
            if entry.current.state.is_prepared:
                out.cancel(entry.timer)

    def snapshots(self, partition: int) -> dict[str, TransactionSnapshot]:
        """What is recorded of every id of the partition."""
        shard = self._shards.get(partition)
        entries = {} if shard is None else shard.entries
        return {name: entry.current for name, entry in entries.items() if not entry.is_new}

    # --- what became of an outcome ------------------------------------------------------------------------------------

    def markers_written(self, request: MarkerRequest, errors: Mapping[TopicPartition, ErrorCode], at: Now) -> Outcome:
        """What the leaders of (some of) the request's partitions answered; NONE where the marker is in the log."""
        out = Outcome()
        self._endings.markers_written(out, request, errors, at)
        return out

    def on_timer(self, timer: Timer, at: Now) -> Outcome:
        out = Outcome()
        shard = self._shards.served(timer.partition)
        if shard is None:
            return out
        if timer.kind is TimerKind.ABORT:
            self._endings.abort_late_ones(out, shard, at)
        elif timer.kind is TimerKind.EXPIRY:
            self._administration.expire(out, shard, at)
        else:
            self._endings.on_markers_timer(out, shard, timer.name, at)
        return out

    # --- transactions -------------------------------------------------------------------------------------------------

    def init_producer_id(self, caller: Caller, request: InitProducerIdRequest, at: Now) -> Outcome:
        """Also without a transactional id, when any broker may answer."""
        out = Outcome()
        self._producers.init(out, caller, request, at)
        return out

    def add_partitions_to_txn(self, caller: Caller, request: AddPartitionsToTxnRequest, at: Now) -> Outcome:
        out = Outcome()
        self._partitions.add(out, caller, request, at)
        return out

    def add_offsets_to_txn(self, caller: Caller, request: AddOffsetsToTxnRequest, at: Now) -> Outcome:
        out = Outcome()
        self._partitions.add_offsets(out, caller, request, at)
        return out

    def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether these partitions are part of that producer's open transaction, for a leader about to write to them.

        See `produce_error` and `offset_commit_error` for how clients are told.
        """
        return self._partitions.verify(transactional_id, producer_id, producer_epoch, partitions)

    def end_txn(self, caller: Caller, request: EndTxnRequest, at: Now) -> Outcome:
        out = Outcome()
        self._endings.end(out, caller, request, at)
        return out

    # --- administration -----------------------------------------------------------------------------------------------

    def describe_transactions(self, caller: Caller, request: DescribeTransactionsRequest, at: Now) -> Outcome:
        out = Outcome()
        out.reply(caller, self._administration.describe(request))
        return out

    def transactional_ids(self) -> Sequence[str]:
        """All that are known here: what `list_transactions` may match with the pattern of a request."""
        return self._administration.names()

    def list_transactions(
        self, caller: Caller, request: ListTransactionsRequest, at: Now, matching: Container[str] | None = None
    ) -> Outcome:
        """`matching` are the ids that match the pattern of the request, for a caller who has found them out."""
        out = Outcome()
        out.reply(caller, self._administration.list(request, at, matching))
        return out
