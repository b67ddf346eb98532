"""The share coordinator: states begun, written, read, fenced and found again after a crash."""

from __future__ import annotations

from typing import Any

from tests.coordination.driver import Driver

from headrace.errors import ErrorCode
from headrace.groups.share.deliveries import StateBatch
from headrace.groups.share.state_coordinator import ShareStateCoordinator, StateConfig
from headrace.groups.share.state_records import StateKey, laid_over
from headrace.protocol.messages import delete_share_group_state as deleting
from headrace.protocol.messages import initialize_share_group_state as beginning
from headrace.protocol.messages import read_share_group_state as reading
from headrace.protocol.messages import read_share_group_state_summary as summing
from headrace.protocol.messages import write_share_group_state as writing

TOPIC = bytes(range(16))
Batches = list[tuple[int, int, int, int]]


class World(Driver):
    coordinator: ShareStateCoordinator

    def __init__(self, updates_max: int = 500) -> None:
        super().__init__()
        self.config = StateConfig(updates_max=updates_max)
        self.coordinator = self.new_coordinator()
        self.load_all()

    @property
    def partition_count(self) -> int:
        return self.config.topic_partitions

    def new_coordinator(self) -> ShareStateCoordinator:
        return ShareStateCoordinator(self.config, lambda topic_id, partition: topic_id == TOPIC and partition < 4)

    def one(self, method: str, request: Any) -> Any:
        """The answer for the one partition that the request names; where it waits for a write, how to get it."""
        token = self.send(method, request, 1)
        if token not in self.answers:
            return lambda: self.answers[token].results[0].partitions[0]
        return self.answers[token].results[0].partitions[0]

    def begin(self, state_epoch: int, start_offset: int, topic_id: bytes = TOPIC) -> Any:
        part = beginning.PartitionData(partition=0, state_epoch=state_epoch, start_offset=start_offset)
        topic = beginning.InitializeStateData(topic_id=topic_id, partitions=[part])
        return self.one("initialize", beginning.InitializeShareGroupStateRequest(group_id="g", topics=[topic]))

    def read(self, leader_epoch: int) -> Any:
        part = reading.PartitionData(partition=0, leader_epoch=leader_epoch)
        topic = reading.ReadStateData(topic_id=TOPIC, partitions=[part])
        return self.one("read", reading.ReadShareGroupStateRequest(group_id="g", topics=[topic]))

    def save(self, state_epoch: int, leader_epoch: int, start: int, batches: Batches, finished: int = -1) -> Any:
        part = writing.PartitionData(
            partition=0,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start,
            delivery_complete_count=finished,
            state_batches=[
                writing.StateBatch(first_offset=f, last_offset=t, delivery_state=s, delivery_count=c)
                for f, t, s, c in batches
            ],
        )
        topic = writing.WriteStateData(topic_id=TOPIC, partitions=[part])
        return self.one("write", writing.WriteShareGroupStateRequest(group_id="g", topics=[topic]))

    def summary(self) -> Any:
        part = summing.PartitionData(partition=0, leader_epoch=1)
        topic = summing.ReadStateSummaryData(topic_id=TOPIC, partitions=[part])
        return self.one("summary", summing.ReadShareGroupStateSummaryRequest(group_id="g", topics=[topic]))

    def delete(self) -> Any:
        topic = deleting.DeleteStateData(topic_id=TOPIC, partitions=[deleting.PartitionData(partition=0)])
        return self.one("delete", deleting.DeleteShareGroupStateRequest(group_id="g", topics=[topic]))


def batches_of(answer: Any) -> Batches:
    return [(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count) for b in answer.state_batches]


def test_a_state_lives_as_apache_kafka_lets_it() -> None:
    """The same steps, and the same answers, as in the recording share/state/own-life."""
    world = World()
    assert world.read(0).error_code == ErrorCode.INVALID_REQUEST
    assert world.save(1, 1, 5, []).error_code == ErrorCode.INVALID_REQUEST
    assert world.begin(1, 4).error_code == ErrorCode.NONE
    first = world.read(1)
    assert (first.state_epoch, first.start_offset, batches_of(first)) == (1, 4, [])
    assert world.save(1, 1, 4, [(5, 9, 2, 1), (10, 12, 0, 2)]).error_code == ErrorCode.NONE
    assert world.save(1, 1, -1, [(8, 11, 4, 3)], finished=7).error_code == ErrorCode.NONE
    then = world.read(1)
    assert (then.start_offset, batches_of(then)) == (4, [(5, 7, 2, 1), (8, 11, 4, 3), (12, 12, 0, 2)])
    summary = world.summary()
    assert (summary.start_offset, summary.leader_epoch, summary.delivery_complete_count) == (4, 1, 7)
    assert world.save(0, 1, 4, []).error_code == ErrorCode.FENCED_STATE_EPOCH
    assert world.save(1, 0, 4, []).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert world.read(0).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert world.begin(0, 4).error_code == ErrorCode.FENCED_STATE_EPOCH
    assert world.begin(2, 20).error_code == ErrorCode.NONE
    anew = world.read(2)
    assert (anew.state_epoch, anew.start_offset, batches_of(anew)) == (2, 20, [])
    assert world.delete().error_code == ErrorCode.NONE
    assert world.read(2).error_code == ErrorCode.INVALID_REQUEST
    assert world.delete().error_code == ErrorCode.NONE


def test_a_leader_that_has_read_fences_those_before_it() -> None:
    world = World()
    world.begin(1, 0)
    world.read(3)
    assert world.save(1, 2, 0, [(0, 1, 2, 1)]).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert world.save(1, 3, 0, [(0, 1, 2, 1)]).error_code == ErrorCode.NONE


def test_what_was_written_is_found_again_whatever_snapshots_there_are() -> None:
    for updates_max in (0, 1, 3, 500):
        world = World(updates_max)
        world.begin(1, 0)
        for offset in range(0, 20, 2):
            world.save(1, 1, -1, [(offset, offset + 1, 2 if offset % 4 else 0, 1)], finished=offset)
        world.save(1, 1, 6, [])
        before = world.coordinator.states(world.coordinator.partition_of(StateKey("g", TOPIC, 0).name))
        world.restart()
        after = world.read(1)
        assert batches_of(after) == [tuple(batch) for batch in next(iter(before.values())).batches]
        assert after.start_offset == 6
        assert world.save(1, 0, 6, []).error_code == ErrorCode.FENCED_LEADER_EPOCH
        world.delete()
        world.restart()
        assert world.read(1).error_code == ErrorCode.INVALID_REQUEST


def test_a_write_that_fails_changes_nothing() -> None:
    world = World()
    world.begin(1, 0)
    world.hold = True
    pending = world.save(1, 1, 0, [(0, 4, 2, 1)])
    assert world.save(1, 1, 0, [(5, 9, 2, 1)]).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.hold = False
    assert pending().error_code == ErrorCode.NOT_COORDINATOR
    assert batches_of(world.read(1)) == []


def test_a_partition_that_is_not_there_has_no_state() -> None:
    world = World()
    assert world.begin(1, 0, topic_id=bytes(16)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.summary().start_offset == -1


def test_new_batches_count_where_they_lie_over_old_ones() -> None:
    old = (StateBatch(0, 9, 0, 1), StateBatch(10, 19, 2, 1))
    assert laid_over(old, [StateBatch(5, 12, 4, 2)], 2) == (
        StateBatch(2, 4, 0, 1),
        StateBatch(5, 12, 4, 2),
        StateBatch(13, 19, 2, 1),
    )
    assert laid_over(old, [StateBatch(0, 9, 2, 1)], 0) == (StateBatch(0, 19, 2, 1),)
