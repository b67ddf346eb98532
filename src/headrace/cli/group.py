"""`headrace group`: list, describe (members, assignment, lag), reset offsets, delete, remove members; its history."""

from __future__ import annotations

import csv
import io
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli import group_history, group_migrate
from headrace.cli.completing import groups_there, of, topics_there
from headrace.cli.options import Json, Target, Yes, targeted
from headrace.cli.output import (
    Column,
    CommandError,
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
from headrace.cli.times import duration_ms, moment_ms
from headrace.cli.topic import topic_and_partitions
from headrace.cli.watching import check_watched, watch_screen
from headrace.client.admin import Admin, GroupDescription, OffsetAndMetadata, OffsetSpec, ResetTo
from headrace.errors import HeadraceError
from headrace.topics import TopicPartition
from headrace.words import plural, visible

app = typer.Typer(no_args_is_help=True)
app.command("history")(group_history.history)
app.command("migrate")(group_migrate.migrate)
app.command("what-if")(group_history.what_if_command)

Groups = Annotated[list[str], typer.Argument(metavar="GROUP", autocompletion=groups_there)]
_PARTITION_FILE_ROWS_MAX = 1_000_000
_WATCH_S = 1.0
_STATES = ("Stable", "Empty", "Dead", "PreparingRebalance", "CompletingRebalance")


@app.command("list")
@targeted
def list_(
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", help="Only these: Stable, Empty, Dead, PreparingRebalance …", autocompletion=of(*_STATES)
        ),
    ] = None,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """List groups, those with the most lag first."""
    with target.admin() as admin:
        groups = admin.list_groups(states=state or ())
        documents, _ = group_documents(admin, [group.group_id for group in groups])
    details = {document["group"]: document for document in documents}
    rows = []
    for group in groups:
        detail = details.get(group.group_id, {})
        is_behind_known = any(row["lag"] is not None for row in detail.get("offsets", ()))
        rows.append(
            {
                "group": group.group_id,
                "state": group.state or detail.get("state"),
                "type": group.type or detail.get("type"),
                "members": len(detail["members"]) if detail else None,
                "lag": detail["lag"] if is_behind_known else None,
                "assignor": detail.get("assignor"),
                "coordinator": detail.get("coordinator"),
            }
        )
    rows.sort(key=lambda row: -1 if row["lag"] is None else row["lag"], reverse=True)
    columns = [
        Column("group", "GROUP"),
        Column("type", "TYPE"),
        Column("state", "STATE", style=_state_style),
        Column("members", "MEMBERS"),
        Column("lag", "LAG", count, _lag_style),
        Column("assignor", "ASSIGNOR"),
        Column("coordinator", "COORDINATOR"),
    ]
    show_rows(rows, columns, as_json=as_json, empty="There are no groups.")


def _lag_style(lag: Any) -> str:
    return "33" if lag else ""


def _state_style(state: Any) -> str:
    return {"Stable": "32", "Empty": "2"}.get(str(state), "33")


# --- describe ---------------------------------------------------------------------------------------------------------


@app.command()
@targeted
def describe(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP]", help="None: all of them.", autocompletion=groups_there)
    ] = None,
    follow: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing it, with the rate of the lag.")] = False,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Show groups: members, what each is assigned, committed offsets and lag."""
    check_watched(follow=follow, as_json=as_json)
    with target.admin() as admin:
        if follow:
            watch_screen(_Watched(admin, groups).screen, _WATCH_S)
        names = groups or [group.group_id for group in admin.list_groups()]
        documents, errors = group_documents(admin, names)
    if as_json:
        print_json(documents)
    elif documents:
        print("\n\n".join("\n".join(group_lines(document)) for document in documents))
    elif not errors:
        note("There are no groups.")
    check_errors(errors.values())


class _Watched:
    """Groups, looked at again and again."""

    def __init__(self, admin: Admin, groups: list[str] | None) -> None:
        self._admin = admin
        self._groups = groups
        #: When each group was looked at last, and its lag then.
        self._before: dict[str, tuple[float, int]] = {}

    def screen(self) -> list[str]:
        try:
            names = self._groups or [group.group_id for group in self._admin.list_groups()]
            documents, errors = group_documents(self._admin, names)
        except HeadraceError as error:
            return [styled(" ".join(str(error).split()), "31")]
        lines: list[str] = []
        for document in documents:
            lines += [*([""] if lines else []), *group_lines(document, self._change(document))]
        lines += [styled(" ".join(str(error).split()), "31") for error in errors.values()]
        return lines or ["There are no groups."]

    def _change(self, document: dict[str, Any]) -> str:
        """How fast the lag changes since the look before."""
        now, lag = time.monotonic(), document["lag"]
        before = self._before.get(document["group"])
        self._before[document["group"]] = (now, lag)
        if before is None:
            return ""
        rate = round((lag - before[1]) / max(now - before[0], 0.001))
        return f" ({rate:+,} per second)"


def group_documents(admin: Admin, names: list[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All there is to say of groups, and why some could not be described."""
    described = admin.describe_groups(names)
    offsets = admin.list_group_offsets(described.ok)
    wanted = {tp for committed in offsets.ok.values() for tp in committed}
    for group in described.ok.values():
        wanted.update(tp for member in group.members for tp in member.assignment)
    ends = admin.list_offsets(dict.fromkeys(sorted(wanted), OffsetSpec.latest())).ok
    end_offsets = {tp: info.offset for tp, info in ends.items()}
    documents = [
        _group_document(described.ok[name], offsets.ok.get(name, {}), end_offsets)
        for name in names
        if name in described.ok
    ]
    return documents, described.errors | offsets.errors


def _group_document(
    group: GroupDescription, committed: dict[TopicPartition, OffsetAndMetadata], ends: dict[TopicPartition, int]
) -> dict[str, Any]:
    owners = {tp: member for member in group.members for tp in member.assignment}
    partitions = []
    for tp in sorted({*committed, *owners}):
        offset = committed[tp].offset if tp in committed else None
        end, owner = ends.get(tp), owners.get(tp)
        partitions.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "offset": offset,
                "end_offset": end,
                "lag": None if offset is None or end is None else max(0, end - offset),
                "member": None if owner is None else owner.member_id,
                "client": None if owner is None else owner.client_id,
                "host": None if owner is None else owner.host.lstrip("/"),
            }
        )
    return {
        "group": group.group_id,
        "state": group.state,
        "type": group.type,
        "epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor": group.partition_assignor or None,
        "coordinator": group.coordinator.id,
        "lag": sum(row["lag"] or 0 for row in partitions),
        "members": [
            {
                "member": member.member_id,
                "instance": member.group_instance_id,
                "client": member.client_id,
                "host": member.host.lstrip("/"),
                "topics": list(member.topics),
                "partitions": [str(tp) for tp in member.assignment],
                "epoch": member.epoch,
                "target": None if member.target is None else [str(tp) for tp in member.target],
                "protocol": member.protocol,
                "pattern": member.topic_pattern,
                "tasks": list(member.tasks),
                "standby_tasks": list(member.standby_tasks),
            }
            for member in group.members
        ],
        "offsets": partitions,
    }


def group_lines(document: dict[str, Any], change: str = "") -> list[str]:
    """One group for a person; `change` says how its lag does."""
    kind = "" if document["type"] == "classic" else f"{document['type']} group, "
    heading = (
        f"{styled(document['group'], '1')}  {kind}{styled(document['state'], _state_style(document['state']))}, "
        f"{plural(len(document['members']), 'member')}, lag {count(document['lag'])}{change}"
        + (f", {visible(document['assignor'])}" if document["assignor"] else "")
        + f", coordinator {document['coordinator']}"
        + _epochs(document)
    )
    lines = [heading]
    if document["members"]:
        rows = [member | {"count": len(member["partitions"])} for member in document["members"]]
        lines += table(
            rows,
            [
                Column("client", "CLIENT"),
                Column("host", "HOST"),
                Column("count", "PARTITIONS"),
                *_member_columns(rows),
                Column("member", "MEMBER"),
                *([Column("instance", "INSTANCE")] if any(row["instance"] for row in rows) else []),
            ],
        )
        lines.append("")
    if document["offsets"]:
        lines += table(document["offsets"], offset_columns(with_owner=bool(document["members"])))
    else:
        lines.append("nothing committed")
    return lines


def _epochs(document: dict[str, Any]) -> str:
    if document["epoch"] is None:
        return ""
    behind = document["assignment_epoch"] != document["epoch"]
    return f", epoch {document['epoch']}" + (f" (assigned: {document['assignment_epoch']})" if behind else "")


def _member_columns(rows: list[dict[str, Any]]) -> list[Column]:
    """What only members of some types of groups have."""
    columns: list[Column] = []
    if any(row["epoch"] is not None for row in rows):
        columns.append(Column("epoch", "EPOCH"))
    for row in rows:
        # What it has and is not to have, and the other way round: how far it has to go.
        to_move = None if row["target"] is None else len({*row["target"]} ^ {*row["partitions"]})
        row["moves"] = to_move
        row["tasks_text"] = " ".join(row["tasks"]) or None
        row["standby_text"] = " ".join(row["standby_tasks"]) or None
    if any(row["moves"] for row in rows):
        columns.append(Column("moves", "TO MOVE"))
    if len({row["protocol"] for row in rows}) > 1:
        columns.append(Column("protocol", "PROTOCOL"))
    if any(row["tasks"] or row["standby_tasks"] for row in rows):
        columns += [Column("tasks_text", "TASKS"), Column("standby_text", "STANDBY")]
    return columns


def offset_columns(*, with_owner: bool) -> list[Column]:
    columns = [
        Column("topic", "TOPIC"),
        Column("partition", "PARTITION"),
        Column("offset", "OFFSET", count),
        Column("end_offset", "END", count),
        Column("lag", "LAG", count, _lag_style),
    ]
    return [*columns, Column("client", "CLIENT")] if with_owner else columns


# --- reset ------------------------------------------------------------------------------------------------------------


@app.command()
@targeted
def reset(
    group: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=groups_there)],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC[:P,P…]",
            help="Topics, or partitions of one; default: all it has.",
            autocompletion=topics_there,
        ),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The first record there is.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="The end.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="Where it is; the end where it is nowhere.")] = False,
    to_offset: Annotated[int | None, typer.Option(metavar="OFFSET", help="An offset, in every partition.")] = None,
    to_datetime: Annotated[
        str | None, typer.Option(metavar="TIME", help="The first record at or after 2026-01-31T12:00:00 (UTC).")
    ] = None,
    by_duration: Annotated[str | None, typer.Option(metavar="SPAN", help="As long ago as 15m, 2h, PT15M.")] = None,
    shift_by: Annotated[int | None, typer.Option(metavar="N", help="Forward, or back with a minus.")] = None,
    to_group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Where another group is.", autocompletion=groups_there)
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option(metavar="CSV", exists=True, help="topic,partition,offset per line; see --export.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done (the default).")] = False,
    export: Annotated[bool, typer.Option("--export", help="Print topic,partition,offset, for --from-file.")] = False,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Set a group's offsets. Shows what would be done; --execute does it. The group must have no members."""
    if execute and dry_run:
        raise usage("--execute and --dry-run exclude each other")
    choices = {
        "--to-earliest": ResetTo.earliest() if to_earliest else None,
        "--to-latest": ResetTo.latest() if to_latest else None,
        "--to-current": ResetTo.current() if to_current else None,
        "--to-offset": None if to_offset is None else ResetTo.offset(to_offset),
        "--to-datetime": None if to_datetime is None else ResetTo.timestamp(moment_ms(to_datetime)),
        "--by-duration": None if by_duration is None else ResetTo.duration(duration_ms(by_duration) / 1000),
        "--shift-by": None if shift_by is None else ResetTo.shift(shift_by),
        "--to-group": None if to_group is None else ResetTo.group(to_group),
        "--from-file": None if from_file is None else ResetTo.each(_read_offsets(from_file)),
    }
    chosen = {name: choice for name, choice in choices.items() if choice is not None}
    if len(chosen) != 1:
        raise usage(f"give one of {', '.join(choices)}" + (f", not {' and '.join(chosen)}" if chosen else ""))
    (to,) = chosen.values()
    with target.admin() as admin:
        done = admin.reset_group_offsets(group, to, topics=_topics(topic) if topic else None, dry_run=not execute)
    rows = [
        {
            "group": group,
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": change.before,
            "new_offset": change.after,
        }
        for tp, change in done.items()
    ]
    if export:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([row["topic"], row["partition"], row["new_offset"]] for row in rows)
        return
    columns = [
        Column("topic", "TOPIC"),
        Column("partition", "PARTITION"),
        Column("offset", "OFFSET", count),
        Column("new_offset", "NEW OFFSET", count),
    ]
    show_rows(rows, columns, as_json=as_json)
    if not execute:
        note("Nothing was changed. Add --execute to do it.")


def _topics(texts: list[str]) -> list[str | TopicPartition]:
    found: list[str | TopicPartition] = []
    for text in texts:
        name, partitions = topic_and_partitions(text)
        found += [name] if partitions is None else [TopicPartition(name, number) for number in partitions]
    return found


def _read_offsets(path: Path) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for number, row in enumerate(csv.reader(io.StringIO(path.read_text("utf-8"))), start=1):
        if not row or number > _PARTITION_FILE_ROWS_MAX:
            continue
        cells = [cell.strip().strip('"') for cell in row]
        # Kafka's own tool also writes lines that begin with the group.
        cells = cells[-3:]
        if len(cells) != 3 or not cells[1].isdigit() or not cells[2].isdigit():
            raise usage(f"{path}, line {number}: {','.join(row)!r} is not topic,partition,offset")
        found[TopicPartition(cells[0], int(cells[1]))] = int(cells[2])
    if not found:
        raise usage(f"{path} has no line with topic,partition,offset")
    return found


@app.command()
@targeted
def delete(
    groups: Groups,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC[:P,P…]",
            help="Only the offsets of these, of one group.",
            autocompletion=topics_there,
        ),
    ] = None,
    yes: Yes = False,
    *,
    target: Target,
) -> None:
    """Delete groups that have no members, with their offsets; or only the offsets of some topics."""
    if topic:
        if len(groups) != 1:
            raise usage("--topic deletes offsets of one group: name one")
        delete_offsets(groups[0], topic, target, yes=yes)
        return
    confirm(f"Delete {', '.join(groups)} with all offsets?", yes=yes)
    with target.admin() as admin:
        report(admin.delete_groups(groups), lambda name: f"{name} deleted")


def delete_offsets(group: str, topics: list[str], target: Target, *, yes: bool) -> None:
    """Forget what a group has committed for some topics, or partitions of them."""
    wanted = _topics(topics)
    confirm(f"Delete the offsets that {group} has committed for {', '.join(topics)}?", yes=yes)
    with target.admin() as admin:
        committed = admin.list_group_offsets([group])[group]
        partitions = [tp for tp in committed if tp in wanted or tp.topic in wanted]
        if not partitions:
            raise CommandError(f"{group} has committed nothing for {', '.join(topics)}")
        report(admin.delete_group_offsets(group, partitions), lambda tp: f"{group}: offset of {tp} deleted")


@app.command("remove-members")
@targeted
def remove_members(
    group: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=groups_there)],
    instances: Annotated[
        list[str] | None, typer.Option("--instance", metavar="ID", help="This static member (group.instance.id).")
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="Every member.")] = False,
    reason: Annotated[str, typer.Option("--reason", help="What the broker's log shall say.")] = "headrace group",
    *,
    target: Target,
) -> None:
    """Make members leave a group. One that still runs joins again; one that is gone no longer holds its partitions."""
    if bool(instances) == everyone:
        raise usage("say which: --instance ID (of a static member), or --all")
    with target.admin() as admin:
        results = admin.remove_members(group, instances or None, reason=reason)
    report(results, lambda name: f"{group}: {name} removed")
    if not results.ok and not results.errors:
        note(f"{group} has no members.")
