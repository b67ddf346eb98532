"""What is asked about transactions rather than by them: describing and listing; and forgetting unused ids."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import islice

from headrace.coordination import Now, Timer
from headrace.coordination.patterns import InvalidPatternError, Pattern
from headrace.errors import ErrorCode
from headrace.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from headrace.protocol.messages.describe_transactions import TransactionState as DescribedTransaction
from headrace.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from headrace.protocol.messages.list_transactions import TransactionState as ListedTransaction
from headrace.transactions.outcome import Outcome, TimerKind
from headrace.transactions.records import by_topic
from headrace.transactions.shards import Shard, Shards, TransactionEntry
from headrace.transactions.state import TITLES


class Administration:
    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def describe(self, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
        return DescribeTransactionsResponse(
            transaction_states=[self._described(transactional_id) for transactional_id in request.transactional_ids]
        )

    def _described(self, transactional_id: str) -> DescribedTransaction:
        error = self._shards.error_for(transactional_id) if transactional_id else ErrorCode.INVALID_REQUEST
        entry = self._shards.find(transactional_id) if error == ErrorCode.NONE else None
        if error == ErrorCode.NONE and (entry is None or entry.is_new):
            error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        if error != ErrorCode.NONE or entry is None:
            return DescribedTransaction(error_code=error, transactional_id=transactional_id, transaction_state="")
        now = entry.current
        # Of a decided transaction: the partitions that do not know the outcome yet.
        partitions = entry.unmarked if now.state.is_prepared else now.partitions
        return DescribedTransaction(
            transactional_id=transactional_id,
            transaction_state=now.state.title,
            transaction_timeout_ms=now.timeout_ms,
            transaction_start_time_ms=now.start_ms,
            producer_id=now.producer_id,
            producer_epoch=now.producer_epoch,
            topics=[TopicData(topic=topic, partitions=indexes) for topic, indexes in by_topic(partitions).items()],
        )

    def names(self) -> Sequence[str]:
        """Every transactional id of which anything is recorded."""
        return [name for shard in self._shards.all() for name, entry in shard.entries.items() if not entry.is_new]

    def list(
        self, request: ListTransactionsRequest, at: Now, matching: Container[str] | None = None
    ) -> ListTransactionsResponse:
        shards = self._shards.all()
        if any(shard.loader is not None for shard in shards):
            return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if matching is None and request.transactional_id_pattern:
            try:
                found = Pattern(request.transactional_id_pattern).matching(self.names())
                matching = {name for name in found if name is not None}
            except InvalidPatternError:
                return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        states, producer_ids = set(request.state_filters), set(request.producer_id_filters)

        def open_ms(entry: TransactionEntry) -> int:
            is_open = entry.transactional_id in entry.shard.ongoing
            return at.monotonic_ms - entry.opened_ms if is_open else at.wall_ms - entry.current.start_ms

        def is_wanted(entry: TransactionEntry) -> bool:
            now = entry.current
            return (
                not entry.is_new
                and (not states or now.state.title in states)
                and (not producer_ids or now.producer_id in producer_ids)
                and (request.duration_filter < 0 or open_ms(entry) > request.duration_filter)
                and (matching is None or entry.transactional_id in matching)
            )

        return ListTransactionsResponse(
            unknown_state_filters=[state for state in dict.fromkeys(request.state_filters) if state not in TITLES],
            transaction_states=[
                ListedTransaction(
                    transactional_id=entry.transactional_id,
                    producer_id=entry.current.producer_id,
                    transaction_state=entry.current.state.title,
                )
                for shard in shards
                for entry in shard.entries.values()
                if is_wanted(entry)
            ],
        )

    # --- expiry -------------------------------------------------------------------------------------------------------

    def schedule_expiry(self, out: Outcome, shard: Shard, at: Now) -> None:
        out.arm(Timer(TimerKind.EXPIRY, shard.partition), at.monotonic_ms + self._shards.config.expiry_interval_ms)

    def expire(self, out: Outcome, shard: Shard, at: Now) -> None:
        """Forget ids that nobody has used for long."""
        config = self._shards.config
        before_ms = at.wall_ms - config.id_expiration_ms
        unused = (entry for entry in shard.entries.values() if not self._is_used(entry, before_ms))
        stale = list(islice(unused, config.expiry_records_max + 1))
        for entry in stale[: config.expiry_records_max]:
            self._shards.remove(out, entry)
        if len(stale) > config.expiry_records_max:
            out.arm(Timer(TimerKind.EXPIRY, shard.partition), at.monotonic_ms)
        else:
            self.schedule_expiry(out, shard, at)

    @staticmethod
    def _is_used(entry: TransactionEntry, before_ms: int) -> bool:
        is_open = entry.is_busy or entry.transactional_id in entry.shard.ongoing
        return is_open or entry.current.update_ms > before_ms
