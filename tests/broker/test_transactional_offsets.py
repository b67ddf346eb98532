"""Offsets that are committed in transactions, while the group coordinator is still reading what it has to know."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import becomes, eventually

from headrace import Admin, Consumer, NewTopic, Producer
from headrace.broker.broker import Broker
from headrace.broker.handlers.txn_offset_commit import txn_offset_commit
from headrace.broker.requests.dispatch import Pending, settled
from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.errors import ErrorCode
from headrace.log import LogConfig
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.create_topics import CreatableTopic
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.testing import EmbeddedBroker, broker

from .coordinators import answer, context, turns

SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}


def stable_and_end(kafka: EmbeddedBroker, topic: str) -> tuple[int, int]:
    def look(inside: object) -> tuple[int, int]:
        log = kafka.broker.partition(topic, 0).log
        return log.last_stable_offset, log.end_offset

    return kafka.call(look)


def test_a_commit_does_not_overtake_the_offsets_that_are_being_loaded(tmp_path: Path, failures: list[str]) -> None:
    """Else they would be pending for good, and the group's readers stuck, with the output of the transaction out."""
    with broker(str(tmp_path / "data"), SETTINGS) as kafka:
        address = {"bootstrap.servers": kafka.address}
        with Admin(address) as admin:
            admin.create_topics([NewTopic("t", 1, 1)]).all()
        with (
            Producer({**address, "transactional.id": "tid"}) as producer,
            Consumer({**address, "group.id": "g", "enable.auto.commit": False}) as consumer,
        ):
            consumer.assign([("t", 0)])
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"output")
            producer.send_offsets_to_transaction({("t", 0): 5}, consumer.group_metadata())
            epoch = kafka.call(lambda inside: inside.partition(CONSUMER_OFFSETS, 0).leader_epoch)
            # As if it was led anew, but takes long to be read.
            kafka.call(lambda inside: inside.groups.apply(inside.groups.coordinator.begin_load(0, epoch)))
            _, before = stable_and_end(kafka, CONSUMER_OFFSETS)
            producer.commit_transaction()
            eventually(lambda: stable_and_end(kafka, "t") == (2, 2))
            assert stable_and_end(kafka, CONSUMER_OFFSETS)[1] == before, "the marker has to wait"
            kafka.call(lambda inside: inside.groups.resign(0))
            kafka.call(lambda inside: inside.groups.lead(0, epoch))
            eventually(lambda: stable_and_end(kafka, CONSUMER_OFFSETS) == (before + 1, before + 1))
        with Admin(address) as admin:
            found = {place.topic: one.offset for place, one in admin.list_group_offsets(["g"])["g"].items()}
        assert found == {"t": 5}
    assert not failures


def test_a_transaction_ends_also_where_no_batch_is_small_enough(tmp_path: Path, failures: list[str]) -> None:
    with broker(str(tmp_path / "data"), SETTINGS) as kafka:
        address = {"bootstrap.servers": kafka.address}
        with Admin(address) as admin:
            admin.create_topics([NewTopic("t", 1, 1)]).all()

        def limit(inside: Broker) -> None:
            log = inside.partition("t", 0).log
            log.config = dataclasses.replace(log.config, max_message_bytes=10)

        with Producer({**address, "transactional.id": "tid"}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"output")
            producer.flush()
            kafka.call(limit)
            producer.commit_transaction()
            eventually(lambda: stable_and_end(kafka, "t") == (2, 2))
    assert not failures


@pytest.mark.parametrize("version", [3, 5], ids=["older protocol", "newer protocol"])
@pytest.mark.parametrize("is_first", [True, False], ids=["its first offset", "another offset"])
def test_offsets_that_come_late_do_not_begin_a_transaction_that_nobody_ends(
    tmp_path: Path, failures: list[str], version: int, is_first: bool
) -> None:
    """The transaction ends after its coordinator was asked about it, and before the offsets' turn to be written."""

    async def story(inside: Broker) -> None:
        for name in (CONSUMER_OFFSETS, TRANSACTION_STATE):
            await inside.metadata.ensure_internal(name)
        await inside.metadata.create(CreatableTopic(name="t", num_partitions=2, replication_factor=1))
        await becomes(
            lambda: inside.groups.coordinator.is_loaded(0) and inside.transactions.coordinator.is_loaded(0), every_s=0
        )
        transactions = inside.transactions

        def ask(method: Callable[..., Any], request: object, version: int) -> asyncio.Future[Any]:
            return answer(transactions.call(method, context(version), request))

        init = InitProducerIdRequest(transactional_id="tid", transaction_timeout_ms=60_000)
        found = await ask(transactions.coordinator.init_producer_id, init, 4)
        who = {"transactional_id": "tid", "producer_id": found.producer_id, "producer_epoch": found.producer_epoch}
        if version < 5:
            await ask(transactions.coordinator.add_offsets_to_txn, AddOffsetsToTxnRequest(group_id="g", **who), 3)

        def commit(index: int) -> asyncio.Future[Any]:
            offset = TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=7, committed_metadata="")
            topics = [TxnOffsetCommitRequestTopic(name="t", partitions=[offset])]
            request = TxnOffsetCommitRequest(group_id="g", generation_id=-1, member_id="", topics=topics, **who)
            return asyncio.ensure_future(
                txn_offset_commit(
                    request, context(version), inside.groups, inside.transactions, inside.cluster, inside.replicas
                )
            )

        if not is_first:
            assert (await commit(0)).topics[0].partitions[0].error_code == ErrorCode.NONE
        is_over = asyncio.Event()
        join, call = transactions.join, inside.groups.call

        async def slow_join(*arguments: Any, **more: Any) -> Any:
            """As that of another broker, whose answer is long on its way."""
            errors = await join(*arguments, **more)
            await is_over.wait()
            return errors

        def call_later(*arguments: Any) -> Any:
            """As where the disk is busy."""

            async def later() -> Any:
                await is_over.wait()
                return await settled(call(*arguments))

            return Pending(later())

        if is_first:
            transactions.join = slow_join  # type: ignore[method-assign]
        else:
            inside.groups.call = call_later  # type: ignore[method-assign]
        late = commit(1)
        await turns()
        assert not late.done()
        ended = await ask(transactions.coordinator.end_txn, EndTxnRequest(committed=True, **who), version)
        assert ended.error_code == ErrorCode.NONE
        await becomes(lambda: transactions.coordinator.snapshots(0)["tid"].state.is_complete)
        log = inside.partition(CONSUMER_OFFSETS, 0).log
        before = log.end_offset
        is_over.set()
        error = (await late).topics[0].partitions[0].error_code
        refused = {ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH}  # as its batch has the older epoch
        assert error in refused if version == 5 else error == ErrorCode.INVALID_TXN_STATE
        assert log.end_offset == before == log.last_stable_offset, "a transaction hangs"

    with broker(str(tmp_path / "data"), SETTINGS) as kafka:
        kafka.call(story)
    assert not failures


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_tombstones_fit_also_when_the_topic_compresses(tmp_path: Path, failures: list[str], codec: str) -> None:
    """Names that cannot be compressed, in batches as large as they may be."""
    names = [random.Random(number).randbytes(20).hex() for number in range(40)]

    async def story(inside: Broker) -> int:
        await inside.metadata.ensure_internal(CONSUMER_OFFSETS)
        for name in names:
            await inside.metadata.create(CreatableTopic(name=name, num_partitions=1, replication_factor=1))
        groups, partition = inside.groups, inside.partition(CONSUMER_OFFSETS, 0)
        await becomes(lambda: groups.coordinator.is_loaded(0), every_s=0)
        config = LogConfig.of({"compression.type": codec})
        for bytes_max in range(300, 700, 13):
            partition.log.config = dataclasses.replace(config, max_message_bytes=bytes_max)
            topics = [
                OffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
                    ],
                )
                for name in names
            ]
            request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics)
            found = await answer(groups.call(groups.coordinator.offset_commit, context(8), request))
            assert {one.error_code for topic in found.topics for one in topic.partitions} == {0}, bytes_max
            groups.topics_deleted({name: inside.cluster.topic_id(name) or b"" for name in names})
            await turns()
            assert not any(group.offsets.committed for group in groups.coordinator._shards.groups.values())
        return bytes_max

    with broker(str(tmp_path / "data"), SETTINGS) as kafka:
        assert kafka.call(story) > 600
    assert not failures
