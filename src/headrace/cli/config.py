"""`headrace config`: get, set, delete settings of topics, brokers and groups."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from headrace.cli.completing import configured_there
from headrace.cli.options import Json, Target, pairs, targeted
from headrace.cli.output import Column, CommandError, show_rows
from headrace.client.admin import ConfigEntry, ConfigResource, ConfigSource, ResourceType

app = typer.Typer(no_args_is_help=True)


class EntityKind(StrEnum):
    TOPIC = "topic"
    BROKER = "broker"
    GROUP = "group"


KindArgument = Annotated[EntityKind, typer.Argument(help="What has the settings.")]
NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A topic, a broker's number (or `default`: of all brokers), a group.",
        autocompletion=configured_there,
    ),
]
_TYPES = {
    EntityKind.TOPIC: ResourceType.TOPIC,
    EntityKind.BROKER: ResourceType.BROKER,
    EntityKind.GROUP: ResourceType.GROUP,
}
_SOURCES = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "broker, dynamic",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "all brokers, dynamic",
    ConfigSource.STATIC_BROKER_CONFIG: "broker's file",
    ConfigSource.DEFAULT_CONFIG: "default",
    ConfigSource.GROUP_CONFIG: "group",
}


def _resource(kind: EntityKind, name: str) -> ConfigResource:
    return ConfigResource(_TYPES[kind], "" if kind is EntityKind.BROKER and name == "default" else name)


@app.command()
@targeted
def get(
    kind: KindArgument,
    name: NameArgument,
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]", help="Only these.")] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Values that are the default too.")] = False,
    explain: Annotated[bool, typer.Option("--explain", "-x", help="What each setting is for.")] = False,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Show settings, and where each value comes from."""
    resource = _resource(kind, name)
    with target.admin() as admin:
        found = admin.describe_configs(
            [resource], keys=keys or None, include_synonyms=as_json, include_documentation=explain
        )[resource]
    unknown = [key for key in keys or [] if key not in found]
    if unknown:
        raise CommandError(
            f"{resource} has no setting {', '.join(unknown)}; see: headrace config get {kind} {name} --all"
        )
    shown = [found[key] for key in sorted(found) if keys or everything or not found[key].is_default]
    columns = [Column("name", "KEY"), Column("value", "VALUE", _value), Column("source", "FROM")]
    if explain:
        columns.append(Column("documentation", "WHAT FOR"))
    empty = f"Everything is at its default for {resource}; --all shows it."
    show_rows([_row(entry) for entry in shown], columns, as_json=as_json, empty=empty)


def _value(value: str) -> str:
    return value or '""'


def _row(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": "(hidden)" if entry.is_sensitive else entry.value,
        "source": _SOURCES.get(entry.source, entry.source.name.lower()),
        "read_only": entry.is_read_only,
        "documentation": entry.documentation,
        "synonyms": [{"name": s.name, "value": s.value, "source": s.source.name} for s in entry.synonyms],
    }


@app.command("set")
@targeted
def set_(
    kind: KindArgument,
    name: NameArgument,
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say whether it would be accepted.")] = False,
    *,
    target: Target,
) -> None:
    """Change settings; the others stay as they are."""
    resource, changes = _resource(kind, name), pairs(settings, "setting")
    with target.admin() as admin:
        admin.incremental_alter_configs({resource: changes}, validate_only=dry_run).all()
    for key, value in changes.items():
        print(f"{resource}: {key}={value}" + (" would be accepted" if dry_run else ""))


@app.command()
@targeted
def delete(
    kind: KindArgument,
    name: NameArgument,
    keys: Annotated[list[str], typer.Argument(metavar="KEY")],
    *,
    target: Target,
) -> None:
    """Take settings back to their defaults."""
    resource = _resource(kind, name)
    changes: dict[str, str | None] = dict.fromkeys(keys)
    with target.admin() as admin:
        admin.incremental_alter_configs({resource: changes}).all()
        now = admin.describe_configs([resource], keys=keys)[resource]
    for key in keys:
        value = now[key].value if key in now else None
        print(f"{resource}: {key} is at its default" + (f" again, {value}" if value is not None else " again"))
