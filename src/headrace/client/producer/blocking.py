"""`headrace.Producer`: the blocking producer. `send` appends and returns; one background thread does the rest."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, TypeVar, Unpack

from headrace.client.cluster.view import PartitionView
from headrace.client.consumer.records import ConsumerGroupMetadata
from headrace.client.errors import ClientClosedError
from headrace.client.forks import watch_forks
from headrace.client.producer._base import ProducerSetup, check_record
from headrace.client.producer._calls import ProducerCalls
from headrace.client.producer._core import ProducerCore
from headrace.client.producer._failures import FailedDeliveries, tell_unheard
from headrace.client.producer._forked import leave_to_parent
from headrace.client.producer._sender import SenderState
from headrace.client.producer._thread_sender import ThreadSender
from headrace.client.producer._topic_wait import TopicWait
from headrace.client.producer._transactions import (
    CLOSE_ABORT_S,
    need_transactions,
    outcome,
    read_offsets,
    timed_out,
)
from headrace.client.producer.keywords import ProducerKeywords
from headrace.client.transactions._core import TransactionCore, TransactionOperation
from headrace.client.typed import K, V
from headrace.client.unclosed import Watch
from headrace.errors import HeadraceError
from headrace.runtime import Clock
from headrace.runtime.real import RealClock

log = logging.getLogger("headrace.client.producer")

T = TypeVar("T")


class Producer(ProducerCalls[K, V]):
    """Sends records to a Kafka cluster. Safe to share between threads.

    Configuration by Kafka's names, in a mapping or as keywords with underscores:

        with Producer({"bootstrap.servers": "localhost:9092"}, linger_ms=20) as producer:
            producer.send("orders", b"value", key=b"key")

    `send` returns at once with a `Delivery`, which says how it went when asked. Delivery callbacks run on the
    producer's thread, in the order of the records of each partition; they must not block. A producer used after a fork
    starts afresh in the child; what the parent had not sent yet is the parent's to send.
    """

    _sender: ThreadSender

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        /,
        *,
        clock: Clock | None = None,
        **keywords: Unpack[ProducerKeywords],
    ) -> None:
        super().__init__(ProducerSetup(config, keywords), clock or RealClock())
        self._sender = ThreadSender(self._setup, self._clock)
        self._watch = Watch(self, self._sender, f"the producer {self._setup.connection.client_id}")
        watch_forks(self)

    def _after_fork(self) -> None:
        """In a child: the parent's thread and connections are not ours, nor is what it had pending."""
        parents = self._sender
        state = SenderState.CLOSED if self._closed else SenderState.NEW
        self._sender = ThreadSender(self._setup, self._clock, state)
        self._sender.may_have_keys, self._sender.may_have_extras = parents.may_have_keys, parents.may_have_extras
        self._watch.end()
        if not self._closed:
            self._watch = Watch(self, self._sender, f"the producer {self._setup.connection.client_id}")
        if parents.client is not None:
            parents.client.abandon()
        if parents.core is not None:
            leave_to_parent(parents.core.accumulator, parents.pid)

    def _own_sender(self) -> ThreadSender:
        """The sender of this process."""
        if self._sender.pid != os.getpid():
            # Forked without the hook having run (a raw fork in C): the thread did not come along.
            self._after_fork()
        return self._sender

    def _make_room(self, size: int) -> ThreadSender:
        before, sender = self._sender, self._own_sender()
        if sender is not before:
            sender.taken += size
        sender.make_room(size)
        return sender

    # --- waiting ------------------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> FailedDeliveries:
        """Send everything now and wait until it is acknowledged or has failed; `TimeoutError` after `timeout` s.

        What failed since the last flush, and nobody has heard of: `if failed := producer.flush(): ...`.
        """
        if not self._closed:
            self._sender.flush(timeout)
        return self._sender.failures.flushed()

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionView]:
        """The topic's partitions with their leaders; waits for its metadata up to `max.block.ms`."""
        check_record(topic, None, None)
        sender, seconds = self._own_sender(), self._seconds(timeout)
        wait = TopicWait(sender.started(), topic)
        sender.run_soon(wait.ask, "partitions_for")
        with contextlib.suppress(TimeoutError):
            sender.wait(lambda: wait.is_over, seconds, "partitions_for")
        return wait.partitions(seconds)

    def close(self, timeout: float | None = None) -> None:
        """Deliver what was sent (for at most that many seconds), then end. What is left has failed. Idempotent.

        `UndeliveredError` counts the deliveries that failed without anybody hearing of it: those that have no
        `on_delivery`, and were not asked. While another error is on its way it is logged instead.
        """
        if self._closed:
            return
        sender, begun = self._sender, self._clock.monotonic()
        try:
            if not sender.is_on_thread and sender.error is None and (timeout is None or timeout > 0):
                self._abort_open(timeout)
                self.flush(None if timeout is None else max(0.0, timeout - (self._clock.monotonic() - begun)))
        except TimeoutError:
            log.warning("closing with records undelivered: %s s were not enough", timeout)
        except ClientClosedError:
            # By another thread, which did not wait as long, or by a failure: then nothing more will be delivered.
            log.info("the producer was closed while close() waited for its records")
        finally:
            self._closed = True
            self._watch.end()
            sender.close()
            self._setup.close()
            tell_unheard(sender.failures)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        # After an error there is nothing to wait for but what is on its way already.
        try:
            if kind is not None and self._sender.state is SenderState.OPEN and self._sender.error is None:
                self._abort_open(CLOSE_ABORT_S)
        finally:
            self.close(None if kind is None else 0)

    # --- transactions: each call is handed to the thread and waited for -----------------------------------------------

    def init_transactions(self, timeout: float | None = None) -> None:
        """Once, before the first transaction: fences older producers of the same `transactional.id` and ends what they
        left open. Waits `max.block.ms` (or `timeout` s); `TransactionTimeoutError` means: call it again."""
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
        `FatalTransactionError` needs a new producer; after a `TransactionTimeoutError` call it again."""
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
                # The caller's error is the one to be raised; what cannot be aborted now ends with its time-out.
                self.abort_transaction(timeout)
            raise
        try:
            self.commit_transaction(timeout)
        except HeadraceError:
            if self._on_transaction(lambda transaction: transaction.is_open):
                self.abort_transaction(timeout)
            raise

    def _end_transaction(self, end: Callable[[TransactionCore], TransactionOperation]) -> TransactionOperation:
        self._sender.refuse_records()

        def run(transaction: TransactionCore, core: ProducerCore) -> TransactionOperation:
            core.flush()
            return end(transaction)

        return self._with_core(run)

    def _on_transaction(self, ask: Callable[[TransactionCore], T]) -> T:
        """Do something with the transaction's state on the thread that owns it, and wait for that."""
        return self._with_core(lambda transaction, _: ask(transaction))

    def _with_core(self, ask: Callable[[TransactionCore, ProducerCore], T]) -> T:
        if self._settings.transactional_id is None:
            need_transactions(None)
        sender = self._own_sender()
        core = sender.started()
        answers: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                answers.append(ask(need_transactions(core.transaction), core))
            except Exception as error:  # noqa: BLE001 - the caller's, whatever it is: the thread has others to serve
                errors.append(error)

        what = "a transaction's call"
        sender.run_soon(run, what)
        sender.wait(lambda: bool(answers or errors), None, what)
        if errors:
            raise errors[0]
        return answers[0]

    def _finish_operation(self, operation: TransactionOperation, timeout: float | None) -> None:
        seconds = self._seconds(timeout)
        try:
            self._sender.wait(lambda: operation.is_done, seconds, operation.kind.value)
        except TimeoutError:
            core = self._sender.core
            raise timed_out(operation, seconds, None if core is None else core.core.trouble) from None
        outcome(operation)

    def _abort_open(self, timeout: float | None) -> None:
        """Leave no transaction open: readers would wait for its time-out."""
        core = self._sender.core
        if core is None or core.transaction is None or not core.transaction.is_open:
            return
        try:
            self.abort_transaction(timeout)
        except HeadraceError as error:
            log.warning("closing with a transaction open, which will end by its time-out: %s", error)
