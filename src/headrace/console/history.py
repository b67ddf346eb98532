"""What happened to a group, and what would happen if: for its page."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from headrace.client.history import (
    Change,
    HistoryError,
    MemberPlan,
    plan_document,
    read_group,
    timeline,
    timeline_document,
    what_if,
)
from headrace.client.history.reading import OFFSETS_TOPIC, log_partition
from headrace.console.cluster import Cluster

REBALANCES_MAX = 200


async def group_history(cluster: Cluster, group: str) -> dict[str, Any]:
    """The rebalances of a group, the latest last."""
    cluster.look(group)
    topics = await cluster.topics.get()
    if OFFSETS_TOPIC not in topics:
        raise HistoryError(f"{OFFSETS_TOPIC} cannot be seen: nobody has committed yet, or this user may not read it")
    partitions = len(topics[OFFSETS_TOPIC].partitions)
    partition = log_partition(group, partitions)
    starts, ends = await asyncio.gather(cluster.starts([partition]), cluster.ends([partition]))
    if partition not in starts or partition not in ends:
        raise HistoryError(f"{partition} cannot be read now")
    names = {topic.topic_id: topic.name for topic in topics.values()}
    bounds = starts[partition], ends[partition]
    log = await asyncio.to_thread(read_group, group, cluster.consumer_settings(), partitions, bounds, names)
    return timeline_document(timeline(log), REBALANCES_MAX)


async def group_what_if(cluster: Cluster, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """A group as it would be after a change, next to how it is."""
    name = str(wanted.get("group"))
    described = (await cluster.admin.describe_groups([name]))[name]
    if not described.members:
        # No failure: most groups are without members at some time.
        return {"nobody": "The group has no members now, so nobody knows what they would subscribe to."}
    topics = await cluster.topics.get()
    subscribed = {topic for member in described.members for topic in member.topics}
    counts = {topic: len(topics[topic].partitions) for topic in subscribed if topic in topics}
    offsets = cluster.committed.get(name, {})
    lag = {one: cluster.lags.records_behind(one, where.offset) or 0 for one, where in offsets.items()}
    members = [
        MemberPlan(one.member_id, one.topics, tuple(one.assignment), instance_id=one.group_instance_id)
        for one in described.members
    ]
    change = Change(
        wanted.get("strategy") or None,
        _optional(wanted.get("members")),
        tuple(map(str, wanted.get("without") or ())),
        {str(topic): int(count) for topic, count in dict(wanted.get("partitions") or {}).items()},
        {str(member): str(rack) for member, rack in dict(wanted.get("racks") or {}).items()},
        {str(member): float(weight) for member, weight in dict(wanted.get("weights") or {}).items()},
    )
    strategy = described.partition_assignor or "range"
    # What takes long is worked out beside the loop.
    plan = await asyncio.to_thread(what_if, members, counts, strategy, change, lag=lag)
    clients = {one.member_id: one.client_id for one in described.members}
    before = {one.member_id: len(one.owns) for one in members}
    document = plan_document(plan, clients)
    for member in document["members"]:
        member["before"] = before.get(member["member"], 0)
    return {**document, "now": strategy, "clients": clients, "counts": counts}


def _optional(value: Any) -> int | None:
    return None if value in (None, "") else int(value)
