"""`headrace cluster`: what a cluster is made of; and several brokers on this machine, to see how they fail and heal."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.cluster_describe import describe
from headrace.cli.cluster_status import watch
from headrace.cli.local_cluster import BROKERS_MAX, Health, LocalBroker, LocalCluster
from headrace.cli.options import Json, Target, Yes, pairs, targeted
from headrace.cli.output import confirm, note, styled, usage
from headrace.client.admin import Admin
from headrace.words import plural

app = typer.Typer(no_args_is_help=False, rich_markup_mode=None)

Directory = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help=f"The cluster's directory [{LocalCluster.default_directory()}]."),
]
Node = Annotated[int, typer.Argument(metavar="ID", help="The broker's number.")]


@app.callback(invoke_without_command=True)
@targeted
def root(
    context: typer.Context,
    features: Annotated[bool, typer.Option("--features", help="The levels of the cluster's features too.")] = False,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Describe the cluster, its brokers and disks; or start several brokers here, and see how they heal."""
    if context.invoked_subcommand is None:
        describe(features, as_json, target)


@app.command()
def start(
    brokers: Annotated[int, typer.Option("--brokers", "-n", min=1, max=BROKERS_MAX, help="How many.")] = 3,
    directory: Directory = None,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65_535, help="The first one's port, the others' follow [9092].")
    ] = None,
    zookeeper: Annotated[
        str | None, typer.Option("--zookeeper", metavar="HOST:PORT[/PATH]", help="Share metadata through ZooKeeper.")
    ] = None,
    with_zookeeper: Annotated[
        bool, typer.Option("--with-zookeeper", help="Start a ZooKeeper too (Java; jars of headrace[spark]).")
    ] = False,
    override: Annotated[
        list[str] | None,
        typer.Option("--override", metavar="KEY=VALUE", help="A setting of every broker; {id} is its number."),
    ] = None,
) -> None:
    """Start brokers on this machine, in the background. What they had is still there the next time."""
    where = (directory or LocalCluster.default_directory()).absolute()
    overrides = pairs(override or [], "--override")
    if zookeeper and with_zookeeper:
        raise usage("--zookeeper names one that runs, --with-zookeeper starts one: give one of them")
    if LocalCluster.exists(where):
        cluster = LocalCluster.load(where)
        running = [broker.id for broker in cluster.brokers if broker.health is not Health.DEAD]
        if running:
            raise usage(f"the cluster in {where} runs already: `headrace cluster status`, `headrace cluster stop`")
        _grow(cluster, brokers)
    else:
        where.mkdir(parents=True, exist_ok=True)
        first = 9092 if port is None else port
        cluster = LocalCluster(where, [LocalBroker(at + 1, first + at) for at in range(brokers)])
    cluster.overrides |= overrides
    cluster.zookeeper = zookeeper or cluster.zookeeper
    if with_zookeeper or cluster.zookeeper_pid:
        cluster.start_zookeeper()
    took = cluster.start(cluster.brokers)
    print(f"{len(cluster.brokers)} brokers are up after {took:.1f} s; their data and logs are in {cluster.directory}")
    print(f"  clients   bootstrap.servers={cluster.bootstrap}")
    print(f"  try       export HEADRACE_BOOTSTRAP={cluster.bootstrap}")
    print("            headrace topic create events --partitions 6 --replication-factor 3")
    print("            headrace cluster status --watch      (in another terminal)")
    print("            headrace cluster kill 2; headrace cluster restart 2")
    print("            headrace cluster stop")


def _grow(cluster: LocalCluster, brokers: int) -> None:
    """A cluster that was stopped is started with the brokers that it has; more may be added."""
    known = {broker.id for broker in cluster.brokers}
    last = max(broker.port for broker in cluster.brokers)
    for number in range(1, brokers + 1):
        if number not in known:
            last += 1
            cluster.brokers.append(LocalBroker(number, last))


@app.command()
def status(
    directory: Directory = None,
    follow: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing it, with what changes.")] = False,
    as_json: Json = False,
) -> None:
    """Brokers, controller, leaders, in-sync replicas, and what is not well."""
    watch(_cluster(directory), follow=follow, as_json=as_json)


@app.command()
def stop(
    node_id: Annotated[int | None, typer.Argument(metavar="[ID]", help="Only this broker.")] = None,
    directory: Directory = None,
    remove: Annotated[bool, typer.Option("--remove", help="Delete the whole cluster's data too.")] = False,
) -> None:
    """Stop brokers cleanly: each hands over what it leads."""
    cluster = _cluster(directory)
    if node_id is not None and remove:
        raise usage("--remove deletes the whole cluster's data: it goes with stopping all of it")
    began = time.monotonic()
    killed = cluster.stop(cluster.brokers if node_id is None else [_alive(cluster, node_id)])
    if node_id is None:
        cluster.stop_zookeeper()
    for number in killed:
        note(f"broker {number} did not stop in time, and was killed")
    print(f"stopped after {time.monotonic() - began:.1f} s")
    if remove:
        shutil.rmtree(cluster.directory)


@app.command()
def kill(node_id: Node, directory: Directory = None) -> None:
    """End a broker at once, as a crash does (SIGKILL)."""
    cluster = _cluster(directory)
    broker = cluster.broker(node_id)
    if broker.health is Health.DEAD:
        raise usage(f"broker {node_id} does not run; `headrace cluster restart {node_id}` starts it")
    cluster.kill(broker)
    print(f"broker {node_id} {styled('was killed', '31')}; `headrace cluster restart {node_id}` brings it back")


@app.command()
def restart(node_id: Node, directory: Directory = None) -> None:
    """Start a broker again; one that runs is stopped cleanly first."""
    cluster = _cluster(directory)
    broker = cluster.broker(node_id)
    if broker.health is not Health.DEAD:
        cluster.stop([broker])
    print(f"broker {node_id} is up after {cluster.start([broker]):.1f} s")


@app.command()
def pause(node_id: Node, directory: Directory = None) -> None:
    """Freeze a broker (SIGSTOP): it is there and does not answer, as on a machine that hangs."""
    cluster = _cluster(directory)
    cluster.signal(_alive(cluster, node_id), signal.SIGSTOP)
    print(f"broker {node_id} {styled('is paused', '33')}; `headrace cluster resume {node_id}` lets it go on")


@app.command()
def resume(node_id: Node, directory: Directory = None) -> None:
    """Let a paused broker go on."""
    cluster = _cluster(directory)
    cluster.signal(_alive(cluster, node_id), signal.SIGCONT)
    print(f"broker {node_id} goes on")


@app.command()
@targeted
def unregister(node_id: Node, yes: Yes = False, *, target: Target) -> None:
    """Let the cluster forget a broker that was taken away for good."""
    with target.admin() as admin:
        found = admin.describe_cluster(include_fenced_brokers=True)
        if node_id in {node.id for node in found.nodes} - found.fenced:
            raise usage(f"broker {node_id} runs, and would register again: stop it first")
        held = _held(admin, node_id)
        if held:
            words = f"Broker {node_id} holds {plural(held, 'replica')}; `headrace reassign plan --empty` moves them."
            confirm(f"{words} Forget it all the same?", yes=yes)
        admin.unregister_broker(node_id)
    print(f"broker {node_id} is forgotten")


def _held(admin: Admin, node_id: int) -> int:
    topics = admin.describe_topics(admin.list_topics(list_internal=True)).ok
    return sum(node_id in info.replicas for topic in topics.values() for info in topic.partitions)


def _alive(cluster: LocalCluster, node_id: int) -> LocalBroker:
    broker = cluster.broker(node_id)
    if broker.health is Health.DEAD:
        raise usage(f"broker {node_id} does not run; `headrace cluster restart {node_id}` starts it")
    return broker


def _cluster(directory: Path | None) -> LocalCluster:
    return LocalCluster.load((directory or LocalCluster.default_directory()).absolute())
