"""Both coordinators on a real disk that is always syncing, while threads change places all the time."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import becomes

from headrace.broker.broker import Broker
from headrace.broker.handlers.txn_offset_commit import txn_offset_commit
from headrace.broker.requests.dispatch import settled
from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.errors import ErrorCode
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.create_topics import CreatableTopic
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.testing import broker

from .coordinators import answer, context

SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
PRODUCERS, TRANSACTIONS, PARTITIONS = 4, 30, 4
RETRIED = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


class Actor:
    """A producer that commits offsets of a group of its own in transactions, and knows which must count."""

    def __init__(self, inside: Broker, number: int) -> None:
        self.inside = inside
        self.name, self.group = f"producer-{number}", f"group-{number}"
        self.random = random.Random(number)
        self.expected: dict[int, int] = {}

    async def ask(self, method: str, request: Any, version: int) -> Any:
        service = self.inside.transactions
        while True:
            call = service.call(getattr(service.coordinator, method), context(version), request)
            found = await settled(call)
            if found.error_code not in RETRIED:
                assert found.error_code == ErrorCode.NONE, found
                return found
            await asyncio.sleep(0)

    async def run(self) -> None:
        for number in range(TRANSACTIONS):
            if number % 5 == 0:
                init = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000)
                found = await self.ask("init_producer_id", init, 4)
                who = {"producer_id": found.producer_id, "producer_epoch": found.producer_epoch}
            add = AddOffsetsToTxnRequest(transactional_id=self.name, group_id=self.group, **who)
            await self.ask("add_offsets_to_txn", add, 3)
            offsets = dict.fromkeys(self.random.sample(range(PARTITIONS), 2), number)
            partitions = [
                TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
                for index, offset in offsets.items()
            ]
            request = TxnOffsetCommitRequest(
                transactional_id=self.name,
                group_id=self.group,
                producer_id=who["producer_id"],
                producer_epoch=who["producer_epoch"],
                generation_id=-1,
                member_id="",
                topics=[TxnOffsetCommitRequestTopic(name="t", partitions=partitions)],
            )
            inside = self.inside
            committing = asyncio.ensure_future(
                txn_offset_commit(
                    request, context(3), inside.groups, inside.transactions, inside.cluster, inside.replicas
                )
            )
            if number % 5 == 4:
                continue  # whoever takes its place aborts the transaction, perhaps while the offsets are being written
            errors = {one.error_code for one in (await committing).topics[0].partitions}
            assert errors == {ErrorCode.NONE}
            commits = self.random.random() < 0.5
            await self.ask("end_txn", EndTxnRequest(transactional_id=self.name, committed=commits, **who), 3)
            if commits:
                self.expected |= offsets

    async def fetch(self) -> dict[int, int]:
        groups = self.inside.groups
        request = OffsetFetchRequest(group_id=self.group, topics=None)
        found = await answer(groups.call(groups.coordinator.offset_fetch, context(5), request))
        return {one.partition_index: one.committed_offset for topic in found.topics for one in topic.partitions}

    async def close(self) -> None:
        init = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000)
        await self.ask("init_producer_id", init, 4)


async def keep_syncing(inside: Broker) -> None:
    while True:
        await inside.partition(CONSUMER_OFFSETS, 0).turns.sync()


async def story(inside: Broker) -> None:
    for name in (CONSUMER_OFFSETS, TRANSACTION_STATE):
        await inside.metadata.ensure_internal(name)
    await inside.metadata.create(CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1))
    await becomes(lambda: inside.groups.coordinator.is_loaded(0), every_s=0)
    actors = [Actor(inside, number) for number in range(PRODUCERS)]
    syncing = asyncio.ensure_future(keep_syncing(inside))
    await asyncio.gather(*(actor.run() for actor in actors))
    await asyncio.gather(*(actor.close() for actor in actors))
    syncing.cancel()
    for actor in actors:
        assert await actor.fetch() == actor.expected, "an aborted offset counts, or a committed one does not"
    for group in inside.groups.coordinator._shards.groups.values():
        assert not group.offsets.pending
        assert not group.offsets.in_flight
    inside.groups.resign(0)
    inside.groups.lead(0, inside.partition(CONSUMER_OFFSETS, 0).leader_epoch)
    await becomes(lambda: inside.groups.coordinator.is_loaded(0), every_s=0)
    for actor in actors:
        assert await actor.fetch() == actor.expected, "a reload gives another state"


@pytest.mark.slow
@pytest.mark.usefixtures("often_switching")
def test_transactional_offsets_are_right_while_threads_switch_often(tmp_path: Path, failures: list[str]) -> None:
    with broker(str(tmp_path / "data"), SETTINGS) as kafka:
        kafka.call(story)
    assert not failures
