"""`headrace cluster`: who is there, who leads what, how full the disks are."""

from __future__ import annotations

from typing import Any

from headrace.cli.options import Target
from headrace.cli.output import Column, count, print_json, size, styled, table
from headrace.client.admin import Admin, LogDirDescription
from headrace.words import plural


def show(features: bool, as_json: bool, target: Target) -> None:
    """Print it, as tables or as JSON."""
    with target.admin() as admin:
        document = _document(admin)
        found = admin.describe_features() if features else None
    if found is not None:
        document["features"] = {name: levels.max_version for name, levels in sorted(found.finalized.items())}
    if as_json:
        print_json(document)
        return
    print(
        f"{styled('cluster', '1')} {document['cluster_id']}: {plural(document['topics'], 'topic')}, "
        f"{plural(document['partitions'], 'partition')}"
        + (f", {document['under_replicated']} under-replicated" if document["under_replicated"] else "")
        + (f", {document['leaderless']} without a leader" if document["leaderless"] else "")
    )
    columns = [
        Column("id", "BROKER"),
        Column("address", "ADDRESS"),
        Column("rack", "RACK"),
        Column("controller", "CONTROLLER"),
        Column("leads", "LEADS", count),
        Column("replicas", "REPLICAS", count),
        Column("size_bytes", "SIZE", size),
    ]
    print("\n".join(table(document["brokers"], columns)))
    directories = [entry for broker in document["brokers"] for entry in broker["log_dirs"]]
    if directories:
        columns = [
            Column("broker", "BROKER"),
            Column("path", "LOG DIRECTORY"),
            Column("replicas", "REPLICAS", count),
            Column("size_bytes", "SIZE", size),
            Column("usable_bytes", "FREE", size),
            Column("error", "STATE", style=lambda error: "" if error == "ok" else "31"),
        ]
        print()
        print("\n".join(table(directories, columns)))
    if found is not None:
        rows = [{"name": name, "level": level} for name, level in document["features"].items()]
        print()
        print("\n".join(table(rows, [Column("name", "FEATURE"), Column("level", "LEVEL")])))


def _document(admin: Admin) -> dict[str, Any]:
    cluster = admin.describe_cluster()
    topics = admin.describe_topics(admin.list_topics(list_internal=True)).ok.values()
    partitions = [info for topic in topics for info in topic.partitions]
    directories = admin.describe_log_dirs().ok
    brokers = []
    for node in cluster.nodes:
        found = [_directory(node.id, path, entry) for path, entry in sorted(directories.get(node.id, {}).items())]
        brokers.append(
            {
                "id": node.id,
                "address": f"{node.host}:{node.port}",
                "rack": node.rack,
                "controller": cluster.controller is not None and cluster.controller.id == node.id,
                "leads": sum(info.leader == node.id for info in partitions),
                "replicas": sum(node.id in info.replicas for info in partitions),
                "size_bytes": sum(entry["size_bytes"] for entry in found) if found else None,
                "log_dirs": found,
            }
        )
    return {
        "cluster_id": cluster.cluster_id,
        "controller": None if cluster.controller is None else cluster.controller.id,
        "topics": len(topics),
        "partitions": len(partitions),
        "under_replicated": sum(len(info.isr) < len(info.replicas) for info in partitions),
        "leaderless": sum(info.leader < 0 for info in partitions),
        "brokers": brokers,
    }


def _directory(broker_id: int, path: str, directory: LogDirDescription) -> dict[str, Any]:
    return {
        "broker": broker_id,
        "path": path,
        "replicas": len(directory.replicas),
        "size_bytes": sum(replica.size for replica in directory.replicas.values()),
        "total_bytes": directory.total_bytes if directory.total_bytes >= 0 else None,
        "usable_bytes": directory.usable_bytes if directory.usable_bytes >= 0 else None,
        "error": "ok" if directory.error is None else str(directory.error),
    }
