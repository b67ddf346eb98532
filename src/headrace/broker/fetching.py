"""Fetches under way: which partitions they are about, where the data is, when an answer is due, what it says.

Nothing is read from disk until it is clear that an answer is due; until then only positions are looked at. What depends
on the cluster (which replica is here, who leads it, how far readers may go) is looked up on the event loop; a disk
thread only finds positions and reads bytes. What cannot be read is an error of its partition, never of the connection.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from bisect import bisect_right
from typing import TYPE_CHECKING, cast

from headrace.broker.dispatch import RequestContext
from headrace.broker.fetch_sessions import (
    FINAL_EPOCH,
    FULL_EPOCH,
    NO_SESSION,
    FetchSession,
    PartitionKey,
    SessionPartition,
    next_epoch,
)
from headrace.broker.leaders import addresses, leader_and_epoch, partition_here
from headrace.broker.partition import NO_LEADER_EPOCH, Isolation, Partition
from headrace.broker.purgatory import Waiter, Watchers
from headrace.broker.replication.selection import nearest
from headrace.broker.replication.truncation import NotInLog, divergence
from headrace.errors import ErrorCode, KafkaError, NotLeaderOrFollowerError
from headrace.log import Log, Slice, WouldBlock
from headrace.net.outbox import FilePart
from headrace.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)
from headrace.records import CorruptBatch
from headrace.runtime import Buffer, DiskError

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

logger = logging.getLogger("headrace.broker.fetch")

FOLLOWER_READS_SINCE_VERSION = 11
TOPIC_IDS_SINCE_VERSION = 13
REPLICA_STATE_SINCE_VERSION = 15
LEADER_SINCE_VERSION = 16
# Up to here a slice is read before the answer is made; larger ones are read while it is sent.
READ_AHEAD_BYTES = 32 * 1024
# And so much over all partitions of a fetch: what waits for a slow reader is memory.
READ_AHEAD_ALL_BYTES = 1024 * 1024
# How much may wait behind a transaction that is open: nobody has counted.
UNKNOWN_BYTES = 2**62
_TELL_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


# What is told where there is nothing to tell. They are never changed, so that all answers can share them.
_NO_DIVERGENCE, _NO_LEADER, _NO_SNAPSHOT = EpochEndOffset(), LeaderIdAndEpoch(), SnapshotId()


class Read:
    """What one partition's part of the answer will be: an error, or a place on disk still to be read.

    The log and its offsets are noted before anything else: off the loop they may move meanwhile.
    """

    __slots__ = (
        "data",
        "high_watermark",
        "limit",
        "log",
        "partition",
        "slice",
        "stable_offset",
        "start_offset",
        "wanted",
    )

    def __init__(self, wanted: SessionPartition, data: PartitionData) -> None:
        self.wanted = wanted
        self.data = data
        self.partition: Partition | None = None
        #: Set when there is something to be looked for in it.
        self.log: Log | None = None
        self.slice: Slice | None = None
        self.high_watermark = self.stable_offset = self.start_offset = self.limit = -1


def replica_id(request: FetchRequest, version: int) -> int:
    """The broker that fetches as a follower; negative for a consumer."""
    return request.replica_id if version < REPLICA_STATE_SINCE_VERSION else request.replica_state.replica_id


def open_fetch(broker: Broker, context: RequestContext, request: FetchRequest) -> Fetching | FetchResponse:
    """Find out which partitions this fetch is about: those it names, or those its session remembers."""
    by_id = context.api_version >= TOPIC_IDS_SINCE_VERSION
    wanted = _named_partitions(broker, request, by_id)
    sessions = broker.fetch_sessions
    if request.session_epoch in (FULL_EPOCH, FINAL_EPOCH):
        if request.session_id != NO_SESSION:
            sessions.remove(request.session_id)
        opens = request.session_epoch == FULL_EPOCH and context.api_version >= 7
        return Fetching(broker, context, request, list(wanted.values()), None, opens_session=opens)
    now_ms = broker.runtime.clock.now_ms()
    found = sessions.find(request.session_id, request.session_epoch, by_id)
    if isinstance(found, ErrorCode):
        return FetchResponse(error_code=found)
    _update_session(broker, found, wanted, request, by_id)
    sessions.touch(found, now_ms)
    if not sessions.has_room(found):
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if not found.partitions:
        sessions.remove(found.session_id)
        return FetchResponse()
    found.epoch = next_epoch(found.epoch)
    return Fetching(broker, context, request, list(found.partitions.values()), found, opens_session=False)


def _named_partitions(broker: Broker, request: FetchRequest, by_id: bool) -> dict[PartitionKey, SessionPartition]:
    """The partitions a request names, each once (the last mention counts), in order."""
    wanted: dict[PartitionKey, SessionPartition] = {}
    for topic in request.topics:
        name = (broker.topic_name(topic.topic_id) or "") if by_id else topic.topic
        for part in topic.partitions:
            wanted[("" if by_id else name, topic.topic_id, part.partition)] = SessionPartition(
                name,
                topic.topic_id,
                part.partition,
                part.fetch_offset,
                part.log_start_offset,
                part.partition_max_bytes,
                part.current_leader_epoch,
                part.last_fetched_epoch,
            )
    return wanted


def _update_session(
    broker: Broker,
    session: FetchSession,
    wanted: dict[PartitionKey, SessionPartition],
    request: FetchRequest,
    by_id: bool,
) -> None:
    for key, new in wanted.items():
        known = session.partitions.get(key)
        if known is not None:
            new.told_high_watermark = known.told_high_watermark
            new.told_log_start_offset = known.told_log_start_offset
            new.told_error = known.told_error
        session.partitions[key] = new
    for forgotten in request.forgotten_topics_data:
        for partition in forgotten.partitions:
            session.partitions.pop(("" if by_id else forgotten.topic, forgotten.topic_id, partition), None)
    if by_id:
        for remembered in session.partitions.values():
            # A topic that was unknown may have come, and one that was known may be gone.
            remembered.topic = broker.topic_name(remembered.topic_id) or ""


class Fetching:
    """One fetch under way."""

    __slots__ = (
        "broker",
        "by_id",
        "bytes_max",
        "bytes_min",
        "context",
        "is_looked_at",
        "isolation",
        "opens_session",
        "replica_epoch",
        "replica_id",
        "request",
        "session",
        "wanted",
    )

    def __init__(
        self,
        broker: Broker,
        context: RequestContext,
        request: FetchRequest,
        wanted: list[SessionPartition],
        session: FetchSession | None,
        opens_session: bool,
    ) -> None:
        self.broker = broker
        self.context = context
        self.request = request
        self.wanted = wanted
        self.session = session
        self.opens_session = opens_session
        self.by_id = context.api_version >= TOPIC_IDS_SINCE_VERSION
        self.replica_id = replica_id(request, context.api_version)
        self.replica_epoch = request.replica_state.replica_epoch if self.replica_id >= 0 else -1
        #: What a follower's fetch says of it is noted once, however often it is looked at while it waits.
        self.is_looked_at = False
        self.isolation = Isolation.READ_UNCOMMITTED if request.isolation_level == 0 else Isolation.READ_COMMITTED
        self.bytes_max = min(request.max_bytes, broker.config.get_int("fetch.max.bytes"))
        # More than an answer may hold is not worth waiting for.
        self.bytes_min = min(request.min_bytes, self.bytes_max)

    def has_something_to_read(self) -> bool:
        partitions = self.broker.replicas.partitions
        return any((wanted.topic, wanted.partition) in partitions for wanted in self.wanted)

    # --- looking: positions only

    def look(self) -> list[Read]:
        """What every partition is, as the cluster has it, and how far its log may be read. On the event loop."""
        reads = [self._look_at(wanted) for wanted in self.wanted]
        self.is_looked_at = True
        return reads

    def _look_at(self, wanted: SessionPartition) -> Read:
        data = PartitionData(
            partition_index=wanted.partition,
            high_watermark=-1,
            records=b"",
            diverging_epoch=_NO_DIVERGENCE,
            current_leader=_NO_LEADER,
            snapshot_id=_NO_SNAPSHOT,
            aborted_transactions=None,
        )
        read = Read(wanted, data)
        if self.by_id and not wanted.topic:
            data.error_code, data.aborted_transactions = ErrorCode.UNKNOWN_TOPIC_ID, []
            return read
        try:
            partition = partition_here(self.broker, wanted.topic, wanted.partition)
        except KafkaError as error:
            data.error_code = error.code
            if isinstance(error, NotLeaderOrFollowerError):
                self._tell_leader(wanted, data)
            else:
                data.aborted_transactions = []
            return read
        try:
            self._check(partition, wanted)
        except KafkaError as error:
            data.error_code = error.code
            if error.code in _TELL_LEADER:
                self._tell_leader(wanted, data)
            return read
        read.partition = partition
        log = read.log = partition.log
        if self.replica_id < 0 and self.request.rack_id and partition.state is not None:
            chosen = nearest(self.broker, partition, wanted.fetch_offset, self.request.rack_id)
            if chosen is not None:
                # Nothing is read here: the consumer goes to that replica.
                data.preferred_read_replica = chosen
                read.log = None
                data.log_start_offset, data.last_stable_offset, data.high_watermark = log.offsets()
                return read
        if wanted.last_fetched_epoch >= 0:
            try:
                found = divergence(log, partition.leader_epoch, wanted.fetch_offset, wanted.last_fetched_epoch)
                if found is not None:
                    data.diverging_epoch = EpochEndOffset(epoch=found.epoch, end_offset=found.end_offset)
            except NotInLog:
                data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        if self.replica_id >= 0:
            self._note_follower(partition, wanted, data)
        read.start_offset, read.stable_offset, read.high_watermark = log.offsets()
        if self.replica_id >= 0:
            read.limit = log.end_offset
        else:
            read.limit = read.high_watermark if self.isolation is Isolation.READ_UNCOMMITTED else read.stable_offset
        return read

    def _check(self, partition: Partition, wanted: SessionPartition) -> None:
        """Whether this broker answers: the leader everyone, a follower consumers that know what that means."""
        epoch = max(wanted.current_leader_epoch, NO_LEADER_EPOCH)
        if self.replica_id < 0 and self.context.api_version >= FOLLOWER_READS_SINCE_VERSION and partition.is_following:
            partition.check_epoch(epoch)
            return
        partition.check_leader(epoch)
        if self.replica_id >= 0:
            partition.check_follower(self.replica_id, self.replica_epoch)

    def _tell_leader(self, wanted: SessionPartition, data: PartitionData) -> None:
        if self.context.api_version >= LEADER_SINCE_VERSION:
            known = leader_and_epoch(self.broker, wanted.topic, wanted.partition)
            if known is not None:
                data.current_leader = LeaderIdAndEpoch(leader_id=known[0], leader_epoch=known[1])

    def _note_follower(self, partition: Partition, wanted: SessionPartition, data: PartitionData) -> None:
        """What a follower asks for tells what it has, unless its log has to be cut first."""
        log, offset = partition.log, wanted.fetch_offset
        is_common = not data.error_code and data.diverging_epoch is _NO_DIVERGENCE
        if is_common and not self.is_looked_at and log.start_offset <= offset <= log.end_offset:
            partition.fetched(self.replica_id, self.replica_epoch, offset, wanted.log_start_offset)

    def locate(self, reads: list[Read], *, nowait: bool) -> None:
        """Where the data of every partition is, within the limits. Nothing is read yet.

        With `nowait`, `WouldBlock` when the disk is needed. Then it is to be called again, off the loop.
        """
        left = self.bytes_max
        at_least_one = True
        for read in reads:
            log, data, wanted = read.log, read.data, read.wanted
            if log is None or data.error_code:
                continue
            if data.diverging_epoch is _NO_DIVERGENCE:
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
                except (DiskError, CorruptBatch) as error:
                    _cannot_be_read(read, error)
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
        if self.request.max_wait_ms <= 0 or not reads:
            return True
        available = 0
        may_grow = False
        for read in reads:
            data = read.data
            if data.error_code or data.diverging_epoch is not _NO_DIVERGENCE or data.preferred_read_replica >= 0:
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
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            on_loop = True
            reads = self.look()
            try:
                self.locate(reads, nowait=True)
            except WouldBlock:
                on_loop = False
                await self.broker.runtime.offload(functools.partial(self.locate, reads, nowait=False))
            remaining_s = deadline - loop.time()
            if remaining_s <= 0 or self.is_due(reads):
                break
            if not on_loop and any(map(self._has_moved, reads)):
                continue  # while it was looked at: nobody would wake us for that
            readable = None if self.isolation is Isolation.READ_UNCOMMITTED else _Committed(reads)
            waiter = Waiter(self._bytes_missing(reads), readable)
            await waiter.wait(self._watchers(reads), remaining_s)
        try:
            self.load(reads, nowait=True)
        except WouldBlock:
            await self.broker.runtime.offload(functools.partial(self.load, reads, nowait=False))
        return self.answer(reads)

    def _watchers(self, reads: list[Read]) -> list[Watchers]:
        """Those whose bytes this fetch waits for: followers wait for appends, consumers for what is committed."""
        partitions = [read.partition for read in reads if read.partition is not None]
        if self.replica_id >= 0:
            return [partition.append_watchers for partition in partitions]
        return [partition.watchers for partition in partitions]

    def _bytes_missing(self, reads: list[Read]) -> int:
        """How many bytes have to come before an answer can be due: what is wanted, or all that the limits allow."""
        available = room = 0
        for read in reads:
            length = 0 if read.slice is None else read.slice.length
            available += length
            if length == 0 or length < read.wanted.partition_max_bytes:
                room += max(1, read.wanted.partition_max_bytes - length)
        return min(self.bytes_min - available, room)

    def _has_moved(self, read: Read) -> bool:
        """Whether a partition is no longer as it was when it was looked at."""
        wanted, data, partition = read.wanted, read.data, read.partition
        if partition is None or self.broker.replicas.partitions.get((wanted.topic, wanted.partition)) is not partition:
            return True
        log = partition.log
        return (
            partition.is_offline
            or (self.replica_id >= 0 and log.end_offset != read.limit)
            or log.high_watermark != data.high_watermark
            or log.last_stable_offset != data.last_stable_offset
            or log.start_offset != data.log_start_offset
        )

    def load(self, reads: list[Read], *, nowait: bool) -> None:
        """Read what the answer will have. With `nowait`, `WouldBlock` when something is not in memory."""
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
                    read.data.records = _unread(found)
                elif nowait:
                    data = found.file.read_nowait(found.position, found.length)
                    if data is None:
                        raise WouldBlock
                    read.data.records = data
                else:
                    read.data.records = found.file.read(found.position, found.length)
            except (DiskError, CorruptBatch) as error:
                _cannot_be_read(read, error)

    # --- answering

    def answer(self, reads: list[Read]) -> FetchResponse:
        session, session_id = self.session, NO_SESSION
        if self.opens_session:
            sessions = self.broker.fetch_sessions
            session = sessions.create(self.by_id, self.broker.runtime.clock.now_ms(), len(self.wanted))
            if session is not None:
                for wanted in self.wanted:
                    session.partitions["" if self.by_id else wanted.topic, wanted.topic_id, wanted.partition] = wanted
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
                if incremental and not _has_news(read):
                    continue
                _remember(read)
            name = wanted.topic_id if self.by_id else wanted.topic
            if topic is None or name != last:
                topic, last = FetchableTopicResponse(topic=wanted.topic, topic_id=wanted.topic_id, partitions=[]), name
                response.responses.append(topic)
            topic.partitions.append(data)
            if data.error_code in _TELL_LEADER:
                tells_leader = True
        if incremental and session is not None:
            _rotate(session, reads)
        if tells_leader:
            response.node_endpoints = self._new_leaders(reads)
        return response

    def _new_leaders(self, reads: list[Read]) -> list[NodeEndpoint]:
        """Where the leaders are that this answer sends the client to."""
        if self.replica_id >= 0:
            return []
        told = {read.data.current_leader.leader_id for read in reads if read.data.error_code in _TELL_LEADER}
        return [
            NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in addresses(self.broker, self.context.listener, told)
        ]

    def _find_aborted(self, read: Read, found: Slice, *, nowait: bool) -> None:
        if read.log is None:
            return
        aborted = read.log.aborted_transactions(read.wanted.fetch_offset, found, nowait=nowait)
        read.data.aborted_transactions = [
            AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset) for one in aborted
        ]


class _Committed:
    """Of the bytes that come while a reader of committed records waits, those that it may read: none before the
    transactions around them have ended, and then also what came before the wait."""

    __slots__ = ("_known",)

    def __init__(self, reads: list[Read]) -> None:
        # Per partition: the stable offset that was seen, and how many bytes wait behind it.
        self._known: dict[Watchers, tuple[Partition, int, int]] = {}
        for read in reads:
            if read.partition is not None:
                stable, end = read.data.last_stable_offset, read.data.high_watermark
                self._known[read.partition.watchers] = (read.partition, stable, UNKNOWN_BYTES if stable < end else 0)

    def __call__(self, watchers: Watchers, nbytes: int) -> int:
        partition, seen, waiting = self._known[watchers]
        log = partition.log
        stable = log.last_stable_offset
        waiting += nbytes
        if stable <= seen:
            self._known[watchers] = (partition, seen, waiting)
            return 0
        self._known[watchers] = (partition, stable, 0 if stable >= log.high_watermark else UNKNOWN_BYTES)
        return waiting


def _cannot_be_read(read: Read, error: DiskError | CorruptBatch) -> None:
    """A partition's part of the answer says that its records cannot be read; the others' are not held up by it."""
    wanted, partition = read.wanted, read.partition
    if partition is not None and not partition.is_offline:
        logger.error(
            "%s-%d cannot be read at offset %d: %s", wanted.topic, wanted.partition, wanted.fetch_offset, error
        )
    code = ErrorCode.CORRUPT_MESSAGE if isinstance(error, CorruptBatch) else ErrorCode.KAFKA_STORAGE_ERROR
    read.slice = None
    read.data = PartitionData(partition_index=wanted.partition, error_code=code, high_watermark=-1, records=b"")


def _unread(found: Slice) -> Buffer:
    """Read piece by piece while it is sent; what is not in memory is waited for off the loop then."""
    return cast(Buffer, FilePart(found.file, found.position, found.length))


def _has_news(read: Read) -> bool:
    data, wanted = read.data, read.wanted
    return bool(
        data.records
        or data.error_code
        or wanted.told_error
        or data.diverging_epoch.epoch >= 0
        or data.preferred_read_replica >= 0
        or data.high_watermark != wanted.told_high_watermark
        or data.log_start_offset != wanted.told_log_start_offset
    )


def _remember(read: Read) -> None:
    read.wanted.told_high_watermark = read.data.high_watermark
    read.wanted.told_log_start_offset = read.data.log_start_offset
    read.wanted.told_error = bool(read.data.error_code)


def _rotate(session: FetchSession, reads: list[Read]) -> None:
    """Partitions that gave data go to the end, so that the others come first next time and none starves."""
    for read in reads:
        if read.data.records:
            wanted = read.wanted
            key = ("" if session.uses_topic_ids else wanted.topic, wanted.topic_id, wanted.partition)
            if key in session.partitions:
                session.partitions.move_to_end(key)
