"""What transactional producers do, step by step, in the older protocol and the newer one; for the simulation.

A process is a generator: it yields a `Call` (and is given the answer) or a `Pause`. What happens on the way, and when
a call is sent again, is the simulation's matter.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import ErrorCode
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.topics import TopicPartition, partition_for_group
from headrace.transactions import produce_error
from headrace.transactions.records import by_topic

RETRY = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}
GROUP = "group"
OFFSETS = TopicPartition("__consumer_offsets", partition_for_group(GROUP, 50))


@dataclass
class Produce:
    """One batch for a partition. In the newer protocol its leader adds the partition to the transaction."""

    transactional_id: str
    producer_id: int
    epoch: int
    partition: TopicPartition
    value: str
    version: int


@dataclass
class Call:
    """A request that is sent until it is answered."""

    method: str
    request: Any
    version: int
    label: str = ""  # the transaction that it is about
    connection: int = 0
    is_answered: bool = False


@dataclass
class Pause:
    ms: int


Steps = Generator[Call | Pause, Any, Any]


class FatalError(Exception):
    """The producer was fenced, or cannot go on for another reason."""


@dataclass
class Process:
    name: str
    transactional_id: str
    is_newer: bool
    timeout_ms: int
    partitions: list[TopicPartition]
    pick: random.Random
    who: tuple[int, int] = (-1, -1)
    transactions: int = 0
    acknowledged: dict[str, set[tuple[TopicPartition, str]]] = field(default_factory=dict)  # by transaction
    current: Call | None = None
    is_dead: bool = False

    def run(self) -> Steps:
        try:
            yield from self.init((-1, -1))
            for _ in range(self.pick.randint(1, 12)):
                yield from self.transaction()
        except FatalError:
            pass

    def patiently(self, method: str, request: Any, version: int, label: str = "") -> Steps:
        """Ask again as long as the answer says so."""
        while True:
            answer = yield Call(method, request, version, label)
            error = answer if isinstance(answer, ErrorCode) else error_in(answer)
            if error not in RETRY:
                return error, answer
            yield Pause(self.pick.randint(10, 200))

    def init(self, known: tuple[int, int]) -> Steps:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=known[0],
            producer_epoch=known[1],
        )
        error, answer = yield from self.patiently("init_producer_id", request, 5 if self.is_newer else 4)
        if error != ErrorCode.NONE:
            raise FatalError
        self.who = (answer.producer_id, answer.producer_epoch)

    def transaction(self) -> Steps:
        self.transactions += 1
        label = f"{self.name}/{self.transactions}"
        wanted = self.pick.sample(self.partitions, self.pick.randint(1, len(self.partitions)))
        if not self.is_newer:
            yield from self.add(wanted, label)
        is_well = True
        for number in range(self.pick.randint(1, 3)):
            for partition in wanted:
                is_well = is_well and (yield from self.produce(partition, f"{label}/{number}", label))
        if self.pick.random() < 0.1:
            yield Pause(self.pick.randint(1_000, 30_000))
        commit = is_well and self.pick.random() < 0.7
        yield from self.end(commit, label)
        if not commit and self.pick.random() < 0.3:
            yield from self.init(self.who)

    def add(self, wanted: list[TopicPartition], label: str) -> Steps:
        topics = [
            AddPartitionsToTxnTopic(name=topic, partitions=indexes)
            for topic, indexes in by_topic(p for p in wanted if p != OFFSETS).items()
        ]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.who[0],
            v3_and_below_producer_epoch=self.who[1],
            v3_and_below_topics=topics,
        )
        if topics:
            error, _ = yield from self.patiently("add_partitions_to_txn", request, 3, label)
            if error != ErrorCode.NONE:
                raise FatalError
        if OFFSETS in wanted:
            offsets = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.who[0],
                producer_epoch=self.who[1],
                group_id=GROUP,
            )
            error, _ = yield from self.patiently("add_offsets_to_txn", offsets, 3, label)
            if error != ErrorCode.NONE:
                raise FatalError

    def produce(self, partition: TopicPartition, value: str, label: str) -> Steps:
        """Whether it is written. If not, the transaction can only be aborted."""
        version = 12 if self.is_newer else self.pick.choice((9, 11))
        produce = Produce(self.transactional_id, *self.who, partition, value, version)
        error, _ = yield from self.patiently("produce", produce, version, label)
        if error == ErrorCode.NONE:
            self.acknowledged.setdefault(label, set()).add((partition, value))
        return error == ErrorCode.NONE

    def end(self, commit: bool, label: str) -> Steps:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.who[0],
            producer_epoch=self.who[1],
            committed=commit,
        )
        error, answer = yield from self.patiently("end_txn", request, 5 if self.is_newer else 3, label)
        if error != ErrorCode.NONE:
            raise FatalError
        if self.is_newer:
            self.who = (answer.producer_id, answer.producer_epoch)


def error_in(answer: Any) -> ErrorCode:
    if hasattr(answer, "results_by_topic_v3_and_below"):
        for topic in answer.results_by_topic_v3_and_below:
            for result in topic.results_by_partition:
                if result.partition_error_code:
                    return ErrorCode(result.partition_error_code)
    return ErrorCode(answer.error_code)


def told_to_producer(error: ErrorCode, version: int) -> ErrorCode:
    return produce_error(error, version)
