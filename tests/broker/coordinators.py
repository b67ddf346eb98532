"""Coordinators with their drivers, over partitions whose appends end when and how a test says."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.coordinators.surroundings import CoordinatorSurroundings
from headrace.broker.coordinators.transaction_service import TransactionService
from headrace.broker.coordinators.write_order import batch_bytes_max
from headrace.broker.handlers.txn_offset_commit import txn_offset_commit
from headrace.broker.partitions.leaders import Leaders
from headrace.broker.partitions.purgatory import Watchers
from headrace.broker.peers import Peers
from headrace.broker.requests.dispatch import Pending
from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.coordination import StoredRecord
from headrace.errors import (
    FencedLeaderEpochError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    MessageTooLargeError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from headrace.groups import GroupConfig, GroupCoordinator
from headrace.log import Appended, LogConfig, Verification
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
from headrace.records import assign, read_control, read_records, split
from headrace.transactions import TransactionConfig, TransactionCoordinator

TOPIC, PARTITIONS = "t", 8


class StoredBatch(list[StoredRecord]):
    """What a batch says, and its bytes."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(stored(raw))
        self.raw = raw


@dataclass(eq=False)
class UnderWay:
    """An append that has not ended. What it wrote is in the log, in its place, unless it fails or is cut off."""

    future: asyncio.Future[Appended]
    records: StoredBatch
    partition: FakePartition
    is_settled: bool = False  # whether it is in the log is decided, whatever becomes of it

    def end(self) -> None:
        self._tell(lambda: self.future.set_result(Appended(0, 0, -1, 0)))

    def fail(self, error: BaseException) -> None:
        self.take_back()
        self._tell(lambda: self.future.set_exception(error))

    def cancel(self) -> None:
        self.take_back()
        self._tell(lambda: self.future.cancel())

    def time_out(self) -> None:
        """It is in the log, and stays there; but the other replicas did not have it in time."""
        self._tell(lambda: self.future.set_exception(RequestTimedOutError("the replicas are slow")))

    def take_back(self) -> None:
        if not self.is_settled:
            batches = self.partition.log.batches
            batches[:] = [batch for batch in batches if batch is not self.records]  # another may say the same
            self.is_settled = True

    def _tell(self, tell: Callable[[], object]) -> None:
        self.is_settled = True
        if self in self.partition.under_way:
            self.partition.under_way.remove(self)
        if not self.future.done():
            tell()
        self.partition.watchers.wake_all()


@dataclass
class FakeLog:
    """Batches in memory. Of a transaction it lets nothing in that it should not (as `ProducerState` does)."""

    config: LogConfig = field(default_factory=LogConfig)
    batches: list[StoredBatch] = field(default_factory=list)
    guards: dict[int, Verification] = field(default_factory=dict)
    start_offset: int = 0

    @property
    def end_offset(self) -> int:
        return sum(map(len, self.batches))

    def locate(self, offset: int, max_bytes: int, *, limit: int, at_least_one: bool) -> Any:
        """One batch at a time: so there are many steps in which it is read."""
        base_offset = 0
        for batch in self.batches:
            if base_offset + len(batch) > offset:
                break
            base_offset += len(batch)
        raw = bytearray(batch.raw)
        assign(raw, base_offset, 0)
        return SimpleNamespace(file=SimpleNamespace(read=lambda at, length: bytes(raw)), position=0, length=len(raw))

    def is_open(self, producer_id: int) -> bool:
        """Whether this producer's transaction is open here."""
        last = [record for batch in self.batches for record in batch if record.producer_id == producer_id][-1:]
        return bool(last) and last[0].committed is None

    def start_verification(self, producer_id: int, sequence: int, epoch: int) -> Verification | None:
        if self.is_open(producer_id):
            return None
        return self.guards.setdefault(producer_id, Verification(producer_id))

    def is_verifying(self, guard: Verification) -> bool:
        return self.guards.get(guard.producer_id) is guard

    def check_open(self, producer_id: int, verification: Verification | None) -> None:
        is_proof = verification is None or self.guards.get(producer_id) is verification
        if not is_proof and not self.is_open(producer_id):
            raise InvalidTxnStateError(f"the transaction of {producer_id} is not open")


class FakePartition:
    """Appends at once, or later (`holds`), or raises what `trouble` gives; led here, or elsewhere."""

    def __init__(self, *, is_coordinators: bool = False) -> None:
        self.is_coordinators = is_coordinators
        self.log = FakeLog()
        self.holds = False
        self.under_way: list[UnderWay] = []
        self.trouble: Callable[[], BaseException | None] = lambda: None
        self.epochs: dict[int, int] = {}  # of producers
        self.leader_epoch = 0
        self.is_leader = True
        self.watchers = Watchers()
        self.turns = self  # whose `change_log` is here
        self.committed_max: int | None = None  # as far as others have it, if they are behind

    @property
    def high_watermark(self) -> int:
        return self.log.end_offset if self.committed_max is None else min(self.committed_max, self.log.end_offset)

    def lead(self, leader_epoch: int, *, is_leader: bool = True, kept: int | None = None) -> None:
        """Another epoch begins. Of what is under way, so many appends are in the log then; the rest is cut off."""
        self.leader_epoch, self.is_leader = leader_epoch, is_leader
        for number, append in enumerate(list(self.under_way)):
            if kept is not None and number >= kept:
                append.take_back()
            append.is_settled = True
        self.watchers.wake_all()

    async def change_log(self, change: Callable[[Any], object]) -> None:
        await asyncio.sleep(0)
        change(self.log)

    def append(
        self, batch: Any, *, leader_epoch: int = -1, verification: Verification | None = None, **_: Any
    ) -> Appended | asyncio.Future[Appended]:
        assert leader_epoch >= 0 or not self.is_coordinators, "nobody knows which coordinator wants it"
        if not self.is_leader:
            raise NotLeaderOrFollowerError("it is led elsewhere")
        if leader_epoch not in (-1, self.leader_epoch):
            raise FencedLeaderEpochError(f"epoch {leader_epoch} is over, it is {self.leader_epoch}")
        error = self.trouble()
        if error is not None:
            raise error
        if len(batch) > self.log.config.max_message_bytes:
            raise MessageTooLargeError(f"{len(batch)} bytes are too many")
        (header,) = split(bytes(batch))
        if header.producer_id >= 0:
            if header.producer_epoch < self.epochs.get(header.producer_id, -1):
                raise InvalidProducerEpochError(f"{header.producer_epoch} is over")
            if not header.is_control:
                self.log.check_open(header.producer_id, verification)
            self.log.guards.pop(header.producer_id, None)
            self.epochs[header.producer_id] = header.producer_epoch
        records = StoredBatch(bytes(batch))
        self.log.batches.append(records)
        if not self.holds:
            return Appended(0, 0, -1, 0)
        held = UnderWay(asyncio.get_running_loop().create_future(), records, self)
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
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    async def offload(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return function(*arguments)


class FakeIds:
    """Producer ids, as long as there are some; there are again when the controller can be asked."""

    def __init__(self) -> None:
        self.next = 100
        self.is_empty = False
        self.is_controller_reached = True

    def take(self) -> int | None:
        if self.is_empty:
            return None
        self.next += 1
        return self.next

    async def fill(self) -> None:
        if not self.is_controller_reached:
            raise RequestTimedOutError("the controller did not answer")
        self.is_empty = False


class Machine:
    """Both coordinators over the partitions of `__consumer_offsets`, `__transaction_state` and one topic."""

    node_id = 1
    started_with = BrokerConfig.parse({})
    out_of_touch: str | None = None

    def __init__(
        self,
        *,
        group_partitions: int = 1,
        seed: int = 1,
        version: int = 0,
        partitions: dict[tuple[str, int], FakePartition] | None = None,
    ) -> None:
        """`version` is that of transactions; `partitions` are another machine's, if they are given."""
        self.runtime = FakeRuntime()
        topics = {CONSUMER_OFFSETS: group_partitions, TRANSACTION_STATE: 1, TOPIC: PARTITIONS}
        self.partitions = partitions or {
            (topic, index): FakePartition(is_coordinators=topic != TOPIC)
            for topic, count in topics.items()
            for index in range(count)
        }
        self.image = SimpleNamespace(
            topics={TOPIC: SimpleNamespace(partitions=[None] * PARTITIONS)}, partition=self.partition_state
        )
        self.replicas = SimpleNamespace(get=self.partition)
        self.leaders = Leaders(self, self.replicas, None)  # type: ignore[arg-type]  # as much as coordinators need
        self.producer_ids = FakeIds()
        group_config = GroupConfig(offsets_topic_partitions=group_partitions)
        # As much of a broker as coordinators need.
        self.around = CoordinatorSurroundings(
            self.runtime,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.replicas,  # type: ignore[arg-type]
            self.leaders,
            self,  # type: ignore[arg-type]
            lambda: self.out_of_touch,
            self.make_peers,
        )
        self.groups = GroupService(
            self.around,
            GroupCoordinator(group_config, random.Random(seed), self),
        )
        config = TransactionConfig(
            state_topic_partitions=1, offsets_topic_partitions=group_partitions, retry_backoff_ms=1
        )
        self.transactions = TransactionService(
            self.around,
            TransactionCoordinator(config, self.producer_ids.take, self, version, self.state_batch_bytes_max),
            self.producer_ids,  # type: ignore[arg-type]
            self.groups,
        )

    def service(self, topic: str) -> GroupService | TransactionService:
        return self.groups if topic == CONSUMER_OFFSETS else self.transactions

    async def ready(self) -> Machine:
        """Lead all that is led here, and wait until it is served."""
        led = [(topic, index) for topic, index in self.partitions if topic != TOPIC]
        for topic, index in led:
            self.service(topic).lead(index, self.partitions[topic, index].leader_epoch)
        async with asyncio.timeout(60):
            while not all(self.service(topic).coordinator.is_loaded(index) for topic, index in led):
                await asyncio.sleep(0.0001)  # so that simulated time passes too
        return self

    # --- what a broker is asked for

    def make_peers(self, what: str, timeout_ms: int) -> Peers:
        return Peers(
            self.runtime,  # type: ignore[arg-type]
            lambda node_id: None,
            client_id=what,
            request_timeout_ms=timeout_ms,
            security=None,  # type: ignore[arg-type]
        )

    def is_this(self, node_id: int) -> bool:
        return node_id == self.node_id

    def partition(self, topic: str, index: int) -> FakePartition:
        if (topic, index) not in self.partitions:
            raise UnknownTopicOrPartitionError(f"{topic}-{index}")
        return self.partitions[topic, index]

    def partition_state(self, topic: str, index: int) -> Any:
        """What the metadata says of a partition: there is no other broker that could lead it."""
        known = (topic, index) in self.partitions
        return SimpleNamespace(leader=self.node_id, replicas=(self.node_id,)) if known else None

    def state_batch_bytes_max(self, index: int) -> int:
        return batch_bytes_max(self.around, TRANSACTION_STATE, index)

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

    def end(self, name: str, who: dict[str, int], committed: bool, version: int = 3) -> asyncio.Future[Any]:
        request = EndTxnRequest(transactional_id=name, committed=committed, **who)
        return self.ask_transactions("end_txn", request, version)

    def commit(self, group: str, offsets: dict[int, int]) -> asyncio.Future[Any]:
        return self.ask_group("offset_commit", commit_request(group, offsets), 8)

    def commit_in_transaction(
        self, name: str, who: dict[str, int], group: str, offsets: dict[int, int], version: int = 3
    ) -> asyncio.Future[Any]:
        """By the handler itself, which asks the transaction's coordinator first."""
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
        return asyncio.ensure_future(
            txn_offset_commit(request, context(version), self.groups, self.transactions, self, self.replicas)  # type: ignore[arg-type]
        )

    async def fetch(self, group: str) -> dict[int, int]:
        found = await self.ask_group("offset_fetch", OffsetFetchRequest(group_id=group, topics=None), 5)
        return {one.partition_index: one.committed_offset for topic in found.topics for one in topic.partitions}

    async def close(self) -> None:
        await self.transactions.close()
        await self.groups.close()


def commit_request(group: str, offsets: dict[int, int]) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        for index, offset in offsets.items()
    ]
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)],
    )


def context(version: int) -> Any:
    """As much of a request's context as coordinators look at."""
    return SimpleNamespace(client_id="c", client_host="h", api_version=version, topics_to_know=None)


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
