"""Share fetches under way: which records of which partitions a member gets now.

Bytes are looked for and read as for a fetch (`partitions/fetching.py`); what of them a member gets, the share partition
says. Several members may wait for the same records: who looks first after they came gets them.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from headrace.broker.partitions.fetch_reads import Read
from headrace.broker.partitions.fetch_sessions import SessionPartition
from headrace.broker.partitions.fetching import Fetching, FetchRooms
from headrace.broker.partitions.purgatory import Waiter, Watchers
from headrace.broker.requests.dispatch import RequestContext
from headrace.broker.requests.rights import Operation, Resource
from headrace.broker.share_groups.service import ShareGroupService
from headrace.broker.share_groups.sessions import PartitionKey, ShareSession
from headrace.broker.share_groups.share_partition import SharePartition
from headrace.errors import ErrorCode, KafkaError
from headrace.groups.share.deliveries import LogBatch
from headrace.log import WouldBlockError
from headrace.net.outbox import FilePart, Part
from headrace.protocol.messages.fetch import AbortedTransaction, FetchRequest
from headrace.protocol.messages.share_fetch import AcquiredRecords, PartitionData, ShareFetchRequest
from headrace.records import Batch, CorruptBatchError, split
from headrace.runtime import Buffer, DiskError

#: How much of one partition goes into an answer, unless its first batch is larger. All of it is in memory until sent.
PARTITION_BYTES_MAX: Final = 1024 * 1024
_BATCH_MODE: Final = 0
_EXACT_MODE: Final = 1
ACQUIRE_MODES: Final = (_BATCH_MODE, _EXACT_MODE)
_TRANSACTIONAL_BIT: Final = 0x10
_CONTROL_BIT: Final = 0x20


class _Candidate(NamedTuple):
    """A partition that may have records for the member."""

    key: PartitionKey
    share: SharePartition
    wanted: SessionPartition


@dataclass(frozen=True, slots=True)
class ShareFetchRooms:
    """Where share fetches look."""

    fetches: FetchRooms
    shares: ShareGroupService


class ShareFetching:
    """One share fetch."""

    def __init__(
        self, rooms: ShareFetchRooms, context: RequestContext, request: ShareFetchRequest, session: ShareSession
    ) -> None:
        self._rooms = rooms
        self._context = context
        self._request = request
        self._session = session
        self._group_id, self._member_id = session.key
        settings = rooms.shares.settings(self._group_id)
        self._is_committed_only = settings.is_read_committed
        self._is_exact = context.api_version >= 2 and request.share_acquire_mode == _EXACT_MODE
        # Whoever is first may have all that fits: so they take turns.
        keys = list(session.partitions)
        turn = request.share_session_epoch % len(keys) if keys else 0
        self._keys = keys[turn:] + keys[:turn]
        #: What is answered already.
        self._answers: dict[PartitionKey, PartitionData] = {}
        self._shares: dict[PartitionKey, SharePartition] = {}
        self._taken = 0
        #: Whether nothing of what was read was for the member. As in Kafka it is answered: there may be more behind it.
        self._has_moved = False
        #: Whose states were still being read when they were looked at last.
        self._unread: set[PartitionKey] = set()
        self._has_more_read = False

    async def finish(self, wait_s: float) -> dict[PartitionKey, PartitionData]:
        """Wait until there is something for the member, or the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            waiter = Waiter(1)
            remaining_s = deadline - loop.time()
            watched: list[Watchers] = []
            try:
                # Watched first, so that nothing happens between the look and the wait.
                candidates = self._look(waiter, watched)
                if await self._take(candidates, is_last=remaining_s <= 0) or remaining_s <= 0:
                    return self._answers
                if not self._has_more_read:
                    await waiter.wait((), remaining_s)
            finally:
                for watchers in watched:
                    watchers.discard(waiter)

    # --- looking

    def _look(self, waiter: Waiter, watched: list[Watchers]) -> list[_Candidate]:
        """The partitions to read, and where. What cannot be read is answered with why."""
        cluster, request = self._rooms.fetches.cluster, self._request
        partition_bytes = min(request.max_bytes // max(1, len(self._keys)), PARTITION_BYTES_MAX)
        found = []
        newly_read = None
        self._has_more_read = False
        for key in self._keys:
            if key in self._answers:
                continue
            topic_id, index = key
            topic = cluster.topic_name(topic_id)
            if topic is None:
                self._refuse(key, ErrorCode.UNKNOWN_TOPIC_ID)
                continue
            if not self._context.is_allowed(Operation.READ, Resource.TOPIC, topic):
                self._refuse(key, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                continue
            share = self._shares.get(key)
            if share is None or (share.is_over and share.error is ErrorCode.NONE):
                try:
                    share = self._shares[key] = self._rooms.shares.get(self._group_id, topic, key)
                except KafkaError as error:
                    self._refuse(key, ErrorCode(error.code))
                    continue
            for watchers in (share.watchers, share.partition.watchers):
                watchers.add(waiter)
                watched.append(watchers)
            if share.error is not ErrorCode.NONE:
                self._refuse(key, share.error)
                continue
            if not share.is_read:
                self._unread.add(key)
            elif key in self._unread:
                # As in Kafka, a fetch that waits for states is answered with the first partition whose state is there.
                # Clients that count on a poll of one partition's records at first (librdkafka's tests) are right here.
                if newly_read is not None:
                    self._has_more_read = True
                    continue
                newly_read = key
                self._unread.discard(key)
            offset = share.fetch_offset()
            if offset is not None:
                wanted = SessionPartition(topic, topic_id, index, offset, partition_max_bytes=partition_bytes)
                found.append(_Candidate(key, share, wanted))
        return found

    def _refuse(self, key: PartitionKey, error: ErrorCode) -> None:
        self._answers[key] = PartitionData(partition_index=key[1], error_code=error, records=b"")

    # --- reading

    async def _take(self, candidates: list[_Candidate], *, is_last: bool) -> bool:
        """Read, and lock records for the member. Whether there is something to answer."""
        request = self._request
        if candidates and request.max_records > 0 and request.max_bytes > 0:
            fetching = Fetching(
                self._rooms.fetches,
                self._context,
                FetchRequest(
                    max_bytes=request.max_bytes,
                    min_bytes=request.min_bytes,
                    isolation_level=int(self._is_committed_only),
                    topics=[],
                    forgotten_topics_data=[],
                    rack_id="",
                ),
                [candidate.wanted for candidate in candidates],
                None,
                opens_session=False,
            )
            reads = fetching.look()
            try:
                fetching.locate(reads, nowait=True)
            except WouldBlockError:
                await self._rooms.fetches.runtime.offload(functools.partial(fetching.locate, reads, nowait=False))
            available = sum(read.slice.length for read in reads if read.slice is not None)
            if available and (is_last or self._answers or available >= fetching.bytes_min):
                try:
                    _load(fetching, reads, nowait=True)
                except WouldBlockError:
                    await self._rooms.fetches.runtime.offload(functools.partial(_load, fetching, reads, nowait=False))
            by_partition = {(one.wanted.topic_id, one.wanted.partition): one for one in candidates}
            for read in reads:
                self._lock(by_partition[read.wanted.topic_id, read.wanted.partition], read)
        return bool(self._answers) or self._has_moved

    def _lock(self, candidate: _Candidate, read: Read) -> None:
        data, request = read.data, self._request
        # Where nothing is at the offset any more, or not yet, is seen with the next look.
        if data.error_code and data.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
            self._refuse(candidate.key, ErrorCode(data.error_code))
            return
        left = request.max_records - self._taken
        if not data.records or left <= 0:
            return
        try:
            batches = list(split(data.records))
        except CorruptBatchError:
            self._refuse(candidate.key, ErrorCode.CORRUPT_MESSAGE)
            return
        acquired = candidate.share.acquire(
            self._member_id,
            candidate.wanted.fetch_offset,
            list(_described(batches, data.aborted_transactions or ())),
            records_max=left,
            batch_records=max(1, request.batch_size),
            is_exact=self._is_exact,
        )
        if not acquired:
            self._has_moved = self._has_moved or candidate.share.fetch_offset() != candidate.wanted.fetch_offset
            return
        self._taken += sum(one.last - one.first + 1 for one in acquired)
        self._answers[candidate.key] = PartitionData(
            partition_index=candidate.key[1],
            records=_cut(data.records, batches, acquired[0].first, acquired[-1].last),
            acquired_records=[
                AcquiredRecords(first_offset=one.first, last_offset=one.last, delivery_count=one.delivery_count)
                for one in acquired
            ],
        )


def _load(fetching: Fetching, reads: list[Read], *, nowait: bool) -> None:
    """Read all of it into memory: what is locked depends on where its batches are."""
    fetching.load(reads, nowait=nowait)
    for read in reads:
        found, records = read.slice, cast(Part, read.data.records)
        if found is None or not isinstance(records, FilePart):
            continue
        try:
            data = found.file.read_nowait(found.position, found.length) if nowait else None
            if nowait and data is None:
                raise WouldBlockError
            read.take(found, found.file.read(found.position, found.length) if data is None else data)
        except (DiskError, CorruptBatchError):
            read.data.error_code = ErrorCode.KAFKA_STORAGE_ERROR


def _described(batches: Iterable[Batch], aborted: Iterable[AbortedTransaction]) -> Iterator[LogBatch]:
    """The batches as share partitions know them. `aborted` is only given to who reads what is committed."""
    pending = deque(sorted(aborted, key=lambda one: one.first_offset))
    open_producers: set[int] = set()
    for batch in batches:
        first, last = batch.base_offset, batch.base_offset + batch.last_offset_delta
        while pending and pending[0].first_offset <= last:
            open_producers.add(pending.popleft().producer_id)
        is_control = bool(batch.attributes & _CONTROL_BIT)
        is_aborted = bool(batch.attributes & _TRANSACTIONAL_BIT) and batch.producer_id in open_producers
        if is_control and is_aborted:
            open_producers.discard(batch.producer_id)
        yield LogBatch(first, last, is_aborted and not is_control)


def _cut(records: Buffer, batches: list[Batch], first: int, last: int) -> Buffer:
    """The batches from the one with the first offset to the one with the last."""
    start = end = position = 0
    for batch in batches:
        after = position + len(batch.buffer)
        if batch.base_offset <= first:
            start = position
        if batch.base_offset <= last:
            end = after
        position = after
    return memoryview(records)[start:end]
