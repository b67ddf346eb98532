"""Transactions, moves, rights, users, quotas, brokers' settings; and what worker processes say of themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from headrace.client.admin import (
    AclBindingFilter,
    ConfigResource,
    ConfigSource,
    OffsetSpec,
    ResourceType,
    TransactionDescription,
)
from headrace.console.cluster import Cluster
from headrace.errors import HeadraceError
from headrace.topics import TopicPartition

T = TypeVar("T")

TRANSACTIONS_MAX = 500
PARTITIONS_MAX = 1_000
_OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")


async def transactions(cluster: Cluster) -> dict[str, Any]:
    """Open transactions with their age, and those of them that hold up a partition although nobody ends them."""
    cluster.look()
    listed = await cluster.admin.list_transactions()
    names = sorted({one.transactional_id for one in listed})
    described = await cluster.admin.describe_transactions(names[:TRANSACTIONS_MAX])
    held = await _held_up(cluster, [one for one in described.ok.values() if one.state in _OPEN])
    now_ms = time.time() * 1000
    rows = []
    for name, found in described.ok.items():
        began = found.transaction_start_time_ms
        is_open = found.state in _OPEN and began is not None and began >= 0
        age_s = max(0.0, (now_ms - (began or 0)) / 1000) if is_open else None
        rows.append(
            {
                "id": name,
                "state": found.state,
                "producer": found.producer_id,
                "epoch": found.producer_epoch,
                "coordinator": found.coordinator_id,
                "timeout_s": found.transaction_timeout_s,
                "age_s": age_s,
                "late": age_s is not None and age_s > found.transaction_timeout_s,
                "partitions": [str(one) for one in found.topic_partitions[:50]],
                "held_up": sum(held.get(one, (0, 0))[1] for one in found.topic_partitions) if is_open else None,
                "stable": {str(one): held[one][0] for one in found.topic_partitions[:50] if one in held},
                "partitions_total": len(found.topic_partitions),
            }
        )
    rows.sort(key=lambda row: -float(str(row["age_s"] or 0)))
    return {"rows": rows, "total": len(names), "errors": sorted({str(error) for error in described.errors.values()})}


async def _held_up(
    cluster: Cluster, open_ones: Sequence[TransactionDescription]
) -> dict[TopicPartition, tuple[int, int]]:
    """Of partitions in open transactions, the offset up to which readers of committed records come, and how many
    records are behind it."""
    wanted = sorted({part for one in open_ones for part in one.topic_partitions})[:PARTITIONS_MAX]
    if not wanted:
        return {}
    latest = dict.fromkeys(wanted, OffsetSpec.latest())
    try:
        stable, ends = await asyncio.gather(
            cluster.admin.list_offsets(latest, isolation_level="read_committed"), cluster.ends(wanted)
        )
    except HeadraceError:
        return {}  # not allowed to: left out
    return {
        part: (found.offset, max(0, ends.get(part, found.offset) - found.offset)) for part, found in stable.ok.items()
    }


async def hanging(cluster: Cluster) -> dict[str, Any]:
    """Transactions that no coordinator knows of any more, and that hold up readers of committed records."""
    found = await cluster.admin.within(60).find_hanging_transactions()
    ends = await cluster.ends([one.topic_partition for one in found])
    now_ms = time.time() * 1000
    rows = [
        {
            "topic": one.topic_partition.topic,
            "partition": one.topic_partition.partition,
            "producer": one.producer_id,
            "epoch": one.producer_epoch,
            "coordinator_epoch": one.coordinator_epoch,
            "start_offset": one.start_offset,
            "holds_up": max(0, ends.get(one.topic_partition, one.start_offset) - one.start_offset),
            "age_s": max(0.0, (now_ms - one.last_timestamp) / 1000),
            "id": one.transactional_id,
        }
        for one in found
    ]
    return {"rows": rows}


async def moves(cluster: Cluster) -> dict[str, Any]:
    """Reassignments under way with their progress, and partitions that are not led by their first replica."""
    cluster.look()
    topics = await cluster.topics.get()
    found = await cluster.admin.list_partition_reassignments()
    sizes: dict[tuple[TopicPartition, int], int] = {}
    try:
        for node, directories in (await cluster.directories.get()).items():
            for directory in directories.values():
                for one, replica in directory.replicas.items():
                    if one in found:
                        sizes[one, node] = replica.size
    except HeadraceError:
        pass  # progress is left out
    rows = []
    for one, move in sorted(found.items()):
        info = (
            next((p for p in topics[one.topic].partitions if p.partition == one.partition), None)
            if one.topic in topics
            else None
        )
        whole = max((sizes.get((one, node), 0) for node in move.replicas), default=0)
        copied = [sizes.get((one, node), 0) for node in move.adding_replicas]
        rows.append(
            {
                "topic": one.topic,
                "partition": one.partition,
                "replicas": list(move.replicas),
                "adding": list(move.adding_replicas),
                "removing": list(move.removing_replicas),
                "isr": [] if info is None else list(info.isr),
                "progress": min(copied) / whole if copied and whole else None,
            }
        )
    elsewhere = [
        {"topic": topic.name, "partition": info.partition, "leader": info.leader, "preferred": info.replicas[0]}
        for topic in topics.values()
        for info in topic.partitions
        if info.replicas and info.leader >= 0 and info.leader != info.replicas[0]
    ]
    return {"rows": rows, "elsewhere": elsewhere[:200], "elsewhere_total": len(elsewhere)}


async def rights(cluster: Cluster) -> dict[str, Any]:
    """ACLs, users with SCRAM credentials, and quotas; each, or why it cannot be seen."""
    acls, users, quotas = await asyncio.gather(
        _or_reason(cluster.admin.describe_acls(AclBindingFilter())),
        _or_reason(cluster.admin.describe_user_scram_credentials()),
        _or_reason(cluster.admin.describe_client_quotas()),
    )
    return {
        "acls": {
            "error": acls[1],
            "rows": [
                {
                    "principal": one.principal,
                    "host": one.host,
                    "permission": one.permission_type.name.lower(),
                    "operation": one.operation.name.lower(),
                    "resource": one.resource_type.name.lower(),
                    "name": one.resource_name,
                    "pattern": one.pattern_type.name.lower(),
                }
                for one in acls[0] or ()
            ],
        },
        "users": {
            "error": users[1],
            "rows": [
                {"user": user, "mechanisms": [_mechanism(one) for one in found]}
                for user, found in sorted(({} if users[0] is None else users[0].ok).items())
            ],
        },
        "quotas": {
            "error": quotas[1],
            "rows": [
                {
                    "entity": ", ".join(
                        f"{kind} {name if name is not None else '(default)'}" for kind, name in entity.entries
                    ),
                    "values": dict(sorted(values.items())),
                }
                for entity, values in (quotas[0] or {}).items()
            ],
        },
    }


def _mechanism(one: Any) -> str:
    return f"{one.mechanism.name.replace('_', '-')}, {one.iterations} iterations"


async def _or_reason(asked: Awaitable[T]) -> tuple[T | None, str | None]:
    try:
        return await asked, None
    except HeadraceError as error:
        return None, str(error)


async def broker_configs(cluster: Cluster, node_id: int) -> list[dict[str, Any]]:
    """The settings of a broker, those first that are not as Kafka has them."""
    resource = ConfigResource(ResourceType.BROKER, str(node_id))
    found = (await cluster.admin.describe_configs([resource]))[resource]
    rows = [
        {
            "name": entry.name,
            "value": None if entry.is_sensitive else entry.value,
            "source": entry.source.name.lower().replace("_config", "").replace("_", " "),
            "is_default": entry.source is ConfigSource.DEFAULT_CONFIG,
        }
        for entry in found.values()
    ]
    return sorted(rows, key=lambda row: (row["is_default"], str(row["name"])))


async def workers(cluster: Cluster) -> dict[str, Any]:
    """Parallel consumers and Spark queries, by the pages of metrics that the console was told of."""
    pages = await cluster.pages.get()
    parallel: dict[str, dict[str, Any]] = {}
    queries: dict[str, dict[str, Any]] = {}
    errors = []
    for page in pages:
        if page.error is not None:
            errors.append({"page": page.url, "error": page.error})
        for family in page.families:
            for sample in family.samples:
                if "group" in sample.labels and sample.name.startswith("headrace_parallel_"):
                    of = parallel.setdefault(sample.labels["group"], {"partitions": {}})
                    short = sample.name.removeprefix("headrace_parallel_").removesuffix("_total")
                    if short.startswith("partition_"):
                        key = f"{sample.labels['topic']}-{sample.labels['partition']}"
                        of["partitions"].setdefault(key, {})[short.removeprefix("partition_")] = _number(sample.value)
                    else:
                        of[short] = _number(sample.value)
                elif "query" in sample.labels:
                    of = queries.setdefault(sample.labels["query"], {"phases": {}})
                    short = sample.name.removeprefix("headrace_spark_query_")
                    if "phase" in sample.labels:
                        of["phases"][sample.labels["phase"]] = _number(sample.value)
                    else:
                        of[short] = _number(sample.value)
    return {
        "pages": list(cluster.settings.metrics),
        "errors": errors,
        "parallel": [{"group": name, **values} for name, values in sorted(parallel.items())],
        "queries": [{"query": name, **values} for name, values in sorted(queries.items())],
    }


def _number(value: float) -> float | None:
    return None if value != value else value
