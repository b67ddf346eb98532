"""What an answer means for a range of offsets: read to its end, lost, or not there yet.

Fetching is the consumer's own (`_fetching.py`): sessions, epochs, the replica to read from, old formats.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.client.cluster.drivers import BlockingClient
from headrace.client.cluster.list_offsets import OffsetLookup
from headrace.client.consumer._fetching import Fetcher
from headrace.client.consumer._positions import Positions
from headrace.client.consumer._subscription import Subscriptions, TopicPartitionState
from headrace.client.consumer.config import EARLIEST_TIMESTAMP, READ_UNCOMMITTED, ConsumerSettings
from headrace.client.consumer.errors import (
    LogTruncationError,
    RecordDeserializationError,
    say,
)
from headrace.client.consumer.records import PartitionColumns, slice_columns
from headrace.client.flows import Flow, Task
from headrace.errors import HeadraceError, OffsetOutOfRangeError, RequestTimedOutError, RetriableError, error_for
from headrace.net.connection import Call
from headrace.records import Batch, BatchHeader
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.client.ranges")

T = TypeVar("T")

Ranges = Mapping[Any, tuple[int, int | None]]
"""Partition → first offset, and the offset to stop before."""

_LOOKS_FIRST = 2
"""So many answers without records are only looked at again: mostly what is missing is there a moment later."""
_LOOKUP_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets of a range that the log does not have any more: from `start` to before `end`."""

    partition: TopicPartition
    start: int
    end: int
    what: str
    """In words: what is gone, and from where."""


class LostOffsetsError(OffsetOutOfRangeError):
    """Offsets that were to be read are not there any more; `loss` says which."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(
            f"{loss.what}. Retention deleted it, or the topic was deleted and made anew", {loss.partition: loss.start}
        )
        self.loss = loss


OnLoss = Callable[[Loss], None]
"""Raises, or lets the reading go on behind what is lost."""


def refuse_loss(loss: Loss) -> None:
    """What is lost ends the reading."""
    raise LostOffsetsError(loss)


def pass_loss(loss: Loss) -> None:
    """Reading goes on behind what is lost."""
    log.warning("%s; reading goes on behind it", loss.what)


class _Asked:
    """The last fetch of a partition, and how things were when it was sent."""

    __slots__ = ("call", "failures", "is_judged", "looks", "offset")

    def __init__(self, call: Call | None = None) -> None:
        self.call = call
        self.is_judged = True
        self.offset = -1
        self.failures = 0
        self.looks = 0
        """Answers of the leader in a row that brought nothing."""


class RangeCore:
    """Ranges that are read over a client, and how far each is. What is asked beside the fetches is waited for."""

    def __init__(self, client: BlockingClient, settings: ConsumerSettings, *, keeps_sessions: bool) -> None:
        self.client, core = client, client.core
        self.subscriptions = Subscriptions()
        self.fetcher = Fetcher(core, self.subscriptions, settings, _no_news, keeps_sessions=keeps_sessions)
        self.readable = OffsetLookup(core, settings.isolation, _no_news)
        self.ends: dict[TopicPartition, int] = {}
        """Where ranges end; one that is not in here has no end."""
        self._starts: dict[TopicPartition, int] = {}
        self.missing: OffsetOutOfRangeError | None = None
        """What to raise if nothing comes any more."""
        self._settings, self._clock = settings, core.clock
        self._written = OffsetLookup(core, READ_UNCOMMITTED, _no_news)
        self._positions = Positions(core, self.subscriptions, settings, self._written, None, _no_news)
        self._round: Task[None] | None = None
        self._on_loss: OnLoss = refuse_loss
        self._was_written = False
        self._asked: dict[TopicPartition, _Asked] = {}
        self._waits_for: dict[TopicPartition, str] = {}
        """Why nothing comes of a partition, as far as its brokers say."""
        self._trouble: HeadraceError | None = None

    def begin(self, ranges: Ranges, *, on_loss: OnLoss, was_written: bool, ahead: bool) -> None:
        """Read these from now on, and nothing else (see `RangeReader.begin`)."""
        subscriptions = self.subscriptions
        subscriptions.assign_by_hand([TopicPartition(*partition) for partition in ranges])
        self.ends = {}
        self._starts = {TopicPartition(*partition): start for partition, (start, _) in ranges.items()}
        for partition, (start, end) in ranges.items():
            state = subscriptions.state(partition)
            state.seek(start)
            state.read_end = None if ahead else end
            if end is not None:
                self.ends[state.partition] = end
        for topic in subscriptions.topics:
            self.client.core.add_topic(topic)
        self._on_loss, self._was_written = on_loss, was_written
        # A fetch of before, under way or answered, says nothing of these.
        self._asked = {state.partition: _Asked(state.fetch_call) for state in subscriptions.states()}
        self._waits_for = {}
        self.missing = self._trouble = None

    def extend(self, partition: TopicPartition, end: int) -> None:
        """Go on to this end (see `RangeReader.extend`). What was asked for before, it may have been too early for."""
        self.ends[partition] = end
        asked = self._asked.get(partition)
        if asked is not None:
            asked.is_judged = True

    # --- moving on --------------------------------------------------------------------------------------------------

    def advance(self) -> float:
        """Do what can be done now: take in what came, hold positions against new leaders, ask for more. When something
        is due again. Raises what the caller has to know."""
        now = self._clock.monotonic()
        self._judge_answers()
        due = self._advance_positions(now)
        try:
            self.fetcher.raise_errors()
        except OffsetOutOfRangeError as error:
            self._out_of_range(error)
        due = min(due, self._send(now))
        if self._round is None:
            # News of the cluster, seen just now, may have put a position in question.
            due = min(due, self._positions.pending(now)[1])
        return due

    def prefetch(self) -> None:
        """Ask for what comes after what is handed out now."""
        if self.fetcher.has_room:
            self._send(self._clock.monotonic())

    def _send(self, now: float) -> float:
        due = self.fetcher.send(now)
        for state in self.subscriptions.states():
            asked = self._asked.get(state.partition)
            if asked is None:
                asked = self._asked[state.partition] = _Asked()
            call = state.fetch_call
            if call is not None and call is not asked.call:
                asked.call, asked.offset, asked.failures = call, state.fetch_offset, state.failures
                asked.is_judged = False
        return due

    def _advance_positions(self, now: float) -> float:
        has_work, due = self._positions.pending(now)
        if self._round is None:
            if not has_work:
                return due
            for state in self.subscriptions.states():
                start = self._starts.get(state.partition)
                if state.validating and start is not None and state.position == start:
                    # Nothing was read yet: what was known of the topic is of before it was deleted and created again.
                    state.seek(start)
            self._round = Task(self._positions.round())
        task = self._round
        task.advance(now)
        if not task.done:
            return task.due()
        self._round = None
        if isinstance(task.error, LogTruncationError):
            self._truncated(task.error)
        elif task.error is not None:
            raise task.error
        return self._positions.pending(now)[1]

    def next_piece(self, rows_max: int) -> PartitionColumns | None:
        """The next records within the ranges; None when none are there."""
        fetcher = self.fetcher
        while True:
            try:
                found = fetcher.next_piece(rows_max)
            except RecordDeserializationError as error:
                state = self.subscriptions.state(error.partition)
                behind = self.ends.get(error.partition)
                if behind is None or error.offset < behind:
                    raise
                # What is damaged lies behind the range, and is for those to know who want it.
                _finish(state, behind)
                continue
            if found is None:
                return None
            state, chunk, piece = found
            count, end = len(piece), state.read_end
            if end is None or piece.columns.offsets[count - 1] < end:
                fetcher.take(state, chunk, count)
                return piece
            inside = bisect_left(piece.columns.offsets, end)
            _finish(state, end)
            if inside:
                piece.columns = slice_columns(piece.columns, 0, inside)
                piece.next_offset, piece.next_epoch = end, piece.leader_epoch
                return piece

    def next_batches(self) -> list[tuple[Batch, BatchHeader]] | None:
        """The next fetch's batches that reach into the ranges; None when none are there."""
        fetcher = self.fetcher
        while (found := fetcher.next_chunk()) is not None:
            state, chunk = found
            end = state.read_end
            batches: list[tuple[Batch, BatchHeader]] = []
            for batch, header in chunk.batches():
                if end is not None and header.base_offset >= end:
                    break
                batches.append((batch, header))
            if not batches and chunk.error is not None and (end is None or chunk.error.offset < end):
                raise chunk.error
            reached = batches[-1][1].next_offset if batches else chunk.next_offset
            if chunk.error is None:
                fetcher.take_whole(state, chunk)
            else:
                # What is damaged is fetched again, and stands first then.
                state.seek(max(reached, chunk.error.offset))
            if batches:
                return batches
        return None

    def has_left(self) -> bool:
        """Whether there are ranges that are not read to their end."""
        done = [state.partition for state in self.subscriptions.states() if not self._is_unfinished(state)]
        if done:
            for partition in done:
                del self.ends[partition]
            left = [partition for partition in self.subscriptions.assigned() if partition not in done]
            self.subscriptions.assign_by_hand(left)
        return any(True for _ in self.subscriptions.states())

    def is_read(self) -> bool:
        """Whether every range is read to its end; what was begun ahead stays."""
        return not any(self._is_unfinished(state) for state in self.subscriptions.states())

    def _is_unfinished(self, state: TopicPartitionState) -> bool:
        end = self.ends.get(state.partition)
        return end is None or state.position is None or state.position < end

    def places(self) -> list[tuple[TopicPartition, int | None]]:
        """How far each range is."""
        return [(state.partition, state.position) for state in self.subscriptions.states()]

    # --- what an answer means ---------------------------------------------------------------------------------------

    def _judge_answers(self) -> None:
        """Look at fetches that brought nothing: is the range lost, or only not readable yet?"""
        for state in list(self.subscriptions.states()):
            asked = self._asked.get(state.partition)
            if asked is None:
                continue
            call = asked.call
            if call is None or asked.is_judged:
                self._judge_topic(state)
            elif call.done:
                asked.is_judged = True
                if call.error is not None:
                    if not isinstance(call.error, RetriableError):
                        raise call.error
                    self._trouble = call.error
                    self._waits_for[state.partition] = str(call.error)
                elif state.fetch_offset != asked.offset or (state.chunks and not state.chunks[0].is_done):
                    asked.looks = 0
                    self._waits_for.pop(state.partition, None)
                elif state.preferred_replica not in (None, call.node_id):
                    self._waits_for[state.partition] = f"its leader leaves it to broker {state.preferred_replica}"
                elif state.failures > asked.failures or state.validating:
                    self._waits_for[state.partition] = "its broker refused to be read from"
                elif state.partition in self.ends and self._is_unfinished(state):
                    self._on_empty_answer(state, asked, call)

    def _judge_topic(self, state: TopicPartitionState) -> None:
        """Nobody is asked: is there nobody who could be?"""
        core = self.client.core
        topic = core.view.topics.get(state.partition.topic)
        if topic is not None and topic.error_code:
            error = error_for(topic.error_code)
            if not isinstance(error, RetriableError):
                raise say(error, f"reading {state.partition}")
        if core.view.leader_of(*state.partition) is None:
            failure = core.metadata_error
            if failure is not None and not isinstance(failure, RetriableError):
                raise failure
            self._waits_for[state.partition] = "it has no leader, or does not exist"
            self._trouble = core.trouble or self._trouble

    def _on_empty_answer(self, state: TopicPartitionState, asked: _Asked, call: Call) -> None:
        """At the end of the log, or of what is committed: either the range goes beyond, or a transaction is open."""
        now = self._clock.monotonic()
        if state.preferred_replica is not None:
            # Only the leader knows what there is.
            self.fetcher.leave_replica(state, now)
            self._waits_for[state.partition] = f"broker {call.node_id}, a replica, has nothing there yet"
            return
        leader = self.client.core.view.leader_of(*state.partition)
        if leader is None or leader.id != call.node_id:
            return
        position, watermark = state.fetch_offset, state.high_watermark
        if watermark is not None and position < watermark:
            self._waits_for[state.partition] = (
                f"offset {position} is not readable yet: a transaction is open before it (last stable offset "
                f"{state.last_stable_offset}, high watermark {watermark})"
            )
        else:
            self._at_end(state, asked)
        if state.retry_at <= now:
            # A broker that answers at once is not asked again at once.
            state.retry_at = now + self._settings.retry_backoff.first_ms / 1000

    def _at_end(self, state: TopicPartitionState, asked: _Asked) -> None:
        """The leader gives nothing at the position: has the log lost it, or is it only not readable yet?"""
        partition, position, end = state.partition, state.fetch_offset, self.ends.get(state.partition)
        self.client.core.refresh_metadata()
        asked.looks += 1
        self._waits_for[partition] = f"nothing is readable at offset {position}"
        if not self._was_written or end is None or asked.looks <= _LOOKS_FIRST:
            return
        log_end = self.run(self._written.log_end(partition), _LOOKUP_S_MAX)
        if log_end is None or state.position != position:
            return
        if log_end > position:
            self._waits_for[partition] = f"the log has offset {position}, but not all replicas do: its leader is new"
            return
        what = f"{partition} ends at offset {log_end}; the range goes to {end}"
        self._on_loss(Loss(partition, position, end, what))
        _finish(state, end)

    def _out_of_range(self, error: OffsetOutOfRangeError) -> None:
        """The leader does not have a position. What was deleted is lost; what the log ends before may come: the leader
        is new and does not know yet how much is committed, or another broker is about to lead."""
        wanted = dict.fromkeys(error.offsets, EARLIEST_TIMESTAMP)
        found = self.run(self._written.round(wanted), _LOOKUP_S_MAX)
        begins, failures = found if found is not None else ({}, {})
        for partition, position in error.offsets.items():
            failure, begin = failures.get(partition), begins.get(partition)
            if failure is not None and not isinstance(failure, RetriableError):
                raise failure
            state = self.subscriptions.get(partition)
            if begin is None or state is None or state.position != position or not self._is_unfinished(state):
                continue
            if position >= begin.offset:
                if not self._was_written:
                    self.missing = error
                self._at_end(state, self._asked.setdefault(partition, _Asked()))
                continue
            end = min(begin.offset, self.ends.get(partition, begin.offset))
            what = f"offsets {position} to {end - 1} of {partition} were deleted before they were read"
            self._on_loss(Loss(partition, position, end, what))
            _finish(state, end)

    def _truncated(self, error: LogTruncationError) -> None:
        """A log that was cut back behind what was read: what was read is not in it any more."""
        for partition, position in error.offsets.items():
            state = self.subscriptions.get(partition)
            if state is None:
                continue
            same = error.divergent_offsets.get(partition)
            cut = "somewhere before" if same is None else f"at offset {same}, before"
            what = f"the log of {partition} was cut back {cut} offset {position}, up to which it was read"
            try:
                self._on_loss(Loss(partition, position if same is None else same, position, what))
            except LostOffsetsError as loss:
                raise error from loss
            state.seek(position)

    def late(self, wait_s: float) -> HeadraceError:
        """What to say when nothing came for so long."""
        what = []
        for state in self.subscriptions.states():
            known = f"high watermark {state.high_watermark}, last stable offset {state.last_stable_offset}"
            why = self._waits_for.get(state.partition, "no answer came")
            end = self.ends.get(state.partition)
            what.append(f"{state.partition} is read up to {state.position} of {end} ({known}): {why}")
        text = f"nothing came for {wait_s} s: {'; '.join(what)}. Is the end beyond what was written (and committed)?"
        error = RequestTimedOutError(text)
        error.__cause__ = self._trouble
        return error

    def run(self, flow: Flow[T], seconds: float) -> T | None:
        """What a flow gives; None when it does not end in time."""
        task: Task[T] = Task(flow)
        until = self._clock.monotonic() + seconds
        try:
            while True:
                now = self._clock.monotonic()
                task.advance(now)
                if task.done or now >= until:
                    break
                self.client.poll(max(0.0, min(until, task.due()) - now))
        finally:
            task.cancel()
        if task.error is not None:
            raise task.error
        return task.result


def _finish(state: TopicPartitionState, position: int) -> None:
    """Go on from there, and drop what was fetched before."""
    state.seek(position)


def _no_news() -> None:
    """Answers are looked at when bytes have moved."""
