"""Records that failed, until they are taken care of: waiting for another try, on their way to another topic, in a
transaction with the offsets that pass them."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from headrace.client.errors import SerializationError
from headrace.errors import (
    ClusterAuthorizationFailedError,
    InvalidRecordError,
    InvalidTopicError,
    PolicyViolationError,
    TopicAuthorizationFailedError,
)
from headrace.parallel.errors import DeadLetterRefusedError, RetriesExhaustedError, UnreadableRecordError, shown
from headrace.parallel.finished import Interval, decode_finished
from headrace.parallel.letters import TOO_LARGE, smaller
from headrace.parallel.retries import NextPlace, Outgoing, Verdict, judge, judge_refused
from headrace.parallel.tracker import Commit, PartitionTracker
from headrace.parallel.work import Entry

if TYPE_CHECKING:
    from headrace.parallel.core import ParallelCore

log = logging.getLogger("headrace.parallel")

TRANSACTION_RECORDS_MAX = 500
_TRANSACTION_BYTES_MAX = 8 * 1024 * 1024
_PRODUCE_BACKOFF_S = (0.1, 10.0)
_REFUSED_FOR_GOOD = (
    TopicAuthorizationFailedError,
    ClusterAuthorizationFailedError,
    InvalidTopicError,
    InvalidRecordError,
    PolicyViolationError,
    SerializationError,
)
"""What no waiting mends. (A topic that is missing may be created, and a broker that is away come back.)"""
_REFUSALS_MAX = 8
"""So often such an answer is heard before it is believed: 12.7 s, as permissions reach one broker after another."""


class _Wait(Enum):
    """What an entry in the timer's heap waits for."""

    TRY = 0
    DUE = 1
    PRODUCE = 2


@dataclass(frozen=True, slots=True)
class PlannedTransaction:
    """Records to produce, and the offsets that pass them: both, or neither."""

    outgoing: list[Outgoing]
    commits: list[Commit]


class Failures:
    """Part of the core, and called under the same lock."""

    def __init__(self, core: ParallelCore) -> None:
        self._core = core
        self._retry = core.settings.retry
        self._counters = core.counters
        self._timers: list[tuple[float, int, _Wait, Entry, Outgoing | None]] = []
        self._numbers = itertools.count()
        self.outbox: deque[Outgoing] = deque()
        """To be produced."""
        self._together = TRANSACTION_RECORDS_MAX
        """Records in the next transaction: few after one that failed, so that a record which no topic takes does not
        take others along."""

    def failed(self, entry: Entry, error: BaseException, now: float, *, is_blamed: bool = True) -> None:
        """A try of a record failed. Not blamed: it failed together with others, and nobody knows which one it was."""
        entry.error = error
        entry.alone = True
        self._counters.failures += 1
        if not is_blamed:
            self._requeue(entry, now + self._retry.local_wait_s(1))
            return
        entry.tries += 1
        if isinstance(error, UnreadableRecordError):
            self._counters.poison += 1
        self._pass_on(entry, judge(self._retry, entry, error), error, now)

    def _pass_on(self, entry: Entry, verdict: Verdict, error: BaseException, now: float) -> None:
        """What was decided is done."""
        if verdict.fate is NextPlace.HERE:
            log.info(
                "%s at offset %s failed (try %s): %s", entry.tracker.partition, entry.offset, entry.tries, shown(error)
            )
            self._requeue(entry, now + verdict.delay_s)
        elif verdict.fate is NextPlace.SKIP:
            log.error("%s at offset %s is skipped: %s", entry.tracker.partition, entry.offset, shown(error))
            self._counters.skipped += 1
            self._core.passed(entry)
        elif verdict.fate is NextPlace.STOP:
            self._core.fatal = RetriesExhaustedError(entry.tracker.partition, entry.offset, entry.tries, error)
            self._core.stop()
        else:
            self._divert(entry, verdict, error)

    def _divert(self, entry: Entry, verdict: Verdict, error: BaseException) -> None:
        topic = self._retry.topic if verdict.fate is NextPlace.RETRY_TOPIC else self._retry.dead_letters
        assert topic is not None
        log.warning("%s at offset %s goes to %s: %s", entry.tracker.partition, entry.offset, topic, shown(error))
        entry.tracker.diverting += 1
        self.outbox.append(Outgoing(entry, topic, verdict))

    def produced(self, outgoing: Outgoing, error: BaseException | None, now: float, *, is_blamed: bool = True) -> None:
        """How producing to the retry or dead-letter topic went. It is tried until it works, or can never work: then
        there is another way. Not blamed: it failed together with others, and nobody knows which one it was."""
        entry, tracker = outgoing.entry, outgoing.entry.tracker
        entry.leaving = False
        if not tracker.alive:
            self._counters.zombies += 1
            return
        if error is not None:
            outgoing.failures += 1
            self._counters.produce_failures += 1
            if not (is_blamed and self._goes_another_way(outgoing, error, now)):
                first, most = _PRODUCE_BACKOFF_S
                delay_s = min(most, first * 2 ** min(20, outgoing.failures - 1))
                log.error("%s cannot be written (try %s): %r", outgoing.topic, outgoing.failures, error)
                heapq.heappush(self._timers, (now + delay_s, next(self._numbers), _Wait.PRODUCE, entry, outgoing))
            return
        tracker.diverting -= 1
        if outgoing.verdict.fate is NextPlace.RETRY_TOPIC:
            self._counters.retry_topic += 1
        else:
            self._counters.dead_letters += 1
        self._core.passed(entry)

    def _goes_another_way(self, outgoing: Outgoing, error: BaseException, now: float) -> bool:
        """What trying again does not mend: a letter that is too large goes in parts, what the retry topic does not take
        goes to the dead letters, and for what those do not take consuming stops. Nothing is passed over."""
        entry = outgoing.entry
        is_too_large = isinstance(error, TOO_LARGE)
        if is_too_large and outgoing.verdict.fate is NextPlace.DEAD_LETTERS and (size := smaller(outgoing)):
            log.warning("%s takes no letter as large as that of %r: it is cut into parts", outgoing.topic, entry)
            if not outgoing.part_bytes:
                self._counters.letters_in_parts += 1
            outgoing.part_bytes = size
            self.outbox.append(outgoing)
            return True
        is_retry = outgoing.verdict.fate is NextPlace.RETRY_TOPIC
        is_for_good = is_too_large or isinstance(error, _REFUSED_FOR_GOOD)
        if not is_for_good or (outgoing.failures < _REFUSALS_MAX and not (is_too_large and is_retry)):
            return False
        entry.tracker.diverting -= 1
        if is_retry:
            log.error("%s does not take %r: it is not tried again: %r", outgoing.topic, entry, error)
            self._pass_on(entry, judge_refused(self._retry, entry), entry.error or error, now)
        else:
            partition = entry.tracker.partition
            self._core.fatal = DeadLetterRefusedError(partition, entry.offset, entry.tries, outgoing.topic, error)
            self._core.stop()
        return True

    # --- transactions -----------------------------------------------------------------------------------------------

    def begin_transaction(self) -> PlannedTransaction | None:
        """What to produce and to commit as one; None when there is neither. `end_transaction` says how it went."""
        taken: list[Outgoing] = []
        size = 0
        while self.outbox and len(taken) < self._together and size < _TRANSACTION_BYTES_MAX:
            outgoing = self.outbox.popleft()
            if outgoing.entry.tracker.alive:
                outgoing.entry.leaving = outgoing.entry.tracker.dirty = True
                size += outgoing.entry.size
                taken.append(outgoing)
        commits = self._core.commits()
        if taken:
            taken = self._covered(taken, commits)
        return PlannedTransaction(taken, commits) if taken or commits else None

    def _covered(self, taken: list[Outgoing], commits: list[Commit]) -> list[Outgoing]:
        """Where a note has no room for all, a record beyond it would be produced again after a restart: it waits."""
        kept: list[Outgoing] = []
        by_tracker = {commit.tracker: commit for commit in commits}
        noted: dict[PartitionTracker, tuple[int, list[Interval]]] = {}
        for outgoing in taken:
            tracker = outgoing.entry.tracker
            commit = by_tracker.get(tracker)
            if commit is not None and commit.is_whole:
                kept.append(outgoing)
                continue
            if tracker not in noted:
                # Nothing to commit: what is committed already (and may be cut just so) is what a restart goes by.
                offset, note = (commit.offset, commit.note) if commit is not None else tracker.committed or (0, "")
                noted[tracker] = offset, decode_finished(offset, note) or []
            base, intervals = noted[tracker]
            offset = outgoing.entry.offset
            if offset < base or any(first <= offset < last for first, last in intervals):
                kept.append(outgoing)
            else:
                outgoing.entry.leaving = False
                self.outbox.append(outgoing)
        return kept

    def end_transaction(self, transaction: PlannedTransaction, error: BaseException | None, now: float) -> None:
        """It was committed; or, with an error, aborted, and everything in it is still to be done."""
        if error is None:
            self._together = min(TRANSACTION_RECORDS_MAX, self._together * 2)
            if transaction.commits:
                self._core.committed(transaction.commits)
        else:
            self._together = 1
            self._counters.commit_failures += 1
        for outgoing in transaction.outgoing:
            self.produced(outgoing, error, now, is_blamed=len(transaction.outgoing) == 1)

    # --- waiting ----------------------------------------------------------------------------------------------------

    def hold(self, entry: Entry, until: float) -> None:
        """A record of the retry topic that is not due yet."""
        heapq.heappush(self._timers, (until, next(self._numbers), _Wait.DUE, entry, None))

    def _requeue(self, entry: Entry, at: float) -> None:
        self._counters.local_retries += 1
        heapq.heappush(self._timers, (at, next(self._numbers), _Wait.TRY, entry, None))

    def due_at(self) -> float | None:
        """When somebody's wait is over."""
        return self._timers[0][0] if self._timers else None

    def wake(self, now: float) -> None:
        """Let those go on whose wait is over."""
        while self._timers and self._timers[0][0] <= now:
            _, _, why, entry, outgoing = heapq.heappop(self._timers)
            if not entry.tracker.alive:
                continue
            if why is _Wait.PRODUCE:
                assert outgoing is not None
                self.outbox.append(outgoing)
            elif why is _Wait.DUE:
                self._core.due(entry)
            elif not entry.tracker.draining:
                self._core.again(entry)
