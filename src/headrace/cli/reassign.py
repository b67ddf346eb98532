"""`headrace reassign`: move replicas between brokers. Plans are files as Kafka's own tool reads and writes them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.completing import topics_there
from headrace.cli.options import Json, Target, targeted
from headrace.cli.output import Column, check_errors, note, show_rows, usage
from headrace.client.admin import Admin, AlterConfigOp, ConfigResource, OpType, ResourceType
from headrace.cluster.placement import PlacementBroker
from headrace.cluster.rebalancing import rebalanced
from headrace.topics import TopicPartition
from headrace.words import plural

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

PlanFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="A plan: JSON as `headrace reassign plan` and Kafka's tool write it.")
]
_THROTTLES = ("leader.replication.throttled", "follower.replication.throttled")
Assignment = dict[TopicPartition, list[int]]


@app.command()
@targeted
def plan(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Of these topics [all].", autocompletion=topics_there)
    ] = None,
    brokers: Annotated[
        str | None, typer.Option("--brokers", metavar="ID,ID", help="Who may hold replicas [all that are up].")
    ] = None,
    empty: Annotated[
        str | None, typer.Option("--empty", metavar="ID,ID", help="Who is to hold none, before it is taken away.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", min=1, help="Give each partition so many replicas.")
    ] = None,
    *,
    target: Target,
) -> None:
    """Print a plan that spreads replicas evenly with few moves. Nothing is changed."""
    with target.admin() as admin:
        nodes = {node.id: PlacementBroker(node.id, node.rack) for node in admin.describe_cluster().nodes}
        current = _current(admin, topics or sorted(admin.list_topics(list_internal=True)))
    chosen = _ids(brokers, "--brokers", nodes) if brokers else set(nodes)
    chosen -= _ids(empty, "--empty", None) if empty else set()
    if not chosen:
        raise usage("no broker is left to hold replicas")
    wanted = rebalanced(current, [nodes[node] for node in sorted(chosen)], replication_factor=replication_factor)
    moves = {partition: replicas for partition, replicas in wanted.items() if replicas != current[partition]}
    copies = sum(len(set(replicas) - set(current[partition])) for partition, replicas in moves.items())
    print(json.dumps(_document(moves), indent=2))
    note(
        f"{len(moves)} of {plural(len(current), 'partition')} to change, {plural(copies, 'replica')} to copy. "
        "Keep this as a file, then: headrace reassign run FILE"
        if moves
        else "nothing needs to be moved"
    )


@app.command()
@targeted
def run(
    file: PlanFile,
    throttle: Annotated[
        float | None, typer.Option("--throttle", min=0.001, metavar="MB/S", help="At most so fast, per broker.")
    ] = None,
    undo: Annotated[
        Path | None,
        typer.Option("--undo", metavar="FILE", help="Where the plan goes that undoes it [beside FILE: *.undo.json]."),
    ] = None,
    *,
    target: Target,
) -> None:
    """Begin to move; it goes on when this command has ended (`headrace reassign status`)."""
    wanted = _read(file)
    with target.admin() as admin:
        current = _current(admin, sorted({partition.topic for partition in wanted}))
        missing = sorted(set(wanted) - set(current))
        if missing:
            raise usage(f"{file} names partitions that do not exist: {', '.join(map(str, missing))}")
        kept = _write_undo(file, undo, {partition: current[partition] for partition in wanted})
        note(f"To undo it: headrace reassign run {shlex.quote(str(kept))}{target.option}")
        if throttle is not None:
            _throttle(admin, current, wanted, int(throttle * 1_000_000))
        results = admin.alter_partition_reassignments(wanted)
    for partition in results.ok:
        print(f"{partition}: {_joined(current[partition])} → {_joined(wanted[partition])}")
    check_errors(results.errors.values())


@app.command()
@targeted
def status(
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """What is under way. Once nothing is, throttles that `run` set are taken back."""
    with target.admin() as admin:
        found = admin.list_partition_reassignments()
        isr = {
            TopicPartition(name, info.partition): set(info.isr)
            for name, topic in admin.describe_topics(sorted({p.topic for p in found})).ok.items()
            for info in topic.partitions
        }
        if not found:
            _unthrottle(admin)
    rows = [
        {
            "partition": str(partition),
            "replicas": [node for node in move.replicas if node not in move.adding_replicas],
            "adding": list(move.adding_replicas),
            "removing": list(move.removing_replicas),
            "in_sync": sorted(isr.get(partition, ())),
        }
        for partition, move in sorted(found.items())
    ]
    columns = [
        Column("partition", "PARTITION"),
        Column("replicas", "FROM"),
        Column("adding", "ADDING"),
        Column("removing", "REMOVING"),
        Column("in_sync", "IN SYNC"),
    ]
    show_rows(rows, columns, as_json=as_json, empty="nothing is being moved")


@app.command()
@targeted
def cancel(
    partitions: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC-PARTITION", help="These [all that are under way].")
    ] = None,
    *,
    target: Target,
) -> None:
    """Give up moves that are under way: partitions keep the replicas that they had."""
    with target.admin() as admin:
        chosen = [_partition(text) for text in partitions] if partitions else list(admin.list_partition_reassignments())
        if not chosen:
            note("nothing is being moved")
            return
        results = admin.alter_partition_reassignments(dict.fromkeys(chosen))
        if not admin.list_partition_reassignments():
            _unthrottle(admin)
    for partition in sorted(results.ok):
        print(f"{partition}: cancelled")
    check_errors(results.errors.values())


# --- plans ------------------------------------------------------------------------------------------------------------


def _current(admin: Admin, topics: Sequence[str]) -> Assignment:
    described = admin.describe_topics(topics)
    check_errors(described.errors.values())
    return {
        TopicPartition(name, info.partition): list(info.replicas)
        for name, topic in described.ok.items()
        for info in topic.partitions
    }


def _document(assignment: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
    entries = [
        {"topic": partition.topic, "partition": partition.partition, "replicas": list(replicas)}
        for partition, replicas in sorted(assignment.items())
    ]
    return {"version": 1, "partitions": entries}


def _read(file: Path) -> Assignment:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
        document = json.loads(text)
        found = {
            TopicPartition(str(entry["topic"]), int(entry["partition"])): [int(node) for node in entry["replicas"]]
            for entry in document["partitions"]
        }
    except OSError as error:
        raise usage(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise usage(
            f"{file} is not a plan: it has to be JSON with "
            '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}, …]}'
        ) from error
    if not found:
        raise usage(f"{file} names no partitions")
    return found


def _write_undo(plan: Path, undo: Path | None, assignment: Assignment) -> Path:
    """Write the plan that leads back, before anything is moved. No file is overwritten: an older one may be needed."""
    text = json.dumps(_document(assignment), indent=2) + "\n"
    stem = Path("reassign") if str(plan) == "-" else plan.with_suffix("")
    names = [undo] if undo else [stem.with_name(f"{stem.name}.undo{number}.json") for number in ("", *range(2, 1_000))]
    for path in names:
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
            return path
        except FileExistsError:
            continue
        except OSError as error:
            raise usage(
                f"the plan to undo this cannot be written to {path} ({error.strerror}), so nothing was moved; name "
                "another file with --undo"
            ) from error
    raise usage(f"{names[-1]} exists already, so nothing was moved; name another file with --undo")


def _partition(text: str) -> TopicPartition:
    topic, separator, number = text.rpartition("-")
    if not separator or not number.isdigit():
        raise usage(f"{text!r} is not TOPIC-PARTITION, as in events-0")
    return TopicPartition(topic, int(number))


def _ids(text: str, option: str, known: Iterable[int] | None) -> set[int]:
    try:
        found = {int(part) for part in text.split(",")}
    except ValueError:
        raise usage(f"{option} {text!r} is not a list of broker ids, as in 1,2,3") from None
    unknown = sorted(found - set(known)) if known is not None else []
    if unknown:
        raise usage(f"{option}: no such broker: {', '.join(map(str, unknown))}")
    return found


def _joined(replicas: Sequence[int]) -> str:
    return ",".join(map(str, replicas))


# --- throttles --------------------------------------------------------------------------------------------------------


def _throttle(admin: Admin, current: Assignment, wanted: Assignment, rate: int) -> None:
    """As Kafka's tool does: the replicas that send and those that receive, by topic; the rate, by broker."""
    senders: dict[str, set[str]] = {}
    receivers: dict[str, set[str]] = {}
    brokers: set[int] = set()
    for partition, replicas in wanted.items():
        new = set(replicas) - set(current[partition])
        if not new:
            continue
        brokers |= new | set(current[partition])
        senders.setdefault(partition.topic, set()).update(f"{partition.partition}:{n}" for n in current[partition])
        receivers.setdefault(partition.topic, set()).update(f"{partition.partition}:{n}" for n in new)
    changes: dict[ConfigResource, list[AlterConfigOp]] = {}
    for topic in senders:
        values = (",".join(sorted(senders[topic])), ",".join(sorted(receivers[topic])))
        changes[ConfigResource(ResourceType.TOPIC, topic)] = [
            AlterConfigOp(f"{name}.replicas", value, OpType.SET) for name, value in zip(_THROTTLES, values)
        ]
    for node in brokers:
        changes[ConfigResource(ResourceType.BROKER, str(node))] = [
            AlterConfigOp(f"{name}.rate", str(rate), OpType.SET) for name in _THROTTLES
        ]
    check_errors(admin.incremental_alter_configs(changes).errors.values())


def _unthrottle(admin: Admin) -> None:
    resources = [ConfigResource(ResourceType.BROKER, str(node.id)) for node in admin.describe_cluster().nodes]
    resources += [ConfigResource(ResourceType.TOPIC, name) for name in admin.list_topics(list_internal=True)]
    configs = admin.describe_configs(resources).ok
    changes = {}
    for resource, config in configs.items():
        kind = "replicas" if resource.type is ResourceType.TOPIC else "rate"
        names = [f"{name}.{kind}" for name in _THROTTLES]
        set_here = [name for name in names if name in config and not config[name].is_default]
        if set_here:
            changes[resource] = [AlterConfigOp(name, None, OpType.DELETE) for name in set_here]
    if changes:
        check_errors(admin.incremental_alter_configs(changes).errors.values())
        note("throttles of replication were taken back")
