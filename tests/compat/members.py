"""Members of consumer groups, each on a thread of its own, as each of the clients makes them."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import aiokafka
import aiokafka.coordinator.assignors.range
import aiokafka.coordinator.assignors.roundrobin
import aiokafka.coordinator.assignors.sticky.sticky_assignor
import aiokafka.errors
import confluent_kafka
import kafka as kafka_python
import kafka.errors
from kafka.coordinator.assignors import cooperative_sticky
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky import sticky_assignor
from tests.waiting import eventually

import headrace
import headrace.errors as headrace_errors

from .clients import TIMEOUT_S, AioKafka, Confluent, KafkaPython, confluent_consumer

SESSION_MS, HEARTBEAT_MS, POLL_S = 6000, 150, 0.05
LONG_POLL_MS = 500
KAFKA_PYTHON_ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": sticky_assignor.StickyPartitionAssignor,
    "cooperative-sticky": cooperative_sticky.CooperativeStickyAssignor,
}
AIOKAFKA_ASSIGNORS = {
    "range": aiokafka.coordinator.assignors.range.RangePartitionAssignor,
    "roundrobin": aiokafka.coordinator.assignors.roundrobin.RoundRobinPartitionAssignor,
    "sticky": aiokafka.coordinator.assignors.sticky.sticky_assignor.StickyPartitionAssignor,
}

Partition = tuple[str, int]


class Member(ABC):
    """Polls and commits until it is told to stop; what it read and has is to be seen from outside."""

    def __init__(
        self, address: str, group: str, topics: list[str], strategy: str = "range", instance: str | None = None
    ) -> None:
        self.address, self.group, self.topics, self.strategy, self.instance = address, group, topics, strategy, instance
        self.partitions: frozenset[Partition] = frozenset()
        self.read: list[tuple[str, int, int]] = []
        self.rebalances = 0
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"member of {group}")

    def start(self) -> Member:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close the consumer: a dynamic member leaves its group by that, a static one does not."""
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self.open()
            try:
                while not self._stop.is_set():
                    self.read += self.poll()
                    now = self.assigned()
                    if now != self.partitions:
                        self.rebalances += 1
                        self.partitions = now
            finally:
                self.close()
        except BaseException as error:  # noqa: BLE001 - raised again by stop() in the test's own thread
            self.error = error
        self.partitions = frozenset()

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def poll(self) -> list[tuple[str, int, int]]:
        """Records as (topic, partition, offset), committed."""

    @abstractmethod
    def assigned(self) -> frozenset[Partition]: ...

    @abstractmethod
    def close(self) -> None: ...


class ConfluentMember(Member):
    strategies = ("range", "roundrobin", "cooperative-sticky")

    def open(self) -> None:
        config: dict[str, Any] = {"partition.assignment.strategy": self.strategy, "session.timeout.ms": SESSION_MS}
        if self.instance is not None:
            config["group.instance.id"] = self.instance
        self._consumer = confluent_consumer(self.address, self.group, **config)
        self._consumer.subscribe(self.topics)

    def poll(self) -> list[tuple[str, int, int]]:
        found = []
        for message in self._consumer.consume(100, timeout=POLL_S):
            if message.error() is None:
                found.append((message.topic(), message.partition(), message.offset()))
            elif not message.error().retriable():
                raise confluent_kafka.KafkaException(message.error())
        if found:
            try:
                self._consumer.commit(asynchronous=False)
            except confluent_kafka.KafkaException as error:
                _ignore_if_rebalancing(error.args[0].name())
        return found

    def assigned(self) -> frozenset[Partition]:
        return frozenset((part.topic, part.partition) for part in self._consumer.assignment())

    def close(self) -> None:
        self._consumer.close()


def _ignore_if_rebalancing(name: str) -> None:
    if name not in ("REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "_NO_OFFSET"):
        raise AssertionError(f"a commit failed with {name}")


class KafkaPythonMember(Member):
    strategies = tuple(KAFKA_PYTHON_ASSIGNORS)

    def open(self) -> None:
        self._consumer = kafka_python.KafkaConsumer(
            *self.topics,
            bootstrap_servers=self.address,
            client_id=KafkaPython.name,
            group_id=self.group,
            group_instance_id=self.instance,
            partition_assignment_strategy=[KAFKA_PYTHON_ASSIGNORS[self.strategy]],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            retry_backoff_ms=20,
        )

    def poll(self) -> list[tuple[str, int, int]]:
        coordinator = self._consumer._coordinator
        if coordinator.rejoining and not coordinator.need_rejoin():
            # kafka-python 3.0 forgets a join whose answer came while its poll() was over, and is thrown out then.
            coordinator.request_rejoin()
        polled = self._consumer.poll(timeout_ms=LONG_POLL_MS)
        found = [(record.topic, record.partition, record.offset) for records in polled.values() for record in records]
        if found:
            try:
                self._consumer.commit()
            except (kafka.errors.CommitFailedError, kafka.errors.RebalanceInProgressError):
                pass
        return found

    def assigned(self) -> frozenset[Partition]:
        return frozenset((part.topic, part.partition) for part in self._consumer.assignment())

    def close(self) -> None:
        self._consumer.close()


class AioKafkaMember(Member):
    strategies = tuple(AIOKAFKA_ASSIGNORS)

    def open(self) -> None:
        self._runner = asyncio.Runner()
        self._runner.run(self._open())

    async def _open(self) -> None:
        self._consumer = aiokafka.AIOKafkaConsumer(
            *self.topics,
            bootstrap_servers=self.address,
            client_id=AioKafka.name,
            group_id=self.group,
            group_instance_id=self.instance,
            partition_assignment_strategy=[AIOKAFKA_ASSIGNORS[self.strategy]],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            retry_backoff_ms=20,
        )
        await self._consumer.start()

    def poll(self) -> list[tuple[str, int, int]]:
        return self._runner.run(self._poll())

    async def _poll(self) -> list[tuple[str, int, int]]:
        polled = await self._consumer.getmany(timeout_ms=int(POLL_S * 1000))
        found = [(record.topic, record.partition, record.offset) for records in polled.values() for record in records]
        if found:
            try:
                await self._consumer.commit()
            except (aiokafka.errors.CommitFailedError, aiokafka.errors.IllegalStateError):
                pass
        return found

    def assigned(self) -> frozenset[Partition]:
        return frozenset((part.topic, part.partition) for part in self._consumer.assignment())

    def close(self) -> None:
        self._runner.run(self._consumer.stop())
        self._runner.close()


class HeadraceMember(Member):
    """Ours: not one of the peers that the broker is held against, but a member among them."""

    strategies = ("range", "roundrobin", "sticky", "cooperative-sticky")

    def open(self) -> None:
        self._consumer = headrace.Consumer(
            bootstrap_servers=self.address,
            group_id=self.group,
            group_instance_id=self.instance,
            partition_assignment_strategy=self.strategy,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        self._consumer.subscribe(self.topics)

    def poll(self) -> list[tuple[str, int, int]]:
        found = [(record.topic, record.partition, record.offset) for record in self._consumer.poll(POLL_S)]
        if found:
            try:
                self._consumer.commit_sync(timeout=TIMEOUT_S)
            except (headrace.CommitFailedError, headrace_errors.RebalanceInProgressError):
                pass
        return found

    def assigned(self) -> frozenset[Partition]:
        return frozenset((part.topic, part.partition) for part in self._consumer.assignment())

    def close(self) -> None:
        self._consumer.close()


MEMBERS: Mapping[str, type[Member]] = {
    Confluent.name: ConfluentMember,
    KafkaPython.name: KafkaPythonMember,
    AioKafka.name: AioKafkaMember,
}


def shared_out(members: list[Member], partitions: set[Partition]) -> bool:
    """Whether every partition is with one member, and every member has about as many."""
    for member in members:
        if member.error is not None:
            raise member.error
    held = [part for member in members for part in member.partitions]
    return len(held) == len(partitions) and set(held) == partitions and all(member.partitions for member in members)


def wait_until_shared_out(members: list[Member], partitions: set[Partition]) -> None:
    eventually(
        lambda: shared_out(members, partitions),
        what=f"every partition with one of {len(members)} members",
    )


def stop_all(members: list[Member]) -> None:
    for member in members:
        member._stop.set()
    for member in members:
        member.stop()
