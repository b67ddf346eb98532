"""What is asked of records: to be appended, read, found by offset or time, and deleted."""

from __future__ import annotations

import uuid

from kio.schema.errors import ErrorCode

from ..wire import batch
from ..world import NONE, World, fetch_of, values_of
from .told import scenario


@scenario
def produce(world: World, version: int) -> None:
    topic, topic_id = world.topic()
    for number in range(2):
        answer = world.ask(
            "produce",
            version,
            acks=-1,
            timeout=5000,
            topic_data=[
                {
                    "name": topic,
                    "topic_id": topic_id,
                    "partition_data": [{"index": 0, "records": batch(b"%d" % number, codec=4 if version >= 7 else 0)}],
                }
            ],
        )
        result = answer.responses[0].partition_responses[0]
        assert (result.error_code, result.index, result.base_offset) == (NONE, 0, number)
        assert result.log_append_time is None
        if version >= 5:
            assert result.log_start_offset == 0
        if version >= 8:
            assert result.record_errors == ()
            assert result.error_message is None
        if version >= 13:
            assert answer.responses[0].topic_id == topic_id
        else:
            assert answer.responses[0].name == topic
    assert world.read(topic) == [b"0", b"1"]


@scenario
def fetch(world: World, version: int) -> None:
    topic, topic_id = world.filled(b"a", b"b", b"c")
    for isolation in (0, 1):
        answer = world.ask("fetch", version, **fetch_of(topic, topic_id, isolation=isolation))
        found = answer.responses[0].partitions[0]
        assert (found.error_code, found.high_watermark, found.last_stable_offset) == (NONE, 3, 3)
        assert values_of(found.records) == [b"a", b"b", b"c"]
        if version >= 5:
            assert found.log_start_offset == 0
        if version >= 7:
            assert (answer.error_code, answer.session_id) == (NONE, 0)
        if version >= 11:
            assert found.preferred_read_replica == -1
        if version >= 13:
            assert answer.responses[0].topic_id == topic_id
        else:
            assert answer.responses[0].topic == topic
    beyond = world.ask("fetch", version, **fetch_of(topic, topic_id, offset=99)).responses[0].partitions[0]
    assert beyond.error_code == ErrorCode.offset_out_of_range
    if version >= 7:
        _fetch_in_session(world, version, topic, topic_id)


def _fetch_in_session(world: World, version: int, topic: str, topic_id: uuid.UUID) -> None:
    opened = world.ask("fetch", version, **{**fetch_of(topic, topic_id, offset=3), "session_epoch": 0, "max_wait": 0})
    assert opened.session_id > 0
    world.append(topic, batch(b"d"))
    again = {**fetch_of(topic, topic_id), "session_id": opened.session_id, "session_epoch": 1, "topics": []}
    found = world.ask("fetch", version, **again)
    assert found.session_id == opened.session_id
    assert values_of(found.responses[0].partitions[0].records) == [b"d"]


@scenario
def list_offsets(world: World, version: int) -> None:
    topic, _ = world.filled(b"a", b"b", b"c")
    wanted = {-1: (3, -1), -2: (0, -1), 1_700_000_000_001: (1, 1_700_000_000_001), 1_800_000_000_000: (-1, -1)}
    if version >= 7:
        wanted[-3] = (2, 1_700_000_000_002)
    if version >= 8:
        wanted[-4] = (0, -1)
    if version >= 9:
        wanted[-5] = (-1, -1)
    for timestamp, expected in wanted.items():
        part = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        answer = world.ask(
            "list_offsets", version, replica_id=-1, topics=[{"name": topic, "partitions": [part]}], timeout=5000
        )
        found = answer.topics[0].partitions[0]
        assert (found.error_code, found.offset, found.timestamp) == (NONE, *expected), timestamp
        if version >= 4:
            assert found.leader_epoch == (-1 if expected[0] < 0 else 0)


@scenario
def offset_for_leader_epoch(world: World, version: int) -> None:
    topic, _ = world.filled(b"a", b"b")
    part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    answer = world.ask(
        "offset_for_leader_epoch", version, replica_id=-1, topics=[{"topic": topic, "partitions": [part]}]
    )
    found = answer.topics[0].partitions[0]
    assert (found.error_code, found.leader_epoch, found.end_offset) == (NONE, 0, 2)


@scenario
def delete_records(world: World, version: int) -> None:
    topic, _ = world.filled(b"a", b"b", b"c")
    part = {"partition_index": 0, "offset": 2}
    answer = world.ask("delete_records", version, topics=[{"name": topic, "partitions": [part]}], timeout=5000)
    found = answer.topics[0].partitions[0]
    assert (found.error_code, found.low_watermark) == (NONE, 2)


@scenario
def describe_producers(world: World, version: int) -> None:
    topic, _ = world.topic()
    producer_id = world.ask("init_producer_id", 4, transactional_id=None).producer_id
    world.append(topic, batch(b"a", b"b", producer=(producer_id, 0, 0)))
    answer = world.ask("describe_producers", version, topics=[{"name": topic, "partition_indexes": [0]}])
    found = answer.topics[0].partitions[0].active_producers
    assert [(one.producer_id, one.producer_epoch, one.last_sequence) for one in found] == [(producer_id, 0, 1)]
