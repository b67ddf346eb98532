"""What coordinators had in memory is gone with the topic that kept it on disk."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import becomes

from headrace.broker.broker import Broker
from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.errors import ErrorCode
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

from .sim import SimulatedBroker
from .test_topic_names import create, delete, given, serving, simulate


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


CONTEXT: Any = SimpleNamespace(client_id="c", client_host="h", api_version=8, topics_to_know=None)


async def committed(broker: Broker) -> int:
    await becomes(lambda: broker.groups.coordinator.is_loaded(0))
    wanted = OffsetFetchRequestGroup(group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])])
    request = OffsetFetchRequest(groups=[wanted])
    answer = await given(broker.groups.call(broker.groups.coordinator.offset_fetch, CONTEXT, request))
    offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
    return offset


async def commit(broker: Broker, offset: int) -> int:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name="t", partitions=[part])],
    )
    answer = await given(broker.groups.call(broker.groups.coordinator.offset_commit, CONTEXT, request))
    code: int = answer.topics[0].partitions[0].error_code
    return code


def test_groups_are_gone_with_the_topic_that_kept_them() -> None:
    async def life(broker: Broker) -> None:
        await broker.metadata.ensure_internal(CONSUMER_OFFSETS)
        await create(broker, "t")
        assert await committed(broker) == -1
        assert await commit(broker, 500) == 0
        assert await committed(broker) == 500
        await delete(broker, CONSUMER_OFFSETS)
        assert await commit(broker, 501) in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        await broker.metadata.ensure_internal(CONSUMER_OFFSETS)
        assert await committed(broker) == -1
        assert await commit(broker, 7) == 0
        assert broker.partition(CONSUMER_OFFSETS, 0).log.end_offset == 1

    async def scenario(machine: SimulatedBroker) -> None:
        await machine.host.start(life(serving(machine)))
        await machine.stop()
        await machine.start()
        assert await machine.host.start(committed(serving(machine))) == 7

    simulate(scenario, {})


def test_a_topic_that_is_deleted_while_its_coordinator_reads_it_leaves_nothing_of_it() -> None:
    async def life(broker: Broker) -> None:
        await broker.metadata.ensure_internal(CONSUMER_OFFSETS)
        await create(broker, "t")
        assert await committed(broker) == -1
        assert await commit(broker, 500) == 0

    async def again(broker: Broker) -> None:
        assert not broker.groups.coordinator.is_loaded(0)
        await delete(broker, CONSUMER_OFFSETS)
        await broker.metadata.ensure_internal(CONSUMER_OFFSETS)
        assert await committed(broker) == -1

    async def scenario(machine: SimulatedBroker) -> None:
        await machine.host.start(life(serving(machine)))
        await machine.stop()

        async def start_and_delete() -> None:
            broker = serving(machine)
            await broker.start()
            await again(broker)

        machine.broker = Broker.from_settings(machine.host.restart(), machine.settings)
        await machine.host.start(start_and_delete())

    simulate(scenario, {})


def test_transactions_are_gone_with_the_topic_that_kept_them() -> None:
    async def introduced(broker: Broker) -> tuple[int, int]:
        request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
        while True:
            call = broker.transactions.call(broker.transactions.coordinator.init_producer_id, CONTEXT, request)
            answer = await given(call)
            if answer.error_code == ErrorCode.NONE:
                return answer.producer_id, answer.producer_epoch
            assert answer.error_code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS)
            await asyncio.sleep(0.01)

    async def life(broker: Broker) -> None:
        await broker.metadata.ensure_internal(TRANSACTION_STATE)
        first = await introduced(broker)
        assert await introduced(broker) == (first[0], first[1] + 1)
        await delete(broker, TRANSACTION_STATE)
        await broker.metadata.ensure_internal(TRANSACTION_STATE)
        producer_id, epoch = await introduced(broker)
        assert producer_id != first[0]
        assert epoch == 0

    async def scenario(machine: SimulatedBroker) -> None:
        await machine.host.start(life(serving(machine)))

    simulate(scenario, {"transaction.state.log.num.partitions": "1"})
