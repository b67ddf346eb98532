"""Fetches under way: where the data of their partitions is, when an answer is due, what it says.

Nothing is read from disk until it is clear that an answer is due; until then only positions are looked at. What depends
on the cluster (which replica is here, who leads it, how far readers may go) is looked up on the event loop; a disk
thread only finds positions and reads bytes. What cannot be read is an error of its partition, never of the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from bisect import bisect_right
from dataclasses import dataclass

from headrace.broker.partitions.fetch_reads import (
    NO_DIVERGENCE,
    NO_LEADER,
    NO_SNAPSHOT,
    Committed,
    Read,
    cannot_be_read,
    has_news,
    is_quiet,
    remember,
    turn_of,
    unread,
)
from headrace.broker.partitions.fetch_sessions import (
    NO_SESSION,
    FetchSession,
    FetchSessions,
    PartitionKey,
    SessionPartition,
    weight_of,
)
from headrace.broker.partitions.leaders import Leaders
from headrace.broker.partitions.leadership import NO_LEADER_EPOCH, Isolation
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.purgatory import Waiter, Watchers
from headrace.broker.partitions.replicas import Replicas
from headrace.broker.replication.coming import ComingFollowers
from headrace.broker.replication.selection import nearest
from headrace.broker.replication.throttles import Throttles
from headrace.broker.replication.truncation import NotInLogError, divergence
from headrace.broker.requests.dispatch import RequestContext
from headrace.broker.requests.rights import Operation, Resource
from headrace.broker.view import ClusterView
from headrace.errors import ErrorCode, KafkaError, NotLeaderOrFollowerError, UnknownTopicOrPartitionError
from headrace.log import Slice, WouldBlockError
from headrace.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from headrace.records import CorruptBatchError
from headrace.runtime import DiskError, Runtime

FOLLOWER_READS_SINCE_VERSION = 11
TOPIC_IDS_SINCE_VERSION = 13
REPLICA_STATE_SINCE_VERSION = 15
LEADER_SINCE_VERSION = 16
# Up to here a slice is read before the answer is made; larger ones are read while it is sent.
READ_AHEAD_BYTES = 32 * 1024
# And so much over all partitions of a fetch: what waits for a slow reader is memory.
READ_AHEAD_ALL_BYTES = 1024 * 1024
_NOTHING: dict[PartitionKey, SessionPartition] = {}
_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_TELL_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def replica_id(request: FetchRequest, version: int) -> int:
    """The broker that fetches as a follower; negative for a consumer."""
    return request.replica_id if version < REPLICA_STATE_SINCE_VERSION else request.replica_state.replica_id


@dataclass(frozen=True, slots=True)
class FetchRooms:
    """Where fetches look."""

    runtime: Runtime
    cluster: ClusterView
    replicas: Replicas
    leaders: Leaders
    sessions: FetchSessions
    throttles: Throttles
    coming: ComingFollowers


class Fetching:
    """One fetch under way."""

    __slots__ = (
        "by_id",
        "bytes_max",
        "bytes_min",
        "context",
        "has_unknown",
        "is_checked",
        "is_looked_at",
        "isolation",
        "looking",
        "meter",
        "opens_session",
        "replica_epoch",
        "replica_id",
        "request",
        "rights_key",
        "rooms",
        "session",
        "throttle",
        "wanted",
    )

    def __init__(
        self,
        rooms: FetchRooms,
        context: RequestContext,
        request: FetchRequest,
        wanted: list[SessionPartition],
        session: FetchSession | None,
        opens_session: bool,
    ) -> None:
        self.rooms = rooms
        self.context = context
        self.request = request
        #: What is looked at: of a session only what may have news.
        self.wanted = wanted
        self.session = session
        self.looking: dict[PartitionKey, SessionPartition] = {} if session is not None else _NOTHING
        self.opens_session = opens_session
        self.by_id = context.api_version >= TOPIC_IDS_SINCE_VERSION
        self.replica_id = replica_id(request, context.api_version)
        self.replica_epoch = request.replica_state.replica_epoch if self.replica_id >= 0 else -1
        #: A follower is checked as a whole, before it comes to this.
        rights = context.connection.rights
        self.rights_key = None if rights is None else rights.current_key()
        self.is_checked = self.replica_id < 0 and context.connection.access.authorizer is not None
        self.throttle = rooms.throttles.leader if self.replica_id >= 0 else None
        #: What a follower's fetch says of it is noted once, however often it is looked at while it waits.
        self.is_looked_at = self.has_unknown = False
        self.isolation = Isolation.READ_UNCOMMITTED if request.isolation_level == 0 else Isolation.READ_COMMITTED
        self.bytes_max = min(request.max_bytes, rooms.cluster.config.get_int("fetch.max.bytes"))
        #: What counts what a consumer is given; None: nothing does.
        self.meter = context.meter if self.replica_id < 0 else None
        if self.meter is not None and self.meter.consumed_max is not None:
            self.bytes_max = min(self.bytes_max, self.meter.consumed_max)
        # More than an answer may hold is not worth waiting for.
        self.bytes_min = min(request.min_bytes, self.bytes_max)

    def has_something_to_read(self) -> bool:
        partitions = self.rooms.replicas.partitions
        wanted = self.wanted if self.session is None else self.session.partitions.values()
        return any((one.topic, one.partition) in partitions for one in wanted)

    @property
    def has_quiet(self) -> bool:
        """Whether the session has partitions with nothing to give, which are not looked at."""
        return self.session is not None and len(self.session.partitions) > len(self.looking)

    # --- looking: positions only

    def look(self) -> list[Read]:
        """What every partition is, as the cluster has it, and how far its log may be read. On the event loop."""
        session = self.session
        if session is not None and session.changed:
            self._take_changed(session)
        reads = [self._look_at(wanted) for wanted in self.wanted]
        self.is_looked_at = True
        if self.has_unknown and len(reads) > 1:
            # Behind all that can be read, as in Kafka.
            reads.sort(key=lambda read: read.data.error_code in _UNKNOWN)
        return reads

    def _take_changed(self, session: FetchSession) -> None:
        """From here on what happens is news for the next look."""
        looking, partitions = self.looking, session.partitions
        for key in session.changed:
            found = partitions.get(key)
            if found is not None:
                looking[key] = found
        session.changed = {}
        if len(looking) > 1:
            self.wanted = sorted(looking.values(), key=turn_of)
        else:
            self.wanted = list(looking.values())

    def give_back(self) -> None:
        """This fetch ends without an answer: the next one looks at what this one was to tell."""
        if self.session is not None:
            self.session.changed.update(dict.fromkeys(self.looking))

    def _look_at(self, wanted: SessionPartition) -> Read:
        data = PartitionData(
            partition_index=wanted.partition,
            high_watermark=-1,
            records=b"",
            diverging_epoch=NO_DIVERGENCE,
            current_leader=NO_LEADER,
            snapshot_id=NO_SNAPSHOT,
            aborted_transactions=None,
        )
        read = Read(wanted, data)
        if self.by_id:
            # A topic that was unknown may have come, and one that was known may be gone.
            name = self.rooms.cluster.topic_name(wanted.topic_id)
            if name is None:
                self._refuse_id(wanted, data)
                return read
            wanted.topic = name
        if self.is_checked and not self.context.is_allowed(Operation.READ, Resource.TOPIC, wanted.topic):
            data.error_code, data.aborted_transactions = ErrorCode.TOPIC_AUTHORIZATION_FAILED, []
            return read
        try:
            partition = self.rooms.replicas.get(wanted.topic, wanted.partition)
        except KafkaError as error:
            self._refuse(wanted, data, error)
            return read
        try:
            partition.check_leader(max(wanted.current_leader_epoch, NO_LEADER_EPOCH))
            if self.replica_id >= 0:
                partition.check_follower(self.replica_id, self.replica_epoch, wanted.current_leader_epoch)
        except KafkaError as error:
            if not self._is_followed_here(partition, error):
                data.error_code = error.code
                if error.code in _TELL_LEADER:
                    self._tell_leader(wanted, data)
                return read
        read.partition = partition
        kept = wanted.kept
        if kept is not None and self.session is not None:
            # Before anything is looked at, so that nothing happens unseen.
            watchers = partition.append_watchers if self.replica_id >= 0 else partition.watchers
            if kept.watch is None or kept.watch.watchers is not watchers:
                self.session.watch(kept, watchers)
        log = read.log = partition.log
        if partition.state is not None and self.replica_id < 0 and self.request.rack_id:
            chosen = nearest(self.rooms.cluster, partition, wanted.fetch_offset, self.request.rack_id)
            if chosen is not None:
                # Nothing is read here: the consumer goes to that replica.
                data.preferred_read_replica = chosen
                read.log = None
                data.log_start_offset, data.last_stable_offset, data.high_watermark = log.offsets()
                return read
        if wanted.last_fetched_epoch >= 0:
            try:
                reader_start = wanted.log_start_offset if self.replica_id >= 0 else None
                found = divergence(
                    log, partition.leader_epoch, wanted.fetch_offset, wanted.last_fetched_epoch, reader_start
                )
                if found is not None:
                    data.diverging_epoch = EpochEndOffset(epoch=found.epoch, end_offset=found.end_offset)
            except NotInLogError:
                data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        if self.replica_id >= 0:
            self._note_follower(partition, wanted, data)
        read.start_offset, read.stable_offset, read.high_watermark = log.offsets()
        if self.replica_id >= 0:
            read.limit = log.end_offset
            if self.throttle is not None and self.throttle.holds_back(partition, self.replica_id):
                read.is_held_back, read.limit = True, min(read.limit, wanted.fetch_offset)
        else:
            read.limit = read.high_watermark if self.isolation is Isolation.READ_UNCOMMITTED else read.stable_offset
        return read

    def _refuse_id(self, wanted: SessionPartition, data: PartitionData) -> None:
        """No topic has this id; a session may remember the name of the one that had it."""
        if wanted.topic in self.rooms.cluster.image.topics:
            data.error_code = ErrorCode.INCONSISTENT_TOPIC_ID
            return
        self.has_unknown = True
        known = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if wanted.topic else ErrorCode.UNKNOWN_TOPIC_ID
        data.error_code, data.aborted_transactions = known, []

    def _refuse(self, wanted: SessionPartition, data: PartitionData, error: KafkaError) -> None:
        """There is no replica here that could be read."""
        if isinstance(error, UnknownTopicOrPartitionError):
            error = self.rooms.leaders.not_here(wanted.topic, wanted.partition, error)
        data.error_code = error.code
        if isinstance(error, NotLeaderOrFollowerError):
            self._tell_leader(wanted, data)
        else:
            data.aborted_transactions = []
            self.has_unknown = True

    def _is_followed_here(self, partition: Partition, error: KafkaError) -> bool:
        """Whether a follower answers in the leader's place: consumers that know what that means."""
        return (
            isinstance(error, NotLeaderOrFollowerError)
            and self.replica_id < 0
            and self.context.api_version >= FOLLOWER_READS_SINCE_VERSION
            and partition.is_following
        )

    def _tell_leader(self, wanted: SessionPartition, data: PartitionData) -> None:
        if self.context.api_version >= LEADER_SINCE_VERSION:
            known = self.rooms.leaders.leader_and_epoch(wanted.topic, wanted.partition)
            if known is not None:
                data.current_leader = LeaderIdAndEpoch(leader_id=known[0], leader_epoch=known[1])

    def _note_follower(self, partition: Partition, wanted: SessionPartition, data: PartitionData) -> None:
        """What a follower asks for tells what it has, unless its log has to be cut first."""
        log, offset = partition.log, wanted.fetch_offset
        is_common = not data.error_code and data.diverging_epoch is NO_DIVERGENCE
        if is_common and not self.is_looked_at and log.start_offset <= offset <= log.end_offset:
            partition.fetched(self.replica_id, self.replica_epoch, offset, wanted.log_start_offset)

    def locate(self, reads: list[Read], *, nowait: bool) -> None:
        """Where the data of every partition is, within the limits. Nothing is read yet.

        With `nowait`, `WouldBlockError` when the disk is needed. Then it is to be called again, off the loop.
        """
        left = self.bytes_max
        at_least_one = True
        for read in reads:
            log, data, wanted = read.log, read.data, read.wanted
            if log is None or data.error_code:
                continue
            if data.diverging_epoch is NO_DIVERGENCE:
                bytes_max = min(wanted.partition_max_bytes, left)
                try:
                    found = log.locate(
                        wanted.fetch_offset,
                        max(bytes_max, 0),
                        limit=read.limit,
                        at_least_one=at_least_one or bytes_max < 0,
                        nowait=nowait,
                    )
                except KafkaError as error:
                    data.error_code = error.code
                    continue
                except (DiskError, CorruptBatchError) as error:
                    cannot_be_read(read, error)
                    continue
                if bytes_max < 0 and found.length:
                    # As in Kafka, which fails to read so little; with nothing to read it does not come to that.
                    data.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
                    continue
                read.slice = found
                if found.length:
                    left = max(0, left - found.length)
                    at_least_one = False
            data.high_watermark = read.high_watermark
            data.last_stable_offset = read.stable_offset
            data.log_start_offset = read.start_offset

    def is_due(self, reads: list[Read]) -> bool:
        """Whether to answer now: enough bytes, an error, a divergence, nothing asked for, or nothing to wait for."""
        if self.request.max_wait_ms <= 0:
            return True
        has_quiet = self.has_quiet
        if not reads and not has_quiet:
            return True
        available = 0
        may_grow = has_quiet
        for read in reads:
            data = read.data
            if data.error_code or data.diverging_epoch is not NO_DIVERGENCE or data.preferred_read_replica >= 0:
                return True
            if self.replica_id >= 0 and 0 <= read.wanted.log_start_offset < read.start_offset:
                # It still has records that are deleted here, and could lead with them before it hears of it.
                return True
            length = 0 if read.slice is None else read.slice.length
            available += length
            may_grow = may_grow or length == 0 or length < read.wanted.partition_max_bytes
        return available >= self.bytes_min or not may_grow or any(map(self._ends_early, reads))

    def _ends_early(self, read: Read) -> bool:
        """Whether more can be read after the segment that a read has come to the end of, as in no other answer."""
        found, partition = read.slice, read.partition
        if found is None or not found.length or partition is None:
            return False
        bases, base = partition.log.view.bases, found.view.bases[found.place]
        if base >= bases[-1]:
            return False
        following = bases[bisect_right(bases, base)]
        end = partition.log.end_offset if self.replica_id >= 0 else partition.end_for(self.isolation)
        return end > following

    # --- waiting and reading

    async def finish(self, wait_s: float) -> FetchResponse:
        """Wait until there is enough or the time is over, then read off the loop what is not in memory."""
        try:
            reads = await self._wait(wait_s)
            try:
                self.load(reads, nowait=True)
            except WouldBlockError:
                await self.rooms.runtime.offload(functools.partial(self.load, reads, nowait=False))
            return self.answer(reads)
        except BaseException:
            self.give_back()
            raise

    async def _wait(self, wait_s: float) -> list[Read]:
        loop, session, coming = asyncio.get_running_loop(), self.session, self.rooms.coming
        began = loop.time()
        deadline = began + (coming.wait_s(self.replica_id, wait_s) if self.replica_id >= 0 else wait_s)
        while True:
            on_loop = True
            reads = self.look()
            try:
                self.locate(reads, nowait=True)
            except WouldBlockError:
                on_loop = False
                await self.rooms.runtime.offload(functools.partial(self.locate, reads, nowait=False))
            remaining_s = deadline - loop.time()
            if remaining_s <= 0 or self.is_due(reads) or coming.expected_since(self.replica_id, began):
                return reads
            if session is not None and session.is_over:
                return reads
            if session is not None and session.changed:
                continue  # while it was looked at
            if not on_loop and any(map(self._has_moved, reads)):
                continue  # nobody would wake us for that
            readable = None if self.isolation is Isolation.READ_UNCOMMITTED else Committed(reads)
            waiter = Waiter(self._bytes_missing(reads), readable)
            with coming.waiting(self.replica_id, waiter) if self.replica_id >= 0 else contextlib.nullcontext():
                if session is None:
                    await waiter.wait(self._watchers(reads), remaining_s)
                    continue
                session.waiter = waiter
                try:
                    await waiter.wait((), remaining_s)
                finally:
                    if session.waiter is waiter:
                        session.waiter = None

    def _watchers(self, reads: list[Read]) -> list[Watchers]:
        """Those whose bytes this fetch waits for: followers wait for appends, consumers for what is committed."""
        return [self._watchers_of(read.partition) for read in reads if read.partition is not None]

    def _watchers_of(self, partition: Partition) -> Watchers:
        return partition.append_watchers if self.replica_id >= 0 else partition.watchers

    def _bytes_missing(self, reads: list[Read]) -> int:
        """How many bytes have to come before an answer can be due: what is wanted, or all that the limits allow."""
        available = room = 0
        for read in reads:
            length = 0 if read.slice is None else read.slice.length
            available += length
            if length == 0 or length < read.wanted.partition_max_bytes:
                room += max(1, read.wanted.partition_max_bytes - length)
        missing = self.bytes_min - available
        return missing if self.has_quiet else min(missing, room)

    def _has_moved(self, read: Read) -> bool:
        """Whether a partition is no longer as it was when it was looked at."""
        wanted, data, partition = read.wanted, read.data, read.partition
        if partition is None or self.rooms.replicas.partitions.get((wanted.topic, wanted.partition)) is not partition:
            return True
        log = partition.log
        return (
            partition.is_offline
            or (self.replica_id >= 0 and log.end_offset != read.limit and not read.is_held_back)
            or log.high_watermark != data.high_watermark
            or log.last_stable_offset != data.last_stable_offset
            or log.start_offset != data.log_start_offset
        )

    def load(self, reads: list[Read], *, nowait: bool) -> None:
        """Read what the answer will have. With `nowait`, `WouldBlockError` when something is not in memory."""
        ahead = 0
        for read in reads:
            found = read.slice
            if found is None:
                continue
            try:
                if self.isolation is not Isolation.READ_UNCOMMITTED:
                    self._find_aborted(read, found, nowait=nowait)
                if not found.length or read.data.records:
                    continue
                ahead += found.length
                if found.length > READ_AHEAD_BYTES or ahead > READ_AHEAD_ALL_BYTES:
                    read.data.records = unread(found)
                elif nowait:
                    data = found.file.read_nowait(found.position, found.length)
                    if data is None:
                        raise WouldBlockError
                    read.take(found, data)
                else:
                    read.take(found, found.file.read(found.position, found.length))
            except (DiskError, CorruptBatchError) as error:
                cannot_be_read(read, error)

    # --- answering

    def answer(self, reads: list[Read]) -> FetchResponse:
        if self.meter is not None:
            given = sum(read.slice.length for read in reads if read.slice is not None)
            throttle_s = self.meter.held_back_s(given)
            if throttle_s > 0:
                # As in Kafka it is given nothing, and its session is as it was.
                self.context.throttle_s = throttle_s
                self.give_back()
                return FetchResponse(session_id=NO_SESSION if self.session is None else self.session.session_id)
        session, session_id = self.session, NO_SESSION
        if self.opens_session:
            sessions = self.rooms.sessions
            weight = sum(weight_of(wanted.topic) for wanted in self.wanted)
            session = sessions.create(self.by_id, self.rooms.runtime.clock.now_ms(), weight)
            if session is not None:
                session.rights_key = self.rights_key
                for wanted in self.wanted:
                    session.put(("" if self.by_id else wanted.topic, wanted.topic_id, wanted.partition), wanted)
                sessions.has_room(session)
        if session is not None:
            session_id = session.session_id
        incremental = self.session is not None
        response = FetchResponse(session_id=session_id)
        topic: FetchableTopicResponse | None = None
        last: str | bytes = ""
        tells_leader = False
        for read in reads:
            wanted, data = read.wanted, read.data
            if session is not None:
                if incremental and not has_news(read):
                    continue
                remember(read)
            name = wanted.topic_id if self.by_id else wanted.topic
            if topic is None or name != last:
                topic, last = FetchableTopicResponse(topic=wanted.topic, topic_id=wanted.topic_id, partitions=[]), name
                response.responses.append(topic)
            topic.partitions.append(data)
            if read.slice is not None and read.partition is not None:
                if self.replica_id < 0:
                    read.partition.traffic.bytes_out += read.slice.length
                else:
                    read.partition.traffic.replication_bytes_out += read.slice.length
                    if self.throttle is not None:
                        self.throttle.count(read.partition, read.slice.length)
            if data.error_code in _TELL_LEADER:
                tells_leader = True
        if incremental and session is not None:
            self._settle(session, reads)
        if tells_leader:
            response.node_endpoints = self._new_leaders(reads)
        return response

    def _settle(self, session: FetchSession, reads: list[Read]) -> None:
        """What has nothing to give is not looked at before something happens to it; the rest is, with the next fetch.

        Partitions that gave data go to the end, so that the others come first next time and none starves.
        """
        for read in reads:
            kept = read.wanted.kept
            if kept is None:
                continue
            if read.data.records:
                kept.turn = session.next_turn()
            elif is_quiet(read):
                continue
            if kept.key in session.partitions:
                session.changed[kept.key] = None

    def _new_leaders(self, reads: list[Read]) -> list[NodeEndpoint]:
        """Where the leaders are that this answer sends the client to."""
        if self.replica_id >= 0:
            return []
        told = {read.data.current_leader.leader_id for read in reads if read.data.error_code in _TELL_LEADER}
        return [
            NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in self.rooms.leaders.addresses(self.context.listener, told)
        ]

    def _find_aborted(self, read: Read, found: Slice, *, nowait: bool) -> None:
        if read.log is None:
            return
        aborted = read.log.aborted_transactions(read.wanted.fetch_offset, found, nowait=nowait)
        read.data.aborted_transactions = [
            AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset) for one in aborted
        ]
