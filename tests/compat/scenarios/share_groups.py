"""What is asked of share groups, and of the states that brokers keep of them."""

from __future__ import annotations

import base64
import uuid
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from tests.waiting import eventually

from ..wire import batch
from ..world import NONE, World, values_of
from .told import scenario

_GROUP_RESOURCE = 32
_ACCEPT = 1
_UNREADY = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)


def _member(world: World, group: str, topic: str, version: int = 1) -> tuple[str, Any]:
    """A member that has its partition, of a group that reads from the beginning: its id, and the last answer."""
    world.coordinator(group)
    world.ask(
        "incremental_alter_configs",
        1,
        resources=[
            {
                "resource_type": _GROUP_RESOURCE,
                "resource_name": group,
                "configs": [{"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}],
            }
        ],
        validate_only=False,
    )
    member, epoch = str(uuid.uuid4()), 0

    def assigned() -> Any:
        nonlocal epoch
        names = [topic] if epoch == 0 else None
        answer = world.ask(
            "share_group_heartbeat",
            version,
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            rack_id=None,
            subscribed_topic_names=names,
        )
        if answer.error_code in _UNREADY:
            return None
        assert answer.error_code == NONE, answer
        epoch = answer.member_epoch
        return answer if answer.assignment is not None and answer.assignment.topic_partitions else None

    return member, eventually(assigned, what="an assignment")


class Acquired(NamedTuple):
    """Records that a member has acquired, and the epoch of its share session's next request."""

    group: str
    member: str
    topic: str
    topic_id: uuid.UUID
    partition: Any
    session_epoch: int


def _acquire(world: World, version: int = 1) -> Acquired:
    group, topic = world.name("share"), world.topic()
    member, _ = _member(world, group, topic[0])
    world.append(topic[0], batch(b"a", b"b", b"c"))
    epoch = 0

    def acquired() -> Any:
        nonlocal epoch
        partition = {"partition_index": 0, "acknowledgement_batches": []}
        answer = world.ask(
            "share_fetch",
            version,
            group_id=group,
            member_id=member,
            share_session_epoch=epoch,
            max_wait=500,
            min_bytes=1,
            max_bytes=2**20,
            max_records=100,
            batch_size=100,
            share_acquire_mode=0,
            is_renew_ack=False,
            topics=[{"topic_id": topic[1], "partitions": [partition]}],
            forgotten_topics_data=[],
        )
        assert answer.error_code == NONE, answer
        epoch += 1
        for one in answer.responses:
            [found] = one.partitions
            assert found.error_code in (NONE, *_UNREADY), found
            if found.acquired_records:
                return found
        return None

    return Acquired(group, member, *topic, eventually(acquired, what="acquired records"), epoch)


@scenario
def share_group_heartbeat(world: World, version: int) -> None:
    group, (topic, topic_id) = world.name("share"), world.topic(2)
    member, answer = _member(world, group, topic, version)
    assert answer.member_id == member
    assert answer.member_epoch > 0
    [owned] = answer.assignment.topic_partitions
    assert (owned.topic_id, sorted(owned.partitions)) == (topic_id, [0, 1])


@scenario
def share_group_describe(world: World, version: int) -> None:
    group, (topic, _) = world.name("share"), world.topic()
    member, _ = _member(world, group, topic)
    answer = world.ask("share_group_describe", version, group_ids=[group], include_authorized_operations=False)
    [found] = answer.groups
    assert (found.error_code, found.group_id, found.group_state) == (NONE, group, "Stable")
    assert [(one.member_id, one.subscribed_topic_names) for one in found.members] == [(member, (topic,))]


@scenario
def share_fetch(world: World, version: int) -> None:
    got = _acquire(world, version)
    assert values_of(got.partition.records) == [b"a", b"b", b"c"]
    assert [(one.first_offset, one.last_offset, one.delivery_count) for one in got.partition.acquired_records] == [
        (0, 2, 1)
    ]


def _accept(world: World, got: Acquired, last_offset: int, version: int = 1) -> Any:
    accepted = {"first_offset": 0, "last_offset": last_offset, "acknowledge_types": [_ACCEPT]}
    partition = {"partition_index": 0, "acknowledgement_batches": [accepted]}
    answer = world.ask(
        "share_acknowledge",
        version,
        group_id=got.group,
        member_id=got.member,
        share_session_epoch=got.session_epoch,
        is_renew_ack=False,
        topics=[{"topic_id": got.topic_id, "partitions": [partition]}],
    )
    assert answer.error_code == NONE, answer
    return [part.error_code for one in answer.responses for part in one.partitions]


@scenario
def share_acknowledge(world: World, version: int) -> None:
    assert _accept(world, _acquire(world), 2, version) == [NONE]


def _left(world: World) -> tuple[str, str]:
    """A share group that has taken one of a topic's three records, and has no member any more."""
    got = _acquire(world)
    assert _accept(world, got, 0) == [NONE]
    world.ask(
        "share_group_heartbeat",
        1,
        group_id=got.group,
        member_id=got.member,
        member_epoch=-1,
        rack_id=None,
        subscribed_topic_names=None,
    )
    return got.group, got.topic


def _offsets(world: World, version: int, group: str, topic: str) -> Any:
    asked = {"group_id": group, "topics": [{"topic_name": topic, "partitions": [0]}]}
    [found] = world.ask("describe_share_group_offsets", version, groups=[asked]).groups
    assert found.error_code == NONE, found
    [[partition]] = [one.partitions for one in found.topics]
    return partition


@scenario
def describe_share_group_offsets(world: World, version: int) -> None:
    group, topic = _left(world)
    found = _offsets(world, version, group, topic)
    # As Kafka's: what was taken is counted at once, and the start follows with the next acknowledgement.
    assert (found.error_code, found.start_offset) == (NONE, 0)
    if version >= 1:
        assert found.lag == 2


@scenario
def alter_share_group_offsets(world: World, version: int) -> None:
    group, topic = _left(world)
    partition = {"partition_index": 0, "start_offset": 2}
    topics = [{"topic_name": topic, "partitions": [partition]}]
    answer = world.ask("alter_share_group_offsets", version, group_id=group, topics=topics)
    assert answer.error_code == NONE, answer
    assert _offsets(world, 0, group, topic).start_offset == 2


@scenario
def delete_share_group_offsets(world: World, version: int) -> None:
    group, topic = _left(world)
    answer = world.ask("delete_share_group_offsets", version, group_id=group, topics=[{"topic_name": topic}])
    assert answer.error_code == NONE, answer
    assert [(one.topic_name, one.error_code) for one in answer.responses] == [(topic, NONE)]


class _State:
    """The state of one partition that a share group reads, as its brokers ask for it."""

    def __init__(self, world: World) -> None:
        self.world, self.group = world, world.name("share")
        _, self.topic_id = world.topic()
        key = f"{self.group}:{_text(self.topic_id)}:0"
        eventually(
            lambda: (
                world.ask("find_coordinator", 6, key_type=2, coordinator_keys=[key]).coordinators[0].error_code == NONE
            ),
            what="a share coordinator",
        )

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        def answered() -> Any:
            partition = {"partition": 0, **fields}
            topics = [{"topic_id": self.topic_id, "partitions": [partition]}]
            [topic] = self.world.ask(api, version, group_id=self.group, topics=topics).results
            assert topic.topic_id == self.topic_id
            [found] = topic.partitions
            return None if found.error_code in _UNREADY else found

        found = eventually(answered, what=f"an answer to {api}")
        assert found.error_code == NONE, found
        return found

    def initialize(self, version: int = 0) -> None:
        self.ask("initialize_share_group_state", version, state_epoch=1, start_offset=5)

    def write(self, version: int = 0) -> None:
        batches = [{"first_offset": 7, "last_offset": 9, "delivery_state": 2, "delivery_count": 1}]
        self.ask(
            "write_share_group_state",
            version,
            state_epoch=1,
            leader_epoch=0,
            start_offset=6,
            delivery_complete_count=3,
            state_batches=batches,
        )

    def read(self, version: int = 0) -> Any:
        return self.ask("read_share_group_state", version, leader_epoch=0)


def _text(topic_id: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


@scenario
def initialize_share_group_state(world: World, version: int) -> None:
    state = _State(world)
    state.initialize(version)
    assert state.read().start_offset == 5


@scenario
def read_share_group_state(world: World, version: int) -> None:
    state = _State(world)
    state.initialize()
    state.write()
    found = state.read(version)
    assert (found.state_epoch, found.start_offset) == (1, 6)
    assert [(one.first_offset, one.last_offset, one.delivery_state) for one in found.state_batches] == [(7, 9, 2)]


@scenario
def write_share_group_state(world: World, version: int) -> None:
    state = _State(world)
    state.initialize()
    state.write(version)
    assert state.read().start_offset == 6


@scenario
def delete_share_group_state(world: World, version: int) -> None:
    state = _State(world)
    state.initialize()
    state.ask("delete_share_group_state", version)
    state.initialize()
    assert state.read().start_offset == 5


@scenario
def read_share_group_state_summary(world: World, version: int) -> None:
    state = _State(world)
    state.initialize()
    state.write(1)
    found = state.ask("read_share_group_state_summary", version, leader_epoch=0)
    assert (found.state_epoch, found.start_offset) == (1, 6)
    if version >= 1:
        assert found.delivery_complete_count == 3
