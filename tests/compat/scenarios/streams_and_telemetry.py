"""What is asked of streams groups, and of client telemetry."""

from __future__ import annotations

import uuid
from typing import Any

from kio.schema.errors import ErrorCode

from ..world import NONE, World
from .told import scenario


def _join(world: World, group: str, version: int = 0) -> tuple[str, Any]:
    world.coordinator(group)
    topic, _ = world.topic(2)
    subtopology = {
        "subtopology_id": "0",
        "source_topics": [topic],
        "source_topic_regex": [],
        "state_changelog_topics": [],
        "repartition_sink_topics": [],
        "repartition_source_topics": [],
        "copartition_groups": [],
    }
    answer = world.ask(
        "streams_group_heartbeat",
        version,
        group_id=group,
        member_id="member",
        member_epoch=0,
        endpoint_information_epoch=0,
        rebalance_timeout=30_000,
        topology={"epoch": 0, "subtopologies": [subtopology]},
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="process",
        instance_id=None,
        rack_id=None,
        user_endpoint=None,
        client_tags=None,
        task_offsets=None,
        task_end_offsets=None,
        shutdown_application=False,
    )
    return topic, answer


@scenario
def streams_group_heartbeat(world: World, version: int) -> None:
    _, answer = _join(world, world.name("streams"), version)
    assert (answer.error_code, answer.error_message, answer.member_id) == (NONE, None, "member")
    assert answer.member_epoch > 0
    assert answer.active_tasks is not None


@scenario
def streams_group_describe(world: World, version: int) -> None:
    group = world.name("streams")
    topic, _ = _join(world, group)
    answer = world.ask("streams_group_describe", version, group_ids=[group], include_authorized_operations=False)
    [found] = answer.groups
    assert (found.error_code, found.group_id) == (NONE, group)
    assert [one.source_topics for one in found.topology.subtopologies] == [(topic,)]
    assert [member.process_id for member in found.members] == ["process"]


@scenario
def get_telemetry_subscriptions(world: World, version: int) -> None:
    answer = world.ask("get_telemetry_subscriptions", version, client_instance_id=None)
    assert (answer.error_code, list(answer.requested_metrics)) == (NONE, [])
    assert answer.client_instance_id is not None


@scenario
def push_telemetry(world: World, version: int) -> None:
    answer = world.ask(
        "push_telemetry",
        version,
        client_instance_id=uuid.uuid4(),
        subscription_id=-7,
        terminating=False,
        compression_type=0,
        metrics=b"",
    )
    assert answer.error_code == ErrorCode.unknown_subscription_id
