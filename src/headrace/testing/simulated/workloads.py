"""What clients do in a run: the real asyncio clients, each on a machine of its own, writing down what they are told."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from headrace.client.admin.types import ConfigResource, NewTopic, ResourceType
from headrace.client.consumer.aio import Consumer
from headrace.client.consumer.errors import CommitFailedError
from headrace.client.errors import (
    AbortableTransactionError,
    DeliveryTimeoutError,
    FatalTransactionError,
    TransactionTimeoutError,
)
from headrace.client.offsets import OffsetAndMetadata
from headrace.client.producer.aio import Producer
from headrace.client.producer.delivery import Delivery
from headrace.errors import (
    HeadraceError,
    RebalanceInProgressError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from headrace.runtime.simulated import Host
from headrace.testing.simulated.cluster import SimulatedCluster
from headrace.testing.simulated.faults import RIVALS, TRIES_AGAIN
from headrace.testing.simulated.history import (
    DELETION,
    NUMBER,
    CommitCall,
    History,
    Register,
    Transaction,
    TransactionEnd,
    tombstone_of,
)
from headrace.testing.simulated.plans import WRITING, Plan
from headrace.testing.simulated.shares import MemberShare
from headrace.topics import TopicPartition

ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")
GROUP = "group"
TRANSACTION_TIMEOUT_MS = 10_000
_PATIENCE_S = 60.0
_SCRATCH_TOPICS = 2
_CROWD = 12
_KEYS = 4
_PADDING = 100
_METADATA_AGE_MS = 1_000
#: Most clients lose patience within the time that a fault takes; the others wait for longer than any of them lasts.
PATIENT_MS = 10_000
_TIMEOUTS_MS = (1_000, 1_000, PATIENT_MS)
#: How many records a poll gives at most: of many polls only a part of what was fetched.
_HANDED_OUT_MAX = (1, 3, 500, 500)
#: How many of the records of topics in which keys can be deleted do that.
DELETABLE, _DELETED = ("compacted",), 0.15


class Workload(abc.ABC):
    """One client. `run` goes on until `is_stopping`, then comes to its end."""

    #: Whether it only reads, and should be given everything before it stops.
    is_reading = False

    def __init__(self, cluster: SimulatedCluster, plan: Plan, history: History, name: str) -> None:
        self.cluster = cluster
        self.plan = plan
        self.history = history
        self.name = name
        self.rng: random.Random = cluster.simulation.random_for(f"workload {name}")
        self.host: Host = cluster.client_host(name)
        self.is_stopping = False

    @abc.abstractmethod
    async def run(self) -> None: ...

    def partitions(self, topic: str) -> range:
        """The partitions of a topic, also those that were added to it."""
        return range(self.history.partitions.get(topic, self.plan.partitions))

    async def pause(self, seconds_max: float) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, seconds_max))


class Writer(Workload):
    """Producers that insist on their records: acks=all, numbered (`idempotent`) or not (`plain`)."""

    def __init__(
        self, cluster: SimulatedCluster, plan: Plan, history: History, name: str, topic: str, idempotent: bool
    ) -> None:
        super().__init__(cluster, plan, history, name)
        self._topic = topic
        self._is_idempotent = idempotent

    async def run(self) -> None:
        async with self.cluster.producer(host=self.host, **self._config()) as producer:
            waiting: list[asyncio.Task[None]] = []
            for number in range(self.plan.records_max):
                if self.is_stopping:
                    break
                waiting.append(asyncio.ensure_future(self._send(producer, number)))
                await self._rest(waiting[-1])
            await asyncio.gather(*waiting)

    def _config(self) -> dict[str, Any]:
        return {
            "enable_idempotence": self._is_idempotent,
            "linger_ms": self.rng.choice((0, 5, 50)),
            "request_timeout_ms": self.rng.choice(_TIMEOUTS_MS),
        }

    def _record(self, number: int) -> tuple[str | None, str]:
        """The key and the value of the record of that number."""
        return None, f"{self.name}:{number:05d}"

    async def _rest(self, sent: asyncio.Task[None]) -> None:
        """After a record, before the next one."""
        if self.rng.random() < 0.7:
            await self.pause(0.15)

    def _send(self, producer: Producer, number: int) -> Coroutine[Any, Any, None]:
        """Send the next record, now; what is given back waits for its delivery."""
        key, value = self._record(number)
        partition = TopicPartition(self._topic, self.rng.choice(self.partitions(self._topic)))
        self.history.sent.setdefault(self._topic, set()).add(value)
        self.history.tell(self.name, f"{partition}: sends {value[:40]!r}")
        key_bytes = None if key is None else key.encode()
        # What deletes a key has no value; its number is in a header, so that it can be told from others.
        is_deletion = value.endswith(DELETION)
        delivery = producer.send(
            self._topic,
            None if is_deletion else value.encode(),
            key=key_bytes,
            partition=partition.partition,
            headers=[(NUMBER, value.split(":")[1].encode())] if is_deletion else [],
        )
        return self._delivered(delivery, partition, value)

    async def _delivered(self, delivery: Delivery, partition: TopicPartition, value: str) -> None:
        try:
            told = await delivery
        except DeliveryTimeoutError:
            self.history.count("deliveries timed out")
            self.history.tell(self.name, f"{partition}: no answer in time for {value[:40]!r}")
            return
        self.history.was_acknowledged(partition, told.offset, value)


class ImpatientWriter(Writer):
    """Sends in bursts, a record a batch, several at a time, and soon again what was not answered."""

    topic = WRITING[TRIES_AGAIN]

    def __init__(self, cluster: SimulatedCluster, plan: Plan, history: History, name: str) -> None:
        super().__init__(cluster, plan, history, name, self.topic, True)

    def _config(self) -> dict[str, Any]:
        return {"linger_ms": 0, "batch_size": 1, "request_timeout_ms": _TIMEOUTS_MS[0]}

    async def _rest(self, sent: asyncio.Task[None]) -> None:
        if self.rng.random() < 0.25:
            await self.pause(0.3)


class KeyedWriter(Writer):
    """Writes rising numbers for a few keys, one at a time, while brokers compact the topic or delete its beginning."""

    def _config(self) -> dict[str, Any]:
        return {"request_timeout_ms": PATIENT_MS}

    def _record(self, number: int) -> tuple[str | None, str]:
        key = f"key-{self.rng.randrange(_KEYS)}"
        if self._topic in DELETABLE and self.rng.random() < _DELETED:
            return key, tombstone_of(key, number)
        return key, f"{key}:{number:05d}:{'x' * _PADDING}"

    async def _rest(self, sent: asyncio.Task[None]) -> None:
        await sent
        await self.pause(0.05)


class Crowd(Workload):
    """Many producers that come, send little and go. A broker answers each client's requests one after the other, so
    only many of them fill the log of a leader whose followers are away."""

    topic = WRITING["crowd"]

    async def run(self) -> None:
        present: set[asyncio.Task[None]] = set()
        for number in range(self.plan.records_max):
            if self.is_stopping:
                break
            present.add(asyncio.ensure_future(self._send(number)))
            await self.pause(0.12)
            while len(present) >= _CROWD:
                await asyncio.wait(present, return_when=asyncio.FIRST_COMPLETED)
                present = {task for task in present if not task.done() or task.result()}
        await asyncio.gather(*present)

    async def _send(self, number: int) -> None:
        partition = TopicPartition(self.topic, self.rng.choice(self.partitions(self.topic)))
        value = f"{self.name}:{number:05d}"
        self.history.sent.setdefault(self.topic, set()).add(value)
        config = {"enable_idempotence": False, "linger_ms": 0, "request_timeout_ms": PATIENT_MS}
        async with self.cluster.producer(host=self.host, **config) as producer:
            try:
                told = await producer.send(self.topic, value.encode(), partition=partition.partition)
            except DeliveryTimeoutError:
                self.history.count("deliveries timed out")
                return
            self.history.was_acknowledged(partition, told.offset, value)


class Transactor(Workload):
    """A transactional producer; after an error that it cannot go on from, another with the same id."""

    topic = WRITING["transactions"]

    @property
    def transactional_id(self) -> str:
        return self.name

    async def run(self) -> None:
        number = 0
        while not self.is_stopping:
            producer = self.cluster.producer(
                host=self.host,
                transactional_id=self.transactional_id,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                request_timeout_ms=PATIENT_MS,
            )
            try:
                await producer.init_transactions(_PATIENCE_S)
                while not self.is_stopping and number < self.plan.records_max:
                    number += 1
                    await self._transact(producer, number)
                    await self.pause(0.3)
                if number >= self.plan.records_max:
                    return
            except (FatalTransactionError, TransactionTimeoutError, TimeoutError):
                self.history.count("transactional producers given up")
                await asyncio.sleep(0.1)
            finally:
                with contextlib.suppress(HeadraceError, TimeoutError):
                    await producer.close(20)

    async def _transact(self, producer: Producer, number: int) -> None:
        transaction = Transaction(self.name, number)
        self.history.transactions.append(transaction)
        is_committed = self.rng.random() < 0.75
        await producer.begin_transaction()
        try:
            partitions = self.partitions(self.topic)
            for index in self.rng.sample(partitions, self.rng.randint(1, len(partitions))):
                value = f"{self.name}:{number:05d}:{index}"
                transaction.values[TopicPartition(self.topic, index)] = value
                self.history.sent.setdefault(self.topic, set()).add(value)
                self.history.tell(self.name, f"{self.topic}-{index}: sends {value!r} in transaction {number}")
                producer.send(self.topic, value.encode(), partition=index)
            if self.rng.random() < 0.3:
                await producer.flush(30)
                await self.pause(self.rng.choice((0.0, 0.5)))
            if self.rng.random() < 0.5:
                transaction.has_offset = True
                await producer.send_offsets_to_transaction(
                    {TopicPartition(self.topic, 0): number}, self.name, _PATIENCE_S
                )
            if is_committed:
                await producer.commit_transaction(_PATIENCE_S)
                transaction.outcome = TransactionEnd.COMMITTED
                self._told(transaction)
                self.history.count("transactions committed")
                return
        except AbortableTransactionError:
            self.history.count("transactions that had to be aborted")
        await producer.abort_transaction(_PATIENCE_S)
        transaction.outcome = TransactionEnd.ABORTED
        self._told(transaction)
        self.history.count("transactions aborted")

    def _told(self, transaction: Transaction) -> None:
        for partition, value in transaction.values.items():
            what = f"{value!r} of transaction {transaction.number}"
            self.history.tell(self.name, f"{partition}: {what} is {transaction.outcome.value}")


class Rival(Transactor):
    """One of two that have the same transactional id: each fences the other, again and again."""

    topic = WRITING[RIVALS]

    @property
    def transactional_id(self) -> str:
        return RIVALS

    async def _transact(self, producer: Producer, number: int) -> None:
        await super()._transact(producer, number)
        if self.rng.random() < 0.2:
            # Long enough for the other to take over, and for this one not to know.
            await self.pause(1.0)


class Reader(Workload):
    """A consumer without a group that reads everything from the beginning."""

    is_reading = True

    def __init__(
        self, cluster: SimulatedCluster, plan: Plan, history: History, name: str, topics: list[str], committed: bool
    ) -> None:
        super().__init__(cluster, plan, history, name)
        self._topics = topics
        self._is_committed = committed

    async def run(self) -> None:
        isolation = "read_committed" if self._is_committed else "read_uncommitted"
        config = {
            "isolation_level": isolation,
            "auto_offset_reset": "none",
            "fetch_max_wait_ms": 200,
            "request_timeout_ms": self.rng.choice(_TIMEOUTS_MS),
            "max_poll_records": self.rng.choice(_HANDED_OUT_MAX),
        }
        async with self.cluster.consumer(host=self.host, **config) as consumer:
            while not self.is_stopping:
                self._take_up(consumer)
                records = await consumer.poll(0.5)
                for record in records:
                    partition = TopicPartition(record.topic, record.partition)
                    self.history.was_read(self.name, partition, record.offset, _text(record.value))

    def _take_up(self, consumer: Consumer) -> None:
        """Read all partitions there are: those that were added, too."""
        wanted = [TopicPartition(topic, index) for topic in self._topics for index in self.partitions(topic)]
        added = set(wanted) - consumer.assignment()
        if added:
            consumer.assign(wanted)
            consumer.seek_to_beginning(sorted(added))
            for partition in added:
                self.history.reads_from(self.name, partition, self._is_committed)


def member_config(
    plan: Plan, group: str, assignor: str, request_timeout_ms: int, handed_out_max: int = 500
) -> dict[str, Any]:
    """Of a consumer in a group, which commits by itself."""
    # New partitions are noticed when a member asks for the metadata anew.
    aged = {"metadata_max_age_ms": _METADATA_AGE_MS} if plan.grows else {}
    return {
        **aged,
        "group_id": group,
        "isolation_level": "read_committed",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 3000,
        "heartbeat_interval_ms": 500,
        # It bounds, with five seconds more, how long an answer to JoinGroup is waited for: on a connection to a machine
        # that has lost its power nothing else ends that.
        "max_poll_interval_ms": 20_000,
        "fetch_max_wait_ms": 200,
        "request_timeout_ms": request_timeout_ms,
        "partition_assignment_strategy": assignor,
        "max_poll_records": handed_out_max,
    }


class MemberWorkload(Workload):
    """A member of the group: works on what it is given, and commits."""

    is_reading = True

    def __init__(
        self,
        cluster: SimulatedCluster,
        plan: Plan,
        history: History,
        name: str,
        topics: list[str],
        assignor: str,
    ) -> None:
        super().__init__(cluster, plan, history, name)
        self._topics = topics
        self._assignor = assignor
        #: When the faults are over.
        self._calm_at: float | None = None

    async def run(self) -> None:
        left = self.rng.uniform(0.2, 1.0) * self.plan.duration_s
        loop = asyncio.get_running_loop()
        if self._calm_at is None:
            self._calm_at = loop.time() + self.plan.duration_s
        calm_at = self._calm_at

        def leaves() -> bool:
            nonlocal left
            left -= 0.5
            if self.plan.grows and loop.time() > calm_at:
                # Whoever leaves calls for a rebalance, which would be all that gives new partitions to anybody.
                return self.is_stopping
            return self.is_stopping or (left < 0 and self.rng.random() < 0.1)

        await self.consume(self.host, self.config(), leaves)
        if not self.is_stopping:
            # It has left the group, and comes back as another member: two rebalances.
            self.history.count("members came back")
            await self.pause(1.0)
            await self.run()

    def config(self) -> dict[str, Any]:
        handed_out_max = self.rng.choice(_HANDED_OUT_MAX)
        return member_config(self.plan, GROUP, self._assignor, self.rng.choice(_TIMEOUTS_MS), handed_out_max)

    async def consume(self, host: Host, config: dict[str, Any], leaves: Callable[[], bool]) -> None:
        """Be a member until, after a poll, it is to leave."""
        async with self.cluster.consumer(host=host, **config) as consumer:
            await self.work(consumer, host, leaves)

    async def work(self, consumer: Consumer, host: Host, leaves: Callable[[], bool]) -> None:
        share = MemberShare(consumer, self.history, GROUP, host.name)
        consumer.subscribe(self._topics, share)
        while True:
            records = await consumer.poll(0.5)
            # With the epoch, as a commit of what was polled has it: a leader that does not know that it was
            # replaced cannot be told by the offset alone from one whose log was cut.
            upto: dict[TopicPartition, OffsetAndMetadata] = {}
            for record in records:
                partition = TopicPartition(record.topic, record.partition)
                share.given(partition, record.offset)
                self.history.count("records processed")
                done = self.history.processed.setdefault((GROUP, partition), {})
                done[record.offset] = _text(record.value)
                self.history.tell(host.name, f"{partition}: is given {done[record.offset]!r} at {record.offset}")
                upto[partition] = OffsetAndMetadata(record.offset + 1, "", record.leader_epoch)
            if upto:
                await self._commit(consumer, upto)
            if leaves():
                return

    async def _commit(self, consumer: Consumer, upto: dict[TopicPartition, OffsetAndMetadata]) -> None:
        commits, who = {}, consumer.group_metadata()
        for partition, committed in upto.items():
            commits[partition] = CommitCall(committed.offset, self.history.tick())
            self.history.group_commits.setdefault((GROUP, partition), []).append(commits[partition])
        try:
            await consumer.commit_sync(upto, timeout=20.0)
        except (CommitFailedError, RebalanceInProgressError, RequestTimedOutError, TimeoutError):
            self.history.count("commits refused or without an answer")
            for partition, committed in upto.items():
                self.history.tell(who.member_id, f"{partition}: the commit of {committed.offset} failed")
            return
        self.history.count("commits")
        for partition, commit in commits.items():
            commit.answered_at = self.history.tick()
            self.history.tell(who.member_id, f"{partition}: has committed {commit.offset}")
            if consumer.group_metadata().member_id == who.member_id:
                self.history.was_member(who, commit.asked_at)


class OffsetKeeper(Workload):
    """One writer of a committed offset, and readers of it: together they see one register."""

    partition = TopicPartition("kept", 0)

    async def run(self) -> None:
        register = self.history.registers.setdefault((self.name, self.partition), Register())
        other = self.cluster.client_host(f"{self.name}-reader")
        reading = asyncio.ensure_future(other.start(self._read(register, other)))
        async with self.cluster.admin(host=self.host, request_timeout_ms=PATIENT_MS) as admin:
            for number in range(1, self.plan.records_max + 1):
                if self.is_stopping:
                    break
                commit = CommitCall(number, self.history.tick())
                register.writes.append(commit)
                # A coordinator that has just come back may not know the topic yet.
                with contextlib.suppress(RequestTimedOutError, TimeoutError, UnknownTopicOrPartitionError):
                    (await admin.within(10).alter_group_offsets(self.name, {self.partition: number})).all()
                    commit.answered_at = self.history.tick()
                    self.history.count("offsets written")
                if commit.answered_at is None:
                    # It may still be on its way, and be made after the next one.
                    break
                await self.pause(0.4)
        self.is_stopping = True
        await reading

    async def _read(self, register: Register, host: Host) -> None:
        async with self.cluster.admin(host=host, request_timeout_ms=PATIENT_MS) as admin:
            while not self.is_stopping:
                asked_at = self.history.tick()
                with contextlib.suppress(RequestTimedOutError, TimeoutError):
                    found = (await admin.within(10).list_group_offsets([self.name])).all()[self.name]
                    offset = _offset_of(found, self.partition)
                    register.reads.append(CommitCall(offset, asked_at, self.history.tick()))
                    self.history.count("offsets read")
                await self.pause(0.3)


class Administrator(Workload):
    """Makes and deletes topics, moves replicas and leaders, changes configurations."""

    async def run(self) -> None:
        async with self.cluster.admin(host=self.host, request_timeout_ms=PATIENT_MS) as admin:
            steps: list[Callable[[Any], Awaitable[None]]] = [
                self._scratch,
                self._scratch,
                self._elect,
                self._reassign,
                self._configure,
            ]
            while not self.is_stopping:
                await self.pause(1.0)
                with contextlib.suppress(RequestTimedOutError, TimeoutError):
                    await self.rng.choice(steps)(admin.within(15))

    def _topics(self) -> list[str]:
        return [WRITING[workload] for workload in self.plan.workloads if workload in WRITING]

    async def _scratch(self, admin: Any) -> None:
        """Make a topic that is not there, or delete one that is.

        That it is there already, or not there, may be told by a controller that nobody reaches any more: then it is
        not known. What was done is.
        """
        name = f"scratch-{self.rng.randrange(_SCRATCH_TOPICS)}"
        scratch = self.history.scratch
        was, scratch[name] = scratch.get(name, False), None
        if was is False or (was is None and self.rng.random() < 0.5):
            error = (await admin.create_topics([NewTopic(name, 1, 3)])).errors.get(name)
            if error is None:
                scratch[name] = True
                self.history.count("topics created")
        else:
            error = (await admin.delete_topics([name])).errors.get(name)
            if error is None:
                scratch[name] = False
                self.history.count("topics deleted")

    async def _elect(self, admin: Any) -> None:
        await admin.elect_leaders(None)
        self.history.count("elections asked for")

    async def _reassign(self, admin: Any) -> None:
        """Name the replicas in another order, so that another is the preferred leader."""
        partition = TopicPartition(self.rng.choice(self._topics()), self.rng.randrange(self.plan.partitions))
        await admin.alter_partition_reassignments({partition: self.rng.sample(list(self.cluster.brokers), 3)})
        self.history.count("reassignments asked for")

    async def _configure(self, admin: Any) -> None:
        topic = ConfigResource(ResourceType.TOPIC, self.rng.choice(self._topics()))
        value = str(self.rng.choice((1_000_000, 2_000_000)))
        await admin.incremental_alter_configs({topic: {"max.message.bytes": value}})
        self.history.count("configurations changed")


def _text(value: Any) -> str:
    return bytes(value or b"").decode()


def _offset_of(found: Any, partition: TopicPartition) -> int:
    entry = found.get(partition)
    if entry is None:
        return -1
    return int(getattr(entry, "offset", entry))
