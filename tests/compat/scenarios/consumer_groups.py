"""What is asked of groups of the newer consumer protocol."""

from __future__ import annotations

from typing import Any

from ..world import NONE, World
from .told import scenario


def _join(world: World, group: str, version: int = 1) -> tuple[str, Any]:
    world.coordinator(group)
    topic, _ = world.topic(2)
    answer = world.ask(
        "consumer_group_heartbeat",
        version,
        group_id=group,
        member_id="member",
        member_epoch=0,
        instance_id=None,
        rack_id=None,
        rebalance_timeout=30_000,
        subscribed_topic_names=[topic],
        subscribed_topic_regex=None,
        server_assignor=None,
        topic_partitions=[],
    )
    return topic, answer


@scenario
def consumer_group_heartbeat(world: World, version: int) -> None:
    _, answer = _join(world, world.name("consumer"), version)
    assert (answer.error_code, answer.error_message, bool(answer.member_id)) == (NONE, None, True)
    assert answer.member_epoch > 0
    [assigned] = answer.assignment.topic_partitions
    assert list(assigned.partitions) == [0, 1]


@scenario
def consumer_group_describe(world: World, version: int) -> None:
    group = world.name("consumer")
    topic, _ = _join(world, group)
    answer = world.ask("consumer_group_describe", version, group_ids=[group], include_authorized_operations=False)
    [found] = answer.groups
    assert (found.error_code, found.group_id, found.group_state) == (NONE, group, "Stable")
    [member] = found.members
    assert (member.member_id, list(member.subscribed_topic_names)) == ("member", [topic])
    assert version == 0 or member.member_type == 1
