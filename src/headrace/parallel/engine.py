"""The poller: reads for one member of the group, keeps its promises to the group, and leaves handling to the workers.

Also handles by itself, between polls, where the model has no other workers (a consumer per thread).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.client.consumer.blocking import Consumer
from headrace.client.consumer.errors import (
    CommitFailedError,
    RecordDeserializationError,
    RetriableCommitFailedError,
    WakeupError,
)
from headrace.client.consumer.records import BY_OFFSET, ConsumerRecords
from headrace.client.offsets import OffsetAndMetadata
from headrace.errors import HeadraceError, KafkaError, RebalanceInProgressError, RetriableError
from headrace.parallel.failures import PlannedTransaction
from headrace.parallel.handling import Handling
from headrace.parallel.letters import messages_of
from headrace.parallel.member import Member
from headrace.parallel.retries import damage_of
from headrace.parallel.tracker import Commit
from headrace.parallel.transactions import TransactionOutcome, Transactions
from headrace.parallel.workers import HandlerWorkers
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.parallel")

_POLL_S = 0.05
"""The longest wait in a poll: stalls, retries and commits are looked at in between."""
_POLL_RECORDS_MAX = 2_000
_INLINE_S = 0.1
"""How long a poller that handles by itself does so before it polls again."""
_INLINE_SHORT_S = 0.01
_COMMIT_TIMEOUT_S = 10.0
_POSITION_TIMEOUT_S = 5.0
_TRANSACTION_LINGER_S = 0.1
"""How long a diverted record waits for others before a transaction takes it."""
_TRANSACTION_WAIT_S = 2.0
"""How long the poller waits for a transaction's end before it polls again; it goes on with it at its next turn."""
_END_S = 5.0
_HANGING_END_S = 0.1
"""For workers that did not end while there was time to drain."""
_WAKEUPS_MAX = 100

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Times of one member."""

    drain_s: float = 30.0
    commit_every_s: float = 1.0
    log_every_s: float = 60.0


class Engine:
    """One consumer in the group, with what belongs to it. `run` on a thread of its own; `stop` from any."""

    def __init__(
        self,
        member: Member,
        topics: Collection[str],
        config: Mapping[str, Any],
        settings: EngineSettings,
        workers: HandlerWorkers | None,
        handling: Handling,
        transactions: Transactions | None = None,
        make_consumer: Callable[[Mapping[str, Any]], Consumer] = Consumer,
    ) -> None:
        self.member = member
        self._make_consumer = make_consumer
        self._core = member.core
        self._clock = member.clock
        self._topics = list(topics)
        self._config = dict(config)
        self._settings = settings
        self._workers = workers
        self._handling = handling
        self._transactions = transactions
        self._transaction: PlannedTransaction | None = None
        """The one that is under way."""
        self._asks_group = False
        """Whether only the group knows how it ended, and has not said so yet."""
        member.is_transactional = transactions is not None
        self._stop_asked = threading.Event()
        self._consumer: Consumer | None = None
        self._commit_at = 0.0
        self._log_at = 0.0
        self._committing = False
        self._is_killed = False
        self._unplaced: set[TopicPartition] = set()
        """Assigned, without a commit, and not looked at yet."""
        self.is_assigned = threading.Event()
        """Set with the first assignment."""

    def stop(self) -> None:
        """Drain, commit, leave."""
        self._stop_asked.set()
        consumer = self._consumer
        if consumer is not None:
            consumer.wakeup()

    def kill(self) -> None:
        """Stop without draining or committing."""
        self._is_killed = True
        self.stop()

    def run(self) -> None:
        """Until it is stopped, or cannot go on (then it raises why)."""
        consumer = self._make_consumer(self._config)
        self._consumer = consumer
        self.member.wake_poller = consumer.wakeup
        is_orderly = False
        try:
            if self._transactions is not None:
                self._transactions.start()
            consumer.subscribe(self._topics, self)
            if self._workers is not None:
                self._workers.start()
            else:
                self._handling.prepare()
            self._loop(consumer)
            is_orderly = True
        finally:
            self._end(consumer, is_orderly)
        if self._core.fatal is not None:
            raise self._core.fatal from self._core.fatal.error

    # --- the loop ---------------------------------------------------------------------------------------------------

    def _loop(self, consumer: Consumer) -> None:
        now = self._clock.monotonic()
        self._commit_at = now + self._settings.commit_every_s
        self._log_at = now + self._settings.log_every_s
        while not self._stop_asked.is_set() and self._core.fatal is None:
            self._poll(consumer)
            self._turn(consumer)
            if self._workers is None:
                self._handle_here()

    def _poll(self, consumer: Consumer) -> None:
        member, core = self.member, self._core
        with member.lock:
            timeout = self._wait_s()
            records_max = max(1, min(_POLL_RECORDS_MAX, core.pressure.room()))
            member.poller_waits = timeout > 0
        try:
            records = consumer.poll(timeout, records_max)
        except WakeupError:
            return
        except RecordDeserializationError as error:
            self._pass_damage(consumer, error)
            return
        finally:
            member.poller_waits = False
        if records:
            self._take_in(records)
        if self._unplaced and not self._stop_asked.is_set():
            self._place(consumer)

    def _take_in(self, records: ConsumerRecords) -> None:
        found = [(partition, records.records(partition)) for partition in records.partitions()]
        if self._config.get("interceptor.classes"):
            # They may give records in any order; what is finished is told by offsets that ascend.
            for _, rows in found:
                rows.sort(key=BY_OFFSET)
        following = records.next_offsets()
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        with self.member.lock:
            for partition, rows in found:
                end = following[partition]
                self._core.add(partition, rows, now, now_ms, end.offset, end.leader_epoch)
            self.member.announce()

    def _pass_damage(self, consumer: Consumer, error: RecordDeserializationError) -> None:
        """A batch that cannot be read is one failed record; reading goes on behind it."""
        partition = error.partition
        # Its header may be damaged too: reading must not be sent beyond the end.
        try:
            end = self._undisturbed(lambda: consumer.end_offsets([partition]))[partition]
        except RetriableError as trouble:
            # It stays where it is: the next poll finds it again.
            log.warning("the end of %s is not known, so a damaged batch has to wait: %s", partition, trouble)
            return
        error.last_offset = max(error.offset, min(error.last_offset, end - 1))
        log.error("%s", error)
        damage, record = damage_of(error)
        consumer.seek(partition, damage.last_offset + 1)
        with self.member.lock:
            self._core.add_damaged(damage, record, self._clock.monotonic())
            self.member.announce()

    def _wait_s(self) -> float:
        """How long a poll may wait for records."""
        core = self._core
        if core.pressure.resumable or (self._workers is None and core.ready):
            return 0.0
        due_at = core.failures.due_at()
        if core.failures.outbox:
            if self._transactions is None:
                return 0.0
            due_at = self._commit_at if due_at is None else min(due_at, self._commit_at)
        if due_at is None:
            return _POLL_S
        return min(_POLL_S, max(0.0, due_at - self._clock.monotonic()))

    def _turn(self, consumer: Consumer) -> None:
        """What is due between two polls."""
        member, core = self.member, self._core
        now = self._clock.monotonic()
        with member.lock:
            given_up = core.tick(now)
            changes = core.pauses()
            member.announce()
        if member.failure is not None:
            raise member.failure
        self._set_paused(consumer, changes)
        for chunk in given_up:
            where = chunk.stalled_at or "a record that is settled"
            log.error("a handler did not come back within %s s from %s and is given up", core.settings.stall_s, where)
            if self._workers is not None:
                self._workers.replace(chunk)
        member.send_diverted()
        if self._transactions is not None and core.failures.outbox:
            # Who waits behind such a record should not wait for long; a few at once are one transaction.
            self._commit_at = min(self._commit_at, now + _TRANSACTION_LINGER_S)
        if now >= self._commit_at or self._transaction is not None:
            self._commit_at = now + self._settings.commit_every_s
            self._commit_soon(consumer)
        if now >= self._log_at:
            self._log_at = now + self._settings.log_every_s
            log.info("%s: %s", member.group, member.snapshot().log_line())

    def _set_paused(self, consumer: Consumer, changes: Iterable[tuple[TopicPartition, bool]]) -> None:
        changed = list(changes)
        if not changed:
            return
        ours = consumer.assignment()
        consumer.pause([name for name, pause in changed if pause and name in ours])
        consumer.resume([name for name, pause in changed if not pause and name in ours])

    def _handle_here(self) -> None:
        """Model 1: this thread is the only worker."""
        with self.member.lock:
            # Where a partition may have records that were not read yet, they are not to wait for those of others.
            is_one_empty = any(not (one.entries or one.paused) for one in self._core.trackers.values())
        until = self._clock.monotonic() + (_INLINE_SHORT_S if is_one_empty else _INLINE_S)
        while not self._stop_asked.is_set():
            with self.member.lock:
                now = self._clock.monotonic()
                chunk = self._core.take(now) if now < until else None
            if chunk is None:
                return
            self._handling.work(chunk)
            with self.member.lock:
                self._core.complete(chunk, self._clock.monotonic())

    # --- commits ----------------------------------------------------------------------------------------------------

    def _commit_soon(self, consumer: Consumer) -> None:
        """Commit without waiting. One at a time: a later one has all that this one has."""
        if self._transactions is not None:
            self._transact(consumer, self._transactions)
            return
        if self._committing:
            return
        with self.member.lock:
            commits = self._core.commits()
        if not commits:
            return
        self._committing = True

        def ended(error: HeadraceError | None, _: Any) -> None:
            self._committing = False
            self._note_commit(commits, error)

        consumer.commit_async(_offsets(commits), ended)

    def _commit_now(self, consumer: Consumer, partitions: Collection[TopicPartition]) -> HeadraceError | None:
        """Commit these and wait: they are about to go. What it failed with, if it did."""
        if self._transactions is not None:
            if self._transaction is not None:
                self._transact(consumer, self._transactions, _COMMIT_TIMEOUT_S)
            return self._transact(consumer, self._transactions, _COMMIT_TIMEOUT_S)
        with self.member.lock:
            commits = self._core.commits(partitions)
        if not commits:
            return None
        failed: HeadraceError | None = None
        try:
            self._undisturbed(lambda: consumer.commit_sync(_offsets(commits), _COMMIT_TIMEOUT_S))
        except HeadraceError as error:
            failed = error
        self._note_commit(commits, failed)
        return failed

    def _transact(
        self, consumer: Consumer, transactions: Transactions, seconds: float = _TRANSACTION_WAIT_S
    ) -> HeadraceError | None:
        """Produce what is diverted and commit, as one. What it failed with, if it did: then all is tried again."""
        member, transaction = self.member, self._transaction
        if transaction is None:
            with member.lock:
                transaction = self._core.failures.begin_transaction()
            if transaction is None:
                return None
            now_ms = self._clock.now_ms()
            messages = [message for one in transaction.outgoing for message in messages_of(one, member.group, now_ms)]
            transactions.begin(messages, _offsets(transaction.commits), consumer.group_metadata())
            self._transaction = transaction
        outcome = TransactionOutcome.ASK_GROUP if self._asks_group else transactions.settle(seconds)
        if outcome is TransactionOutcome.UNKNOWN:
            return None
        is_committed = outcome is TransactionOutcome.COMMITTED
        if outcome is TransactionOutcome.ASK_GROUP:
            self._asks_group = True
            try:
                is_committed = self._is_committed(consumer, transaction.commits)
            except RetriableError as trouble:
                log.warning("how a transaction ended is not known yet: %s", trouble)
                return None
        self._transaction, self._asks_group = None, False
        error = None if is_committed else transactions.error
        if error is not None:
            log.warning("a transaction of %s records was aborted: %s", len(transaction.outgoing), error)
        with member.lock:
            self._core.failures.end_transaction(transaction, error, self._clock.monotonic())
            member.announce()
        return error

    def _is_committed(self, consumer: Consumer, commits: list[Commit]) -> bool:
        """Whether these offsets are the group's: tells how a transaction ended that was lost sight of. Of a partition
        that went others may have committed more; any that we still have tells for all, as they are committed as one."""
        wanted = _offsets([commit for commit in commits if commit.tracker.alive])
        if not wanted:
            return False
        found = self._undisturbed(lambda: consumer.committed(list(wanted)))
        return any(
            (one := found.get(name)) is not None and (one.offset, one.metadata) == (offset.offset, offset.metadata)
            for name, offset in wanted.items()
        )

    def _commit_last(self, consumer: Consumer) -> None:
        """The commit before leaving. While the group rebalances it takes none, so that is gone through first."""
        deadline = self._clock.monotonic() + _COMMIT_TIMEOUT_S
        while self._clock.monotonic() < deadline:
            with self.member.lock:
                partitions = list(self._core.trackers)
            if not isinstance(self._commit_now(consumer, partitions), RebalanceInProgressError):
                return
            # What this reads is not begun any more, and not committed: others will.
            self._undisturbed(lambda: consumer.poll(_POLL_S, 1))

    def _note_commit(self, commits: list[Commit], error: HeadraceError | None) -> None:
        with self.member.lock:
            if error is None:
                self._core.committed(commits)
                return
            self._core.counters.commit_failures += 1
        if isinstance(error, RebalanceInProgressError):
            log.info("a commit has to wait until the group has rebalanced")
        elif isinstance(error, (CommitFailedError, RetriableCommitFailedError, RetriableError)):
            log.warning("a commit of %s partitions failed, which may repeat records: %s", len(commits), error)
        else:
            log.error("a commit of %s partitions was refused: %s", len(commits), error)

    # --- the group --------------------------------------------------------------------------------------------------

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Take up each partition where the group left it, without what was finished beyond."""
        consumer = self._consumer
        assert consumer is not None
        committed = self._committed(consumer, partitions) if partitions else {}
        if committed is None:
            return
        unplaced = [name for name in partitions if committed.get(name) is None]
        # All in the retry topic is ours, whatever auto.offset.reset says.
        retries = [name for name in unplaced if name.topic in self._core.settings.retry_topics]
        if retries:
            consumer.seek_to_beginning(retries)
        with self.member.lock:
            self._core.counters.rebalances += 1
            for partition in partitions:
                found = committed.get(partition)
                self._core.assign(partition, found.offset if found else None, found.metadata if found else "")
        self._unplaced.update(unplaced)
        self.is_assigned.set()

    def _committed(
        self, consumer: Consumer, partitions: list[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None] | None:
        """What the group has committed, however long its brokers are away; None when we are to stop meanwhile, and
        nothing is to be begun."""
        while True:
            try:
                return self._undisturbed(lambda: consumer.committed(partitions))
            except RetriableError as error:
                log.warning("what the group has committed is not known yet: %s", error)
                if self._stop_asked.is_set():
                    return None

    def _place(self, consumer: Consumer) -> None:
        """Where nothing was committed, write down where reading begins, and commit that: the next owner is not to begin
        behind what was read here."""
        unplaced, self._unplaced = self._unplaced & consumer.assignment(), set()
        for name in sorted(unplaced):
            try:
                position = self._undisturbed(lambda name=name: consumer.position(name, _POSITION_TIMEOUT_S))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            except RetriableError as error:
                log.warning("where %s begins is not known yet: %s", name, error)
                self._unplaced.add(name)
                continue
            with self.member.lock:
                self._core.place(name, position)
        self._commit_at = 0.0

    def _undisturbed(self, ask: Callable[[], T]) -> T:
        """Have the consumer do something although it is woken up meanwhile; whoever woke it is heard afterwards."""
        for _ in range(_WAKEUPS_MAX):
            try:
                return ask()
            except WakeupError:
                continue
        return ask()

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Let what runs end (within the bound), commit, let go."""
        consumer = self._consumer
        assert consumer is not None
        with self.member.lock:
            self._core.begin_revoke(partitions)
        seconds = self._settings.drain_s
        if not self.member.drain(partitions, seconds, self._keep_on):
            log.warning("not all work on %s partitions ended within %s s; it is repeated", len(partitions), seconds)
        self._commit_now(consumer, partitions)
        with self.member.lock:
            self._core.end_revoke(partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """Too late for commits: others have them."""
        with self.member.lock:
            self._core.lose(partitions)

    def _keep_on(self) -> None:
        """While draining: what is diverted has to be sent, who hangs has to be given up."""
        if self._transactions is None:
            self.member.send_diverted()
        elif self._core.failures.outbox or self._transaction is not None:
            assert self._consumer is not None
            self._transact(self._consumer, self._transactions)
        with self.member.lock:
            given_up = self._core.tick(self._clock.monotonic())
            self.member.announce()
        for chunk in given_up:
            if self._workers is not None:
                self._workers.replace(chunk)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _end(self, consumer: Consumer, is_orderly: bool) -> None:
        with self.member.lock:
            self._core.stop()
            partitions = list(self._core.trackers)
        is_drained = False
        try:
            if is_orderly and not self._is_killed:
                is_drained = self.member.drain(partitions, self._settings.drain_s, self._keep_on)
                self._commit_last(consumer)
        finally:
            with self.member.lock:
                # Nothing to wait for any more: closing the consumer would drain them once again.
                self._core.end_revoke(list(self._core.trackers))
            # How a transaction ended that is still under way, the next owners find out: its producer goes now, and
            # closing the consumer would have it go on.
            self._transaction, self._asks_group = None, False
            self.member.close()
            if self._workers is not None:
                self._workers.stop(_END_S if is_drained else _HANGING_END_S)
            if self._transactions is not None:
                self._transactions.close()
            try:
                consumer.close()
            except (KafkaError, HeadraceError) as error:
                log.warning("closing the consumer failed: %s", error)


def _offsets(commits: Iterable[Commit]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        commit.tracker.partition: OffsetAndMetadata(commit.offset, commit.note, commit.leader_epoch)
        for commit in commits
    }
