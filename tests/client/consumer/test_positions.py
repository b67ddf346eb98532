"""Positions when leaders change, topics are created again, and followers are read from."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.consumer.core_worlds import T0, Once, make
from tests.client.consumer.fake_driver import blocking_consumer
from tests.client.consumer.fake_group import ConsumerWorld, FakeGroupCluster, prefers_broker_2
from tests.client.fake import SILENCE, VirtualClock

from headrace.client.consumer._subscription import TopicPartitionState
from headrace.client.consumer.errors import LogTruncationError
from headrace.client.offsets import OffsetAndMetadata
from headrace.errors import ErrorCode, UnknownServerError
from headrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker, MetadataResponseTopic
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from headrace.records import ControlType, control_batch
from headrace.topics import TopicPartition


def offsets(world: ConsumerWorld) -> list[int]:
    return [record.offset for record in world.records]


# --- epochs -----------------------------------------------------------------------------------------------------------


def epochs_end_where_the_log_says(cluster: FakeGroupCluster) -> None:
    """Answer as a leader does: where the last epoch that is not younger than the one asked for ends, if it has one."""

    def answer(node: int, name: str, request: Any) -> Any:
        if name != "OffsetForLeaderEpoch":
            return None
        asked = request.topics[0].partitions[0].leader_epoch
        ends: dict[int, int] = {}
        for _, end, data in cluster.batches[T0]:
            ends[int.from_bytes(data[12:16], "big")] = end
        known = [epoch for epoch in ends if epoch <= asked <= max(ends)]
        part = (
            EpochEndOffset(partition=0, leader_epoch=max(known), end_offset=ends[max(known)])
            if known
            else EpochEndOffset(partition=0, leader_epoch=-1, end_offset=-1)
        )
        return OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="t", partitions=[part])])

    cluster.script = answer


def test_a_position_behind_a_marker_of_a_new_leader_is_no_truncation() -> None:
    world = make(auto_offset_reset="none")
    cluster = world.cluster
    cluster.write("t", 0, 5, epoch=0, transactional=True, producer_id=5, producer_epoch=0, base_sequence=0)
    marker = control_batch(
        ControlType.COMMIT,
        producer_id=5,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=1,
        base_offset=5,
        leader_epoch=1,
    )
    cluster.batches[T0].append((5, 6, bytes(marker)))
    cluster.leaders[T0] = (1, 1)
    epochs_end_where_the_log_says(cluster)
    world.consumer.assign([T0])
    world.consumer.seek(T0, 0)
    world.run_until(lambda: len(world.records) == 5)
    cluster.leaders[T0] = (1, 2)
    cluster.write("t", 0, 5, epoch=2)
    world.core.refresh_metadata()
    world.run_until(lambda: len(world.records) == 10)
    assert offsets(world) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert cluster.names("OffsetForLeaderEpoch")


def test_a_leader_that_was_replaced_is_not_asked_about_a_position_of_its_successor() -> None:
    """As a member that takes over a partition: the committed offset is newer than what it knows of the cluster."""
    world = make(brokers=2, metadata_max_age_ms=600_000)
    cluster = world.cluster
    cluster.write("t", 0, 3, epoch=0)
    epochs_end_where_the_log_says(cluster)
    world.consumer.assign([T0])
    world.consumer.seek(T0, 3)
    world.run_until(lambda: world.core.view.leader_of(*T0))
    world.is_polling = False
    # The first broker does not know that it leads no more, nor does this consumer.
    cluster.leaders[T0] = (2, 1)
    cluster.write("t", 0, 5, epoch=1)
    answer_of_leader = cluster.script
    asked: list[tuple[int, str]] = []

    def script(node: int, name: str, request: Any) -> Any:
        if name in ("OffsetForLeaderEpoch", "Fetch"):
            asked.append((node, name))
            if node == 1 and name == "OffsetForLeaderEpoch":
                unknown = EpochEndOffset(partition=0, leader_epoch=-1, end_offset=-1)
                return OffsetForLeaderEpochResponse(
                    topics=[OffsetForLeaderTopicResult(topic="t", partitions=[unknown])]
                )
        return answer_of_leader(node, name, request)

    cluster.script = script
    world.consumer.subscriptions.state(T0).seek(6, 1)
    world.is_polling = True
    world.run_until(lambda: len(world.records) == 2)
    assert offsets(world) == [6, 7]
    assert {node for node, _ in asked} == {2}


def test_next_offsets_have_the_epoch_of_the_marker_they_are_behind() -> None:
    world = make(isolation_level="read_committed")
    cluster = world.cluster
    cluster.write("t", 0, 5, epoch=0, transactional=True, producer_id=5, producer_epoch=0, base_sequence=0)
    marker = control_batch(
        ControlType.COMMIT,
        producer_id=5,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=1,
        base_offset=5,
        leader_epoch=1,
    )
    cluster.batches[T0].append((5, 6, bytes(marker)))
    cluster.leaders[T0] = (1, 1)
    with blocking_consumer(cluster) as consumer:
        consumer.assign([T0])
        records = consumer.poll(5)
        [(_, found)] = records.next_offsets().items()
        assert (found.offset, found.leader_epoch) == (6, 1)


# --- topics that are created again ------------------------------------------------------------------------------------


def recreate(cluster: FakeGroupCluster, count: int) -> None:
    cluster.topic_ids["t"] = b"another topic id"
    cluster.leaders[T0] = (1, 0)
    cluster.batches.clear()
    if count:
        cluster.write("t", 0, count)


def reader_of_epoch_3(reset: str, metadata_max_age_ms: int = 1000) -> ConsumerWorld:
    world = make(auto_offset_reset=reset, metadata_max_age_ms=metadata_max_age_ms)
    world.cluster.leaders[T0] = (1, 3)
    world.cluster.write("t", 0, 5, epoch=3)
    world.consumer.assign([T0])
    world.consumer.seek(T0, 0)
    world.run_until(lambda: len(world.records) == 5)
    return world


@pytest.mark.parametrize("count", [2, 5, 9])
def test_a_topic_that_was_created_again_is_read_from_where_the_policy_says(count: int) -> None:
    world = reader_of_epoch_3("earliest")
    recreate(world.cluster, count)
    world.run_until(lambda: len(world.records) == 5 + count)
    assert offsets(world) == [*range(5), *range(count)]


def test_a_topic_that_was_created_again_goes_on_with_what_comes_with_policy_latest() -> None:
    world = reader_of_epoch_3("latest")
    recreate(world.cluster, 3)
    world.run_until(lambda: world.consumer.subscriptions.state(T0).position == 3)
    world.cluster.write("t", 0, 2)
    world.run_until(lambda: len(world.records) == 7)
    assert offsets(world)[5:] == [3, 4]


def test_a_position_that_was_held_against_the_topic_before_is_not_one_of_its_successor() -> None:
    world = reader_of_epoch_3("earliest", metadata_max_age_ms=600_000)
    cluster = world.cluster

    def script(node: int, kind: str, request: Any) -> Any:
        if kind != "OffsetForLeaderEpoch":
            return None
        cluster.script = lambda *_: None
        # While the answer is on its way, the topic is deleted and created again, and the client hears of that.
        recreate(cluster, 9)
        cluster.leaders[T0] = (1, 4)
        world.core.view.topics["t"].topic_id = cluster.topic_ids["t"]
        world.core.view.version += 1
        end = EpochEndOffset(partition=0, leader_epoch=3, end_offset=5)
        return OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="t", partitions=[end])])

    cluster.script = script
    cluster.leaders[T0] = (1, 4)
    world.core.refresh_metadata()
    world.run_until(lambda: len(world.records) >= 14)
    assert offsets(world)[5:] == list(range(9))


def test_an_offset_that_was_looked_up_in_the_topic_before_is_not_one_of_its_successor() -> None:
    world = make(auto_offset_reset="earliest")
    cluster = world.cluster
    cluster.starts[T0] = 500
    cluster.write("t", 0, 5)

    def script(node: int, kind: str, request: Any) -> Any:
        if kind != "ListOffsets":
            return None
        cluster.script = lambda *_: None
        answer = cluster._do_ListOffsets(node, request, 8)
        # While the answer is on its way, the topic is deleted and created again, and the client hears of that.
        del cluster.starts[T0]
        recreate(cluster, 600)
        world.core.view.topics["t"].topic_id = cluster.topic_ids["t"]
        world.core.view.version += 1
        return answer

    cluster.script = script
    world.consumer.assign([T0])
    world.run_until(lambda: len(world.records) >= 100)
    assert offsets(world)[:100] == list(range(100))


@pytest.mark.parametrize("offset", [-1, 7])
def test_an_answer_about_another_partition_than_was_asked_for_is_none(offset: int) -> None:
    world = make(auto_offset_reset="earliest")
    world.cluster.write("t", 0, 5)

    def of_another() -> ListOffsetsResponse:
        part = ListOffsetsPartitionResponse(partition_index=9, offset=offset)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[part])])

    nothing = OffsetForLeaderEpochResponse(topics=[])
    world.consumer.assign([T0])
    world.cluster.script = Once("ListOffsets", of_another(), of_another())
    world.run_until(lambda: len(world.records) == 5)
    world.cluster.script = Once("ListOffsets", of_another(), of_another())
    assert world.run(world.consumer.lookup.lookup({T0: -1}))[T0].offset == 5
    world.cluster.script = Once("OffsetForLeaderEpoch", nothing)
    assert world.run(world.consumer.lookup.log_end(T0)) is None


def test_without_a_policy_a_topic_that_was_created_again_is_an_error_until_it_is_settled() -> None:
    world = reader_of_epoch_3("none")
    recreate(world.cluster, 9)
    for _ in range(2):
        with pytest.raises(LogTruncationError):
            world.run_until(lambda: len(world.records) > 5)
    world.consumer.seek(T0, 0)
    world.run_until(lambda: len(world.records) == 14)
    assert offsets(world)[5:] == list(range(9))


def test_brokers_without_topic_ids_may_create_a_topic_again() -> None:
    world = make(metadata_max_age_ms=1000)
    cluster = world.cluster
    cluster.topic_ids["t"] = bytes(16)
    cluster.leaders[T0] = (1, 3)
    cluster.write("t", 0, 5, epoch=3)
    epochs_end_where_the_log_says(cluster)
    world.consumer.assign([T0])
    world.run_until(lambda: len(world.records) == 5)
    gone = cluster.topic_ids.pop("t")
    world.core.refresh_metadata()
    world.run_until(lambda: not world.core.view.topics["t"].partitions)
    cluster.topic_ids["t"] = gone
    cluster.leaders[T0] = (1, 0)
    cluster.batches.clear()
    cluster.write("t", 0, 3)
    world.run_until(lambda: len(world.records) == 8)
    assert offsets(world)[5:] == [0, 1, 2]


# --- followers --------------------------------------------------------------------------------------------------------


def test_the_replica_that_the_leader_prefers_is_read_from_until_its_time_is_over() -> None:
    world = make(brokers=2, client_rack="a", metadata_max_age_ms=10_000)
    world.cluster.write("t", 0, 5)
    asked = prefers_broker_2(world.cluster)
    world.consumer.assign([T0])
    world.run_until(lambda: len(world.records) == 5)
    assert asked[:2] == [1, 2]
    count = len(asked)
    until = world.clock.now + 30
    world.run_until(lambda: world.clock.now > until)
    # The leader is asked again now and then: it may prefer another by now.
    assert 1 in asked[count:]
    assert asked[count:].count(2) > asked[count:].count(1)


def test_a_follower_that_lags_behind_does_not_reset_the_position() -> None:
    world = make(brokers=2, client_rack="a")
    world.cluster.write("t", 0, 5)
    asked = prefers_broker_2(world.cluster)
    usual = world.cluster.script
    lagging = [1]

    def script(node: int, name: str, request: Any) -> Any:
        if name == "Fetch" and node == 2 and lagging[0]:
            lagging[0] -= 1
            asked.append(2)
            data = PartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=-1)
            topic = FetchableTopicResponse(topic="t", topic_id=world.cluster.topic_ids["t"], partitions=[data])
            return FetchResponse(session_id=0, responses=[topic])
        return usual(node, name, request)

    world.cluster.script = script
    world.consumer.assign([T0])
    world.consumer.seek(T0, 3)
    world.run_until(lambda: len(world.records) == 2)
    assert offsets(world) == [3, 4]
    assert asked[:3] == [1, 2, 1]
    assert len(world.cluster.names("ListOffsets")) == 0


def test_a_follower_that_is_gone_is_left_for_the_leader() -> None:
    world = make(brokers=2, client_rack="a", request_timeout_ms=1000)
    world.cluster.write("t", 0, 5)
    prefers_broker_2(world.cluster)
    usual = world.cluster.script
    fetches = [0]

    def script(node: int, name: str, request: Any) -> Any:
        if node == 2:
            return SILENCE
        fetches[0] += name == "Fetch"
        return usual(node, name, request) if fetches[0] == 1 else None

    world.cluster.script = script
    world.consumer.assign([T0])
    world.run_until(lambda: len(world.records) == 5)


# --- found by the model -----------------------------------------------------------------------------------------------


def test_what_was_fetched_beyond_the_position_is_fetched_again_from_a_new_leader() -> None:
    world = make(metadata_max_age_ms=1000)
    cluster = world.cluster
    epochs_end_where_the_log_says(cluster)
    cluster.write("t", 0, 10, epoch=0)
    world.consumer.assign([T0])
    world.is_polling = False
    world.consumer.seek(T0, 0)

    def is_fetched() -> bool:
        world.consumer.fetcher.send(world.clock.now)
        return bool(world.consumer.subscriptions.state(T0).chunks)

    world.run_until(is_fetched)
    first = world.consumer.collector.collect(2)
    world.consumer.fetcher.marks = None
    assert [record.offset for record in first] == [0, 1]
    # An unclean election: what was fetched is not what the log has from offset 4 on.
    cluster.batches[T0] = []
    cluster.write("t", 0, 4, epoch=0)
    base = cluster.end(*T0)
    cluster.write("t", 0, 8, epoch=1)
    cluster.leaders[T0] = (1, 1)
    version = world.core.view.version
    world.core.refresh_metadata()
    world.run_until(lambda: world.core.view.version > version)
    world.is_polling = True
    world.run_until(lambda: len(world.records) == 10)
    assert offsets(world) == list(range(2, 12))
    assert [record.leader_epoch for record in world.records] == [0] * (base - 2) + [1] * 8


def test_an_answer_of_the_leader_before_is_not_taken_for_one_of_the_new() -> None:
    world = make()
    cluster = world.cluster
    cluster.write("t", 0, 4, epoch=0)
    world.consumer.assign([T0])
    world.consumer.seek(T0, 0)
    world.run_until(lambda: len(world.records) == 4)
    state = world.consumer.subscriptions.state(T0)
    asked = state.fetch_call
    assert asked is not None
    state.current_epoch = 7
    world.clock.now += 1
    world.is_polling = False
    cluster.held.clear()
    data = PartitionData(partition_index=0, high_watermark=5, records=cluster.batches[T0][0][2])
    topic = FetchableTopicResponse(topic="t", topic_id=cluster.topic_ids["t"], partitions=[data])
    asked.finish(FetchResponse(session_id=0, responses=[topic]), None)
    assert not state.chunks


def test_earliest_never_becomes_latest_because_of_an_odd_answer() -> None:
    world = make()
    world.cluster.write("t", 0, 5)
    answers = [
        ListOffsetsPartitionResponse(partition_index=0, error_code=ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ListOffsetsPartitionResponse(partition_index=0, offset=-1),
    ]

    def script(node: int, name: str, request: Any) -> Any:
        if name == "ListOffsets" and answers and request.topics[0].partitions[0].timestamp == -2:
            return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[answers.pop()])])
        return None

    world.cluster.script = script
    world.consumer.assign([T0])
    world.run_until(lambda: len(world.records) == 5)
    assert offsets(world) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["Fetch", "ListOffsets", "OffsetForLeaderEpoch", "Metadata"])
def test_error_codes_of_a_newer_kafka_are_errors_like_others(name: str) -> None:
    world = make()
    world.cluster.write("t", 0, 5)
    topic_id = world.cluster.topic_ids["t"]
    part = PartitionData(partition_index=0, error_code=999)
    odd: dict[str, Any] = {
        "Fetch": FetchResponse(
            session_id=0, responses=[FetchableTopicResponse(topic="t", topic_id=topic_id, partitions=[part])]
        ),
        "ListOffsets": ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name="t", partitions=[ListOffsetsPartitionResponse(partition_index=0, error_code=999)]
                )
            ]
        ),
        "OffsetForLeaderEpoch": OffsetForLeaderEpochResponse(
            topics=[OffsetForLeaderTopicResult(topic="t", partitions=[EpochEndOffset(partition=0, error_code=999)])]
        ),
        "Metadata": MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="fake", port=9001)],
            topics=[MetadataResponseTopic(error_code=999, name="t")],
        ),
    }
    answers = [odd[name]]
    world.cluster.script = lambda node, asked, request: answers.pop() if asked == name and answers else None
    world.consumer.assign([T0])
    if name == "OffsetForLeaderEpoch":
        world.consumer.seek(T0, OffsetAndMetadata(0, "", 0))
    for _ in range(3):
        try:
            world.run_until(lambda: len(world.records) == 5)
        except UnknownServerError:
            continue
        break
    assert offsets(world) == [0, 1, 2, 3, 4]
    assert not answers


def test_a_position_behind_a_truncation_stays_in_its_topic() -> None:
    """Created again before the next fetch, the topic is another: this offset would pass over its first records."""
    world = ConsumerWorld(FakeGroupCluster(VirtualClock(), 1, {"t": 1}), auto_offset_reset="earliest")
    state = TopicPartitionState(TopicPartition("t", 0))
    state.seek(44, 0)
    assert not state.is_in_another(b"the first of its")
    answer = EpochEndOffset(partition=0, leader_epoch=0, end_offset=42)
    world.consumer.positions._judge(state, answer, 1, {}, {})
    assert state.position == 42
    assert state.is_in_another(b"the second of it")
