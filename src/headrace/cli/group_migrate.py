"""`headrace group migrate`: a group changes its protocol while it works, one restarted member after the other.

Nothing is switched: a member that comes back with another `group.protocol` brings its group along. This says whether
the brokers allow that, how far it is, and which members have still to be restarted.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated, Any

import typer

from headrace.cli.completing import groups_there
from headrace.cli.options import Json, Target, targeted
from headrace.cli.output import Column, CommandError, note, print_json, table, usage
from headrace.client.admin import Admin, GroupDescription
from headrace.client.admin.types import ConfigResource, ResourceType
from headrace.words import plural

POLICY = "group.consumer.migration.policy"
_WAIT_S = 1.0


class Protocol(StrEnum):
    CLASSIC = "classic"
    CONSUMER = "consumer"


_ALLOWING = {Protocol.CONSUMER: ("bidirectional", "upgrade"), Protocol.CLASSIC: ("bidirectional", "downgrade")}


@targeted
def migrate(
    group: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=groups_there)],
    to: Annotated[Protocol, typer.Option("--to", help="The protocol that all members are to speak.")] = (
        Protocol.CONSUMER
    ),
    wait: Annotated[bool, typer.Option("--wait", help="Until no member is left to restart.")] = False,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Show how far a group has changed over to another protocol, and which members to restart."""
    with target.admin() as admin:
        while True:
            document = _document(admin, admin.describe_groups([group])[group], to)
            if not wait or document["done"] or document["problem"]:
                break
            time.sleep(_WAIT_S)
    if as_json:
        print_json(document)
    else:
        _show(document, to)
    if document["problem"] is not None:
        raise CommandError(document["problem"])


def _document(admin: Admin, group: GroupDescription, to: Protocol) -> dict[str, Any]:
    if group.type not in ("classic", "consumer"):
        raise usage(f"{group.group_id} is a {group.type} group: only classic and consumer groups change over")
    members = [
        {
            "member": member.member_id,
            "client": member.client_id,
            "host": member.host.lstrip("/"),
            "protocol": "classic" if group.type == "classic" else member.protocol or "consumer",
        }
        for member in group.members
    ]
    left = [member for member in members if member["protocol"] != to.value]
    is_done = group.type == to.value and not left
    return {
        "group": group.group_id,
        "type": group.type,
        "to": to.value,
        "members": len(members),
        "to_restart": left,
        "done": is_done,
        "problem": None if is_done or not members else _problem(admin, group, to),
    }


def _problem(admin: Admin, group: GroupDescription, to: Protocol) -> str | None:
    """What the brokers have against it."""
    level = admin.describe_features().finalized.get("group.version")
    if to is Protocol.CONSUMER and (level is None or level.max_version < 1):
        return "the cluster does not serve the consumer protocol: set the feature group.version to 1"
    broker = ConfigResource(ResourceType.BROKER, str(group.coordinator.id))
    entry = admin.describe_configs([broker])[broker].get(POLICY)
    policy = None if entry is None or entry.value is None else str(entry.value).lower()
    if policy is None or policy in _ALLOWING[to]:
        return None
    return (
        f"{POLICY}={policy} of broker {group.coordinator.id} does not let members of the {to.value} protocol into "
        f"{group.group_id} while others are there: set it to bidirectional, or stop all members first"
    )


def _show(document: dict[str, Any], to: Protocol) -> None:
    left = document["to_restart"]
    count = document["members"]
    if document["done"]:
        note(f"{document['group']} is a {to.value} group: {plural(count, 'member')}, all speak that protocol.")
    elif not count:
        note(
            f"{document['group']} has no members: it changes over with the first one that comes with "
            f"group.protocol={to.value}."
        )
    else:
        note(
            f"{document['group']}: {count - len(left)} of {plural(count, 'member')} speak the {to.value} protocol. "
            f"Restart these, one after the other, with group.protocol={to.value}:"
        )
        columns = [Column("client", "CLIENT"), Column("host", "HOST"), Column("protocol", "PROTOCOL")]
        print("\n".join(table(left, [*columns, Column("member", "MEMBER")])))
