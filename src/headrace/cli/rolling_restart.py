"""`headrace cluster restart --all`: one broker after the other, so that every partition stays led."""

from __future__ import annotations

import time

from headrace.cli.exits import Exit
from headrace.cli.local_cluster import Health, LocalBroker, LocalCluster
from headrace.cli.output import CommandError
from headrace.client.admin import Admin
from headrace.errors import HeadraceError
from headrace.words import plural, some

_LOOK_S = 0.2
_ANSWER_S = 5.0


def restart_all(cluster: LocalCluster, timeout_s: float) -> None:
    """Restart each broker when all replicas are in sync; those that are down are started first."""
    began = time.monotonic()
    dead = [broker for broker in cluster.brokers if broker.health is Health.DEAD]
    if dead:
        took = cluster.start(dead)
        print(f"{plural(len(dead), 'broker')} that did not run: up after {took:.1f} s")
    config = {**cluster.client(), "client.id": "headrace-cli", "reconnect.backoff.max.ms": 500}
    with Admin(config, default_api_timeout_ms=int(_ANSWER_S * 1000)) as admin:
        _await_whole(cluster, admin, timeout_s, "nothing was restarted")
        for broker in cluster.brokers:
            if broker not in dead:
                _restart(cluster, broker, admin, timeout_s)
    print(f"all {plural(len(cluster.brokers), 'broker')} restarted after {time.monotonic() - began:.1f} s")


def _restart(cluster: LocalCluster, broker: LocalBroker, admin: Admin, timeout_s: float) -> None:
    killed = cluster.stop([broker])
    up_s = cluster.start([broker])
    in_sync_s = _await_whole(cluster, admin, timeout_s, f"broker {broker.id} was the last that was restarted")
    how = "killed, for it did not stop in time; " if killed else ""
    print(f"broker {broker.id}: {how}up after {up_s:.1f} s, in sync {in_sync_s:.1f} s later", flush=True)


def _await_whole(cluster: LocalCluster, admin: Admin, timeout_s: float, so_far: str) -> float:
    """Wait until every broker is in the cluster and every replica in sync; gives the seconds that it took."""
    began = time.monotonic()
    while missing := _missing(cluster, admin):
        if time.monotonic() - began > timeout_s:
            raise CommandError(
                f"not in sync after {timeout_s:.0f} s: {some(missing)}; {so_far}. See `{cluster.command('status')}`; "
                "--timeout says how long to wait",
                Exit.TIMEOUT,
            )
        time.sleep(_LOOK_S)
    return time.monotonic() - began


def _missing(cluster: LocalCluster, admin: Admin) -> list[str]:
    """The brokers that are not in the cluster and the partitions that are not whole."""
    try:
        there = {node.id for node in admin.describe_cluster().nodes}
        topics = admin.describe_topics(admin.list_topics(list_internal=True)).ok
    except HeadraceError as error:
        return [" ".join(str(error).split())]
    out = [f"broker {broker.id}" for broker in cluster.brokers if broker.id not in there]
    return out + [
        f"{name}-{info.partition}"
        for name, topic in sorted(topics.items())
        for info in topic.partitions
        if info.leader < 0 or not set(info.replicas) <= set(info.isr)
    ]
