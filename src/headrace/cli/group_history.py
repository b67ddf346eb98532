"""`headrace group history` and `headrace group what-if`: what happened to a group, and what would, if."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.completing import groups_there
from headrace.cli.options import Json, Target, only, pairs, targeted
from headrace.cli.output import Column, CommandError, count, moment, print_json, styled, table, usage
from headrace.client.admin import Admin, OffsetSpec
from headrace.client.consumer.config import CONSUMER_CONFIGS
from headrace.topics import TopicPartition
from headrace.words import plural, visible

if TYPE_CHECKING:
    from headrace.client.history import AssignmentPlan, GroupLog, GroupTimeline, MemberPlan

#: Kinds of causes that somebody should look at.
_BAD = ("poll too late", "session over", "left or lost")
_SHOWN = 6


@targeted
def history(
    group: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=groups_there)],
    last: Annotated[int, typer.Option("--last", min=1, help="So many of the latest rebalances.")] = 20,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Show a group's rebalances: why each came, how long it took, what moved, and who comes and goes.

    Read from __consumer_offsets, so it works on any Kafka whose ACLs let you read that topic. It is compacted: of long
    ago only the last generation is left.
    """
    # Here, as in the others below: other commands of groups start without it.
    from headrace.client.history import timeline, timeline_document

    with target.admin() as admin:
        log = group_log(admin, target.config(), group)
    made = timeline(log)
    if as_json:
        print_json(timeline_document(made, last))
        return
    if not made.rebalances:
        raise CommandError(f"nothing is known of a group {group!r}: no generation of it is in __consumer_offsets")
    for line in history_lines(made, last):
        print(line)


def group_log(admin: Admin, client: dict[str, Any], group: str) -> GroupLog:
    """The records of a group."""
    from headrace.client.history import read_group
    from headrace.client.history.reading import OFFSETS_TOPIC, log_partition

    described = admin.describe_topics([OFFSETS_TOPIC])
    if OFFSETS_TOPIC not in described.ok:
        raise CommandError(f"there is no {OFFSETS_TOPIC}: no group has committed anything yet")
    partitions = len(described[OFFSETS_TOPIC].partitions)
    partition = log_partition(group, partitions)
    start = admin.list_offsets({partition: OffsetSpec.earliest()})[partition].offset
    end = admin.list_offsets({partition: OffsetSpec.latest()})[partition].offset
    names = {topic.topic_id: topic.name for topic in admin.list_topics().values()}
    return read_group(group, only(client, CONSUMER_CONFIGS), partitions, (start, end), names)


def history_lines(made: GroupTimeline, last: int) -> list[str]:
    """A timeline for a person, the latest last."""
    shown = made.rebalances[-last:]
    lines = []
    for one in shown:
        is_bad = any(cause.kind.value in _BAD for cause in one.causes)
        took = "" if one.took_ms is None else f", took {_time(one.took_ms)}"
        members = plural(one.members, "member")
        if one.members_before not in (0, one.members):
            members += f" (before: {one.members_before})"
        lines.append(
            styled(moment(one.at_ms), "2")
            + "  "
            + styled(f"generation {one.generation}", "31;1" if is_bad else "1")
            + f"  {members}{took}"
        )
        lines += [
            f"    {styled(cause.kind.value, '33' if cause.kind.value in _BAD else '36')}: {visible(cause.text)}"
            for cause in one.causes
        ]
        if one.moves:
            some = "; ".join(
                f"{move.partition} {visible(move.before) or 'nobody'} → {visible(move.after) or 'nobody'}"
                for move in one.moves[:_SHOWN]
            )
            more = f"; and {len(one.moves) - _SHOWN} more" if len(one.moves) > _SHOWN else ""
            lines.append(f"    moved {some}{more}")
        if one.idle_ms:
            longest = _time(max(one.idle_ms.values()))
            lines.append(f"    {plural(len(one.idle_ms), 'partition')} without an owner for at most {longest}")
        if one.skipped:
            lines.append(
                styled(
                    f"    {plural(one.skipped, 'generation')} before it not in the log (never stable, or compacted)",
                    "2",
                )
            )
    for flapping in made.flapping:
        lines.append("")
        often = f"{flapping.times} times in {_time(flapping.within_ms)}, {flapping.kind.value}"
        lines.append(styled(f"{visible(flapping.client)} flaps: {often}", "31;1"))
        lines.append(f"    {flapping.advice}")
    if not made.is_exact:
        lines += [
            "",
            styled("Causes are inferred from generations and commits: this coordinator does not write them down.", "2"),
        ]
    return lines


def _time(milliseconds: int) -> str:
    if milliseconds < 10_000:
        return f"{milliseconds / 1000:.1f} s"
    if milliseconds < 600_000:
        return f"{round(milliseconds / 1000)} s"
    return f"{round(milliseconds / 60_000)} min"


# --- what if ----------------------------------------------------------------------------------------------------------


@targeted
def what_if_command(
    group: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=groups_there)],
    strategy: Annotated[
        str | None, typer.Option("--strategy", help="range, roundrobin, sticky, cooperative-sticky, lag, weighted, …")
    ] = None,
    members: Annotated[int | None, typer.Option("--members", min=1, help="How many there would be.")] = None,
    without: Annotated[
        list[str] | None, typer.Option("--without", metavar="MEMBER", help="As if it were gone; several times.")
    ] = None,
    partitions: Annotated[
        list[str] | None, typer.Option("--partitions", metavar="TOPIC=N", help="As if a topic had so many.")
    ] = None,
    rack: Annotated[list[str] | None, typer.Option("--rack", metavar="MEMBER=RACK", help="Of a member.")] = None,
    weight: Annotated[list[str] | None, typer.Option("--weight", metavar="MEMBER=N", help="Of a member.")] = None,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Show what a group would be with another strategy, other members or partitions. Nothing is changed.

    MEMBER is a member's id, or its client.id where only one member has it.
    """
    from headrace.client.history import Change, plan_document, what_if

    with target.admin() as admin:
        plans, counts, now_strategy, lag, clients = group_now(admin, group)
    change = Change(
        strategy,
        members,
        tuple(_member(one, clients) for one in without or ()),
        {topic: _whole(number, "--partitions") for topic, number in pairs(partitions or [], "--partitions").items()},
        {_member(name, clients): value for name, value in pairs(rack or [], "--rack").items()},
        {_member(name, clients): _weight(value) for name, value in pairs(weight or [], "--weight").items()},
    )
    plan = what_if(plans, counts, now_strategy, change, lag=lag)
    if as_json:
        print_json(plan_document(plan, clients))
        return
    for line in plan_lines(plan, clients, plans):
        print(line)


def group_now(
    admin: Admin, group: str
) -> tuple[list[MemberPlan], dict[str, int], str, dict[TopicPartition, int], dict[str, str]]:
    """Members, partitions per topic, strategy, lag, and the clients of the members, as they are."""
    from headrace.client.history import MemberPlan

    described = admin.describe_groups([group])[group]
    if not described.members:
        raise CommandError(f"group {group!r} has no members now, so nobody knows what they would subscribe to")
    names = sorted({topic for member in described.members for topic in member.topics})
    topics = admin.describe_topics(names).ok
    counts = {name: len(topic.partitions) for name, topic in topics.items()}
    committed = admin.list_group_offsets([group]).ok.get(group, {})
    alive = [one for one in committed if one.partition < counts.get(one.topic, 0)]
    ends = admin.list_offsets(dict.fromkeys(alive, OffsetSpec.latest())).ok if alive else {}
    lag = {one: max(0, ends[one].offset - committed[one].offset) for one in ends}
    plans = [
        MemberPlan(one.member_id, one.topics, tuple(one.assignment), instance_id=one.group_instance_id)
        for one in described.members
    ]
    clients = {one.member_id: one.client_id for one in described.members}
    return plans, counts, described.partition_assignor or "range", lag, clients


def _member(name: str, clients: dict[str, str]) -> str:
    if name in clients:
        return name
    found = [member for member, client in clients.items() if client == name]
    if len(found) == 1:
        return found[0]
    raise usage(f"{name!r} is {'the client.id of several members' if found else 'no member'}: {', '.join(clients)}")


def _whole(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise usage(f"{option} takes a whole number, not {text!r}") from None


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise usage(f"--weight takes a number, not {text!r}") from None


def plan_lines(plan: AssignmentPlan, clients: dict[str, str], now: list[MemberPlan]) -> list[str]:
    """A plan for a person."""
    before = {one.member_id: len(one.owns) for one in now}
    rows = [
        {
            "member": clients.get(member, member) + (" (new)" if member in plan.new_members else ""),
            "now": before.get(member, 0),
            "then": len(own),
            "lag": plan.lag[member],
        }
        for member, own in plan.assigned.items()
    ]
    fewest, most = plan.balance
    lines = table(
        rows,
        [Column("member", "MEMBER"), Column("now", "NOW"), Column("then", "THEN"), Column("lag", "LAG THEN", count)],
    )
    lines.append("")
    lines.append(
        f"{plan.strategy}: {fewest} to {most} partitions each, {plural(len(plan.moves), 'partition')} would move"
        + (f", {len(plan.unassigned)} would have no owner" if plan.unassigned else "")
    )
    for one, had, has in plan.moves[: 4 * _SHOWN]:
        lines.append(f"  {one}  {clients.get(had, had) or 'nobody'} → {clients.get(has, has) or 'nobody'}")
    if len(plan.moves) > 4 * _SHOWN:
        lines.append(f"  and {len(plan.moves) - 4 * _SHOWN} more (--json shows them all)")
    return lines
