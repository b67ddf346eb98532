"""Coordinators with their drivers, over partitions whose appends end when and how a test says."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from headrace.broker.coordinator_driver import StoredRecord
from headrace.broker.dispatch import Pending
from headrace.broker.group_service import GroupService
from headrace.broker.transaction_service import TransactionService
from headrace.broker.write_order import batch_bytes_max
from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.errors import InvalidProducerEpochError, MessageTooLargeError, UnknownTopicOrPartitionError
from headrace.groups import GroupConfig, GroupCoordinator
from headrace.log import Appended, LogConfig
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.records import read_control, read_records, split
from headrace.transactions import TransactionConfig, TransactionCoordinator

TOPIC, PARTITIONS = "t", 8


@dataclass
class UnderWay:
    """An append that has not ended. What it wrote is in the log, in its place, unless it fails."""

    future: asyncio.Future[Appended]
    records: list[StoredRecord]
    log: list[list[StoredRecord]]

    def end(self) -> None:
        self.future.set_result(Appended(0, 0, -1, 0))

    def fail(self, error: BaseException) -> None:
        self._take_back()
        self.future.set_exception(error)

    def cancel(self) -> None:
        self._take_back()
        self.future.cancel()

    def _take_back(self) -> None:
        self.log[:] = [batch for batch in self.log if batch is not self.records]  # another may say the same


@dataclass
class FakeLog:
    config: LogConfig = field(default_factory=LogConfig)
    batches: list[list[StoredRecord]] = field(default_factory=list)


class FakePartition:
    """Appends at once, or later (`holds`), or raises what `trouble` gives."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.holds = False
        self.under_way: list[UnderWay] = []
        self.trouble: Callable[[], BaseException | None] = lambda: None
        self.epochs: dict[int, int] = {}  # of producers

    def append(self, batch: Any, **_: Any) -> Appended | asyncio.Future[Appended]:
        error = self.trouble()
        if error is not None:
            raise error
        if len(batch) > self.log.config.max_message_bytes:
            raise MessageTooLargeError(f"{len(batch)} bytes are too many")
        (header,) = split(bytes(batch))
        if header.producer_id >= 0:
            if header.producer_epoch < self.epochs.get(header.producer_id, -1):
                raise InvalidProducerEpochError(f"{header.producer_epoch} is over")
            self.epochs[header.producer_id] = header.producer_epoch
        records = stored(bytes(batch))
        self.log.batches.append(records)
        if not self.holds:
            return Appended(0, 0, -1, 0)
        held = UnderWay(asyncio.get_running_loop().create_future(), records, self.log.batches)
        self.under_way.append(held)
        return held.future


def stored(data: bytes) -> list[StoredRecord]:
    found = []
    for batch in split(data):
        producer_id = batch.producer_id if batch.is_transactional else -1
        for record in read_records(batch):
            if batch.is_control:
                found.append(StoredRecord(b"", None, producer_id, read_control(record).control_type == 1))
            else:
                value = None if record.value is None else bytes(record.value)
                found.append(StoredRecord(bytes(record.key or b""), value, producer_id))
    return found


class FakeClock:
    def __init__(self) -> None:
        self.wall_ms = 1_700_000_000_000
        self.shift_s = 0.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() + self.shift_s


@dataclass
class FakeRuntime:
    clock: FakeClock = field(default_factory=FakeClock)


class FakeIds:
    is_empty = False

    def __init__(self) -> None:
        self.next = 100

    def take(self) -> int:
        self.next += 1
        return self.next


class Machine:
    """Both coordinators over the partitions of `__consumer_offsets`, `__transaction_state` and one topic."""

    def __init__(self, *, group_partitions: int = 1, seed: int = 1) -> None:
        self.runtime = FakeRuntime()
        self.partitions: dict[tuple[str, int], FakePartition] = {}
        for index in range(group_partitions):
            self.partitions[CONSUMER_OFFSETS, index] = FakePartition()
        self.partitions[TRANSACTION_STATE, 0] = FakePartition()
        for index in range(PARTITIONS):
            self.partitions[TOPIC, index] = FakePartition()
        self.group_config = GroupConfig(offsets_topic_partitions=group_partitions)
        self.rng = random.Random(seed)
        self.producer_ids = FakeIds()
        self.groups = self.new_groups()
        config = TransactionConfig(
            state_topic_partitions=1, offsets_topic_partitions=group_partitions, retry_backoff_ms=1
        )
        self.transactions = TransactionService(
            self,  # type: ignore[arg-type]  # as much of a broker as coordinators need
            TransactionCoordinator(config, self.producer_ids.take, self, 0, self.state_batch_bytes_max),
        )
        for index in range(group_partitions):
            self.groups.coordinator.begin_load(index)
            self.groups.apply(self.groups.coordinator.loaded(index, self.groups.now()))
        self.transactions.coordinator.begin_load(0, 0)
        self.transactions.apply(self.transactions.coordinator.loaded(0, self.transactions.now()))

    def new_groups(self) -> GroupService:
        return GroupService(
            self,  # type: ignore[arg-type]  # as above
            GroupCoordinator(self.group_config, self.rng, self),
        )

    # --- what a broker is asked for

    def partition(self, topic: str, index: int) -> FakePartition:
        if (topic, index) not in self.partitions:
            raise UnknownTopicOrPartitionError(f"{topic}-{index}")
        return self.partitions[topic, index]

    def state_batch_bytes_max(self, index: int) -> int:
        return batch_bytes_max(self, TRANSACTION_STATE, index)  # type: ignore[arg-type]  # as above

    def topic_name(self, topic_id: bytes) -> str | None:
        return TOPIC if topic_id == bytes(15) + b"\x09" else None

    def topic_id(self, name: str) -> bytes | None:
        return bytes(15) + b"\x09" if name == TOPIC else None

    def partition_count(self, name: str) -> int | None:
        return sum(topic == name for topic, _ in self.partitions) or None

    # --- what a test does

    @property
    def offsets_log(self) -> FakePartition:
        return self.partitions[CONSUMER_OFFSETS, 0]

    def limit(self, topic: str, bytes_max: int) -> None:
        for (name, _), partition in self.partitions.items():
            if name == topic:
                partition.log.config = dataclasses.replace(partition.log.config, max_message_bytes=bytes_max)

    def ask_group(self, method: str, request: Any, version: int) -> asyncio.Future[Any]:
        return answer(self.groups.call(getattr(self.groups.coordinator, method), context(version), request))

    def ask_transactions(self, method: str, request: Any, version: int) -> asyncio.Future[Any]:
        coordinator = self.transactions.coordinator
        return answer(self.transactions.call(getattr(coordinator, method), context(version), request))

    async def started(self, name: str) -> dict[str, int]:
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        found = await self.ask_transactions("init_producer_id", request, 4)
        assert found.error_code == 0
        return {"producer_id": found.producer_id, "producer_epoch": found.producer_epoch}

    async def add_offsets(self, name: str, who: dict[str, int], group: str) -> int:
        request = AddOffsetsToTxnRequest(transactional_id=name, group_id=group, **who)
        code: int = (await self.ask_transactions("add_offsets_to_txn", request, 3)).error_code
        return code

    def end(self, name: str, who: dict[str, int], committed: bool) -> asyncio.Future[Any]:
        return self.ask_transactions("end_txn", EndTxnRequest(transactional_id=name, committed=committed, **who), 3)

    def commit(self, group: str, offsets: dict[int, int]) -> asyncio.Future[Any]:
        partitions = [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
            for index, offset in offsets.items()
        ]
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)],
        )
        return self.ask_group("offset_commit", request, 8)

    def commit_in_transaction(
        self, name: str, who: dict[str, int], group: str, offsets: dict[int, int]
    ) -> asyncio.Future[Any]:
        partitions = [
            TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
            for index, offset in offsets.items()
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=group,
            generation_id=-1,
            member_id="",
            topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=partitions)],
            **who,
        )
        return self.ask_group("txn_offset_commit", request, 3)

    async def fetch(self, group: str) -> dict[int, int]:
        found = await self.ask_group("offset_fetch", OffsetFetchRequest(group_id=group, topics=None), 5)
        return {one.partition_index: one.committed_offset for topic in found.topics for one in topic.partitions}

    async def close(self) -> None:
        await self.transactions.close()
        await self.groups.close()


def context(version: int) -> Any:
    """As much of a request's context as coordinators look at."""
    return SimpleNamespace(client_id="c", client_host="h", api_version=version)


def answer(result: Any) -> asyncio.Future[Any]:
    """What a request was answered with, or will be."""
    if isinstance(result, Pending):
        return asyncio.ensure_future(result.awaitable)
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future


async def turns(count: int = 20) -> None:
    """Let the loop do what is ready."""
    for _ in range(count):
        await asyncio.sleep(0)
