"""The first page: brokers, health, throughput, disks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from headrace.client.admin import TopicDescription
from headrace.console.cluster import Cluster
from headrace.errors import HeadraceError


async def overview(cluster: Cluster) -> dict[str, Any]:
    """All that the first page shows. What takes long, the disks, comes as far as it is there."""
    cluster.look()
    description, topics = await asyncio.gather(cluster.description.get(), cluster.topics.get())
    groups = cluster.lags.groups
    problems = partition_problems(topics, await cluster.least_in_sync(topics))
    led: dict[int, int] = {}
    replicas: dict[int, int] = {}
    for topic in topics.values():
        for info in topic.partitions:
            led[info.leader] = led.get(info.leader, 0) + 1
            for node in info.replicas:
                replicas[node] = replicas.get(node, 0) + 1
    rates = [rate for one, ends in cluster.lags.ends.items() if (rate := ends.rate()) is not None]
    controller = None if description.controller is None else description.controller.id
    behind = sorted(((lags[-1].records, name) for name, lags in groups.items() if lags), reverse=True)
    return {
        "cluster_id": description.cluster_id,
        "controller": controller,
        "brokers": [
            {
                "id": node.id,
                "host": node.host,
                "port": node.port,
                "rack": node.rack,
                "is_controller": node.id == controller,
                "fenced": node.id in description.fenced,
                "leads": led.get(node.id, 0),
                "replicas": replicas.get(node.id, 0),
            }
            for node in sorted(description.nodes, key=lambda node: node.id)
        ],
        "topics": sum(not topic.is_internal for topic in topics.values()),
        "partitions": sum(len(topic.partitions) for topic in topics.values()),
        "groups": len(await cluster.groups.get()),
        "problems": problems,
        "records_per_second": sum(rates) if rates else None,
        "most_behind": [
            {
                "group": name,
                "records": records,
                "seconds": groups[name][-1].seconds,
                "trend": cluster.lags.trend(name),
            }
            for records, name in behind[:5]
        ],
        "busiest": busiest(cluster),
        "is_sampled": cluster.is_sampled,
        "error": cluster.error,
    }


def partition_problems(topics: dict[str, TopicDescription], least: Mapping[str, int]) -> dict[str, Any]:
    """What is wrong with partitions: counts, and the first of each kind. `least`: min.insync.replicas of topics, as far
    as it is known."""
    offline, under, few = [], [], []
    for topic in topics.values():
        for info in topic.partitions:
            name = f"{topic.name}-{info.partition}"
            if info.leader < 0:
                offline.append(name)
            elif len(info.isr) < len(info.replicas):
                under.append(name)
            if info.leader >= 0 and len(info.isr) < min(least.get(topic.name, 0), len(info.replicas)):
                few.append(name)
    return {
        "offline": {"count": len(offline), "first": sorted(offline)[:20]},
        "under_replicated": {"count": len(under), "first": sorted(under)[:20]},
        "under_min_isr": {"count": len(few), "first": sorted(few)[:20]},
    }


def busiest(cluster: Cluster, count: int = 5) -> list[dict[str, Any]]:
    """The topics that most is written to."""
    rates: dict[str, float] = {}
    for one, ends in cluster.lags.ends.items():
        rate = ends.rate()
        if rate:
            rates[one.topic] = rates.get(one.topic, 0.0) + rate
    return [
        {"topic": topic, "records_per_second": rate}
        for topic, rate in sorted(rates.items(), key=lambda one: -one[1])[:count]
    ]


async def disks(cluster: Cluster) -> dict[str, Any]:
    """How full the brokers' disks are, and what the largest topics are."""
    sizes: dict[str, int] = {}
    brokers = []
    try:
        found = await cluster.directories.get()
    except HeadraceError as error:
        return {"error": str(error), "brokers": [], "largest": []}
    for node, directories in sorted(found.items()):
        for path, directory in directories.items():
            used = 0
            for one, info in directory.replicas.items():
                used += info.size
                sizes[one.topic] = sizes.get(one.topic, 0) + info.size
            brokers.append(
                {
                    "broker": node,
                    "path": path,
                    "logs": used,
                    "total": directory.total_bytes,
                    "free": directory.usable_bytes,
                    "error": None if directory.error is None else str(directory.error),
                }
            )
    largest = sorted(sizes.items(), key=lambda one: -one[1])[:5]
    return {"brokers": brokers, "largest": [{"topic": topic, "bytes": size} for topic, size in largest], "error": None}
