"""Consume, transform, produce, exactly once: each batch that is read is one transaction with its offsets in it.

for batch in exactly_once(consumer, producer):
    for record in batch:
        producer.send("out", transform(record.value))

What is sent while a batch is in hand becomes readable together with the batch's offsets, when the next batch is asked
for; or not at all, when the loop is left before that, and then the same records come again.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from inspect import isawaitable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from headrace.client.consumer.records import ConsumerRecords, OffsetAndMetadata
from headrace.client.errors import AbortableTransactionError, FatalTransactionError, TransactionStateError
from headrace.client.transactions._core import (
    OperationKind,
    ProducerTransactionState,
    TransactionCore,
    TransactionOperation,
)
from headrace.config import ConfigError
from headrace.errors import ErrorCode, HeadraceError, RetriableError
from headrace.functions import check_has_run, check_plain, is_generator, name_of
from headrace.topics import TopicPartition

if TYPE_CHECKING:
    from headrace.client.consumer import aio as aio_consumer  # noqa: F401 - named in a string below, as are these
    from headrace.client.consumer.blocking import Consumer  # noqa: F401
    from headrace.client.producer import aio as aio_producer  # noqa: F401
    from headrace.client.producer.blocking import Producer  # noqa: F401

log = logging.getLogger("headrace.client.transactions.exactly_once")

ConsumerT = TypeVar("ConsumerT")
ProducerT = TypeVar("ProducerT")

MAX_RECORDS: Final = 10_000
RETRIES: Final = 10
_READ_COMMITTED = 1
_LOST: Final = (
    "the producer cannot say any more how its last commit ended: close it, make a new one with the same "
    "transactional.id, and give that and the same consumer to exactly_once, which goes on at the group's offsets"
)
_PASSING = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)


class _Rules:
    """What both loops share: what is checked before, how often is tried again, when to end."""

    def __init__(self, consumer: Any, producer: Any, retries: int, idle_timeout: float | None) -> None:
        settings = consumer._setup.settings
        problems = {}
        if settings.group_id is None:
            problems["group.id"] = "exactly_once needs a group, whose offsets go into the transaction: set group.id"
        elif settings.auto_commit:
            problems["enable.auto.commit"] = (
                "exactly_once commits offsets in the producer's transaction: set enable.auto.commit to false"
            )
        if producer._settings.transactional_id is None:
            problems["transactional.id"] = "exactly_once needs a transactional producer: give it a transactional.id"
        if problems:
            raise ConfigError(problems)
        if settings.isolation != _READ_COMMITTED:
            log.warning(
                "group %s reads uncommitted records: what an aborted transaction wrote is processed too. Set "
                "isolation.level to read_committed unless no transactional producer writes to its topics",
                settings.group_id,
            )
        self._clock = producer._clock
        self._consumer = consumer
        self._retries = retries
        self._idle_timeout = idle_timeout
        self._failures = 0
        self._busy_at = self._clock.monotonic()
        self.is_stopping = False

    def is_idle_too_long(self, records: ConsumerRecords) -> bool:
        now = self._clock.monotonic()
        if records or _waits_for_group(self._consumer):
            # Whoever joins a group may wait for others for longer than there is nothing to read.
            self._busy_at = now
            return False
        return self._idle_timeout is not None and now - self._busy_at >= self._idle_timeout

    def committed(self) -> None:
        self._failures = 0
        self._busy_at = self._clock.monotonic()

    def give_up_on(self, error: AbortableTransactionError) -> bool:
        """Whether a batch that could not be committed is not worth another try."""
        self._failures += 1
        cause = error.__cause__
        passing = isinstance(cause, RetriableError) or getattr(cause, "code", None) in _PASSING
        if passing and self._failures <= self._retries:
            log.info("a batch was not committed and comes again (attempt %d): %s", self._failures, error)
            return False
        return True


class _Batch:
    """What was read, from where to where, and how far its transaction is."""

    __slots__ = ("__weakref__", "before", "commit", "is_asked", "is_begun", "offsets", "producer", "records", "starts")

    def __init__(self, producer: Any, records: ConsumerRecords) -> None:
        self.producer = producer
        self.records = records
        # Interceptors may give records in any order.
        self.starts = {partition: min(record.offset for record in found) for partition, found in records.items()}
        self.offsets = records.next_offsets()
        self.is_begun = False
        self.is_asked = False
        """The commit was asked for: from then on only its outcome says whether the records are to come again."""
        self.before = _transaction_of(producer).operation
        self.commit: TransactionOperation | None = None
        """The commit, where nobody knows its outcome yet."""

    def outcome(self) -> bool | None:
        """Whether the batch is committed; None where nobody knows."""
        operation = _transaction_of(self.producer).operation
        if self.commit is None and operation is not self.before and operation is not None:
            self.commit = operation if operation.kind is OperationKind.COMMIT else None
        if self.commit is None:
            # The commit was refused before it began.
            return False
        if not self.commit.is_done:
            return None
        if self.commit.error is None:
            return True
        return False if isinstance(self.commit.error, AbortableTransactionError) else None


_unsettled: weakref.WeakKeyDictionary[Any, _Batch] = weakref.WeakKeyDictionary()
"""By consumer: the batch whose commit has no outcome yet. Before the consumer reads on, that has to be known."""


_opened: weakref.WeakSet[Any] = weakref.WeakSet()
"""Producers whose transaction a loop has begun and not ended yet: were it interrupted, the next one aborts that."""


def _waits_for_group(consumer: Any) -> bool:
    """Whether the group has yet to say what this consumer reads: it joins, or it joins again."""
    core = consumer._core
    return core is not None and core.subscriptions.uses_group and not core.membership.is_settled


def _transaction_of(producer: Any) -> TransactionCore:
    transaction: TransactionCore | None = producer._core.transaction
    assert transaction is not None
    return transaction


def _rewind(consumer: Any, starts: Mapping[TopicPartition, int]) -> None:
    """Back to where the batch began. A partition that is lost meanwhile begins where its next owner says."""
    with contextlib.suppress(HeadraceError):
        assigned = consumer.assignment()
        for partition, offset in starts.items():
            if partition in assigned:
                consumer.seek(partition, offset)


def _go_to_committed(
    consumer: Any, batch: _Batch, committed: Mapping[TopicPartition, OffsetAndMetadata | None]
) -> None:
    """The producer is gone that could have said how its commit ended: the group's offsets say so."""
    starts = batch.starts
    _rewind(consumer, {p: starts[p] if found is None else found.offset for p, found in committed.items()})


def _must_abort(producer: Any) -> bool:
    """Whether there is a transaction to be aborted before another can begin, or an abort whose end nobody has heard."""
    transaction = _transaction_of(producer)
    operation = transaction.operation
    if operation is not None and operation.is_pending:
        return operation.kind is OperationKind.ABORT
    if transaction.state is ProducerTransactionState.IN_TRANSACTION:
        return producer in _opened
    return transaction.state is ProducerTransactionState.ABORTABLE_ERROR


def _is_fresh(producer: Any) -> bool:
    core = producer._core
    if core is None or core.transaction.state is ProducerTransactionState.UNINITIALIZED:
        return True
    operation = core.transaction.operation
    return operation is not None and operation.is_pending and operation.kind is OperationKind.INIT


async def _settle(consumer: Any, producer: Any, call: Callable[..., Awaitable[Any]]) -> None:
    """Find out how the last commit ended, if that is not known, before anything else is read.

    Both kinds of clients have the same methods: `call` calls one, and waits for what it gives where it has to.
    """
    batch = _unsettled.get(consumer)
    if batch is not None and batch.producer is not producer:
        transaction = _transaction_of(producer)
        if transaction.state is ProducerTransactionState.FATAL_ERROR:
            # Said now: the former one's offsets are undecided until another producer has taken over from this one too.
            raise transaction.why_not()
        _go_to_committed(consumer, batch, await call(consumer.committed, list(batch.starts)))
    elif batch is not None:
        with contextlib.suppress(AbortableTransactionError):
            if batch.outcome() is not False and batch.commit is not None and not batch.commit.is_reported:
                await call(producer.commit_transaction)
        if batch.outcome() is None:
            raise FatalTransactionError(_LOST)
        if batch.outcome() is False:
            _rewind(consumer, batch.starts)
    _unsettled.pop(consumer, None)
    if _must_abort(producer):
        await call(producer.abort_transaction)


async def _call_blocking(method: Callable[..., Any], *arguments: Any) -> Any:
    return method(*arguments)


async def _call_async(method: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    return await method(*arguments)


def _run_blocking(work: Coroutine[Any, Any, None]) -> None:
    """Run what never has to wait for a loop, as its calls block."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("a blocking call waited for a loop")


class _Loop(Generic[ConsumerT, ProducerT]):
    """What the loops of both kinds are given, and what they share."""

    def __init__(
        self,
        consumer: ConsumerT,
        producer: ProducerT,
        *,
        max_records: int = MAX_RECORDS,
        poll_timeout: float = 1.0,
        idle_timeout: float | None = None,
        retries: int = RETRIES,
    ) -> None:
        self._consumer, self._producer = consumer, producer
        self._rules = _Rules(consumer, producer, retries, idle_timeout)
        self._max_records, self._poll_timeout = max_records, poll_timeout

    def stop(self) -> None:
        """End after this batch: it is committed, and no other follows."""
        self._rules.is_stopping = True


class ExactlyOnce(_Loop["Consumer", "Producer"]):
    """Batches of records, each one transaction: what is sent meanwhile and the batch's offsets are committed together.

    The consumer is subscribed (a group, `enable.auto.commit` false, `isolation.level` read_committed), the producer has
    a `transactional.id` of its own. A batch is committed when the next one is asked for; leaving the loop aborts it,
    and its records come again; `stop()` ends the loop after a commit. A batch that a rebalance took away, or that
    failed for a passing reason, comes again up to `retries` times. `idle_timeout`: end after so many seconds without
    records, not counting those in which the group is joined. Iterate it; or enter it with `with`, which ends an
    unfinished batch at a known place.
    """

    # Weak, so that the loop alone holds it: leaving the loop ends it at once, not when garbage is collected.
    _batches: weakref.ref[Generator[ConsumerRecords, None, None]] | None = None

    def run(self, handle: Callable[[ConsumerRecords], Any]) -> None:
        """Call a function for every batch, also again for one that its transaction could not be committed with."""
        check_plain(handle, "exactly_once(…).run")
        while not self._rules.is_stopping:
            try:
                for batch in self:
                    check_has_run(handle(batch), "what exactly_once runs")
            except AbortableTransactionError as error:
                self.close()
                if self._rules.give_up_on(error):
                    raise
            else:
                return

    def __iter__(self) -> Iterator[ConsumerRecords]:
        self.close()
        batches = self._run()
        self._batches = weakref.ref(batches)
        return batches

    def _run(self) -> Generator[ConsumerRecords, None, None]:
        if _is_fresh(self._producer):
            self._producer.init_transactions()
        # Whatever was asked of the producer's thread before is begun by then, or refused.
        self._producer._on_transaction(lambda transaction: transaction.state)
        _run_blocking(_settle(self._consumer, self._producer, _call_blocking))
        while not self._rules.is_stopping:
            records = self._consumer.poll(self._poll_timeout, self._max_records)
            if self._rules.is_idle_too_long(records):
                return
            if records:
                yield from self._transaction(_Batch(self._producer, records))

    def _transaction(self, batch: _Batch) -> Iterator[ConsumerRecords]:
        is_committed = False
        try:
            _opened.add(self._producer)
            batch.is_begun = True
            try:
                self._producer.begin_transaction()
            except HeadraceError:
                batch.is_begun = False
                _opened.discard(self._producer)
                raise
            yield batch.records
            try:
                self._producer.send_offsets_to_transaction(batch.offsets, self._consumer.group_metadata())
                batch.is_asked = True
                self._producer.commit_transaction()
                is_committed = True
            except AbortableTransactionError as error:
                if self._rules.give_up_on(error):
                    raise
        finally:
            if not is_committed:
                self._undo(batch)
        if is_committed:
            _opened.discard(self._producer)
            self._rules.committed()

    def _undo(self, batch: _Batch) -> None:
        """Its records come again; unless it is committed after all, which may have to be found out later."""
        if not batch.is_asked:
            _rewind(self._consumer, batch.starts)
            self._abort(batch)
            return
        _unsettled[self._consumer] = batch
        # Asked of the producer's thread, where it comes after the commit: refused, it says that there was one.
        self._abort(batch)
        if batch.outcome() is False:
            _rewind(self._consumer, batch.starts)
            del _unsettled[self._consumer]

    def _abort(self, batch: _Batch) -> None:
        try:
            if batch.is_begun:
                self._producer.abort_transaction()
                _opened.discard(self._producer)
        except HeadraceError as error:
            # What made it fail is on its way to the caller, or the next call to the producer says it again.
            log.warning("a transaction could not be aborted: %s", error)

    def close(self) -> None:
        """Abort a batch that was not finished; its records come again."""
        batches = None if self._batches is None else self._batches()
        if batches is not None:
            batches.close()

    def __enter__(self) -> ExactlyOnce:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncExactlyOnce(_Loop["aio_consumer.Consumer", "aio_producer.Producer"]):
    """`exactly_once` for asyncio: `async with headrace.aio.exactly_once(…) as batches: async for batch in batches:`.

    Only `async with` ends an unfinished batch at a known place.
    """

    _open: _Batch | None = None

    async def run(self, handle: Callable[[ConsumerRecords], Awaitable[Any]]) -> None:
        """Await a function for every batch, also again for one that its transaction could not be committed with."""
        if is_generator(handle):
            raise TypeError(f"{name_of(handle)} is a generator function (it has a `yield`): give an `async def`")
        while not self._rules.is_stopping:
            try:
                async for batch in self:
                    awaited = handle(batch)
                    if not isawaitable(awaited):
                        raise TypeError(
                            f"on asyncio exactly_once awaits what it runs, and {name_of(handle)} gave back "
                            f"{type(awaited).__name__}: give an `async def`"
                        )
                    check_has_run(await awaited, "what exactly_once runs")
            except AbortableTransactionError as error:
                await self.close()
                if self._rules.give_up_on(error):
                    raise
            else:
                return

    def __aiter__(self) -> AsyncIterator[ConsumerRecords]:
        if self._open is not None:
            raise TransactionStateError("the last batch is unfinished: close() it, or use `async with exactly_once(…)`")
        return self

    async def __anext__(self) -> ConsumerRecords:
        if self._open is not None:
            await self._finish(self._open)
        if _is_fresh(self._producer):
            await self._producer.init_transactions()
        await _settle(self._consumer, self._producer, _call_async)
        while not self._rules.is_stopping:
            records = await self._consumer.poll(self._poll_timeout, self._max_records)
            if self._rules.is_idle_too_long(records):
                break
            if records:
                self._open = _Batch(self._producer, records)
                try:
                    await self._producer.begin_transaction()
                    self._open.is_begun = True
                except BaseException:
                    await self.close()
                    raise
                return records
        raise StopAsyncIteration

    async def _finish(self, batch: _Batch) -> None:
        try:
            metadata = self._consumer.group_metadata()
            await self._producer.send_offsets_to_transaction(batch.offsets, metadata)
            batch.is_asked = True
            await self._producer.commit_transaction()
        except AbortableTransactionError as error:
            await self.close()
            if self._rules.give_up_on(error):
                raise
            return
        except BaseException:
            if batch.is_asked and batch.outcome() is not False:
                # Given up before its outcome was known: whoever reads on has to find that out first.
                _unsettled[self._consumer], self._open = batch, None
            raise
        self._open = None
        self._rules.committed()

    async def close(self) -> None:
        """Abort a batch that was not finished; its records come again."""
        batch, self._open = self._open, None
        if batch is None:
            return
        # At once: a task that is cancelled while it waits for the abort has read nothing.
        _rewind(self._consumer, batch.starts)
        try:
            if batch.is_begun:
                await self._producer.abort_transaction()
        except HeadraceError as error:
            log.warning("a transaction could not be aborted: %s", error)

    async def __aenter__(self) -> AsyncExactlyOnce:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


exactly_once = ExactlyOnce
exactly_once_async = AsyncExactlyOnce
