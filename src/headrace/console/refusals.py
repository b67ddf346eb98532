"""What brokers refused and why, and what was changed by whom: from their audit logs, where the console can read them.

A Headrace broker writes lines of JSON (`headrace.audit.file`), Apache Kafka `kafka-authorizer.log`. Only the end of
each file is read.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.client.admin import AclBinding, AclBindingFilter, AclOperation, AclPermissionType, PatternType
from headrace.console.cluster import Cluster
from headrace.errors import HeadraceError

TAIL_BYTES = 2 * 1024 * 1024
ROWS_MAX = 500
_NO_RULE = "no rule allows it"
_APACHE = re.compile(
    r"\[(?P<at>[^\]]+)\] \w+ Principal = (?P<principal>.+?) is Denied [Oo]peration = (?P<operation>\w+) "
    r"from host = (?P<host>\S+) on resource = (?P<resource>\w+):\w+:(?P<name>.+) for request = (?P<request>\w+)"
    r"(?: with resourceRefCount = \d+)?(?: based on rule (?P<rule>.+?))?(?: \([\w.]+\))?$"
)


async def refusals(cluster: Cluster) -> dict[str, Any]:
    """What was refused and changed lately, the newest first; the same refusal is one row, with how often it was."""
    files = cluster.settings.broker_audit
    read = await asyncio.gather(*(asyncio.to_thread(_tail, path) for path in files))
    events = [event for lines, _ in read for event in parsed(lines)]
    rules: Sequence[AclBinding] | None = None
    if any(event["event"] == "refused" and "why" not in event for event in events):
        try:
            rules = await cluster.admin.describe_acls(AclBindingFilter())
        except HeadraceError:
            pass  # without the rules it is not known which one forbids it
    refused, logins, changed = _sorted(events, rules)
    return {
        "files": [str(path) for path in files],
        "errors": [{"file": str(path), "error": error} for path, (_, error) in zip(files, read) if error is not None],
        "refused": refused[:ROWS_MAX],
        "refused_total": len(refused),
        "logins": logins[:ROWS_MAX],
        "changed": changed[:ROWS_MAX],
        "changed_total": len(changed),
    }


def _tail(path: Path) -> tuple[list[str], str | None]:
    """The last lines of a file, or why it cannot be read."""
    try:
        with path.open("rb") as source:
            size = source.seek(0, os.SEEK_END)
            source.seek(max(0, size - TAIL_BYTES))
            lines = source.read(TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError as error:
        return [], error.strerror or str(error)
    return lines[1:] if size > TAIL_BYTES else lines, None


def parsed(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The events that lines tell; lines of other programs are left out."""
    for line in lines:
        found = _APACHE.match(line)
        if found is not None:
            yield _of_apache(found)
            continue
        begin = line.find("{")
        if begin < 0:
            continue
        try:
            told = json.loads(line[begin:])
            if isinstance(told, dict) and told.get("event") in ("refused", "login_refused", "changed"):
                yield {**told, "at_ms": datetime.fromisoformat(told["at"]).timestamp() * 1000}
        except (ValueError, KeyError, TypeError, RecursionError):
            continue


def _of_apache(found: re.Match[str]) -> dict[str, Any]:
    rule = found["rule"]
    denied = rule is not None and "DENY" in rule
    try:
        # Its clock is the broker's, in the broker's time zone, which nobody says: taken for the console's own.
        at_ms = datetime.strptime(found["at"], "%Y-%m-%d %H:%M:%S,%f").astimezone(UTC).timestamp() * 1000
    except ValueError:
        at_ms = 0.0
    return {
        "event": "refused",
        "at_ms": at_ms,
        "principal": found["principal"],
        "host": found["host"],
        "client_id": None,
        "request": found["request"].lower(),
        "operation": found["operation"].lower(),
        "resource": found["resource"].lower(),
        "name": found["name"],
        "why": f"a rule forbids it: {rule}" if denied else _NO_RULE,
    }


def _sorted(
    events: Iterable[dict[str, Any]], rules: Sequence[AclBinding] | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    refused: dict[tuple[Any, ...], dict[str, Any]] = {}
    logins: dict[tuple[Any, ...], dict[str, Any]] = {}
    changed: list[dict[str, Any]] = []
    for event in sorted(events, key=lambda one: float(one["at_ms"])):
        if event["event"] == "changed":
            parts = ("principal", "host", "client_id", "request", "what", "done", "more")
            changed.append({"at_ms": event["at_ms"], **{part: event.get(part) for part in parts}})
            continue
        is_login = event["event"] == "login_refused"
        key_parts: tuple[str, ...] = ("host", "listener", "why") if is_login else _PARTS
        kept = logins if is_login else refused
        key = tuple(event.get(part) for part in key_parts)
        # A line says how often the same was refused since the one before it.
        times = 1 + int(event.get("repeated") or 0)
        before = kept.pop(key, None)
        row = {part: event.get(part) for part in key_parts} | {"at_ms": event["at_ms"]}
        row["times"] = times + (0 if before is None else int(before["times"]))
        if not is_login:
            row["why"] = event.get("why") or why_refused(event, rules)
        kept[key] = row
    return list(refused.values())[::-1], list(logins.values())[::-1], changed[::-1]


_PARTS = ("principal", "host", "client_id", "request", "operation", "resource", "name")


def why_refused(event: dict[str, Any], rules: Sequence[AclBinding] | None) -> str:
    """Which rule forbids it now, or that none allows it."""
    for one in rules or ():
        if one.permission_type is AclPermissionType.DENY and _is_of(one, event):
            pattern = "*" if one.pattern_type is PatternType.PREFIXED else ""
            what = f"{one.operation.name.lower()} on {one.resource_type.name.lower()} {one.resource_name}{pattern}"
            return f"a rule forbids {one.principal} from {one.host} to {what}"
    return _NO_RULE


def _is_of(rule: AclBinding, event: dict[str, Any]) -> bool:
    name = str(event.get("name"))
    if rule.pattern_type is PatternType.PREFIXED:
        is_named = name.startswith(rule.resource_name)
    else:
        is_named = rule.resource_name in ("*", name)
    return (
        is_named
        and rule.resource_type.name.lower() == event.get("resource")
        and rule.principal in ("User:*", event.get("principal"))
        and rule.host in ("*", event.get("host"))
        and (rule.operation is AclOperation.ALL or rule.operation.name.lower() == event.get("operation"))
    )
