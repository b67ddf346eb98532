"""What is asked of groups: their coordinator, their members and their offsets."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from ..world import NONE, World
from .told import scenario


@scenario
def find_coordinator(world: World, version: int) -> None:
    group = world.name("group")
    world.coordinator(group)
    answer = world.ask("find_coordinator", version, key=group, key_type=0, coordinator_keys=[group])
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id, found.host, found.port) == (NONE, world.node_id, world.host, world.port)


@scenario
def join_group(world: World, version: int) -> None:
    joined = world.join(world.name("group"), version)
    assert joined.generation_id == 1
    assert joined.leader == joined.member_id
    assert joined.protocol_name == "range"
    assert [(m.member_id, m.metadata) for m in joined.members] == [(joined.member_id, b"subscription")]
    if version >= 7:
        assert joined.protocol_type == "consumer"


@scenario
def sync_group(world: World, version: int) -> None:
    group = world.name("group")
    joined = world.join(group, 5)
    answer = world.ask(
        "sync_group",
        version,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": joined.member_id, "assignment": b"mine"}],
    )
    assert (answer.error_code, answer.assignment) == (NONE, b"mine")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@scenario
def heartbeat(world: World, version: int) -> None:
    group = world.name("group")
    member_id, generation = world.member(group)
    for number, expected in ((generation, NONE), (generation + 1, ErrorCode.illegal_generation)):
        answer = world.ask("heartbeat", version, group_id=group, generation_id=number, member_id=member_id)
        assert answer.error_code == expected


@scenario
def leave_group(world: World, version: int) -> None:
    group = world.name("group")
    member_id, _ = world.member(group)
    leaving = {"member_id": member_id, "group_instance_id": None, "reason": "a test"}
    answer = world.ask("leave_group", version, group_id=group, member_id=member_id, members=[leaving])
    assert answer.error_code == NONE
    if version >= 3:
        assert [(m.member_id, m.error_code) for m in answer.members] == [(member_id, NONE)]
    assert world.ask("describe_groups", 0, groups=[group]).groups[0].group_state == "Empty"


@scenario
def offset_commit(world: World, version: int) -> None:
    topic, topic_id = world.filled()
    group = world.name("group")
    member_id, generation = world.member(group)
    part = {"partition_index": 0, "committed_offset": 2, "committed_leader_epoch": 0, "committed_metadata": "note"}
    answer = world.ask(
        "offset_commit",
        version,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        retention_time=-1,
        topics=[{"name": topic, "topic_id": topic_id, "partitions": [part]}],
    )
    assert answer.topics[0].partitions[0].error_code == NONE
    if version >= 10:
        assert answer.topics[0].topic_id == topic_id
    assert world.committed(group, topic) == (2, "note")


@scenario
def offset_fetch(world: World, version: int) -> None:
    topic, topic_id = world.filled()
    group = world.name("group")
    world.commit(group, topic, 2)
    named = [{"name": topic, "topic_id": topic_id, "partition_indexes": [0]}]
    for topics in (named, None) if version >= 2 else (named,):
        if version >= 8:
            asked = [{"group_id": group, "topics": topics, "member_id": None, "member_epoch": -1}]
            answer = world.ask("offset_fetch", version, groups=asked).groups[0]
        else:
            answer = world.ask("offset_fetch", version, group_id=group, topics=topics)
        found = answer.topics[0].partitions[0]
        assert (found.error_code, found.committed_offset, found.metadata) == (NONE, 2, "note")
        if version >= 2:
            assert answer.error_code == NONE
        if version >= 10:
            assert answer.topics[0].topic_id == topic_id


@scenario
def list_groups(world: World, version: int) -> None:
    group = world.name("group")
    world.member(group)
    answer = world.ask("list_groups", version, states_filter=["Stable"], types_filter=["classic"])
    assert answer.error_code == NONE
    found = next(entry for entry in answer.groups if entry.group_id == group)
    assert found.protocol_type == "consumer"
    if version >= 4:
        assert found.group_state == "Stable"
    if version >= 5:
        assert found.group_type == "classic"


@scenario
def describe_groups(world: World, version: int) -> None:
    group = world.name("group")
    member_id, _ = world.member(group)
    found = world.ask("describe_groups", version, groups=[group]).groups[0]
    assert (found.error_code, found.group_state, found.protocol_data) == (NONE, "Stable", "range")
    only = found.members[0]
    assert (only.member_id, only.client_id, only.member_assignment) == (member_id, "kio", b"mine")
    gone = world.ask("describe_groups", version, groups=[world.name("none")]).groups[0]
    assert (gone.error_code, gone.group_state) == (NONE if version < 6 else ErrorCode.group_id_not_found, "Dead")


@scenario
def delete_groups(world: World, version: int) -> None:
    topic, _ = world.filled()
    group = world.name("group")
    world.commit(group, topic, 1)
    for expected in (NONE, ErrorCode.group_id_not_found):
        answer = world.ask("delete_groups", version, groups_names=[group])
        assert [(r.group_id, r.error_code) for r in answer.results] == [(group, expected)]


@scenario
def offset_delete(world: World, version: int) -> None:
    topic, _ = world.filled()
    group = world.name("group")
    world.commit(group, topic, 1)
    asked = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    answer = world.ask("offset_delete", version, group_id=group, topics=asked)
    assert answer.error_code == NONE
    assert answer.topics[0].partitions[0].error_code == NONE
    assert world.committed(group, topic)[0] == -1
