"""`headrace cluster status`: one screen of a cluster, here or elsewhere; with --watch, also what changes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from headrace.cli.local_cluster import Health, LocalBroker, LocalCluster
from headrace.cli.options import Target, admin_for, plain_kernels
from headrace.cli.output import Column, count, print_json, size, styled, table
from headrace.cli.watching import watch_screen
from headrace.client.admin import Admin
from headrace.errors import HeadraceError
from headrace.runtime.processes import process_info
from headrace.words import plural

_ANSWER_S = 5.0
_WATCH_S = 0.5
_EVENTS_KEPT = 12
_TROUBLED_SHOWN = 8


@dataclass(slots=True)
class Here:
    """A cluster on this machine: of its processes the system knows more than its brokers say."""

    cluster: LocalCluster

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    def config(self) -> dict[str, Any]:
        return {**self.cluster.client(), "client.id": "headrace-cli"}

    def processes(self) -> dict[int, LocalBroker]:
        self.cluster = LocalCluster.load(self.cluster.directory)
        return {broker.id: broker for broker in self.cluster.brokers}


@dataclass(slots=True)
class Elsewhere:
    """Any other cluster: its brokers are what they say of one another."""

    target: Target

    @property
    def bootstrap(self) -> str:
        return self.target.servers

    def config(self) -> dict[str, Any]:
        return self.target.config()


Watched = Here | Elsewhere


def watch(watched: Watched, *, follow: bool, as_json: bool) -> None:
    """Show it once, or until Ctrl-C."""
    config = watched.config() | {"reconnect.backoff.max.ms": 500}
    with plain_kernels(), admin_for(config, _ANSWER_S) as admin:
        if not follow:
            document = _document(watched, admin)
            print_json(document) if as_json else print("\n".join(_screen(document)))
            return
        changes = _Changes()

        def screen() -> list[str]:
            document = _document(watched, admin)
            changes.look(document)
            return [*_screen(document), "", *changes.events]

        watch_screen(screen, _WATCH_S)


def _document(watched: Watched, admin: Admin) -> dict[str, Any]:
    """All that is known: processes from the system, the rest from whichever broker answers."""
    processes = watched.processes() if isinstance(watched, Here) else None
    found: dict[str, Any] = {"bootstrap": watched.bootstrap, "controller": None, "error": None, "partitions": []}
    nodes: dict[int, str] = {}
    if processes is None or any(broker.health is Health.RUNNING for broker in processes.values()):
        try:
            described = admin.describe_cluster()
            nodes = {node.id: f"{node.host}:{node.port}" for node in described.nodes}
            found["controller"] = None if described.controller is None else described.controller.id
            topics = admin.describe_topics(admin.list_topics(list_internal=True)).ok
            found["partitions"] = [
                {
                    "partition": f"{name}-{info.partition}",
                    "leader": info.leader if info.leader >= 0 else None,
                    "replicas": list(info.replicas),
                    "isr": sorted(info.isr),
                }
                for name, topic in sorted(topics.items())
                for info in topic.partitions
            ]
        except HeadraceError as error:
            found["error"] = " ".join(str(error).split())
    else:
        found["error"] = "no broker runs"
    partitions = found["partitions"]
    found["under_replicated"] = sum(len(entry["isr"]) < len(entry["replicas"]) for entry in partitions)
    found["leaderless"] = sum(entry["leader"] is None for entry in partitions)
    # Elsewhere, a broker that is gone is one that holds replicas and is not in the cluster.
    known = processes or {*nodes, *(node for entry in partitions for node in entry["replicas"])}
    found["brokers"] = [
        {
            "id": number,
            "address": nodes.get(number),
            "process": None,
            "registered": number in nodes,
            "controller": found["controller"] == number,
            "leads": sum(entry["leader"] == number for entry in partitions),
            "in_sync": sum(number in entry["isr"] for entry in partitions),
            "replicas": sum(number in entry["replicas"] for entry in partitions),
            "memory_bytes": None,
        }
        | (_of_process(processes[number]) if processes else {})
        for number in sorted(known)
    ]
    return found


def _of_process(broker: LocalBroker) -> dict[str, Any]:
    health = broker.health
    found = None if health is Health.DEAD else process_info(broker.pid)
    memory = None if found is None else found.memory_bytes
    return {"address": broker.address, "process": health.value, "memory_bytes": memory}


_STATE_STYLES = {"running": "32", "paused": "33", "dead": "31"}


def _screen(document: dict[str, Any]) -> list[str]:
    process = Column("process", "PROCESS", style=lambda state: _STATE_STYLES.get(state, ""))
    memory = Column("memory_bytes", "MEMORY", size)
    has_processes = any(broker["process"] for broker in document["brokers"])
    columns = [
        Column("id", "BROKER"),
        Column("address", "ADDRESS"),
        *([process] if has_processes else []),
        Column("registered", "IN CLUSTER"),
        Column("controller", "CONTROLLER"),
        Column("leads", "LEADS", count),
        Column("in_sync", "IN SYNC", count),
        Column("replicas", "REPLICAS", count),
        *([memory] if has_processes else []),
    ]
    lines = [*table(document["brokers"], columns), ""] if document["brokers"] else []
    if document["error"] is not None:
        lines.append(styled(document["error"], "31"))
        return lines
    partitions = document["partitions"]
    troubled = [entry for entry in partitions if entry["leader"] is None or len(entry["isr"]) < len(entry["replicas"])]
    how_many = plural(len(partitions), "partition")
    if not troubled:
        all_well = f"{how_many}, all led and whole" if partitions else "no partitions yet"
        lines.append(styled(all_well, "32"))
        return lines
    lines.append(
        f"{how_many}: {styled(count(document['under_replicated']), '33')} under-replicated, "
        f"{styled(count(document['leaderless']), '31')} without a leader"
    )
    shown = [
        Column("partition", "PARTITION"),
        Column("leader", "LEADER"),
        Column("replicas", "REPLICAS"),
        Column("isr", "IN SYNC"),
    ]
    lines += table(troubled[:_TROUBLED_SHOWN], shown)
    if len(troubled) > _TROUBLED_SHOWN:
        lines.append(styled(f"and {count(len(troubled) - _TROUBLED_SHOWN)} more", "2"))
    return lines


@dataclass(slots=True)
class _Changes:
    """What was different from one look to the next, told with the time."""

    events: deque[str] = field(default_factory=lambda: deque(maxlen=_EVENTS_KEPT))
    _processes: dict[int, str] = field(default_factory=dict)
    #: The last look that a broker answered: a look without an answer says nothing of the cluster.
    _before: dict[str, Any] | None = None

    def look(self, document: dict[str, Any]) -> None:
        is_first = not self._processes
        for broker in document["brokers"]:
            if not is_first and self._processes.get(broker["id"]) != broker["process"]:
                self._say(f"broker {broker['id']} is {broker['process']}")
            self._processes[broker["id"]] = broker["process"]
        if document["error"] is not None:
            return
        before, self._before = self._before, document
        if before is None:
            return
        was_registered = {broker["id"]: broker["registered"] for broker in before["brokers"]}
        for broker in document["brokers"]:
            if was_registered.get(broker["id"], False) != broker["registered"]:
                self._say(f"broker {broker['id']} {'joined' if broker['registered'] else 'is out of'} the cluster")
        if before["controller"] != document["controller"]:
            self._say(f"the controller is broker {document['controller']}")
        self._leaders(before, document)
        for key, what in (("under_replicated", "under-replicated"), ("leaderless", "without a leader")):
            if before[key] != document[key]:
                self._say(f"{plural(document[key], 'partition')} {what} ({count(before[key])} before)")

    def _leaders(self, before: dict[str, Any], document: dict[str, Any]) -> None:
        old = {entry["partition"]: entry["leader"] for entry in before["partitions"]}
        moved = [
            entry
            for entry in document["partitions"]
            if entry["partition"] in old and old[entry["partition"]] != entry["leader"] and entry["leader"] is not None
        ]
        if moved:
            self._say(f"{plural(len(moved), 'partition')} with another leader")

    def _say(self, text: str) -> None:
        self.events.append(f"{datetime.now():%H:%M:%S.%f}"[:-3] + f"  {text}")
