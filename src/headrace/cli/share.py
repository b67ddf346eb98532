"""`headrace share`: share groups, their members, and how far they have got; set that, forget it, delete groups."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli.completing import groups_there, topics_there
from headrace.cli.options import Json, Target, Yes, targeted
from headrace.cli.output import (
    Column,
    check_errors,
    confirm,
    count,
    note,
    print_json,
    report,
    show_rows,
    styled,
    table,
    usage,
)
from headrace.cli.times import moment_ms
from headrace.client.admin import Admin, OffsetSpec, ShareGroupDescription, ShareGroupOffset
from headrace.topics import TopicPartition
from headrace.words import plural, visible

app = typer.Typer(no_args_is_help=True)

SHARE_TYPE = "share"
Groups = Annotated[list[str], typer.Argument(metavar="GROUP", autocompletion=groups_there)]
Group = Annotated[str, typer.Argument(metavar="GROUP", autocompletion=groups_there)]


@app.command("list")
@targeted
def list_(as_json: Json = False, *, target: Target) -> None:
    """List share groups, those with the most lag first."""
    with target.admin() as admin:
        names = _all(admin)
        described, offsets = admin.describe_share_groups(names), admin.list_share_group_offsets(names)
    rows = [
        {
            "group": name,
            "state": group.state,
            "members": len(group.members),
            "lag": _lag(offsets.ok.get(name, {})),
            "coordinator": str(group.coordinator.id),
        }
        for name, group in described.ok.items()
    ]
    rows.sort(key=lambda row: row["lag"] or 0, reverse=True)
    columns = [
        Column("group", "GROUP"),
        Column("state", "STATE"),
        Column("members", "MEMBERS"),
        Column("lag", "LAG", count),
        Column("coordinator", "COORDINATOR"),
    ]
    show_rows(rows, columns, as_json=as_json, empty="There are no share groups.")
    check_errors([*described.errors.values(), *offsets.errors.values()])


@app.command()
@targeted
def describe(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP]", help="None: all of them.", autocompletion=groups_there)
    ] = None,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Show share groups: members, what each is assigned, where they start and how much is left."""
    with target.admin() as admin:
        names = groups or _all(admin)
        described, offsets = admin.describe_share_groups(names), admin.list_share_group_offsets(names)
    documents = [_document(group, offsets.ok.get(name, {})) for name, group in described.ok.items()]
    if as_json:
        print_json(documents)
    elif documents:
        print("\n\n".join("\n".join(_lines(document)) for document in documents))
    elif not described.errors:
        note("There are no share groups.")
    check_errors([*described.errors.values(), *offsets.errors.values()])


@app.command()
@targeted
def reset(
    group: Group,
    topic: Annotated[
        list[str], typer.Option("--topic", metavar="TOPIC", help="Several times.", autocompletion=topics_there)
    ],
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The first record there is.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="The end.")] = False,
    to_datetime: Annotated[
        str | None, typer.Option(metavar="TIME", help="The first record at or after 2026-01-31T12:00:00 (UTC).")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it.")] = False,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Set where a share group starts. Shows what would be done; --execute does it. It must have no members."""
    chosen: list[OffsetSpec] = []
    if to_earliest:
        chosen.append(OffsetSpec.earliest())
    if to_latest:
        chosen.append(OffsetSpec.latest())
    if to_datetime is not None:
        chosen.append(OffsetSpec.for_timestamp(moment_ms(to_datetime)))
    if len(chosen) != 1:
        raise usage("give one of --to-earliest, --to-latest, --to-datetime")
    with target.admin() as admin:
        topics = admin.describe_topics(topic)
        check_errors(topics.errors.values())
        partitions = [
            TopicPartition(name, one.partition) for name, found in topics.ok.items() for one in found.partitions
        ]
        before = admin.list_share_group_offsets([group]).ok.get(group, {})
        found = admin.list_offsets(dict.fromkeys(partitions, chosen[0]))
        ends = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest()))
        check_errors([*found.errors.values(), *ends.errors.values()])
        after = {
            # Where no record is as young as that, the end.
            partition: info.offset if info.offset >= 0 else ends.ok[partition].offset
            for partition, info in found.ok.items()
        }
        if execute:
            check_errors(admin.alter_share_group_offsets(group, after).errors.values())
    rows = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "start": None if partition not in before else before[partition].start_offset,
            "new_start": offset,
        }
        for partition, offset in sorted(after.items())
    ]
    columns = [
        Column("topic", "TOPIC"),
        Column("partition", "PARTITION"),
        Column("start", "START", count),
        Column("new_start", "NEW START", count),
    ]
    show_rows(rows, columns, as_json=as_json)
    if not execute:
        note("Nothing was changed. Add --execute to do it.")


@app.command()
@targeted
def forget(
    group: Group,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", autocompletion=topics_there)],
    yes: Yes = False,
    *,
    target: Target,
) -> None:
    """Forget where a share group has got to in topics: it begins there anew. It must have no members."""
    confirm(f"Forget where {visible(group)} is in {', '.join(map(visible, topics))}?", yes=yes)
    with target.admin() as admin:
        done = admin.delete_share_group_offsets(group, topics)
    report(done, lambda topic: f"forgot where {visible(group)} was in {visible(topic)}")


@app.command()
@targeted
def delete(groups: Groups, yes: Yes = False, *, target: Target) -> None:
    """Delete share groups that have no members, with all that is known of how far they have got."""
    confirm(f"Delete {', '.join(map(visible, groups))}?", yes=yes)
    with target.admin() as admin:
        done = admin.delete_groups(groups)
    report(done, lambda group: f"deleted share group {visible(group)}")


def _all(admin: Admin) -> list[str]:
    return [group.group_id for group in admin.list_groups(types=[SHARE_TYPE])]


def _lag(offsets: dict[TopicPartition, ShareGroupOffset]) -> int | None:
    known = [offset.lag for offset in offsets.values() if offset.lag is not None]
    return sum(known) if known else None


def _document(group: ShareGroupDescription, offsets: dict[TopicPartition, ShareGroupOffset]) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "state": group.state,
        "epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor": group.assignor,
        "coordinator": str(group.coordinator.id),
        "lag": _lag(offsets),
        "members": [
            {
                "member": member.member_id,
                "client": member.client_id,
                "host": member.host.lstrip("/"),
                "epoch": member.member_epoch,
                "assignment": [str(partition) for partition in member.assignment],
            }
            for member in group.members
        ],
        "offsets": [
            {"topic": tp.topic, "partition": tp.partition, "start": offset.start_offset, "lag": offset.lag}
            for tp, offset in sorted(offsets.items())
        ],
    }


def _lines(document: dict[str, Any]) -> list[str]:
    members = document["members"]
    head = (
        f"{visible(document['group'])}  {document['state']}, {plural(len(members), 'member')}, "
        f"epoch {document['epoch']}, coordinator {document['coordinator']}"
    )
    lines = [styled(head, "1")]
    if document["offsets"]:
        columns = [
            Column("topic", "TOPIC"),
            Column("partition", "PARTITION"),
            Column("start", "START", count),
            Column("lag", "LAG", count),
        ]
        lines += ["", *table(document["offsets"], columns)]
    if members:
        shown = [{**member, "assignment": ", ".join(member["assignment"])} for member in members]
        columns = [
            Column("member", "MEMBER"),
            Column("client", "CLIENT"),
            Column("host", "HOST"),
            Column("assignment", "ASSIGNED"),
        ]
        lines += ["", *table(shown, columns)]
    return lines
