"""`headrace quota`: how much users, client ids and addresses may use of a broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from headrace.cli.options import Json, Target, pairs, targeted
from headrace.cli.output import Column, check_errors, show_rows, usage
from headrace.client.admin import ClientQuotaEntity

app = typer.Typer(no_args_is_help=True)

#: By the words of the command line, the names that Kafka gives to quotas.
KEYS: Final = {
    "produce": "producer_byte_rate",
    "consume": "consumer_byte_rate",
    "requests": "request_percentage",
    "changes": "controller_mutation_rate",
    "connections": "connection_creation_rate",
}
_WORDS: Final = {key: word for word, key in KEYS.items()}
_BYTES: Final = {"producer_byte_rate", "consumer_byte_rate"}
_UNITS: Final = {"k": 10**3, "m": 10**6, "g": 10**9}
_KINDS: Final = {"user": "user", "client": "client-id", "address": "ip"}
_HELP: Final = (
    "produce=BYTES and consume=BYTES a second (5MB will do), requests=PERCENT of a core, changes=PARTITIONS created "
    "and deleted a second, connections=NUMBER a second (addresses only)."
)

User = Annotated[str | None, typer.Option("--user", "-u", help="A user; `default`: each that has none by name.")]
Client = Annotated[str | None, typer.Option("--client", "-c", help="A client id, or `default`.")]
Address = Annotated[str | None, typer.Option("--address", "-a", help="An address, or `default`.")]


def _entity(user: str | None, client: str | None, address: str | None) -> dict[str, str | None]:
    given = {"user": user, "client": client, "address": address}
    return {_KINDS[kind]: None if name == "default" else name for kind, name in given.items() if name is not None}


def _named(user: str | None, client: str | None, address: str | None) -> ClientQuotaEntity:
    found = _entity(user, client, address)
    if not found:
        raise usage("whose quota? Name a --user, a --client, both, or an --address; `default` is for all others")
    return ClientQuotaEntity.of(found)


def _key(word: str) -> str:
    key = KEYS.get(word, word)
    if key not in _WORDS:
        raise usage(f"{word!r} is no quota: {_HELP}")
    return key


def _value(key: str, text: str) -> float:
    number, scale = text.strip().lower().removesuffix("/s"), 1
    if key in _BYTES:
        number = number.removesuffix("b")
        scale = _UNITS.get(number[-1:], 1)
        number = number.rstrip("kmg") if scale > 1 else number
    elif key == "request_percentage":
        number = number.removesuffix("%")
    try:
        return float(number) * scale
    except ValueError:
        raise usage(f"{text!r} is no number. {_HELP}") from None


@app.command("set")
@targeted
def set_(
    quotas: Annotated[list[str], typer.Argument(metavar="QUOTA=NUMBER…", help=_HELP)],
    user: User = None,
    client: Client = None,
    address: Address = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say whether it would be accepted.")] = False,
    *,
    target: Target,
) -> None:
    """Set quotas; an empty value takes one back."""
    entity = _named(user, client, address)
    changes: dict[str, float | None] = {}
    for word, text in pairs(quotas, "quota").items():
        key = _key(word)
        changes[key] = _value(key, text) if text else None
    with target.admin() as admin:
        results = admin.alter_client_quotas({entity: changes}, validate_only=dry_run)
    check_errors(results.errors.values())
    for key, value in changes.items():
        done = "would be accepted" if dry_run else "is taken back" if value is None else f"is {shown(key, value)} now"
        print(f"{_WORDS[key]} of {_who(dict(entity.entries))} {done}")


@app.command("list")
@targeted
def list_(as_json: Json = False, *, target: Target) -> None:
    """List all quotas."""
    with target.admin() as admin:
        found = admin.describe_client_quotas()
    _show(found, as_json=as_json)


@app.command()
@targeted
def describe(
    user: User = None, client: Client = None, address: Address = None, as_json: Json = False, *, target: Target
) -> None:
    """What counts for somebody: the quotas by name, and those of all others where there are none."""
    wanted = _entity(user, client, address)
    if not wanted:
        raise usage("whose quotas? Name a --user, a --client, both, or an --address")
    with target.admin() as admin:
        found = admin.describe_client_quotas()
    counting: dict[ClientQuotaEntity, dict[str, float]] = {}
    for key in _WORDS:
        for candidate in _candidates(wanted):
            values = found.get(ClientQuotaEntity.of(candidate), {})
            if key in values:
                counting.setdefault(ClientQuotaEntity.of(candidate), {})[key] = values[key]
                break
    _show(counting, as_json=as_json)


def _candidates(wanted: Mapping[str, str | None]) -> list[dict[str, str | None]]:
    """Whose quotas count, the first that there is."""
    if "ip" in wanted:
        return [{"ip": wanted["ip"]}, {"ip": None}]
    found: list[dict[str, str | None]] = []
    users: list[dict[str, str | None]] = [{"user": wanted["user"]}, {"user": None}] if "user" in wanted else []
    clients: list[dict[str, str | None]] = []
    if "client-id" in wanted:
        clients = [{"client-id": wanted["client-id"]}, {"client-id": None}]
    for user in users:
        found += [user | client for client in clients]
        found.append(user)
    return found + clients


def _show(quotas: Mapping[ClientQuotaEntity, Mapping[str, float]], *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {"who": _who(dict(entity.entries)), "entity": dict(entity.entries), "quota": _WORDS.get(key, key),
         "key": key, "value": value, "limit": shown(key, value)}
        for entity, values in quotas.items()
        for key, value in values.items()
    ]  # fmt: skip
    rows.sort(key=lambda row: (row["who"], row["key"]))
    columns = [Column("who", "WHO"), Column("quota", "QUOTA"), Column("limit", "LIMIT")]
    show_rows(rows, columns, as_json=as_json, empty="There are no quotas. Set one with: headrace quota set")


def _who(entity: Mapping[str, str | None]) -> str:
    words = {kind: word for word, kind in _KINDS.items()}
    return ", ".join(
        f"{words.get(kind, kind)} {'(default)' if name is None else name}"
        for kind, name in sorted(entity.items())[::-1]
    )


def shown(key: str, value: float) -> str:
    """A bound with its unit."""
    if key in _BYTES:
        for unit, scale in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
            if value >= scale:
                return f"{value / scale:g} {unit}/s"
        return f"{value:g} B/s"
    if key == "request_percentage":
        return f"{value:g} % of a core"
    return f"{value:g}/s"
