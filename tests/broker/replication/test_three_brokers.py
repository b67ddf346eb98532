"""Three whole brokers over a simulated network: produced on the leader, copied, read anywhere, healed after faults."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from tests.broker import raw
from tests.broker.replication.trio import NODES, TOPIC, TOPIC_ID, Trio, simulated
from tests.waiting import becomes

from headrace.broker.partitions.partition import Partition
from headrace.broker.replication import copying
from headrace.broker.replication.coming import RECENTLY_S
from headrace.broker.replication.copying import Copied, StaleAnswerError
from headrace.cluster import brokers as registrations
from headrace.cluster.decision import Decision
from headrace.cluster.records import ConfigRecord, PartitionChangeRecord, ResourceType
from headrace.errors import ErrorCode
from headrace.log import Log
from headrace.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from headrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.protocol.messages.produce import PartitionProduceData, PartitionProduceResponse
from headrace.runtime import OverloadedError
from headrace.runtime.writer import Syncable

WAIT_S = 30.0


async def produce(trio: Trio, node_id: int, value: bytes, *, acks: int = -1, timeout_ms: int = 5000) -> Any:
    client = await trio.client(node_id)
    request = raw.produce_request(TOPIC, 0, raw.batch([value]), acks=acks)
    request.timeout_ms = timeout_ms
    response = await client.request(request, 10, timeout_s=WAIT_S)
    client.close()
    return response


async def produced(trio: Trio, node_id: int, value: bytes, **more: Any) -> PartitionProduceResponse:
    return raw.produced(await produce(trio, node_id, value, **more))


async def fetch(trio: Trio, node_id: int, *, rack: str = "", version: int = 16, offset: int = 0) -> Any:
    client = await trio.client(node_id)
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic=TOPIC, topic_id=TOPIC_ID, partitions=[wanted])
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, session_epoch=-1, topics=[topic], rack_id=rack, isolation_level=0
    )
    response = await client.request(request, version)
    client.close()
    return response


async def fetched(trio: Trio, node_id: int, **more: Any) -> PartitionData:
    return raw.fetched(await fetch(trio, node_id, **more))


def values(data: PartitionData) -> list[bytes]:
    return [value for _, value in raw.values_of(data.records)]


def logs_are_equal(trio: Trio) -> bool:
    logs = [trio.partition(node_id).log for node_id in NODES]
    ends = {(log.end_offset, log.high_watermark, log.leader_epoch) for log in logs}
    return len(ends) == 1 and logs[0].end_offset == logs[0].high_watermark


def test_what_is_acknowledged_is_on_every_replica_and_readable_from_each() -> None:
    async def test(trio: Trio) -> None:
        await trio.create_topic()
        for number in range(20):
            result = await produced(trio, 1, b"%d" % number)
            assert (result.error_code, result.base_offset) == (0, number)
            assert all(trio.partition(node_id).log.end_offset > number for node_id in NODES)
        await becomes(lambda: logs_are_equal(trio))
        expected = [b"%d" % number for number in range(20)]
        for node_id in NODES:
            assert values(await fetched(trio, node_id)) == expected
        # Before version 11 a consumer does not know that followers answer: it is sent away.
        assert (await fetched(trio, 2, version=10)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    simulated(test)


def test_a_follower_does_not_tell_of_what_it_could_not_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """With flush.messages, what is acknowledged is on the disks of all that are in sync."""

    async def test(trio: Trio) -> None:
        await trio.create_topic()
        assert (await produced(trio, 1, b"first")).error_code == ErrorCode.NONE
        writer = trio.partition(2).writer
        sync, refusals = writer.sync, [1, 1, 1]

        def refuse(files: Iterable[Syncable]) -> asyncio.Future[None]:
            if refusals:
                refusals.pop()
                raise OverloadedError("too many syncs are waiting")
            return sync(files)

        monkeypatch.setattr(writer, "sync", refuse)
        for number in range(5):
            answer = await produced(trio, 1, b"%d" % number)
            assert answer.error_code == ErrorCode.NONE
            for node_id in trio.state.isr:
                assert trio.partition(node_id).log.recovery_point > answer.base_offset, node_id
        assert not refusals
        assert trio.state.isr == NODES

    simulated(test, settings={"log.flush.interval.messages": "1"})


def test_a_follower_syncs_the_partitions_of_an_answer_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, many partitions with flush.messages waited for as many syncs."""
    count = 20

    async def test(trio: Trio) -> None:
        await trio.create_topic(partitions=count)
        await becomes(lambda: all(trio.partition(1, index).state is not None for index in range(count)))
        writer = trio.partition(2).writer
        sync, under_way, most = writer.sync, 0, 0

        def noted(files: Iterable[Syncable]) -> asyncio.Future[None]:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            future = sync(files)
            future.add_done_callback(over)
            return future

        def over(future: asyncio.Future[None]) -> None:
            nonlocal under_way
            under_way -= 1

        monkeypatch.setattr(writer, "sync", noted)
        request = raw.produce_request(TOPIC, 0, b"")
        request.topic_data[0].partition_data = [
            PartitionProduceData(index=index, records=raw.batch([b"value"])) for index in range(count)
        ]
        client = await trio.client(1)
        answer = await client.request(request, raw.PRODUCE_VERSION)
        client.close()
        for part in answer.responses[0].partition_responses:
            assert part.error_code == ErrorCode.NONE
            for node_id in NODES:
                assert trio.partition(node_id, part.index).log.recovery_point > part.base_offset, node_id
        assert most > count / 2

    simulated(test, settings={"log.flush.interval.messages": "1"})


@pytest.mark.parametrize("refusals", [0, 3])
def test_records_stay_committed_when_a_topic_is_to_be_synced_from_now_on(
    refusals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were gone with the next leader, until something more was written."""

    async def test(trio: Trio) -> None:
        await trio.create_topic()
        await produced(trio, 1, b"first")
        await becomes(lambda: all(trio.partition(node_id).high_watermark == 1 for node_id in NODES))
        partition, left = trio.partition(2), refusals
        sync = partition.writer.sync

        def refuse(files: Iterable[Syncable]) -> asyncio.Future[None]:
            nonlocal left
            left -= 1
            if left >= 0:
                raise OverloadedError("too many syncs are waiting")
            return sync(files)

        monkeypatch.setattr(partition.writer, "sync", refuse)
        name = "flush.messages"
        record = ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=TOPIC, name=name, value="1")
        change = PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=2)
        await trio.decide(Decision(None, [record, change]))
        assert partition.high_watermark == 1
        assert values(await fetched(trio, 2)) == [b"first"]
        # Also where nothing more is written.
        await becomes(lambda: all(trio.partition(node_id).log.recovery_point == 1 for node_id in NODES))

    simulated(test)


def test_who_comes_to_a_follower_is_told_the_leader() -> None:
    async def test(trio: Trio) -> None:
        await trio.create_topic((2, 3))
        for node_id in (1, 3):
            response = await produce(trio, node_id, b"x")
            result = raw.produced(response)
            assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (result.current_leader.leader_id, result.current_leader.leader_epoch) == (2, 0)
            assert [(node.node_id, node.host) for node in response.node_endpoints] == [(2, "b2")]
        response = await fetch(trio, 1)  # which has no replica
        data = raw.fetched(response)
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert data.current_leader.leader_id == 2
        assert [node.node_id for node in response.node_endpoints] == [2]
        client = await trio.client(3)
        wanted = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
        topic = ListOffsetsTopic(name=TOPIC, partitions=[wanted])
        answer = await client.request(ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic]), 7)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    simulated(test)


@pytest.mark.parametrize("is_over", ["the epoch", "the log"])
def test_a_follower_that_could_not_use_what_it_was_told_is_told_again(
    is_over: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing more to fetch, nobody else would tell it that the last record is committed."""

    async def test(trio: Trio) -> None:
        await trio.create_topic()
        await produced(trio, 1, b"first")
        await becomes(lambda: logs_are_equal(trio))
        source = next(iter(trio.broker(2).replication._fetchers.values()))._source
        fetch, append = source.fetch, copying.append
        of_no_use: list[Partition] = []

        async def fetch_too_late(request: FetchRequest) -> FetchResponse:
            response = await fetch(request)
            marks = [data.high_watermark for topic in response.responses for data in topic.partitions]
            if marks == [2] and not of_no_use:
                of_no_use.append(trio.partition(2))
                if is_over == "the epoch":
                    change = PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=1)
                    await trio.decide(Decision(None, [change]))
                else:
                    monkeypatch.setattr(copying, "append", exchanged)
            return response

        async def exchanged(partition: Partition, *about: Any) -> Copied:
            """As when a log is moved to another directory meanwhile."""
            if partition in of_no_use:
                monkeypatch.setattr(copying, "append", append)
                raise StaleAnswerError
            return await append(partition, *about)

        monkeypatch.setattr(source, "fetch", fetch_too_late)
        await produced(trio, 1, b"second")
        await becomes(lambda: bool(of_no_use))
        await becomes(lambda: all(trio.partition(node_id).high_watermark == 2 for node_id in NODES))

    simulated(test)


def test_a_follower_that_is_cut_off_leaves_and_comes_back() -> None:
    async def test(trio: Trio) -> None:
        await trio.create_topic()
        assert (await produced(trio, 1, b"one")).error_code == 0
        trio.simulation.network.partition(["b3"], ["b1", "b2"])
        # The deaf follower holds the record up until it is out of sync.
        assert (await produced(trio, 1, b"two", timeout_ms=500)).error_code == ErrorCode.REQUEST_TIMED_OUT
        await becomes(lambda: set(trio.state.isr) == {1, 2})
        assert (await produced(trio, 1, b"three")).error_code == 0
        trio.simulation.network.heal()
        await becomes(lambda: set(trio.state.isr) == {1, 2, 3})
        await becomes(lambda: logs_are_equal(trio))
        assert values(await fetched(trio, 3)) == [b"one", b"two", b"three"]

    simulated(test)


def test_below_the_minimum_acks_all_is_refused_and_nothing_is_committed() -> None:
    async def test(trio: Trio) -> None:
        await trio.create_topic()
        for node_id in (2, 3):
            await trio.fence(node_id)
        assert trio.state.isr == (1,)
        assert (await produced(trio, 1, b"one")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await produced(trio, 1, b"one", acks=1)).error_code == 0
        assert trio.partition(1).high_watermark == 0
        for node_id in (2, 3):
            await trio.unfence(node_id)
        await becomes(lambda: set(trio.state.isr) == {1, 2, 3})
        await becomes(lambda: logs_are_equal(trio))
        assert trio.partition(1).high_watermark == 1

    simulated(test, settings={"min.insync.replicas": "2"})


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_who_does_not_wait_for_replicas_is_told_so_at_once_and_its_records_are_kept(timeout_ms: int) -> None:
    async def test(trio: Trio) -> None:
        await trio.create_topic()
        result = await produced(trio, 1, b"one", timeout_ms=timeout_ms)
        # Where it was written is told, though nobody knows yet whether it stays.
        assert (result.error_code, result.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, 0)
        await becomes(lambda: logs_are_equal(trio))
        assert values(await fetched(trio, 2)) == [b"one"]
        # What needs no other replica is there at once.
        await trio.decide(registrations.fence(trio.image, 2))
        await trio.decide(registrations.fence(trio.image, 3))
        result = await produced(trio, 1, b"two", timeout_ms=timeout_ms)
        assert (result.error_code, result.base_offset) == (ErrorCode.NONE, 1)

    simulated(test)


def test_a_leader_that_was_replaced_commits_nothing_and_is_cut() -> None:
    async def test(trio: Trio) -> None:
        await trio.create_topic((2, 3, 1))
        assert (await produced(trio, 2, b"one")).error_code == 0
        trio.deaf.add(2)
        await trio.fence(2)
        assert trio.state.leader == 3
        # It believes to lead, and followers of the new epoch do not come to it.
        assert (await produced(trio, 2, b"lost", acks=1)).error_code == 0
        assert (await produced(trio, 2, b"lost too", timeout_ms=500)).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert (await produced(trio, 3, b"two")).error_code == 0
        assert trio.partition(2).high_watermark == 1
        trio.deaf.clear()
        await trio.tell()
        await trio.unfence(2)
        await becomes(lambda: logs_are_equal(trio))
        for node_id in NODES:
            assert values(await fetched(trio, node_id)) == [b"one", b"two"]
        await becomes(lambda: set(trio.state.isr) == {1, 2, 3})

    simulated(test)


def test_a_consumer_is_sent_to_the_replica_of_its_rack() -> None:
    async def test(trio: Trio) -> None:
        await trio.create_topic()
        assert (await produced(trio, 1, b"one")).error_code == 0
        await becomes(lambda: logs_are_equal(trio))
        sent = await fetched(trio, 1, rack="r3")
        assert (sent.error_code, sent.preferred_read_replica, values(sent)) == (0, 3, [])
        assert values(await fetched(trio, 3, rack="r3")) == [b"one"]
        assert values(await fetched(trio, 1, rack="r1")) == [b"one"]
        assert values(await fetched(trio, 1, rack="elsewhere")) == [b"one"]

    simulated(test, settings={"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"})


def test_the_controller_is_asked_again_until_it_answers() -> None:
    async def test(trio: Trio) -> None:
        await trio.create_topic()
        assert (await produced(trio, 1, b"one")).error_code == 0
        trio.controller_is_reached = False
        trio.simulation.network.partition(["b3"], ["b1", "b2"])
        await asyncio.sleep(10)
        assert set(trio.state.isr) == {1, 2, 3}
        assert (await produced(trio, 1, b"two", timeout_ms=500)).error_code == ErrorCode.REQUEST_TIMED_OUT
        trio.controller_is_reached = True
        await becomes(lambda: set(trio.state.isr) == {1, 2})
        await becomes(lambda: trio.partition(1).high_watermark == 2)

    simulated(test)


def test_a_defect_does_not_keep_a_lagging_follower_in_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong once, the leader looks again and asks again."""

    async def test(trio: Trio) -> None:
        await trio.create_topic(partitions=2)
        manager, first = trio.broker(1).replication, trio.partition(1, 0)
        ask, check = manager.ask_controller, Partition.check_in_sync
        failed: list[str] = []

        async def ask_badly(request: AlterPartitionRequest) -> AlterPartitionResponse:
            if "ask" not in failed:
                failed.append("ask")
                raise ZeroDivisionError
            return await ask(request)

        def check_badly(partition: Partition) -> None:
            if partition is first and "check" not in failed:
                failed.append("check")
                raise ZeroDivisionError
            check(partition)

        manager.ask_controller = ask_badly
        monkeypatch.setattr(Partition, "check_in_sync", check_badly)
        trio.simulation.network.partition(["b3"], ["b1", "b2"])
        for index in (0, 1):
            client = await trio.client(1)
            await client.request(raw.produce_request(TOPIC, index, raw.batch([b"x"])), 10, timeout_s=WAIT_S)
            client.close()
        await becomes(lambda: all(3 not in state.isr for state in trio.image.topics[TOPIC].partitions))
        assert sorted(failed) == ["ask", "check"]

    simulated(test)


def test_deleted_records_are_gone_everywhere_when_the_answer_comes() -> None:
    async def test(trio: Trio) -> None:
        await trio.create_topic()
        for number in range(3):
            assert (await produced(trio, 1, b"%d" % number)).error_code == ErrorCode.NONE

        async def delete(offset: int, timeout_ms: int) -> tuple[int, int]:
            part = DeleteRecordsPartition(partition_index=0, offset=offset)
            topic = DeleteRecordsTopic(name=TOPIC, partitions=[part])
            client = await trio.client(1)
            request = DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms)
            answer = (await client.request(request, 2, timeout_s=WAIT_S)).topics[0].partitions[0]
            client.close()
            return answer.error_code, answer.low_watermark

        assert await delete(2, 20_000) == (ErrorCode.NONE, 2)
        assert [trio.partition(node_id).log.start_offset for node_id in NODES] == [2, 2, 2]
        trio.simulation.network.partition(["b3"], ["b1", "b2"])
        # How far all of them have come is told all the same.
        assert await delete(3, 500) == (ErrorCode.REQUEST_TIMED_OUT, 2)
        trio.simulation.network.heal()
        await becomes(lambda: trio.partition(3).log.start_offset == 3)

    simulated(test)


def test_a_follower_is_filled_again_whose_leaders_log_starts_within_a_batch() -> None:
    """After DeleteRecords: the leader sends that batch whole, from before the offset that it was asked for."""

    async def test(trio: Trio) -> None:
        await trio.create_topic()
        assert (await produced(trio, 1, b"first")).error_code == ErrorCode.NONE
        trio.simulation.network.partition(["b3"], ["b1", "b2"])
        await produced(trio, 1, b"second", timeout_ms=500)
        await becomes(lambda: set(trio.state.isr) == {1, 2})
        client = await trio.client(1)
        request = raw.produce_request(TOPIC, 0, raw.batch([b"%d" % number for number in range(2, 12)]))
        assert raw.produced(await client.request(request, 10, timeout_s=WAIT_S)).error_code == ErrorCode.NONE
        client.close()
        assert (await produced(trio, 1, b"last")).error_code == ErrorCode.NONE
        await trio.partition(1).turns.change_log(Log.delete_records, 6)
        trio.simulation.network.heal()
        await becomes(lambda: set(trio.state.isr) == {1, 2, 3})
        await becomes(lambda: logs_are_equal(trio))
        assert [trio.partition(node_id).log.start_offset for node_id in NODES] == [6, 6, 6]
        for node_id in NODES:
            assert values(await fetched(trio, node_id, offset=6))[-7:] == [*(b"%d" % n for n in range(6, 12)), b"last"]

    simulated(test)


@pytest.mark.parametrize(("start_offset", "is_behind"), [(0, True), (2, False)])
def test_a_follower_with_records_that_are_deleted_is_told_at_once(start_offset: int, is_behind: bool) -> None:
    """It has all that is committed, so it may lead soon, and would show them again."""

    async def test(trio: Trio) -> None:
        await trio.create_topic()
        for number in range(3):
            assert (await produced(trio, 1, b"%d" % number)).error_code == ErrorCode.NONE
        await becomes(lambda: logs_are_equal(trio))
        await trio.partition(1).delete_records(2, WAIT_S)
        await asyncio.sleep(2 * RECENTLY_S)  # right after an election fetches wait hardly at all
        wanted = FetchPartition(
            partition=0, fetch_offset=3, last_fetched_epoch=0, log_start_offset=start_offset, partition_max_bytes=1000
        )
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=2, replica_epoch=trio.broker(2).broker_epoch),
            max_wait_ms=5000,
            min_bytes=1,
            session_epoch=-1,
            topics=[FetchTopic(topic_id=TOPIC_ID, partitions=[wanted])],
        )
        client = await trio.client(1)
        began = asyncio.get_running_loop().time()
        answer = raw.fetched(await client.request(request, 17, timeout_s=WAIT_S))
        waited_s = asyncio.get_running_loop().time() - began
        client.close()
        assert (answer.error_code, answer.log_start_offset) == (ErrorCode.NONE, 2)
        assert (waited_s < 1) is is_behind  # of virtual time

    simulated(test)


def test_watermarks_are_written_down_every_few_seconds() -> None:
    async def test(trio: Trio) -> None:
        await trio.create_topic()
        assert (await produced(trio, 1, b"x")).error_code == ErrorCode.NONE
        await asyncio.sleep(6)
        for machine in trio.machines.values():
            machine.kill()
            await machine.start()
        assert [trio.partition(node_id).log.high_watermark for node_id in NODES] == [1, 1, 1]

    simulated(test, settings={"replica.lag.time.max.ms": "600000"})
