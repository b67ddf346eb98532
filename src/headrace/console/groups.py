"""Groups: the list sorted by lag, and one group: members, who owns what, lag in records and in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from headrace.client.admin import GroupDescription, ResetOffset, ResetTo
from headrace.console.cluster import Cluster
from headrace.errors import HeadraceError
from headrace.topics import TopicPartition

PAGE = 100
MEMBERS_MAX = 500
PARTITIONS_MAX = 2_000
#: Of how many partitions the time of the next record is looked up in the log, where it is not remembered.
LOOKED_UP_MAX = 8


async def group_list(
    cluster: Cluster, *, search: str = "", sort: str = "lag", descending: bool = True, page: int = 0
) -> dict[str, Any]:
    """A page of the groups that are searched for, those furthest behind first unless asked otherwise."""
    cluster.look()
    listed = await cluster.groups.get()
    wanted = search.lower()
    rows = []
    for group in listed:
        if wanted not in group.group_id.lower():
            continue
        lags = cluster.lags.groups.get(group.group_id)
        rows.append(
            {
                "group": group.group_id,
                "state": group.state,
                "type": group.type or "classic",
                "protocol": group.protocol_type,
                "lag": lags[-1].records if lags else None,
                "seconds": lags[-1].seconds if lags else None,
                "trend": cluster.lags.trend(group.group_id),
                "topics": sorted({one.topic for one in cluster.committed.get(group.group_id, ())})[:5],
            }
        )
    rows.sort(key=lambda row: str(row["group"]))
    if sort in ("lag", "seconds", "trend"):
        rows.sort(key=lambda row: -1.0 if row[sort] is None else float(str(row[sort])), reverse=descending)
    elif sort in ("group", "state", "type"):
        rows.sort(key=lambda row: str(row[sort]), reverse=descending)
    page = max(0, min(page, (len(rows) - 1) // PAGE))
    return {
        "total": len(rows),
        "page": page,
        "pages": max(1, -(-len(rows) // PAGE)),
        "rows": rows[page * PAGE : (page + 1) * PAGE],
    }


async def group_page(cluster: Cluster, name: str) -> dict[str, Any]:
    """One group as it is now."""
    cluster.look(name)
    described, offsets = await asyncio.gather(cluster.admin.describe_groups([name]), cluster.group_offsets([name]))
    noted = offsets.get(name) or {}
    committed = {one: where.offset for one, where in noted.items()}
    group = described.ok.get(name)
    if group is None and not committed:
        raise described.errors.get(name) or HeadraceError(f"group {name!r} does not exist")
    topics = await cluster.topics.get()
    owners = _owners(group)
    partitions = sorted({*committed, *owners})
    alive = [one for one in partitions if one.topic in topics]
    ends = await cluster.ends(alive[:PARTITIONS_MAX])
    now_s = time.time()
    rows = []
    for one in partitions[:PARTITIONS_MAX]:
        offset, end = committed.get(one), ends.get(one)
        lag = None if offset is None or end is None else max(0, end - offset)
        seconds = None if offset is None else cluster.lags.seconds_behind(one, offset, now_s)
        if lag and seconds == 0.0:
            # It came after the last sample of the end.
            sampled_s = cluster.lags.ends[one].latest_s
            seconds = None if sampled_s is None else max(0.0, now_s - sampled_s)
        rows.append(
            {
                "topic": one.topic,
                "partition": one.partition,
                "offset": offset,
                "end": end,
                "lag": lag,
                "seconds": 0.0 if lag == 0 else seconds,
                "members": owners.get(one, []),
                "gone": one.topic not in topics,
            }
        )
    await _look_up_times(cluster, rows, now_s)
    members = [] if group is None else sorted(group.members, key=lambda one: (one.client_id, one.member_id))
    known = [float(str(row["seconds"])) for row in rows if row["seconds"] is not None]
    return {
        "group": name,
        "state": "Dead" if group is None else group.state,
        "type": None if group is None else group.type,
        "assignor": None if group is None else group.partition_assignor or None,
        "protocol": None if group is None else group.protocol_type,
        "coordinator": None if group is None else group.coordinator.id,
        "members": [
            {
                "member": member.member_id,
                "instance": member.group_instance_id,
                "client": member.client_id,
                "host": member.host.lstrip("/"),
                "topics": list(member.topics),
                "partitions": len(member.assignment),
                "tasks": list(member.tasks),
                "standby": list(member.standby_tasks),
                "epoch": member.epoch,
                "coming": member.target is not None and set(member.target) != set(member.assignment),
            }
            for member in members[:MEMBERS_MAX]
        ],
        "members_total": len(members),
        "partitions": rows,
        "partitions_total": len(partitions),
        "lag": sum(int(str(row["lag"])) for row in rows if row["lag"] is not None),
        "seconds": max(known, default=None),
        "trend": cluster.lags.trend(name),
        "history": cluster.lags.history(name),
        "parallel": [note for note in map(_note, noted.items()) if note is not None],
    }


def _owners(group: GroupDescription | None) -> dict[TopicPartition, list[str]]:
    """Who has which partition: of a share group, several members."""
    owners: dict[TopicPartition, list[str]] = {}
    for member in () if group is None else group.members:
        for one in member.assignment:
            owners.setdefault(one, []).append(member.member_id)
    return owners


def _note(item: Any) -> dict[str, Any] | None:
    """What a parallel consumer has noted with its offset: how many records behind it are finished already."""
    one, where = item
    text = where.metadata or ""
    if not text:
        return None
    return {"topic": one.topic, "partition": one.partition, "bytes": len(text), "is_ours": text.startswith("hr")}


async def _look_up_times(cluster: Cluster, rows: list[dict[str, Any]], now_s: float) -> None:
    """How long the next record has been waiting, by its own time, where the console was not there when it came."""
    missing = [row for row in rows if row["seconds"] is None and row["lag"] and not row["gone"]]
    missing.sort(key=lambda row: -int(row["lag"]))

    async def look(row: dict[str, Any]) -> None:
        partition = TopicPartition(row["topic"], row["partition"])
        at_s = await cluster.written_at(partition, row["offset"])
        if at_s is not None:
            cluster.lags.written[partition, row["offset"]] = at_s
            row["seconds"] = max(0.0, now_s - at_s)

    await asyncio.gather(*(look(row) for row in missing[:LOOKED_UP_MAX]))


async def preview_reset(
    cluster: Cluster, name: str, to: ResetTo, topics: list[str | TopicPartition] | None, *, dry_run: bool
) -> list[dict[str, Any]]:
    """What a reset changes, or has changed, partition by partition."""
    changes: Mapping[TopicPartition, ResetOffset] = await cluster.admin.reset_group_offsets(
        name, to, topics=topics, dry_run=dry_run
    )
    ends = await cluster.ends(sorted(changes))
    return [
        {
            "topic": one.topic,
            "partition": one.partition,
            "before": change.before,
            "after": change.after,
            "end": ends.get(one),
            "moves": None if change.before is None else change.after - change.before,
        }
        for one, change in sorted(changes.items())
    ]


def reset_to(wanted: Mapping[str, Any]) -> ResetTo:
    """Where to, as the page says it; ValueError where it says nothing that can be meant."""
    kind = wanted.get("to")
    if kind in ("earliest", "latest", "current"):
        made: ResetTo = getattr(ResetTo, str(kind))()
        return made
    if kind == "group":
        return ResetTo.group(str(wanted.get("other") or ""))
    if kind in ("offset", "timestamp", "shift"):
        number = wanted.get("number")
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(f"a reset to {kind} needs a whole number")
        numbered: ResetTo = getattr(ResetTo, str(kind))(number)
        return numbered
    raise ValueError(f"offsets are reset to earliest, latest, offset, timestamp, shift or group, not to {kind!r}")
