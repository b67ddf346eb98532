"""Fetches the partitions that this broker follows from one leader, over one connection.

One request is under way at a time. Its answer is applied partition by partition; what went wrong with one of them holds
up only that one, for a while that grows. A partition whose leader is another by now is dropped when it is come across.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from headrace.broker.replication import copying
from headrace.broker.replication.copying import Copied, StaleAnswerError
from headrace.broker.replication.fetch_session import FollowerSession, Key
from headrace.broker.replication.follower import Act, Answer, FollowerStep, Position, out_of_range, step
from headrace.errors import ErrorCode, HeadraceError
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData, ReplicaState
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from headrace.records.batch import PREFIX_BYTES

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.replication.throttles import ReplicationThrottle
    from headrace.runtime import Buffer, Clock

logger = logging.getLogger("headrace.broker.replication")

EARLIEST, LATEST = -2, -1
FIRST_BACKOFF_MS = 50.0
THROTTLED_S = 0.25


class FetchSource(Protocol):
    """The leader that is fetched from, over a connection that nobody else uses."""

    broker_id: int

    async def fetch(self, request: FetchRequest) -> FetchResponse: ...

    async def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse: ...


class FetcherSettings(Protocol):
    node_id: int
    clock: Clock

    @property
    def broker_epoch(self) -> int: ...

    @property
    def throttle(self) -> ReplicationThrottle | None:
        """How much may be fetched of what is not in sync yet; None: as much as there is."""
        ...

    def setting(self, key: str) -> int:
        """A number of the configuration in effect."""
        ...


class _Pause:
    """A partition that is left alone for a while."""

    __slots__ = ("backoff_ms", "until")

    def __init__(self) -> None:
        self.backoff_ms = 0.0
        self.until = 0.0


class ReplicaFetcher:
    """A task that runs as long as there is something to fetch."""

    def __init__(self, source: FetchSource, settings: FetcherSettings) -> None:
        self._source = source
        self._settings = settings
        self._clock = settings.clock
        self._partitions: dict[Key, Partition] = {}
        #: To be looked at before the next request: added, answered, or after a pause.
        self._due: dict[Key, None] = {}
        self._pauses: dict[Key, _Pause] = {}
        self._paused: dict[Key, None] = {}
        self._session = FollowerSession(settings.setting("replica.fetch.max.bytes"))
        #: The broker epoch in which everything in the session was named.
        self._told_epoch = settings.broker_epoch
        self._failures = 0
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, partition: Partition) -> None:
        """Follow this partition from now on; also when it is followed already, in an earlier leader epoch."""
        key = (partition.log.topic_id or b"", partition.key.partition)
        self._partitions[key] = partition
        self._pauses.pop(key, None)
        self._paused.pop(key, None)
        self._due[key] = None
        self._work.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- the task

    async def _run(self) -> None:
        while True:
            try:
                unsynced = self._prepare()
                if unsynced:
                    await self._sync(unsynced)
                elif self._session.asked:
                    await self._fetch()
                else:
                    await self._wait_for_work()
            except HeadraceError as error:
                self._session.failed()
                await self._back_off(error)
            except Exception:
                # A defect of ours: the other partitions, and this one after a while, go on being copied.
                logger.exception(
                    "fetching from broker %d failed, by a defect: please report it", self._source.broker_id
                )
                self._session.failed()
                await asyncio.sleep(1.0)

    async def _back_off(self, error: HeadraceError) -> None:
        self._failures += 1
        if self._failures == 1:
            logger.warning("broker %d cannot be fetched from: %s", self._source.broker_id, error)
        longest_ms = self._settings.setting("replica.fetch.backoff.ms")
        await asyncio.sleep(min(FIRST_BACKOFF_MS * 2 ** min(self._failures - 1, 20), longest_ms) / 1000)

    def _prepare(self) -> list[Key]:
        """Bring the session to where the partitions are; those that have to be synced before."""
        now = self._clock.monotonic()
        for key in [key for key in self._paused if self._pauses[key].until <= now]:
            del self._paused[key]
            self._due[key] = None
        due, self._due = self._due, {}
        unsynced: list[Key] = []
        throttle = self._settings.throttle
        for key in due:
            partition = self._partitions.get(key)
            if partition is None or key in self._paused:
                continue
            if not self._is_ours(partition):
                self._drop(key)
            elif partition.log.durable_end < partition.log.end_offset:
                unsynced.append(key)
            elif throttle is not None and throttle.holds_back(partition, self._settings.node_id):
                self._leave_alone(key, THROTTLED_S)
            else:
                self._session.ask(key, partition.position())
        return unsynced

    async def _sync(self, keys: list[Key]) -> None:
        """A fetch says what we have, and the leader counts on that as on the disk (`flush.messages`).

        It is not there yet where a sync has failed, or where we led and were not done with it.
        """
        found = [(key, partition) for key in keys if (partition := self._partitions.get(key)) is not None]
        outcomes = await _synced([partition for _, partition in found])
        for (key, partition), error in zip(found, outcomes):
            self._due[key] = None
            if error is not None:
                self._pause(key, partition, str(error))

    def _is_ours(self, partition: Partition) -> bool:
        return partition.is_following and partition.leadership.leader_id == self._source.broker_id

    def _drop(self, key: Key) -> None:
        self._partitions.pop(key, None)
        self._pauses.pop(key, None)
        self._paused.pop(key, None)
        self._session.forget(key)

    async def _wait_for_work(self) -> None:
        self._work.clear()
        if self._due:
            return
        earliest = min((self._pauses[key].until for key in self._paused), default=None)
        timeout_s = None if earliest is None else max(0.0, earliest - self._clock.monotonic())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._work.wait()

    # --- one request

    async def _fetch(self) -> None:
        settings, session = self._settings, self._session
        broker_epoch = settings.broker_epoch
        if broker_epoch != self._told_epoch:
            # This broker was registered anew. The leader takes nobody in of whom it has not heard in this epoch, and of
            # partitions without news it would not: so all are named again.
            session.failed()
            self._told_epoch = broker_epoch
        topics, forgotten = session.build()
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=settings.node_id, replica_epoch=broker_epoch),
            max_wait_ms=settings.setting("replica.fetch.wait.max.ms"),
            min_bytes=settings.setting("replica.fetch.min.bytes"),
            max_bytes=settings.setting("replica.fetch.response.max.bytes"),
            isolation_level=0,
            session_id=session.session_id,
            session_epoch=session.epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
            rack_id="",
        )
        response = await self._source.fetch(request)
        self._failures = 0
        if response.error_code:
            # The leader does not have the session any more, or was restarted since.
            session.failed()
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                session.session_id = 0
            return
        session.answered(response.session_id)
        unsynced: list[tuple[Key, Copied]] = []
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                position = session.asked.get(key)
                if position is not None:
                    await self._apply(key, position, data, unsynced)
        if unsynced:
            await self._finish(unsynced)

    async def _apply(self, key: Key, asked: Position, data: PartitionData, unsynced: list[tuple[Key, Copied]]) -> None:
        partition = self._partitions.get(key)
        if partition is None:
            return
        self._due[key] = None
        with self._alone(key, partition):
            answer, records = _answer(data)
            to_do = step(asked, partition.position(), answer, partition.log)
            copied = await self._do(key, partition, asked, to_do, answer, records)
            if copied is not None and copied.sync_due:
                unsynced.append((key, copied))
            elif copied is not None:
                await self._take_over(key, copied)

    async def _finish(self, unsynced: list[tuple[Key, Copied]]) -> None:
        """Sync what was appended, all of it side by side: that takes as long as the slowest, and not as all of them."""
        outcomes = await _synced([copied.partition for _, copied in unsynced])
        for (key, copied), error in zip(unsynced, outcomes):
            with self._alone(key, copied.partition):
                if error is not None:
                    raise error
                await self._take_over(key, copied)

    async def _take_over(self, key: Key, copied: Copied) -> None:
        await copying.take_over(copied)
        self._pauses.pop(key, None)
        if copied.nbytes and self._settings.throttle is not None:
            self._settings.throttle.count(copied.partition, copied.nbytes)

    @contextlib.contextmanager
    def _alone(self, key: Key, partition: Partition) -> Iterator[None]:
        """What goes wrong with a partition holds up that one alone."""
        try:
            yield
        except StaleAnswerError:
            # The leader takes it as told, and would not tell it again.
            self._session.ask_again(key)
        except HeadraceError as error:
            self._pause(key, partition, str(error))

    async def _do(
        self, key: Key, partition: Partition, asked: Position, to_do: FollowerStep, answer: Answer, records: Buffer
    ) -> Copied | None:
        """Change the log as the answer says; what was appended does not count yet."""
        act = to_do.act
        if act is Act.NOTHING:
            raise StaleAnswerError
        if act is Act.APPEND:
            return await copying.append(partition, asked, answer, records)
        if act is Act.BEGIN_WITH:
            return await copying.begin_with(partition, asked, answer, records)
        if act is Act.FIND_RANGE:
            start, end = await self._range(partition, asked)
            found = out_of_range(asked, partition.position(), start, end, partition.log)
            return await self._do(key, partition, asked, found, answer, records)
        if act is Act.TRUNCATE:
            if to_do.offset < partition.log.end_offset:
                logger.info(
                    "%s is cut to %d, as its leader's log is from there on another", partition.key, to_do.offset
                )
            await copying.truncate(partition, asked, to_do.offset)
        elif act is Act.START_AT:
            logger.warning("%s begins anew at %d: %s", partition.key, to_do.offset, to_do.reason)
            await copying.start_at(partition, asked, to_do.offset)
        elif act in (Act.BACK_OFF, Act.WAIT_FOR_METADATA):
            self._pause(key, partition, to_do.reason)
        return None

    def _pause(self, key: Key, partition: Partition, reason: str) -> None:
        """Leave a partition alone for a while that grows; it is looked at again with a new role at once."""
        pause = self._pauses.setdefault(key, _Pause())
        longest_ms = float(self._settings.setting("replica.fetch.backoff.ms"))
        pause.backoff_ms = min(max(pause.backoff_ms * 2, FIRST_BACKOFF_MS), longest_ms)
        self._leave_alone(key, pause.backoff_ms / 1000)
        logger.debug("%s is not fetched for %.0f ms: %s", partition.key, pause.backoff_ms, reason)

    def _leave_alone(self, key: Key, seconds: float) -> None:
        self._pauses.setdefault(key, _Pause()).until = self._clock.monotonic() + seconds
        self._paused[key] = None
        self._due.pop(key, None)
        self._session.forget(key)

    async def _range(self, partition: Partition, asked: Position) -> tuple[int, int]:
        """Where the leader's log begins and ends."""
        found = []
        for when in (EARLIEST, LATEST):
            wanted = ListOffsetsPartition(
                partition_index=asked.partition, current_leader_epoch=asked.leader_epoch, timestamp=when
            )
            topic = ListOffsetsTopic(name=partition.key.topic, partitions=[wanted])
            request = ListOffsetsRequest(replica_id=self._settings.node_id, isolation_level=0, topics=[topic])
            result = (await self._source.list_offsets(request)).topics[0].partitions[0]
            if result.error_code:
                raise HeadraceError(f"its leader does not tell its offsets: {ErrorCode(result.error_code).name}")
            found.append(result.offset)
        return found[0], found[1]


async def _synced(partitions: Sequence[Partition]) -> list[HeadraceError | None]:
    """Make all that was appended to these durable, side by side; what became of each."""
    outcomes = await asyncio.gather(*(partition.sync() for partition in partitions), return_exceptions=True)
    errors: list[HeadraceError | None] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, HeadraceError):
            raise outcome
        errors.append(outcome)
    return errors


def _answer(data: PartitionData) -> tuple[Answer, Buffer]:
    records = data.records if data.records is not None else b""
    first_offset, last_epoch = span(records)
    answer = Answer(
        error=ErrorCode(data.error_code),
        high_watermark=data.high_watermark,
        log_start_offset=data.log_start_offset,
        diverging_epoch=data.diverging_epoch.epoch,
        diverging_end_offset=data.diverging_epoch.end_offset,
        first_offset=first_offset,
        last_epoch=last_epoch,
    )
    return answer, records


def span(records: Buffer) -> tuple[int, int]:
    """The offset at which the first batch begins, and the leader epoch of the last whole one; -1 without any."""
    position, epoch, size = 0, -1, len(records)
    while position + PREFIX_BYTES + 4 <= size:
        length = int.from_bytes(records[position + 8 : position + 12], "big")
        following = position + PREFIX_BYTES + length
        if length <= 0 or following > size:
            break
        epoch = int.from_bytes(records[position + 12 : position + 16], "big", signed=True)
        position = following
    return int.from_bytes(records[:8], "big", signed=True) if position else -1, epoch
