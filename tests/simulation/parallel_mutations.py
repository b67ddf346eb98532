"""Mistakes of parallel consumers, put in on purpose: see `mutations`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.simulation.mutation import Mutation, parallel_mistake

from headrace.client.consumer.records import ConsumerGroupMetadata
from headrace.client.offsets import OffsetAndMetadata
from headrace.parallel import core as parallel_core
from headrace.parallel import failures
from headrace.parallel.core import ParallelCore
from headrace.parallel.engine import Engine
from headrace.parallel.letters import Message, messages_of
from headrace.parallel.member import Member
from headrace.parallel.options import Order, Retry
from headrace.parallel.queues import Queue, Unordered, make_queue
from headrace.parallel.ranges import RangeReaders
from headrace.parallel.retries import NextPlace, Outgoing, Verdict
from headrace.parallel.tracker import Commit, PartitionTracker
from headrace.parallel.transactions import Transactions
from headrace.parallel.work import Entry, WorkChunk
from headrace.topics import TopicPartition

# --- commits and order ------------------------------------------------------------------------------------------------


def _commit_of(tracker: PartitionTracker, offset: int | None) -> Commit | None:
    """A commit that says nothing of what lies behind it."""
    if offset is None or tracker.committed == (offset, ""):
        return None
    return Commit(tracker, offset, "", None, True)


def _all_that_was_read(self: PartitionTracker) -> Commit | None:
    return _commit_of(self, self.next_offset)


def _first_and_last_epoch(self: PartitionTracker, records: Sequence[Any], next_epoch: int | None) -> None:
    """As it was: of a poll that brings several epochs, those in between are not looked at."""
    self.saw_epoch(records[0].offset, records[0].leader_epoch)
    self.saw_epoch(records[-1].offset, records[-1].leader_epoch)


def _without_order(order: Order, run_max: int, **named: Any) -> Unordered:
    return Unordered(run_max)


def _by_key(order: Order, run_max: int, **named: Any) -> Queue:
    return _make_queue(Order.KEY if order is Order.PARTITION else order, run_max, **named)


_make_queue = make_queue


# --- the window -------------------------------------------------------------------------------------------------------


def _past_the_first_slot(self: PartitionTracker) -> Commit | None:
    """The window goes on with the last slot that is finished, whatever is before it."""
    done = [entry.end for entry in self.entries if entry.done or entry.leaving]
    first = self.entries[0].offset if self.entries else self.next_offset
    return _commit_of(self, max(done, default=first))


def _stalled_is_done(self: ParallelCore, chunk: WorkChunk, now: float) -> None:
    """What hangs is given up, and so are its records."""
    run = chunk.current
    if run is not None and not run.settled:
        run.done = len(run.entries)
        chunk.finished.append(run)
    _abandon(self, chunk, now)


_abandon = ParallelCore._abandon


def _no_failure_of_a_batch(self: ParallelCore, run: Any, now: float) -> None:
    """A batch of which some failed counts as handled."""
    run.failures = None
    run.done = len(run.entries)
    _settle_partly(self, run, now)


_settle_partly = ParallelCore._settle_partly


# --- retries ----------------------------------------------------------------------------------------------------------


def _counts_as_sent(self: Member, outgoing: Outgoing) -> None:
    with self.lock:
        self.core.failures.produced(outgoing, None, self.clock.monotonic())


def _finished_before_it_is_sent(self: Member, outgoing: Outgoing) -> None:
    """The record is let go with the sending of its letter, not with its acknowledgement."""
    messages = messages_of(outgoing, self.group, self.clock.now_ms())
    _counts_as_sent(self, outgoing)
    assert self.producer is not None
    for topic, value, key, headers in messages:
        self.producer.send(topic, value, key, headers=headers, on_delivery=_ignored)


def _ignored(*arguments: Any, **named: Any) -> None:
    return None


def _due_at_once(self: ParallelCore, tracker: PartitionTracker, made: list[Entry], now: float, now_ms: int) -> Any:
    return made


def _straight_to_the_dead_letters(retry: Retry, entry: Entry, error: BaseException) -> Verdict:
    """After the tries on the spot: no rounds through the retry topic."""
    verdict = _judge(retry, entry, error)
    return Verdict(NextPlace.DEAD_LETTERS) if verdict.fate is NextPlace.RETRY_TOPIC else verdict


_judge = failures.judge


# --- transactions -----------------------------------------------------------------------------------------------------

_Offsets = Mapping[TopicPartition, OffsetAndMetadata]
_Group = ConsumerGroupMetadata


def _offsets_first(self: Transactions, messages: list[Message], offsets: _Offsets, group: _Group) -> None:
    """Two transactions: one with the offsets, and then one with the letters that these pass."""
    _begin(self, [], offsets, group)
    if messages:
        self._steps.extend([lambda timeout: self._write(messages), self._commit])


_begin = Transactions.begin


def _letters_apart(self: Transactions, messages: list[Message], offsets: _Offsets, group: _Group) -> None:
    """Two transactions the other way round: offsets are committed when the letters are."""
    _begin(self, messages, {}, group)
    if offsets:
        self._steps.append(lambda timeout: self._write([]))
        self._steps.append(lambda timeout: self._open().send_offsets_to_transaction(offsets, group, timeout))
        self._steps.append(self._commit)


def _without_generation(self: Transactions, messages: list[Message], offsets: _Offsets, group: _Group) -> None:
    """Whoever was thrown out of the group may commit all the same."""
    _begin(self, messages, offsets, _Group(group.group_id))


def _lost_is_aborted(self: Engine, consumer: Any, commits: Any) -> bool:
    return False


# --- consumers and ranges ---------------------------------------------------------------------------------------------


def _finished_when_taken(self: ParallelCore, now: float) -> WorkChunk | None:
    """What a poller takes to handle it is finished already."""
    chunk = _take(self, now)
    if chunk is not None:
        for run in chunk.todo:
            for entry in run.entries:
                entry.leaving = True
    return chunk


_take = ParallelCore.take


def _dropped_is_read(self: ParallelCore, entry: Entry) -> None:
    """A range that a reader gave up counts as read to its end."""
    self.range_advanced(entry, entry.end)


def _failed_is_passed(self: RangeReaders, entry: Entry, failed: Any, upto: int) -> None:
    """A range goes on behind a record that failed, and nobody keeps that."""
    entry.offset = upto


_LEADERS = ("kill", "election", "isolate")
_NOTHING_PASSED, _NO_RECORD_LOST = "commits pass nothing unfinished", "no record lost"
_AS_ONE, _ONCE = "letters and offsets as one", "a letter is there once"


PARALLEL_MUTATIONS: tuple[Mutation, ...] = (
    parallel_mistake(
        "what was read is committed",
        _NOTHING_PASSED,
        "pool by key",
        (PartitionTracker, "commit", _all_that_was_read),
        is_quick=True,
    ),
    parallel_mistake(
        "keys have no order",
        "records of a key in order",
        "pool by key",
        (parallel_core, "make_queue", _without_order),
        is_quick=True,
    ),
    parallel_mistake(
        "dead letters are not sent", _NO_RECORD_LOST, "pool by key", (Member, "_send", _counts_as_sent), is_quick=True
    ),
    parallel_mistake(
        "only keys have an order",
        "records of a partition in order",
        "pool by partition",
        (parallel_core, "make_queue", _by_key),
        is_quick=True,
    ),
    parallel_mistake(
        "a record is finished when its retry is sent",
        _NOTHING_PASSED,
        "pool by key, retry topic",
        (Member, "_send", _finished_before_it_is_sent),
        kinds=_LEADERS,
    ),
    parallel_mistake(
        "retries are not waited for",
        "a retry comes when it is due",
        "pool without order",
        (ParallelCore, "_hold", _due_at_once),
    ),
    parallel_mistake(
        "rounds are left out",
        "dead letters failed every try",
        "pool without order",
        (failures, "judge", _straight_to_the_dead_letters),
    ),
    parallel_mistake(
        "the window passes an unfinished slot",
        _NOTHING_PASSED,
        "window by key",
        (PartitionTracker, "commit", _past_the_first_slot),
        is_quick=True,
    ),
    parallel_mistake(
        "a slot that stalls is done",
        _NO_RECORD_LOST,
        "window by partition",
        (ParallelCore, "_abandon", _stalled_is_done),
    ),
    parallel_mistake(
        "a batch is done when some of it are",
        _NO_RECORD_LOST,
        "window of batches",
        (ParallelCore, "_settle_partly", _no_failure_of_a_batch),
    ),
    parallel_mistake(
        "offsets first, then letters",
        _AS_ONE,
        "pool by key, transactional",
        (Transactions, "begin", _offsets_first),
        is_quick=True,
    ),
    parallel_mistake(
        "letters first, then offsets",
        _AS_ONE,
        "window by key, transactional",
        (Transactions, "begin", _letters_apart),
        kinds=_LEADERS,
    ),
    parallel_mistake(
        "transactions do not name their generation",
        _ONCE,
        "pool by key, transactional",
        (Transactions, "begin", _without_generation),
        kinds=("client cut", "isolate", "pause", "kill"),
    ),
    # It takes a producer that is of no use any more in the moment of its commit: tests/parallel has that.
    parallel_mistake(
        "what was lost sight of counts as aborted",
        _ONCE,
        "window by key, transactional",
        (Engine, "_is_committed", _lost_is_aborted),
        kinds=("isolate", "pause", "cut", "kill"),
    )._replace(seeds=0),
    parallel_mistake(
        "the epochs in between are not looked at",
        _ONCE,
        "consumers by partition, transactional",
        (PartitionTracker, "saw_epochs", _first_and_last_epoch),
        kinds=_LEADERS,
    ),
    parallel_mistake(
        "finished when it is taken", _NOTHING_PASSED, "consumers by key", (ParallelCore, "take", _finished_when_taken)
    ),
    parallel_mistake(
        "a range that is given up is read", _NO_RECORD_LOST, "ranges", (ParallelCore, "range_dropped", _dropped_is_read)
    ),
    parallel_mistake(
        "a range goes on behind what failed",
        _NO_RECORD_LOST,
        "ranges, transactional",
        (RangeReaders, "_failed", _failed_is_passed),
    ),
)
