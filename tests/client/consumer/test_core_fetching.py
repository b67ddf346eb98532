"""Fetching without sockets, under virtual time: sessions, new leaders, cut logs, damaged and aborted data."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.client.consumer.core_worlds import T0, Once, make
from tests.client.consumer.fake_group import prefers_broker_2
from tests.client.fake import CUT, SILENCE

from headrace.client.consumer._fetch_session import FetchSessionHandler, Wanted
from headrace.client.consumer.errors import LogTruncationError
from headrace.errors import (
    ErrorCode,
)
from headrace.protocol.messages.fetch import AbortedTransaction, FetchableTopicResponse, FetchResponse, PartitionData
from headrace.protocol.messages.metadata import MetadataResponse
from headrace.records import ControlType, build_batch, control_batch
from headrace.topics import TopicPartition


def test_a_fetch_session_sends_only_what_changed() -> None:
    world = make(partitions=3)
    world.consumer.assign([TopicPartition("t", partition) for partition in range(3)])
    world.cluster.write("t", 1, 5)
    world.run_until(lambda: len(world.records) == 5)
    world.cluster.write("t", 2, 3)
    world.run_until(lambda: len(world.records) == 8)
    begun = world.clock.now
    world.run_until(lambda: world.clock.now > begun + 3)
    fetches = world.cluster.names("Fetch")
    assert (fetches[0].session_id, fetches[0].session_epoch) == (0, 0)
    assert [part.partition for part in fetches[0].topics[0].partitions] == [0, 1, 2]
    assert [fetch.session_epoch for fetch in fetches[1:4]] == [1, 2, 3]
    assert [part.partition for part in fetches[1].topics[0].partitions] == [1]
    assert fetches[-1].topics == []
    assert world.cluster.sessions == 1


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ],
)
def test_a_refused_session_is_begun_anew(code: ErrorCode) -> None:
    world = make()
    world.consumer.assign([T0])
    world.cluster.write("t", 0, 1)
    world.run_until(lambda: len(world.records) == 1)
    world.cluster.script = Once("Fetch", FetchResponse(error_code=code))
    world.cluster.write("t", 0, 1)
    world.run_until(lambda: len(world.records) == 2)
    assert world.cluster.sessions == 2


def test_a_session_forgets_partitions_that_are_not_wanted_any_more() -> None:
    session = FetchSessionHandler()
    one = Wanted(b"i" * 16, 0, -1, 100)
    session.build({T0: one, TopicPartition("t", 1): one})
    session.told()
    session.answered(FetchResponse(session_id=5))
    topics, forgotten, by_id = session.build({T0: one})
    assert topics == []
    assert by_id
    assert [(gone.topic, gone.partitions) for gone in forgotten] == [("t", [1])]


@pytest.mark.parametrize("is_kept", [True, False])
def test_everything_is_asked_for_again_where_the_last_request_may_not_have_been_sent(is_kept: bool) -> None:
    session = FetchSessionHandler(is_kept=is_kept)
    one = Wanted(b"i" * 16, 0, -1, 100)
    session.build({T0: one})
    epoch = session.epoch
    topics, forgotten, _ = session.build({T0: one})
    assert [topic.topic for topic in topics] == ["t"]
    assert not forgotten
    assert session.epoch == epoch


def test_another_partition_of_a_known_topic_is_read_without_asking_for_metadata() -> None:
    world = make(partitions=2)
    world.consumer.assign([T0])
    for partition in (0, 1):
        world.cluster.write("t", partition, 1)
    begun = world.clock.now
    # What a consumer asks when it begins has been answered by then.
    world.run_until(lambda: len(world.records) == 1 and world.clock.now > begun + 5)
    asked = len(world.cluster.names("Metadata"))
    world.consumer.assign([TopicPartition("t", 1)])
    world.run_until(lambda: len(world.records) == 2)
    assert [record.partition for record in world.records] == [0, 1]
    assert len(world.cluster.names("Metadata")) == asked


def test_a_new_leader_is_found_and_the_position_checked_first() -> None:
    world = make(brokers=2)
    world.consumer.assign([T0])
    world.cluster.write("t", 0, 5)
    world.run_until(lambda: len(world.records) == 5)
    world.cluster.leaders[("t", 0)] = (2, 1)
    world.cluster.write("t", 0, 5, epoch=1)
    world.run_until(lambda: len(world.records) == 10)
    asked = world.cluster.names("OffsetForLeaderEpoch")
    assert [(p.leader_epoch, p.current_leader_epoch) for p in asked[0].topics[0].partitions] == [(0, 1)]
    fetch = next(request for node, name, _, request in world.cluster.requests if node == 2 and name == "Fetch")
    assert fetch.topics[0].partitions[0].current_leader_epoch == 1
    assert [record.offset for record in world.records] == list(range(10))


def test_a_truncated_log_is_read_on_from_where_it_was_cut() -> None:
    world = make(brokers=2)
    world.consumer.assign([T0])
    world.cluster.write("t", 0, 5)
    world.run_until(lambda: len(world.records) == 5)
    world.cluster.batches.clear()
    world.cluster.write("t", 0, 3)
    world.cluster.write("t", 0, 4, epoch=1)
    world.cluster.leaders[("t", 0)] = (2, 1)
    world.cluster.epoch_ends[("t", 0)] = (0, 3)
    world.run_until(lambda: len(world.records) == 9)
    assert [record.offset for record in world.records[5:]] == [3, 4, 5, 6]


def test_a_truncated_log_without_a_reset_policy_is_an_error_with_the_offsets() -> None:
    world = make(brokers=2, auto_offset_reset="none")
    world.consumer.assign([T0])
    world.consumer.seek(T0, 0)
    world.cluster.write("t", 0, 5)
    world.run_until(lambda: len(world.records) == 5)
    world.cluster.leaders[("t", 0)] = (2, 1)
    world.cluster.epoch_ends[("t", 0)] = (0, 3)
    with pytest.raises(LogTruncationError) as caught:
        world.run_until(lambda: False)
    assert caught.value.offsets == {T0: 5}
    assert caught.value.divergent_offsets == {T0: 3}


def test_a_preferred_replica_is_read_from_and_left_when_it_fails() -> None:
    world = make(brokers=2, client_rack="r")
    world.consumer.assign([T0])
    prefer = PartitionData(partition_index=0, high_watermark=0, preferred_read_replica=2)
    topic = FetchableTopicResponse(topic="t", topic_id=world.cluster.topic_ids["t"], partitions=[prefer])
    world.cluster.script = Once("Fetch", FetchResponse(session_id=9, responses=[topic]))
    world.cluster.write("t", 0, 2)
    # Broker 2 is no replica here: it says so, and the leader is asked again.
    world.run_until(lambda: len(world.records) == 2)
    assert [node for node, name, _, _ in world.cluster.requests if name == "Fetch"][:3] == [1, 2, 1]
    assert world.cluster.names("Fetch")[0].rack_id == "r"


def test_a_preferred_replica_is_left_when_the_topic_is_gone() -> None:
    world = make(brokers=2, client_rack="r", group_id="g", partition_assignment_strategy="cooperative-sticky")
    asked = prefers_broker_2(world.cluster)
    world.consumer.subscribe_pattern(re.compile("t"), None)
    world.cluster.write("t", 0, 2)
    world.run_until(lambda: len(world.records) == 2)
    fetch = world.cluster.script

    def script(node: int, name: str, request: Any) -> Any:
        # The replica has not heard of it yet, and until the commit is answered the partition is still assigned.
        if name == "Metadata":
            answer = world.cluster._metadata(request)
            return MetadataResponse(brokers=answer.brokers, topics=[])
        return SILENCE if name == "OffsetCommit" else fetch(node, name, request)

    assert asked[-1] == 2
    world.cluster.script = script
    world.core.refresh_metadata()
    world.run_until(lambda: not world.assigned())


@pytest.mark.parametrize("named", [99, 1])
def test_a_leader_that_names_nobody_to_go_to_is_not_asked_in_a_tight_loop(named: int) -> None:
    world = make(brokers=2, client_rack="r")
    world.consumer.assign([T0])
    world.cluster.write("t", 0, 2)
    prefer = PartitionData(partition_index=0, high_watermark=0, preferred_read_replica=named)
    topic = FetchableTopicResponse(topic="t", topic_id=world.cluster.topic_ids["t"], partitions=[prefer])
    asked: list[str] = []

    def script(node: int, name: str, request: Any) -> Any:
        if name != "Fetch":
            return None
        asked.append(request.rack_id)
        return FetchResponse(session_id=9, responses=[topic]) if request.rack_id else None

    world.cluster.script = script
    # Asked without a rack, it answers itself.
    world.run_until(lambda: len(world.records) == 2)
    assert asked[:2] == ["r", ""]
    prefer.preferred_read_replica = named
    world.cluster.script = lambda node, name, request: (
        FetchResponse(session_id=9, responses=[topic]) if name == "Fetch" else None
    )
    begun, before = world.clock.now, len(world.cluster.names("Fetch"))
    world.run_until(lambda: world.clock.now > begun + 5)
    assert len(world.cluster.names("Fetch")) - before < 100


def test_a_lost_fetch_is_asked_again_and_nothing_comes_twice() -> None:
    world = make()
    world.consumer.assign([T0])
    world.cluster.write("t", 0, 5)
    world.cluster.script = Once("Fetch", CUT, SILENCE)
    world.run_until(lambda: len(world.records) == 5)
    begun = world.clock.now
    world.run_until(lambda: world.clock.now > begun + 2)
    assert [record.offset for record in world.records] == list(range(5))


def test_aborted_transactions_and_markers_are_left_out() -> None:
    world = make(isolation_level="read_committed")
    world.consumer.assign([T0])
    parts = []
    offset = 0
    for producer, count in ((1, 2), (2, 2), (1, 1)):
        rows = [(1, None, b"%d" % producer, ()) for _ in range(count)]
        parts.append(
            bytes(
                build_batch(
                    rows,
                    base_offset=offset,
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=True,
                )
            )
        )
        offset += count
    for producer, kind in ((2, ControlType.ABORT), (1, ControlType.COMMIT)):
        parts.append(
            bytes(
                control_batch(
                    kind, base_offset=offset, timestamp=1, producer_id=producer, producer_epoch=0, coordinator_epoch=0
                )
            )
        )
        offset += 1
    world.cluster.batches["t", 0] = [(0, offset, b"".join(parts))]
    world.cluster.aborted["t", 0] = [AbortedTransaction(producer_id=2, first_offset=2)]
    world.run_until(lambda: len(world.records) == 3)
    assert [record.offset for record in world.records] == [0, 1, 4]
    state = world.consumer.subscriptions.state(T0)
    assert state.position == offset


def test_a_damaged_batch_is_an_error_at_its_offset_after_the_good_ones() -> None:
    from headrace.client.consumer.errors import RecordDeserializationError

    world = make()
    world.consumer.assign([T0])
    world.cluster.write("t", 0, 3)
    world.cluster.write("t", 0, 3)
    base, end, data = world.cluster.batches[("t", 0)][1]
    world.cluster.batches[("t", 0)][1] = (base, end, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(RecordDeserializationError) as caught:
        world.run_until(lambda: len(world.records) == 6)
    assert len(world.records) == 3
    assert caught.value.offset == 3
    world.consumer.seek(T0, 6)
    world.cluster.write("t", 0, 1)
    world.run_until(lambda: len(world.records) == 4)


def test_old_brokers_without_topic_ids_or_leader_epochs_are_read() -> None:
    world = make()
    from headrace.protocol.api import ApiKey

    world.cluster.served |= {ApiKey.FETCH: (4, 6), ApiKey.METADATA: (0, 4), ApiKey.LIST_OFFSETS: (1, 3)}
    del world.cluster.served[ApiKey.OFFSET_FOR_LEADER_EPOCH]
    world.consumer.assign([T0])
    world.cluster.write("t", 0, 5)
    original = world.cluster._do_Fetch

    def sessionless(node: int, request: Any, version: int) -> Any:
        request.session_epoch = 0
        return original(node, request, version)

    world.cluster._do_Fetch = sessionless  # type: ignore[method-assign]  # brokers before 1.1 have no sessions
    world.run_until(lambda: len(world.records) == 5)
