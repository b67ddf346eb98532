"""What is in a partition's log and not committed yet: who waits for that, and what becomes of them."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from typing import TYPE_CHECKING

from headrace.broker.replication.acks import AckWaiters
from headrace.errors import KafkaError, NotEnoughReplicasAfterAppendError, RequestTimedOutError
from headrace.log import Appended, Outcome

if TYPE_CHECKING:
    from headrace.broker.partitions.purgatory import Watchers
    from headrace.broker.replication.leader import LeaderState
    from headrace.topics import TopicPartition


class UncommittedError(KafkaError):
    """Mixed into errors of what is in the log, and may be committed later: `appended` says where."""

    appended: Appended


class TooLateError(UncommittedError, RequestTimedOutError):
    """The in-sync replicas did not confirm a batch in time."""


class TooFewError(UncommittedError, NotEnoughReplicasAfterAppendError):
    """A batch is in the log of fewer in-sync replicas than its topic wants."""


class CommitWait(asyncio.Future[list[Outcome]]):
    """The end of the wait of batches that are in the log, and in order: what became of each. Others may follow them."""


def in_order(later: asyncio.Future[list[Outcome]]) -> CommitWait:
    """As a wait of batches that are in the log, or have their place in the queue for it, and the bytes of which are no
    longer needed."""
    wait = CommitWait(loop=asyncio.get_running_loop())
    later.add_done_callback(functools.partial(_pass_on, wait))
    return wait


def _pass_on(wait: CommitWait, later: asyncio.Future[list[Outcome]]) -> None:
    if wait.done():
        return
    if later.cancelled():
        wait.cancel()
    elif (error := later.exception()) is not None:
        wait.set_exception(error)
        wait.exception()  # it is no mistake when nobody waits
    else:
        wait.set_result(later.result())


class WaitingAppend:
    """Batches that were appended together, and wait to be committed."""

    __slots__ = ("future", "outcomes", "timer")

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes
        self.future = CommitWait(loop=asyncio.get_running_loop())
        self.timer: asyncio.TimerHandle | None = None

    def done(self) -> bool:
        return self.future.done()

    def end(self, error: KafkaError | None) -> None:
        """They are committed; or, with an error, that is what becomes of each that is in the log."""
        if self.timer is not None:
            self.timer.cancel()
        if not self.future.done():
            outcomes = self.outcomes
            self.future.set_result(outcomes if error is None else [_instead(one, error) for one in outcomes])


def _instead(outcome: Outcome, error: KafkaError) -> Outcome:
    if not isinstance(outcome, Appended):
        return outcome
    own = type(error)(error.message)
    if isinstance(own, UncommittedError):
        own.appended = outcome
    return own


class Commits:
    """Those of one partition: of a leader the appends that wait, of any replica whoever reads what is committed."""

    __slots__ = ("_acks", "_append_watchers", "_key", "_sizes", "_watchers")

    def __init__(self, key: TopicPartition, watchers: Watchers, append_watchers: Watchers) -> None:
        self._key = key
        self._watchers = watchers
        self._append_watchers = append_watchers
        self._acks: AckWaiters[WaitingAppend] = AckWaiters()
        # Ends and sizes of batches that are not committed yet.
        self._sizes: deque[tuple[int, int]] = deque()

    def appended(self, end_offset: int, nbytes: int) -> None:
        """A batch that ends there is in the log."""
        self._sizes.append((end_offset, nbytes))

    def forget(self) -> None:
        """What was appended may be gone, or may belong to a former leader epoch."""
        self._sizes.clear()

    def wait(self, outcomes: list[Outcome], end_offset: int, timeout_ms: int | None) -> CommitWait:
        """Wait until these batches, all of them below `end_offset`, are committed."""
        waiting = WaitingAppend(outcomes)
        self._acks.add(end_offset, waiting)
        if timeout_ms is not None:
            loop = asyncio.get_running_loop()
            waiting.timer = loop.call_later(timeout_ms / 1000, self._too_late, waiting)
        return waiting.future

    def _too_late(self, waiting: WaitingAppend) -> None:
        """Its client no longer waits; the batch stays, and is committed when the others have it."""
        if not waiting.done():
            waiting.end(TooLateError(f"{self._key}: the in-sync replicas did not confirm the batch in time"))
            self._acks.gave_up()

    def acknowledge(self, state: LeaderState) -> None:
        """The leader's watermark has moved: tell the appends that are below it."""
        over = self._acks.committed(state.high_watermark)
        if not over:
            return
        is_short = state.is_under_min_isr
        for waiting in over:
            error = None
            if is_short:
                error = TooFewError(
                    f"{self._key}: {len(state.term.isr)} in-sync replicas, min.insync.replicas={state.needed}"
                )
            waiting.end(error)

    def show(self, high_watermark: int) -> None:
        """Tell those who read how much more they see."""
        nbytes, sizes = 0, self._sizes
        while sizes and sizes[0][0] <= high_watermark:
            nbytes += sizes.popleft()[1]
        if nbytes:
            self._watchers.on_append(nbytes)
        else:
            self._watchers.wake_all()
        self._append_watchers.mark_all()  # followers are told with what they fetch next

    def end(self, kind: type[KafkaError], reason: str) -> None:
        """Nobody here will know whether what they appended is committed."""
        for waiting in self._acks.drain():
            waiting.end(kind(f"{self._key}: {reason}"))
