"""Topics: the list, a page at a time, and one topic with its partitions, sizes, configuration and readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.client.admin import ConfigResource, ConfigSource, ResourceType, TopicDescription
from headrace.console.cluster import Cluster
from headrace.console.pages import compacted_to
from headrace.errors import HeadraceError, UnknownTopicOrPartitionError
from headrace.topics import TopicPartition

PAGE = 100


async def topic_list(
    cluster: Cluster,
    *,
    search: str = "",
    sort: str = "name",
    descending: bool = False,
    page: int = 0,
    with_internal: bool = False,
) -> dict[str, Any]:
    """A page of the topics that are searched for."""
    cluster.look()
    topics = await cluster.topics.get()
    sizes = await _sizes(cluster)
    wanted = search.lower()
    rows = [
        _row(cluster, topic, sizes)
        for topic in topics.values()
        if wanted in topic.name.lower() and (with_internal or not topic.is_internal)
    ]
    order: dict[str, Callable[[dict[str, Any]], Any]] = {
        "name": lambda row: row["name"],
        "partitions": lambda row: row["partitions"],
        "bytes": lambda row: row["bytes"] or 0,
        "rate": lambda row: row["records_per_second"] or 0,
        "health": lambda row: (row["offline"], row["under_replicated"]),
    }
    rows.sort(key=lambda row: row["name"])
    if sort in order:
        rows.sort(key=order[sort], reverse=descending)
    page = max(0, min(page, (len(rows) - 1) // PAGE))
    return {
        "total": len(rows),
        "all": len(topics),
        "internal": sum(topic.is_internal for topic in topics.values()),
        "page": page,
        "pages": max(1, -(-len(rows) // PAGE)),
        "rows": rows[page * PAGE : (page + 1) * PAGE],
    }


async def _sizes(cluster: Cluster) -> dict[str, int]:
    """Bytes of every topic on all brokers, as far as they are known without waiting long."""
    try:
        async with asyncio.timeout(1.0):
            found = await cluster.directories.get()
    except (HeadraceError, TimeoutError):
        return {}
    sizes: dict[str, int] = {}
    for directories in found.values():
        for directory in directories.values():
            for one, info in directory.replicas.items():
                sizes[one.topic] = sizes.get(one.topic, 0) + info.size
    return sizes


def _row(cluster: Cluster, topic: TopicDescription, sizes: dict[str, int]) -> dict[str, Any]:
    rates = [
        rate
        for info in topic.partitions
        if (ends := cluster.lags.ends.get(TopicPartition(topic.name, info.partition))) is not None
        and (rate := ends.rate()) is not None
    ]
    return {
        "name": topic.name,
        "internal": topic.is_internal,
        "partitions": len(topic.partitions),
        "replicas": max((len(info.replicas) for info in topic.partitions), default=0),
        "offline": sum(info.leader < 0 for info in topic.partitions),
        "under_replicated": sum(info.leader >= 0 and len(info.isr) < len(info.replicas) for info in topic.partitions),
        "bytes": sizes.get(topic.name),
        "records_per_second": sum(rates) if rates else None,
    }


async def topic_of(cluster: Cluster, name: str) -> TopicDescription:
    """The topic, or an error that says that there is none."""
    topics = await cluster.topics.get()
    if name not in topics:
        cluster.topics.forget()
        topics = await cluster.topics.get()
    if name not in topics:
        raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
    return topics[name]


async def topic_page(cluster: Cluster, name: str) -> dict[str, Any]:
    """One topic: partitions with leader, replicas, sizes and offsets; the groups that read it."""
    cluster.look()
    topic = await topic_of(cluster, name)
    partitions = [TopicPartition(name, info.partition) for info in topic.partitions if info.leader >= 0]
    ends, starts = await asyncio.gather(cluster.ends(partitions), cluster.starts(partitions))
    sizes: dict[int, dict[int, int]] = {}
    lags: dict[int, dict[int, int]] = {}
    try:
        for node, directories in (await cluster.directories.get()).items():
            for directory in directories.values():
                for one, replica in directory.replicas.items():
                    if one.topic == name and not replica.is_future:
                        sizes.setdefault(one.partition, {})[node] = replica.size
                        lags.setdefault(one.partition, {})[node] = replica.offset_lag
    except HeadraceError:
        pass  # not allowed, or not there: sizes are left out
    compacted = compacted_to(await cluster.pages.get(), name) if cluster.settings.metrics else {}
    rows = []
    for info in topic.partitions:
        one = TopicPartition(name, info.partition)
        history = cluster.lags.ends.get(one)
        rows.append(
            {
                "partition": info.partition,
                "leader": info.leader,
                "replicas": list(info.replicas),
                "isr": list(info.isr),
                "offline": list(info.offline_replicas),
                "start": starts.get(one),
                "end": ends.get(one),
                "bytes": sizes.get(info.partition, {}).get(info.leader),
                "compacted_to": compacted.get(info.partition, (None, False))[0],
                "uncleanable": compacted.get(info.partition, (None, False))[1],
                "replica_lag": lags.get(info.partition, {}),
                "records_per_second": None if history is None else history.rate(),
            }
        )
    return {
        "name": name,
        "internal": topic.is_internal,
        "id": topic.topic_id.hex(),
        "partitions": rows,
        "groups": readers(cluster, name),
    }


def readers(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    """Groups that have committed offsets of a topic, those that are furthest behind first."""
    found = []
    for group, committed in cluster.committed.items():
        own = {one: where.offset for one, where in committed.items() if one.topic == topic}
        if not own:
            continue
        records = [cluster.lags.records_behind(one, offset) for one, offset in own.items()]
        found.append({"group": group, "partitions": len(own), "lag": sum(lag or 0 for lag in records)})
    return sorted(found, key=lambda row: (-int(row["lag"]), str(row["group"])))


async def topic_configs(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    """The configuration of a topic: values, where each comes from, and what it is without them."""
    resource = ConfigResource(ResourceType.TOPIC, name)
    found = (await cluster.admin.describe_configs([resource], include_synonyms=True, include_documentation=True))[
        resource
    ]
    rows = []
    for entry in found.values():
        default = next((one.value for one in entry.synonyms if one.source is ConfigSource.DEFAULT_CONFIG), None)
        rows.append(
            {
                "name": entry.name,
                "value": None if entry.is_sensitive else entry.value,
                "source": entry.source.name.lower().replace("_config", "").replace("_", " "),
                "is_default": entry.source is ConfigSource.DEFAULT_CONFIG,
                "default": default,
                "sensitive": entry.is_sensitive,
                "read_only": entry.is_read_only,
                "documentation": entry.documentation,
            }
        )
    return sorted(rows, key=lambda row: (row["is_default"], row["name"]))
