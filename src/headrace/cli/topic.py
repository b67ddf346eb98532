"""`headrace topic`: create, list, describe, alter, delete; delete the oldest records."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli.completing import topics_there
from headrace.cli.options import Json, Target, Yes, pairs, targeted
from headrace.cli.output import (
    Column,
    check_errors,
    confirm,
    count,
    id_text,
    print_json,
    report,
    show_rows,
    size,
    styled,
    table,
    usage,
)
from headrace.client.admin import (
    Admin,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)
from headrace.errors import TopicAlreadyExistsError
from headrace.topics import TopicPartition
from headrace.words import plural

app = typer.Typer(no_args_is_help=True)

Names = Annotated[list[str], typer.Argument(metavar="TOPIC", autocompletion=topics_there)]
NewNames = Annotated[list[str], typer.Argument(metavar="TOPIC")]


@app.command()
@targeted
def create(
    topics: NewNames,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", help="How many partitions; -1: the broker's num.partitions.")
    ] = -1,
    replication_factor: Annotated[int, typer.Option(help="Copies of each partition; -1: the broker's default.")] = -1,
    replica_assignment: Annotated[
        str | None,
        typer.Option(
            "--replica-assignment",
            metavar="1:2,2:3",
            help="Which brokers have each partition, the preferred leader first; instead of both.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="KEY=VALUE", help="A topic setting; several times.")
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Be content when a topic is there already.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say whether it could be made.")] = False,
    *,
    target: Target,
) -> None:
    """Make topics."""
    configs = pairs(config or [], "--config")
    placed = None if replica_assignment is None else _replicas(replica_assignment)
    if placed is not None and (partitions, replication_factor) != (-1, -1):
        raise usage(
            "--replica-assignment says how many partitions and copies there are: leave --partitions and "
            "--replication-factor out"
        )
    wanted = [NewTopic(name, partitions, replication_factor, configs, placed) for name in topics]
    with target.admin() as admin:
        results = admin.create_topics(wanted, validate_only=dry_run)
    if if_not_exists:
        for name, error in list(results.errors.items()):
            if isinstance(error, TopicAlreadyExistsError):
                del results.errors[name]
                print(f"{name} exists already")

    def done(name: str) -> str:
        made = results.ok[name]
        verb = "could be created" if dry_run else "created"
        return (
            f"{name} {verb}: {plural(made.num_partitions, 'partition')}, {plural(made.replication_factor, 'replica')}"
        )

    report(results, done)


def _replicas(text: str) -> dict[int, list[int]]:
    """1:2,2:3 as partition → brokers."""
    placed: dict[int, list[int]] = {}
    for partition, brokers in enumerate(text.split(",")):
        numbers = brokers.split(":")
        if not all(number.strip().isdecimal() for number in numbers):
            raise usage(f"--replica-assignment: {brokers!r} is not the numbers of brokers, as in 1:2 (of {text!r})")
        placed[partition] = [int(number) for number in numbers]
    return placed


@app.command("list")
@targeted
def list_(
    internal: Annotated[bool, typer.Option("--internal", "-a", help="Kafka's own topics too.")] = False,
    long: Annotated[bool, typer.Option("--long", "-l", help="Records and size too, which takes longer.")] = False,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """List topics."""
    with target.admin() as admin:
        names = admin.list_topics(list_internal=internal)
        described = admin.describe_topics(names)
        rows = [_summary(described.ok[name]) for name in sorted(described.ok)]
        if long and rows:
            facts = _PartitionFacts(admin, list(described.ok.values()))
            for row in rows:
                partitions = [tp for tp in facts.ends if tp.topic == row["name"]]
                row["records"] = sum(facts.ends[tp] - facts.starts[tp] for tp in partitions)
                row["size_bytes"] = sum(facts.sizes.get(tp, 0) for tp in partitions)
    columns = [Column("name", "TOPIC"), Column("partitions", "PARTITIONS"), Column("replication_factor", "REPLICAS")]
    if long:
        columns += [Column("records", "RECORDS", count), Column("size_bytes", "SIZE", size)]
    show_rows(rows, columns, as_json=as_json, empty="There are no topics. Make one with: headrace topic create NAME")
    check_errors(described.errors.values())


def _summary(topic: TopicDescription) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": id_text(topic.topic_id),
        "partitions": len(topic.partitions),
        "replication_factor": len(topic.partitions[0].replicas) if topic.partitions else 0,
        "internal": topic.is_internal,
    }


class _PartitionFacts:
    """First and next offset and bytes on disk (of the leader) of the partitions of some topics."""

    def __init__(self, admin: Admin, topics: list[TopicDescription]) -> None:
        partitions = [TopicPartition(t.name, p.partition) for t in topics for p in t.partitions if p.leader >= 0]
        starts = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.earliest()))
        ends = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest()))
        self.starts = {tp: info.offset for tp, info in starts.ok.items()}
        self.ends = {tp: info.offset for tp, info in ends.ok.items() if tp in self.starts}
        leaders = {TopicPartition(t.name, p.partition): p.leader for t in topics for p in t.partitions}
        self.sizes: dict[TopicPartition, int] = {}
        for node_id, directories in admin.describe_log_dirs().ok.items():
            for directory in directories.values():
                for tp, replica in directory.replicas.items():
                    if leaders.get(tp) == node_id and not replica.is_future:
                        self.sizes[tp] = replica.size


@app.command()
@targeted
def describe(
    topics: Names,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Show topics: partitions with leader, replicas, offsets and size; settings that are not the default."""
    with target.admin() as admin:
        described = admin.describe_topics(topics)
        found = list(described.ok.values())
        facts = _PartitionFacts(admin, found)
        resources = [ConfigResource(ResourceType.TOPIC, topic.name) for topic in found]
        configs = admin.describe_configs(resources)
    documents = []
    for topic in found:
        entries = configs.ok.get(ConfigResource(ResourceType.TOPIC, topic.name), {})
        own = {e.name: e.value for e in entries.values() if e.source is ConfigSource.DYNAMIC_TOPIC_CONFIG}
        documents.append(_summary(topic) | {"configs": own, "partition_details": _partition_rows(topic, facts)})
    if as_json:
        print_json(documents)
    else:
        if documents:
            print("\n\n".join("\n".join(_described(document)) for document in documents))
    check_errors(described.errors.values())


def _partition_rows(topic: TopicDescription, facts: _PartitionFacts) -> list[dict[str, Any]]:
    rows = []
    for info in topic.partitions:
        tp = TopicPartition(topic.name, info.partition)
        start, end = facts.starts.get(tp), facts.ends.get(tp)
        rows.append(
            {
                "partition": info.partition,
                "leader": info.leader if info.leader >= 0 else None,
                "leader_epoch": info.leader_epoch,
                "replicas": list(info.replicas),
                "isr": list(info.isr),
                "start_offset": start,
                "end_offset": end,
                "records": None if start is None or end is None else end - start,
                "size_bytes": facts.sizes.get(tp),
            }
        )
    return rows


def _described(document: dict[str, Any]) -> list[str]:
    heading = (
        f"{styled(document['name'], '1')}  {plural(document['partitions'], 'partition')}, "
        f"{plural(document['replication_factor'], 'replica')}, id {document['id']}"
        + (", internal" if document["internal"] else "")
    )
    lines = [heading]
    lines += [f"  {name}={value}" for name, value in sorted(document["configs"].items())]
    columns = [
        Column("partition", "PARTITION"),
        Column("leader", "LEADER"),
        Column("replicas", "REPLICAS"),
        Column("isr", "ISR"),
        Column("start_offset", "FIRST", count),
        Column("end_offset", "NEXT", count),
        Column("records", "RECORDS", count),
        Column("size_bytes", "SIZE", size),
    ]
    return lines + table(document["partition_details"], columns)


@app.command()
@targeted
def alter(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=topics_there)],
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", help="How many it shall have (never fewer than now).")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="KEY=VALUE", help="Set a setting; several times.")
    ] = None,
    delete_config: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Take a setting back to its default; several times.")
    ] = None,
    *,
    target: Target,
) -> None:
    """Give a topic more partitions, or other settings."""
    changes: dict[str, str | None] = {**pairs(config or [], "--config"), **dict.fromkeys(delete_config or [])}
    if partitions is None and not changes:
        raise usage("nothing to alter: give --partitions, --config or --delete-config")
    with target.admin() as admin:
        if changes:
            admin.incremental_alter_configs({ConfigResource(ResourceType.TOPIC, topic): changes}).all()
            print(f"{topic}: {plural(len(changes), 'setting')} changed")
        if partitions is not None:
            admin.create_partitions({topic: partitions}).all()
            print(f"{topic} has {plural(partitions, 'partition')} now; keys may go to other partitions than before")


@app.command()
@targeted
def delete(
    topics: Names,
    yes: Yes = False,
    *,
    target: Target,
) -> None:
    """Delete topics with all that is in them."""
    confirm(f"Delete {', '.join(topics)} with all records?", yes=yes)
    with target.admin() as admin:
        report(admin.delete_topics(topics), lambda name: f"{name} deleted")


@app.command("delete-records")
@targeted
def delete_records(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC[:P,P…]", help="A topic, or partitions of one.", autocompletion=topics_there)
    ],
    before: Annotated[
        int | None, typer.Option("--before", min=0, metavar="OFFSET", help="Those before this offset, in each of them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All there are now.")] = False,
    yes: Yes = False,
    *,
    target: Target,
) -> None:
    """Delete the oldest records of a topic, for good. The topic stays, and offsets go on."""
    if (before is None) != everything:
        raise usage("say which: --before OFFSET, or --all")
    name, partitions = topic_and_partitions(topic)
    what = "all records" if before is None else f"the records before offset {before:,}"
    confirm(f"Delete {what} of {topic}?", yes=yes)
    with target.admin() as admin:
        there = [info.partition for info in admin.describe_topics([name])[name].partitions]
        chosen = there if partitions is None else partitions
        # -1 is Kafka's word for the end that there is when the broker is asked.
        wanted = {TopicPartition(name, one): -1 if before is None else before for one in chosen}
        results = admin.delete_records(wanted)
    report(results, lambda tp: f"{tp} begins at offset {results.ok[tp]:,} now")


def topic_and_partitions(text: str) -> tuple[str, list[int] | None]:
    """`events`, or `events:0,2`."""
    name, separator, numbers = text.partition(":")
    if not separator:
        return name, None
    if not all(number.strip().isdigit() for number in numbers.split(",")):
        raise usage(f"{text!r} is not TOPIC or TOPIC:0,1,2")
    return name, [int(number) for number in numbers.split(",")]
