"""Fetching without I/O: which broker is asked for what, what an answer means, and records handed out from what came.

A partition may have one fetch read by the caller and one more on its way or waiting, so that the next records are there
when the caller has processed the last ones. While a broker's partition has two waiting, that broker is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.client.cluster.core import ClientCore
from headrace.client.cluster.view import NO_NODE, PartitionView
from headrace.client.consumer._chunks import FetchedChunk
from headrace.client.consumer._fetch_session import FetchSessionHandler, Wanted
from headrace.client.consumer._subscription import NO_EPOCH, Subscriptions, TopicPartitionState
from headrace.client.consumer.config import READ_COMMITTED, ConsumerSettings
from headrace.client.consumer.errors import out_of_range, say
from headrace.client.consumer.records import PartitionColumns
from headrace.errors import ErrorCode, HeadraceError, error_for
from headrace.net.connection import Call
from headrace.net.node import Node
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from headrace.records import Columns
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.client.consumer")

CHUNKS_MAX = 2
_VERSION_WITHOUT_TOPIC_IDS = 12
_CLOSE_TIMEOUT_MS = 1_000
_LEADER_S, _LEADER_S_MAX = 5.0, 300.0
"""So long a leader is asked for itself after a replica that it named was of no use: twice as long each time."""

_ASK_METADATA = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
_TRY_AGAIN = frozenset({ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.UNKNOWN_SERVER_ERROR})


class FetchMetrics:
    """Counters; who wants rates takes differences."""

    __slots__ = ("bytes_consumed", "fetches", "records_consumed")

    def __init__(self) -> None:
        self.bytes_consumed = 0
        self.records_consumed = 0
        self.fetches = 0


class _Mark(NamedTuple):
    """A partition and the chunk that is handed out of it, as they were before."""

    state: TopicPartitionState
    chunk: FetchedChunk
    place: tuple[Any, ...]
    position: int | None
    offset_epoch: int
    current_epoch: int
    metrics: tuple[int, int]


class Fetcher:
    """Keeps data coming for the partitions that can be fetched."""

    def __init__(
        self,
        core: ClientCore,
        subscriptions: Subscriptions,
        settings: ConsumerSettings,
        notify: Callable[[], None],
        *,
        keeps_sessions: bool = True,
    ) -> None:
        self.metrics = FetchMetrics()
        self._keeps_sessions = keeps_sessions
        self._core = core
        self._subscriptions = subscriptions
        self._settings = settings
        self._notify = notify
        self._sessions: dict[int, FetchSessionHandler] = {}
        self._in_flight: dict[int, Call] = {}
        self._seen_version = -1
        self._errors: dict[TopicPartition, tuple[TopicPartitionState, int, HeadraceError]] = {}
        self._current: TopicPartitionState | None = None
        self.marks: list[_Mark] | None = None
        """How things were before records were taken that are not with the application yet. Whoever gives them to it
        forgets this as the very last thing, with a plain assignment: whatever ends a poll before that, `take_back` has
        the next one give them."""
        self.has_room = False
        """Whether something was handed out to its end since brokers were last asked, so that more may be asked for."""

    # --- asking -----------------------------------------------------------------------------------------------------

    def send(self, now: float) -> float:
        """Ask every broker that can be asked. When to look again, if nothing arrives before."""
        self.has_room = False
        # Nothing arrives of a position that is to be looked up before it can be read from: that is done at once.
        due = now if self._check_leaders() else float("inf")
        wanted: dict[int, dict[TopicPartition, TopicPartitionState]] = {}
        full: set[int] = set()
        for state in self._subscriptions.states():
            if not state.is_fetchable:
                continue
            if state.read_end is not None and state.fetch_offset >= state.read_end:
                continue
            if state.retry_at > now:
                due = min(due, state.retry_at)
                continue
            node_id = self._node_for(state, now)
            if node_id is None:
                self._core.refresh_metadata()
                continue
            if len(state.chunks) >= CHUNKS_MAX:
                full.add(node_id)
            wanted.setdefault(node_id, {})[state.partition] = state
        for node_id, states in wanted.items():
            if node_id in full or self._is_asking(node_id):
                continue
            if not self._core.is_reachable(node_id):
                due = min(due, self._unreachable(node_id, states, now))
                continue
            self._send_to(node_id, states, now)
        return due

    def _unreachable(self, node_id: int, states: dict[TopicPartition, TopicPartitionState], now: float) -> float:
        """When to look again at what would be asked of a broker whose connection failed a moment ago."""
        due = self._core.retry_at(node_id)
        for state in states.values():
            if state.preferred_replica == node_id:
                # Nobody has to wait for a replica: its leader has the same.
                self.leave_replica(state, now)
                due = now
        return due

    def _is_asking(self, node_id: int) -> bool:
        # The call itself knows: what is done when it ends may have been interrupted.
        call = self._in_flight.get(node_id)
        return call is not None and not call.done

    def _send_to(self, node_id: int, states: dict[TopicPartition, TopicPartitionState], now: float) -> None:
        session = self._sessions.get(node_id)
        if session is None:
            session = self._sessions[node_id] = FetchSessionHandler(is_kept=self._keeps_sessions)
        view = self._core.view
        wanted = {
            name: Wanted(
                view.topics[name.topic].topic_id,
                state.fetch_offset,
                state.current_epoch,
                self._settings.partition_fetch_bytes,
            )
            for name, state in states.items()
        }
        topics, forgotten, by_id = session.build(wanted)
        rack = self._settings.rack
        if rack and any(state.leader_until > now for state in states.values()):
            # Who does not say where it is gets its answers from the leader itself.
            rack = ""
        request = FetchRequest(
            max_wait_ms=self._settings.fetch_max_wait_ms,
            min_bytes=self._settings.fetch_min_bytes,
            max_bytes=self._settings.fetch_max_bytes,
            isolation_level=self._settings.isolation,
            session_id=session.session_id,
            session_epoch=session.epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
            rack_id=rack,
        )
        call = self._core.submit(
            node_id,
            request,
            lambda call: self._done(node_id, session, states, wanted, call),
            version_max=None if by_id else _VERSION_WITHOUT_TOPIC_IDS,
        )
        self._in_flight[node_id] = call
        session.told()
        for state in states.values():
            state.fetch_call = call

    def _node_for(self, state: TopicPartitionState, now: float) -> int | None:
        """The replica to read from: the one the leader prefers for us (KIP-392), else the leader."""
        if state.preferred_replica is not None:
            if not self._is_online(state.partition, state.preferred_replica):
                self.leave_replica(state, now)
            elif state.preferred_until > now:
                return state.preferred_replica
            state.preferred_replica = None
        leader = self._core.view.leader_of(*state.partition)
        return None if leader is None else leader.id

    def _follow(self, state: TopicPartitionState, node_id: int, replica: int, now: float) -> None:
        """A broker leaves what was asked to a replica that is nearer."""
        leader = self._core.view.leader_of(*state.partition)
        is_told_by_leader = leader is not None and leader.id == node_id and replica != node_id
        if is_told_by_leader and state.leader_until <= now and self._is_online(state.partition, replica):
            state.preferred_replica = replica
            state.preferred_until = now + self._settings.metadata_max_age_ms / 1000
            return
        # There is nobody to go to, and whoever is asked again at once answers the same at once.
        log.debug("%s is not read from broker %s, which broker %s names", state.partition, replica, node_id)
        self.leave_replica(state, now)
        self._back_off(state, now)
        self._core.refresh_metadata()

    def leave_replica(self, state: TopicPartitionState, now: float) -> None:
        """The replica that was read from is of no use: for a while only the leader is asked, and answers itself."""
        state.preferred_replica = None
        state.leader_until = now + min(_LEADER_S * 2**state.replica_failures, _LEADER_S_MAX)
        state.replica_failures = min(state.replica_failures + 1, 10)

    def _is_online(self, partition: TopicPartition, node_id: int) -> bool:
        found = self._view_of(partition)
        # Of a topic that was deleted, nobody is.
        return found is not None and node_id in self._core.view.nodes and node_id not in found.offline_replicas

    def _check_leaders(self) -> bool:
        """After news of the cluster: positions with a known epoch are to be held against a new leader first. Whether
        there are any, now."""
        view = self._core.view
        is_news = view.version != self._seen_version
        began = False
        for state in self._subscriptions.states():
            if (is_news or state.current_epoch == NO_EPOCH) and state.has_position:
                was_validating = state.validating
                self._check_leader(state)
                began |= state.validating and not was_validating
        self._seen_version = view.version
        return began

    def _check_leader(self, state: TopicPartitionState) -> None:
        found = self._view_of(state.partition)
        if found is None or found.leader == NO_NODE:
            return
        if state.is_in_another(self._core.view.topics[state.partition.topic].topic_id):
            # Deleted and created again: what was fetched, and the position itself, are of a log that is gone.
            state.validating = True
            state.drop_fetched()
            return
        if found.leader_epoch == state.current_epoch:
            return
        # It is the position that is held against the new leader. What was fetched beyond it may be cut off by now.
        state.drop_fetched()
        if state.offset_epoch != NO_EPOCH and self._can_validate(found.leader):
            if not state.validating:
                state.validating = True
                state.clear_backoff()
        else:
            state.current_epoch = found.leader_epoch
            state.validating = False

    def _can_validate(self, node_id: int) -> bool:
        connection = self._core.connection(node_id)
        # Not connected yet: asking will tell.
        return connection is None or ApiKey.OFFSET_FOR_LEADER_EPOCH in connection.versions

    def _view_of(self, partition: TopicPartition) -> PartitionView | None:
        topic = self._core.view.topics.get(partition.topic)
        return None if topic is None else topic.partition(partition.partition)

    # --- answers ----------------------------------------------------------------------------------------------------

    def _done(
        self,
        node_id: int,
        session: FetchSessionHandler,
        states: dict[TopicPartition, TopicPartitionState],
        wanted: dict[TopicPartition, Wanted],
        call: Call,
    ) -> None:
        now = self._core.clock.monotonic()
        if call.error is not None:
            self._lost(session, states, call.error, now)
        else:
            response: FetchResponse = call.response
            self.metrics.fetches += 1
            session.answered(response)
            if response.error_code:
                log.info("broker %s refused the fetch session: %s", node_id, error_for(response.error_code))
                if response.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR:
                    self._core.refresh_metadata()
            self._take(node_id, session, states, wanted, response, now)
        self._notify()

    def _lost(
        self,
        session: FetchSessionHandler,
        states: dict[TopicPartition, TopicPartitionState],
        error: HeadraceError,
        now: float,
    ) -> None:
        session.failed()
        log.info("a fetch failed: %s", error)
        self._core.refresh_metadata()
        for state in states.values():
            if state.preferred_replica is not None:
                self.leave_replica(state, now)
            self._back_off(state, now)

    def _take(
        self,
        node_id: int,
        session: FetchSessionHandler,
        states: dict[TopicPartition, TopicPartitionState],
        wanted: dict[TopicPartition, Wanted],
        response: FetchResponse,
        now: float,
    ) -> None:
        for topic in response.responses:
            name = session.topic_name(topic.topic, topic.topic_id)
            if name is None:
                continue
            for data in topic.partitions:
                partition = TopicPartition(name, data.partition_index)
                state = states.get(partition)
                asked = wanted.get(partition)
                if state is None or asked is None or self._subscriptions.get(partition) is not state:
                    continue
                # A seek, a reset or a pause since then makes the answer one to a question that nobody asks any more.
                if not state.has_position or state.validating or state.fetch_offset != asked.fetch_offset:
                    continue
                # And so does a new leader: what the one before it had beyond the position may be cut off by now.
                if state.current_epoch != asked.leader_epoch:
                    continue
                if state.is_in_another(asked.topic_id):
                    continue
                if data.error_code:
                    self._refused(node_id, state, asked, data, response, now)
                else:
                    self._take_partition(node_id, state, asked, data, now)

    def _take_partition(
        self, node_id: int, state: TopicPartitionState, asked: Wanted, data: PartitionData, now: float
    ) -> None:
        state.clear_backoff()
        state.high_watermark = data.high_watermark
        state.last_stable_offset = data.last_stable_offset if data.last_stable_offset >= 0 else None
        if data.log_start_offset >= 0:
            state.log_start_offset = data.log_start_offset
        if data.preferred_read_replica >= 0:
            self._follow(state, node_id, data.preferred_read_replica, now)
        if not data.records:
            return
        if state.preferred_replica == node_id:
            state.replica_failures = 0
        chunk = FetchedChunk(
            state.partition,
            asked.fetch_offset,
            data.records,
            data.aborted_transactions,
            read_committed=self._settings.isolation == READ_COMMITTED,
            check_crcs=self._settings.check_crcs,
        )
        state.append(chunk)

    def _refused(
        self,
        node_id: int,
        state: TopicPartitionState,
        asked: Wanted,
        data: PartitionData,
        response: FetchResponse,
        now: float,
    ) -> None:
        code = data.error_code
        leader = self._core.view.leader_of(*state.partition)
        is_leader = leader is not None and leader.id == node_id
        if state.preferred_replica is not None:
            self.leave_replica(state, now)
        self._back_off(state, now)
        if code in _ASK_METADATA:
            if not self._learn_leader(state.partition, data, response):
                self._core.refresh_metadata()
        elif code in _TRY_AGAIN:
            log.debug("fetching %s: %s", state.partition, ErrorCode(code).name)
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if not is_leader or state.chunks:
                # A follower may lag behind; what is buffered is handed out before the position is in question.
                log.debug("fetching %s: out of range at broker %s", state.partition, node_id)
            elif self._settings.reset is not None:
                log.info("position %s of %s is out of range: resetting", asked.fetch_offset, state.partition)
                state.request_reset(self._settings.reset)
            else:
                self._fail(state, asked, out_of_range({state.partition: asked.fetch_offset}))
        else:
            error = error_for(code)
            self._fail(state, asked, say(error, f"fetching {state.partition} from offset {asked.fetch_offset}"))

    def _fail(self, state: TopicPartitionState, asked: Wanted, error: HeadraceError) -> None:
        """Kept for the next poll, which raises it if the position is still the same."""
        self._errors[state.partition] = (state, asked.fetch_offset, error)

    def _learn_leader(self, partition: TopicPartition, data: PartitionData, response: FetchResponse) -> bool:
        told = data.current_leader
        if told.leader_id < 0:
            return False
        endpoint = next((one for one in response.node_endpoints if one.node_id == told.leader_id), None)
        node = None if endpoint is None else Node(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack)
        if not self._core.view.learn_leader(partition, told.leader_id, told.leader_epoch, node):
            return False
        state = self._subscriptions.get(partition)
        if state is not None:
            state.clear_backoff()
            self._check_leader(state)
        return True

    def _back_off(self, state: TopicPartitionState, now: float) -> None:
        state.retry_at = now + self._settings.retry_backoff.wait_ms(state.failures, self._core.rng) / 1000
        state.failures += 1

    # --- handing out ------------------------------------------------------------------------------------------------

    def raise_errors(self) -> None:
        """Raise what fetching ran into, one at a time, unless a seek or a rebalance has settled it."""
        while self._errors:
            name = next(iter(self._errors))
            state, offset, error = self._errors[name]
            del self._errors[name]
            if self._subscriptions.get(state.partition) is state and state.has_position and state.position == offset:
                raise error

    def next_piece(self, rows_max: int) -> tuple[TopicPartitionState, FetchedChunk, PartitionColumns] | None:
        """The next records of some partition, not yet handed out (see `take`): one chunk after the other, in turn."""
        while True:
            state = self._pick()
            if state is None:
                return None
            chunk = state.chunks[0]
            marks = self.marks
            if marks is not None and (not marks or marks[-1].chunk is not chunk):
                counted = (self.metrics.records_consumed, self.metrics.bytes_consumed)
                marks.append(
                    _Mark(state, chunk, chunk.mark, state.position, state.offset_epoch, state.current_epoch, counted)
                )
            piece = chunk.peek(rows_max)
            if piece is not None:
                return state, chunk, piece
            # Only markers and aborted records: there is nothing to hand out, but the position moves on.
            self._drop(state, chunk)

    def next_chunk(self) -> tuple[TopicPartitionState, FetchedChunk] | None:
        """What a fetch brought for some partition, whole, for who wants it as it is (see `take_whole`)."""
        state = self._pick()
        return None if state is None else (state, state.chunks[0])

    def take_whole(self, state: TopicPartitionState, chunk: FetchedChunk) -> None:
        """All of a chunk was handed out."""
        self._drop(state, chunk)

    def take(self, state: TopicPartitionState, chunk: FetchedChunk, rows: int) -> None:
        """That many records of a piece were handed out (or will be, and `marks` says how it was before)."""
        columns, row = chunk.place
        if columns is not None:
            self.take_to(state, chunk, columns, row + rows)

    def take_to(self, state: TopicPartitionState, chunk: FetchedChunk, columns: Columns, row: int) -> None:
        """Rows of these columns (see `FetchedChunk.place`) before `row` were handed out. Said twice, it is the same."""
        self.metrics.records_consumed += chunk.advance_to(columns, row)
        state.position, state.offset_epoch = chunk.position, chunk.leader_epoch
        if chunk.is_done:
            self._drop(state, chunk)

    def _drop(self, state: TopicPartitionState, chunk: FetchedChunk) -> None:
        state.position = chunk.next_offset
        if chunk.leader_epoch != NO_EPOCH:
            state.offset_epoch = chunk.leader_epoch
        self.metrics.bytes_consumed += chunk.byte_count
        # While its broker is being asked for more, the answer is what everybody waits for.
        self.has_room = self.has_room or not state.is_asked_for
        if state.chunks and state.chunks[0] is chunk:
            state.chunks.popleft()
        self._subscriptions.move_to_end(state)
        self._current = None

    def take_back(self) -> None:
        """A poll took records and did not give them to the application: the next one does."""
        marks = self.marks
        if marks is None:
            return
        for mark in reversed(marks):
            state: TopicPartitionState = mark.state
            chunk = mark.chunk
            if self._subscriptions.get(state.partition) is not state:
                continue
            chunk.rewind(mark.place)
            state.position, state.offset_epoch = mark.position, mark.offset_epoch
            if mark.current_epoch != state.current_epoch or state.validating:
                # There is a new leader since: fetched again, from there.
                state.drop_fetched()
            elif chunk not in state.chunks:
                # It is there if this was interrupted before, and done again.
                state.chunks.appendleft(chunk)
            self.metrics.records_consumed, self.metrics.bytes_consumed = mark.metrics
        self.marks = None
        self._current = None

    def _pick(self) -> TopicPartitionState | None:
        current = self._current
        if (
            current is not None
            and current.chunks
            and current.is_fetchable
            and self._subscriptions.get(current.partition) is current
        ):
            return current
        self._current = next((s for s in self._subscriptions.states() if s.chunks and s.is_fetchable), None)
        return self._current

    # --- the end ----------------------------------------------------------------------------------------------------

    def close_sessions(self) -> list[Call]:
        """Tell the brokers that their sessions are not needed any more; nobody has to wait for the answers."""
        calls: list[Call] = []
        for node_id, session in self._sessions.items():
            final = session.final
            if final is None or self._is_asking(node_id) or self._core.connection(node_id) is None:
                continue
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                session_id=final[0],
                session_epoch=final[1],
                topics=[],
                forgotten_topics_data=[],
            )
            calls.append(self._core.submit(node_id, request, timeout_ms=_CLOSE_TIMEOUT_MS))
        self._sessions.clear()
        return calls
