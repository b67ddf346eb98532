"""Fetching without I/O: which broker is asked for what, what an answer means, and records handed out from what came.

A partition may have one fetch read by the caller and one more on its way or waiting, so that the next records are there
when the caller has processed the last ones. While a broker's partition has two waiting, that broker is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.client.chunks import Chunk
from headrace.client.client_core import ClientCore
from headrace.client.cluster_view import NO_NODE, PartitionView
from headrace.client.consumer_config import READ_COMMITTED, ConsumerSettings
from headrace.client.consumer_errors import OffsetsOutOfRangeError, say
from headrace.client.consumer_records import PartitionColumns
from headrace.client.fetch_session import FetchSession, Wanted
from headrace.client.subscription_state import NO_EPOCH, PartitionState, Subscriptions
from headrace.errors import ErrorCode, HeadraceError, error_for
from headrace.net.connection import Call
from headrace.net.node import Node
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.client.consumer")

CHUNKS_MAX = 2
_VERSION_WITHOUT_TOPIC_IDS = 12
_CLOSE_TIMEOUT_MS = 1_000

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


class Fetcher:
    """Keeps data coming for the partitions that can be fetched."""

    def __init__(
        self, core: ClientCore, subscriptions: Subscriptions, settings: ConsumerSettings, notify: Callable[[], None]
    ) -> None:
        self.metrics = FetchMetrics()
        self._core = core
        self._subscriptions = subscriptions
        self._settings = settings
        self._notify = notify
        self._sessions: dict[int, FetchSession] = {}
        self._in_flight: dict[int, dict[TopicPartition, PartitionState]] = {}
        self._seen_version = -1
        self._errors: dict[TopicPartition, tuple[PartitionState, int, HeadraceError]] = {}
        self._current: PartitionState | None = None
        self.has_room = False
        """Whether something was handed out to its end since brokers were last asked, so that more may be asked for."""

    # --- asking -----------------------------------------------------------------------------------------------------

    def send(self, now: float) -> float:
        """Ask every broker that can be asked. When to look again, if nothing arrives before."""
        self.has_room = False
        self._check_leaders()
        wanted: dict[int, dict[TopicPartition, PartitionState]] = {}
        full: set[int] = set()
        due = float("inf")
        for state in self._subscriptions.states():
            if not state.is_fetchable:
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
            if node_id in self._in_flight or node_id in full:
                continue
            if not self._core.is_reachable(node_id):
                due = min(due, self._core.retry_at(node_id))
                continue
            self._send_to(node_id, states)
        return due

    def _send_to(self, node_id: int, states: dict[TopicPartition, PartitionState]) -> None:
        session = self._sessions.setdefault(node_id, FetchSession())
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
        request = FetchRequest(
            max_wait_ms=self._settings.fetch_max_wait_ms,
            min_bytes=self._settings.fetch_min_bytes,
            max_bytes=self._settings.fetch_max_bytes,
            isolation_level=self._settings.isolation,
            session_id=session.session_id,
            session_epoch=session.epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
            rack_id=self._settings.rack,
        )
        for state in states.values():
            state.in_flight = True
        self._in_flight[node_id] = states
        self._core.submit(
            node_id,
            request,
            lambda call: self._done(node_id, session, states, wanted, call),
            version_max=None if by_id else _VERSION_WITHOUT_TOPIC_IDS,
        )

    def _node_for(self, state: PartitionState, now: float) -> int | None:
        """The replica to read from: the one the leader prefers for us (KIP-392), else the leader."""
        if state.preferred_replica is not None:
            if state.preferred_until > now and state.preferred_replica in self._core.view.nodes:
                return state.preferred_replica
            state.preferred_replica = None
        leader = self._core.view.leader_of(*state.partition)
        return None if leader is None else leader.id

    def _check_leaders(self) -> None:
        """After news of the cluster: positions with a known epoch are to be held against a new leader first."""
        view = self._core.view
        if view.version == self._seen_version:
            for state in self._subscriptions.states():
                if state.current_epoch == NO_EPOCH and state.has_position:
                    self._check_leader(state)
            return
        self._seen_version = view.version
        for state in self._subscriptions.states():
            if state.has_position:
                self._check_leader(state)

    def _check_leader(self, state: PartitionState) -> None:
        found = self._view_of(state.partition)
        if found is None or found.leader == NO_NODE or found.leader_epoch <= state.current_epoch:
            return
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
        session: FetchSession,
        states: dict[TopicPartition, PartitionState],
        wanted: dict[TopicPartition, Wanted],
        call: Call,
    ) -> None:
        self._in_flight.pop(node_id, None)
        for state in states.values():
            state.in_flight = False
        now = self._core.clock.monotonic()
        if call.error is not None:
            self._lost(session, states, call.error, now)
        else:
            response: FetchResponse = call.response
            self.metrics.fetches += 1
            session.answered(response)
            if response.error_code:
                log.info("broker %s refused the fetch session: %s", node_id, ErrorCode(response.error_code).name)
                if response.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR:
                    self._core.refresh_metadata()
            self._take(session, states, wanted, response, now)
        self._notify()

    def _lost(
        self, session: FetchSession, states: dict[TopicPartition, PartitionState], error: HeadraceError, now: float
    ) -> None:
        session.failed()
        log.info("a fetch failed: %s", error)
        self._core.refresh_metadata()
        for state in states.values():
            state.preferred_replica = None
            self._back_off(state, now)

    def _take(
        self,
        session: FetchSession,
        states: dict[TopicPartition, PartitionState],
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
                self._take_partition(state, asked, data, response, now)

    def _take_partition(
        self, state: PartitionState, asked: Wanted, data: PartitionData, response: FetchResponse, now: float
    ) -> None:
        if data.error_code:
            self._refused(state, asked, data, response, now)
            return
        state.clear_backoff()
        state.high_watermark = data.high_watermark
        state.last_stable_offset = data.last_stable_offset if data.last_stable_offset >= 0 else None
        if data.log_start_offset >= 0:
            state.log_start_offset = data.log_start_offset
        if data.preferred_read_replica >= 0:
            state.preferred_replica = data.preferred_read_replica
            state.preferred_until = now + self._settings.metadata_max_age_ms / 1000
        if not data.records:
            return
        chunk = Chunk(
            state.partition,
            asked.fetch_offset,
            data.records,
            data.aborted_transactions,
            read_committed=self._settings.isolation == READ_COMMITTED,
            check_crcs=self._settings.check_crcs,
        )
        state.fetch_offset = chunk.next_offset
        state.chunks.append(chunk)

    def _refused(
        self, state: PartitionState, asked: Wanted, data: PartitionData, response: FetchResponse, now: float
    ) -> None:
        code = data.error_code
        was_preferred = state.preferred_replica is not None
        state.preferred_replica = None
        self._back_off(state, now)
        if code in _ASK_METADATA:
            if not self._learn_leader(state.partition, data, response):
                self._core.refresh_metadata()
        elif code in _TRY_AGAIN:
            log.debug("fetching %s: %s", state.partition, ErrorCode(code).name)
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            state.clear_backoff()
            if was_preferred or state.chunks:
                # A follower may lag behind; what is buffered is handed out before the position is in question.
                self._back_off(state, now)
            elif self._settings.reset is not None:
                log.info("position %s of %s is out of range: resetting", asked.fetch_offset, state.partition)
                state.request_reset(self._settings.reset)
            else:
                self._fail(state, asked, OffsetsOutOfRangeError({state.partition: asked.fetch_offset}))
        else:
            error = error_for(code)
            self._fail(state, asked, say(error, f"fetching {state.partition} from offset {asked.fetch_offset}"))

    def _fail(self, state: PartitionState, asked: Wanted, error: HeadraceError) -> None:
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

    def _back_off(self, state: PartitionState, now: float) -> None:
        state.retry_at = now + self._settings.retry_backoff.wait_ms(state.failures, self._core.rng) / 1000
        state.failures += 1

    # --- handing out ------------------------------------------------------------------------------------------------

    def raise_errors(self) -> None:
        """Raise what fetching ran into, one at a time, unless a seek or a rebalance has settled it."""
        while self._errors:
            _, (state, offset, error) = self._errors.popitem()
            if self._subscriptions.get(state.partition) is state and state.has_position and state.position == offset:
                raise error

    def has_data(self) -> bool:
        return bool(self._errors) or any(state.chunks and state.is_fetchable for state in self._subscriptions.states())

    def next_piece(self, rows_max: int) -> tuple[PartitionState, Chunk, PartitionColumns] | None:
        """The next records of some partition, not yet handed out (see `take`): one chunk after the other, in turn."""
        while True:
            state = self._pick()
            if state is None:
                return None
            chunk = state.chunks[0]
            piece = chunk.peek(rows_max)
            if piece is not None:
                return state, chunk, piece
            # Only markers and aborted records: there is nothing to hand out, but the position moves on.
            self._drop(state, chunk)

    def take(self, state: PartitionState, chunk: Chunk, rows: int) -> None:
        """That many records of a piece were handed out."""
        chunk.advance(rows)
        state.position = chunk.position
        state.offset_epoch = chunk.leader_epoch
        self.metrics.records_consumed += rows
        if chunk.is_done:
            self._drop(state, chunk)

    def _drop(self, state: PartitionState, chunk: Chunk) -> None:
        state.position = chunk.next_offset
        if chunk.leader_epoch != NO_EPOCH:
            state.offset_epoch = chunk.leader_epoch
        self.metrics.bytes_consumed += chunk.byte_count
        # While its broker is being asked for more, the answer is what everybody waits for.
        self.has_room = self.has_room or not state.in_flight
        if state.chunks and state.chunks[0] is chunk:
            state.chunks.popleft()
        self._subscriptions.move_to_end(state)
        self._current = None

    def _pick(self) -> PartitionState | None:
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
            if final is None or node_id in self._in_flight or self._core.connection(node_id) is None:
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
