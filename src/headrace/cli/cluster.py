"""`headrace cluster`: what a cluster is made of; and several brokers on this machine, to see how they fail and heal."""

from __future__ import annotations

import shlex
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.cluster_describe import show
from headrace.cli.cluster_status import Elsewhere, Here, Watched, watch
from headrace.cli.console_beside import DEFAULT_PORT
from headrace.cli.local_cluster import BROKERS_MAX, PORT_MAX, Health, LocalBroker, LocalCluster
from headrace.cli.options import Json, Target, Yes, pairs, targeted
from headrace.cli.output import confirm, note, styled, usage
from headrace.cli.rolling_restart import restart_all
from headrace.cli.secured_cluster import client_file, is_secure, make_admin, make_secure
from headrace.cli.watching import check_watched
from headrace.client.admin import Admin
from headrace.words import plural, some

app = typer.Typer(no_args_is_help=False, rich_markup_mode=None)
_ADMIN_S = 60.0

Directory = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help=f"The cluster's directory [{LocalCluster.default_directory()}]."),
]
Features = Annotated[bool, typer.Option("--features", help="The levels of the cluster's features too.")]
Node = Annotated[int, typer.Argument(metavar="ID", help="The broker's number.")]


@app.callback(invoke_without_command=True)
@targeted
def root(
    context: typer.Context,
    features: Features = False,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Describe the cluster, its brokers and disks; or start several brokers here, and see how they heal."""
    if context.invoked_subcommand is None:
        show(features, as_json, target)


@app.command()
@targeted
def describe(features: Features = False, as_json: Json = False, *, target: Target) -> None:
    """Any cluster, its brokers and their disks: the same as `headrace cluster` alone."""
    show(features, as_json, target)


@app.command()
def start(
    brokers: Annotated[int, typer.Option("--brokers", "-n", min=1, max=BROKERS_MAX, help="How many.")] = 3,
    directory: Directory = None,
    port: Annotated[
        int | None,
        typer.Option("--port", min=1, max=PORT_MAX, help="The first one's port, the others' follow [9092]."),
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
    secure: Annotated[
        bool, typer.Option("--secure", help="With TLS, users and ACLs; the client's properties are printed.")
    ] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Also in a directory that is not empty; what is in it is left alone.")
    ] = False,
    console: Annotated[bool, typer.Option("--console", help="A console in the browser beside them.")] = False,
    console_port: Annotated[
        int | None, typer.Option("--console-port", min=1, max=PORT_MAX, help=f"Its port [{DEFAULT_PORT}].")
    ] = None,
    console_changes: Annotated[
        bool, typer.Option("--console-changes", help="A console that may change things, too.")
    ] = False,
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
            raise usage(
                f"the cluster in {where} runs already: `{cluster.command('status')}`, `{cluster.command('stop')}`"
            )
        if port not in (None, cluster.brokers[0].port):
            raise usage(
                f"the cluster in {where} was made on port {cluster.brokers[0].port}, which it keeps: leave --port "
                "away, or begin another one with --dir"
            )
        if secure and not is_secure(where):
            raise usage(f"the cluster in {where} was made without --secure: begin another one with --dir")
        _grow(cluster, brokers)
        cluster.check_ports()
    else:
        first = 9092 if port is None else port
        cluster = LocalCluster(where, [LocalBroker(at + 1, first + at) for at in range(brokers)])
        cluster.check_ports()
        if not adopt:
            cluster.check_place()
        where.mkdir(0o700, parents=True, exist_ok=True)
        if secure:
            cluster.overrides |= make_secure(where)
    cluster.adopts = cluster.adopts or adopt
    cluster.overrides |= overrides
    cluster.zookeeper = zookeeper or cluster.zookeeper
    if with_zookeeper or cluster.zookeeper_pid:
        cluster.start_zookeeper()
    elif cluster.zookeeper:
        cluster.check_zookeeper()
    took = cluster.start(cluster.brokers)
    if is_secure(where):
        make_admin(where, cluster.bootstrap, _ADMIN_S)
    port_of_console = DEFAULT_PORT if console_port is None else console_port
    if console or console_port is not None or console_changes:
        cluster.start_console(port_of_console, allow_changes=console_changes)
    print(f"{plural(len(cluster.brokers), 'broker')} up after {took:.1f} s; data and logs are in {cluster.directory}")
    if cluster.console_pid:
        print(f"  console   http://127.0.0.1:{port_of_console}/")
    print(f"  clients   bootstrap.servers={cluster.bootstrap}")
    if is_secure(where):
        file = client_file(where)
        print(f"            with the properties in {file} (for user admin, who may do everything):")
        for line in file.read_text().splitlines():
            print(f"              {line}")
    print(f"  try       export HEADRACE_BOOTSTRAP={cluster.bootstrap}")
    if is_secure(where):
        print(f"            export HEADRACE_COMMAND_CONFIG={shlex.quote(str(client_file(where)))}")
    replicas = f" --replication-factor {min(3, len(cluster.brokers))}" if len(cluster.brokers) > 1 else ""
    print(f"            headrace topic create events --partitions 6{replicas}")
    print(f"            {cluster.command('status')} --watch      (in another terminal)")
    some = cluster.brokers[min(1, len(cluster.brokers) - 1)].id
    print(f"            {cluster.command(f'kill {some}')}; {cluster.command(f'restart {some}')}")
    print(f"            {cluster.command('stop')}")


def _grow(cluster: LocalCluster, brokers: int) -> None:
    """A cluster that was stopped is started with the brokers that it has; more may be added."""
    known = {broker.id for broker in cluster.brokers}
    last = max(broker.port for broker in cluster.brokers)
    for number in range(1, brokers + 1):
        if number not in known:
            last += 1
            cluster.brokers.append(LocalBroker(number, last))


@app.command()
@targeted
def status(
    context: typer.Context,
    directory: Directory = None,
    follow: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing it, with what changes.")] = False,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Brokers, controller, leaders, in-sync replicas, and what is not well.

    Of the cluster on this machine, with its processes; or of any other, with --bootstrap-server.
    """
    check_watched(follow=follow, as_json=as_json)
    watch(_watched(context, directory, target), follow=follow, as_json=as_json)


def _watched(context: typer.Context, directory: Path | None, target: Target) -> Watched:
    """The one on this machine, unless another is named: on the command line, or by the environment alone."""
    source = context.get_parameter_source("bootstrap")
    if source is not None and source.name == "COMMANDLINE":
        if directory is not None:
            raise usage("--dir names a cluster on this machine, --bootstrap-server any: give one of them")
        return Elsewhere(target)
    where = (directory or LocalCluster.default_directory()).absolute()
    if directory is None and target.is_named:
        if not LocalCluster.exists(where):
            return Elsewhere(target)
        local = LocalCluster.load(where)
        if not {broker.address for broker in local.brokers} & set(target.servers.split(",")):
            return Elsewhere(target)
    return Here(LocalCluster.load(where))


@app.command()
def stop(
    node_id: Annotated[int | None, typer.Argument(metavar="ID", help="Only this broker.")] = None,
    directory: Directory = None,
    remove: Annotated[bool, typer.Option("--remove", help="Delete the whole cluster's data too.")] = False,
    yes: Yes = False,
) -> None:
    """Stop brokers cleanly: each hands over what it leads."""
    cluster = _cluster(directory)
    if node_id is not None and remove:
        raise usage("--remove deletes the whole cluster's data: it goes with stopping all of it")
    if remove:
        confirm(f"Delete the cluster in {cluster.directory} with all its data?", yes=yes)
    began = time.monotonic()
    killed = cluster.stop(cluster.brokers if node_id is None else [_alive(cluster, node_id)])
    if node_id is None:
        cluster.stop_console()
        cluster.stop_zookeeper()
    for number in killed:
        note(f"broker {number} did not stop in time, and was killed")
    print(f"stopped after {time.monotonic() - began:.1f} s")
    if remove and (left := cluster.remove()):
        note(f"{cluster.directory} stays, with what is not the cluster's: {some(left)}")


@app.command()
def kill(node_id: Node, directory: Directory = None) -> None:
    """End a broker at once, as a crash does (SIGKILL)."""
    cluster = _cluster(directory)
    broker = _alive(cluster, node_id)
    cluster.kill(broker)
    print(f"broker {node_id} {styled('was killed', '31')}; `{cluster.command(f'restart {node_id}')}` brings it back")


@app.command()
def restart(
    node_id: Annotated[int | None, typer.Argument(metavar="ID", help="This broker.")] = None,
    directory: Directory = None,
    everyone: Annotated[
        bool, typer.Option("--all", help="One after the other, each when the one before is in sync again.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, metavar="SECONDS", help="With --all: how long to wait for each.")
    ] = 120.0,
) -> None:
    """Start a broker again; one that runs is stopped cleanly first. With --all, without an interruption for clients."""
    cluster = _cluster(directory)
    if (node_id is None) is not everyone:
        raise usage("say which: a broker's number, or --all")
    if node_id is None:
        restart_all(cluster, timeout_s)
        return
    broker = cluster.broker(node_id)
    if broker.health is not Health.DEAD:
        cluster.stop([broker])
    print(f"broker {node_id} is up after {cluster.start([broker]):.1f} s")


@app.command()
def pause(node_id: Node, directory: Directory = None) -> None:
    """Freeze a broker (SIGSTOP): it is there and does not answer, as on a machine that hangs."""
    cluster = _cluster(directory)
    cluster.signal(_alive(cluster, node_id), signal.SIGSTOP)
    print(f"broker {node_id} {styled('is paused', '33')}; `{cluster.command(f'resume {node_id}')}` lets it go on")


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
        raise usage(f"broker {node_id} does not run; `{cluster.command(f'restart {node_id}')}` starts it")
    return broker


def _cluster(directory: Path | None) -> LocalCluster:
    return LocalCluster.load((directory or LocalCluster.default_directory()).absolute())
