"""The blocking producer's transactions, as its user calls them: each is handed to the thread and waited for."""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self, TypeVar

from headrace.client.consumer.records import ConsumerGroupMetadata
from headrace.client.producer._core import ProducerCore
from headrace.client.producer._transactions import need_transactions, outcome, read_offsets, timed_out
from headrace.client.producer.config import ProducerSettings
from headrace.client.transactions._core import Operation, TransactionCore
from headrace.errors import HeadraceError

log = logging.getLogger("headrace.client.producer")

NOTHING: Final = -1
"""A limit for what `send` may take that sends every record the slow way, where the producer's state is looked at."""

T = TypeVar("T")


class TransactionCalls(ABC):
    """A part of `Producer`, which has the attributes and the ways to its thread that are named here."""

    _settings: ProducerSettings
    _core: ProducerCore | None
    _limit: int
    _wake_limit: int
    _lock: threading.RLock

    @abstractmethod
    def _started(self) -> ProducerCore:
        """The core, with its thread running."""

    @abstractmethod
    def _on_thread(self, request: Callable[[], None]) -> None:
        """Have the producer's thread do it."""

    @abstractmethod
    def _wait(self, condition: Callable[[], bool], timeout: float | None, what: str) -> None:
        """Until it holds; `TransactionTimeout` says what did not come about."""

    def init_transactions(self, timeout: float | None = None) -> None:
        """Once, before the first transaction: fences older producers of the same `transactional.id` and ends what they
        left open. Waits `max.block.ms` (or `timeout` s); `TransactionTimeout` may be answered by calling it again."""
        self._finish_operation(self._on_transaction(lambda transaction: transaction.init()), timeout)

    def begin_transaction(self) -> None:
        """Everything sent from now on, up to commit or abort, becomes readable together or not at all."""
        self._on_transaction(lambda transaction: transaction.begin())

    def send_offsets_to_transaction(
        self, offsets: Mapping[Any, Any], group: ConsumerGroupMetadata | str, timeout: float | None = None
    ) -> None:
        """Commit a consumer's offsets ({partition: next offset to read}) if and when the transaction commits.

        `group` is `consumer.group_metadata()`: with it, a consumer that the group has given up on cannot commit.
        """
        made, metadata = read_offsets(offsets, group)
        operation = self._on_transaction(lambda transaction: transaction.send_offsets(made, metadata))
        self._finish_operation(operation, timeout)

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Deliver what was sent and commit. `AbortableTransactionError`: abort and begin again; a
        `FatalTransactionError` needs a new producer; after a `TransactionTimeout` call it again."""
        self._finish_operation(self._end_transaction(TransactionCore.commit), timeout)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Give the transaction up: readers that read committed records never see it."""
        self._finish_operation(self._end_transaction(TransactionCore.abort), timeout)

    @contextlib.contextmanager
    def transaction(self, timeout: float | None = None) -> Iterator[Self]:
        """`with producer.transaction():` begins one, and commits it; an error inside aborts it and is raised on."""
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            with contextlib.suppress(HeadraceError):
                # The caller's error is the one to hear of; what cannot be aborted now ends with its time-out.
                self.abort_transaction(timeout)
            raise
        try:
            self.commit_transaction(timeout)
        except HeadraceError:
            if self._on_transaction(lambda transaction: transaction.is_open):
                self.abort_transaction(timeout)
            raise

    def _end_transaction(self, end: Callable[[TransactionCore], Operation]) -> Operation:
        # From now on `send` goes the slow way, and is refused there.
        with self._lock:
            self._limit = self._wake_limit = NOTHING

        def run(transaction: TransactionCore) -> Operation:
            assert self._core is not None
            self._core.flush()
            return end(transaction)

        return self._on_transaction(run)

    def _on_transaction(self, ask: Callable[[TransactionCore], T]) -> T:
        """Do something with the transaction's state on the thread that owns it, and wait for that."""
        if self._settings.transactional_id is None:
            need_transactions(None)
        core = self._started()
        answers: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                answers.append(ask(need_transactions(core.transaction)))
            except Exception as error:  # noqa: BLE001 - the caller's, whatever it is: the thread has others to serve
                errors.append(error)

        self._on_thread(run)
        self._wait(lambda: bool(answers or errors), None, "a transaction's call")
        if errors:
            raise errors[0]
        return answers[0]

    def _finish_operation(self, operation: Operation, timeout: float | None) -> None:
        seconds = self._settings.max_block_ms / 1000 if timeout is None else timeout
        try:
            self._wait(lambda: operation.is_done, seconds, operation.kind.value)
        except TimeoutError:
            trouble = None if self._core is None else self._core.core.trouble
            raise timed_out(operation, seconds, trouble) from None
        outcome(operation)

    def _abort_open(self, timeout: float | None) -> None:
        """Leave no transaction open: readers would wait for its time-out."""
        if self._core is None or self._core.transaction is None or not self._core.transaction.is_open:
            return
        try:
            self.abort_transaction(timeout)
        except HeadraceError as error:
            log.warning("closing with a transaction open, which will end by its time-out: %s", error)
