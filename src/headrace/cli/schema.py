"""`headrace schema`: register, list, check and compare schemas of a registry."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from headrace.cli.options import Json, Yes
from headrace.cli.output import Column, CommandError, confirm, note, print_json, show_rows, usage
from headrace.cli.schemas import RegistryUrl, registry_client, schema_of, type_of
from headrace.schemas.compatibility import Level, check
from headrace.schemas.formats import parse
from headrace.schemas.registry_client import RegistryClient, RegistryRequestError
from headrace.schemas.schema import Reference, Schema, SchemaError

app = typer.Typer(no_args_is_help=True)

T = TypeVar("T")

Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="As in orders-value.")]
File = Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help=".avsc, .json or .proto.")]
Type = Annotated[str | None, typer.Option("--type", help="AVRO, JSON or PROTOBUF; by default as the file is named.")]
References = Annotated[
    list[str] | None,
    typer.Option("--reference", metavar="NAME=SUBJECT:VERSION", help="Another schema that this one uses; several."),
]


@app.command()
def register(
    subject: Subject,
    file: File,
    kind: Type = None,
    reference: References = None,
    as_json: Json = False,
    url: RegistryUrl = None,
) -> None:
    """Register a schema as a subject's next version; the same one again changes nothing."""
    schema = schema_of(file, kind, _references(reference))
    with registry_client(url) as client:
        found = _asked(lambda: client.register(subject, schema))
    if as_json:
        print_json({"subject": subject, "id": found.id, "version": found.version})
    else:
        shown = "" if found.version is None else f", version {found.version}"
        print(f"{subject}: schema {found.id}{shown}")


@app.command("list")
def list_(
    subject: Annotated[str | None, typer.Argument(metavar="SUBJECT", help="Its versions, with their schemas.")] = None,
    as_json: Json = False,
    url: RegistryUrl = None,
) -> None:
    """List subjects with their newest versions; or the versions of one."""
    with registry_client(url) as client:
        if subject is None:
            rows = [_row(client, name) for name in client.subjects()]
        else:
            rows = [_version_row(client, subject, number) for number in _asked(lambda: client.versions(subject))]
    columns = [Column("subject", "SUBJECT", style="1"), Column("version", "VERSION"), Column("id", "ID")]
    columns += [Column("type", "TYPE"), Column("level", "LEVEL")] if subject is None else [Column("type", "TYPE")]
    if subject is not None:
        columns.append(Column("schema", "SCHEMA", wraps=True))
    show_rows(rows, columns, as_json=as_json, empty="The registry has no subjects.")


@app.command("check")
def check_(
    subject: Subject,
    file: File,
    kind: Type = None,
    reference: References = None,
    url: RegistryUrl = None,
) -> None:
    """Say whether a schema could be registered, and what stands against it. Exit code 1: it could not."""
    schema = schema_of(file, kind, _references(reference))
    with registry_client(url) as client:
        found = _asked(lambda: client.check(subject, schema))
        level = client.level(subject)
    for line in found:
        print(line)
    if found:
        raise CommandError(f"{file} does not go with {subject} ({level})")
    note(f"{file} goes with {subject} ({level}).")


@app.command()
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A file, or SUBJECT:VERSION (SUBJECT: the newest).")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Likewise.")],
    kind: Type = None,
    as_json: Json = False,
    url: RegistryUrl = None,
) -> None:
    """Compare two schemas: what changed, and who can read whose records. No registry is needed for two files."""
    with registry_client(url) as client:
        schemas = [_either(client, name, kind) for name in (old, new)]
        try:
            before, after = (parse(one, client.referred(one) if one.references else {}) for one in schemas)
        except SchemaError as error:
            raise usage(str(error)) from error
    findings = {
        "new reads old": [str(one.message) for one in check(after, [(None, before)], Level.BACKWARD)],
        "old reads new": [str(one.message) for one in check(after, [(None, before)], Level.FORWARD)],
    }
    if as_json:
        print_json(findings)
        return
    lines = [_pretty(one.canonical) for one in (before, after)]
    for line in difflib.unified_diff(lines[0], lines[1], old, new, lineterm="", n=2):
        print(line)
    for what, problems in findings.items():
        print(f"{what}: {'yes' if not problems else 'no'}")
        for problem in problems:
            print(f"  {problem}")


@app.command()
def delete(
    subject: Subject,
    permanent: Annotated[bool, typer.Option("--permanent", help="For good; softly deleted before.")] = False,
    yes: Yes = False,
    url: RegistryUrl = None,
) -> None:
    """Delete a subject: softly, so that records can still be read, or for good."""
    confirm(f"Delete {subject}{' for good' if permanent else ''}?", yes=yes)
    with registry_client(url) as client:
        found = _asked(lambda: client.delete(subject, permanent=permanent))
    print(f"{subject}: deleted versions {', '.join(map(str, found))}")


def _asked(ask: Callable[[], T]) -> T:
    try:
        return ask()
    except RegistryRequestError as error:
        raise CommandError(str(error)) from error


def _references(given: list[str] | None) -> tuple[Reference, ...]:
    found = []
    for text in given or []:
        name, separator, where = text.partition("=")
        subject, colon, version = where.rpartition(":")
        if not separator or not colon or not version.isdigit():
            raise usage(f"--reference {text!r} is not NAME=SUBJECT:VERSION")
        found.append(Reference(name, subject, int(version)))
    return tuple(found)


def _row(client: RegistryClient, name: str) -> Mapping[str, object]:
    found = client.latest(name)
    return {
        "subject": name,
        "version": found.version,
        "id": found.id,
        "type": found.schema.type,
        "level": client.level(name),
    }


def _version_row(client: RegistryClient, subject: str, number: int) -> Mapping[str, object]:
    found = client.version(subject, number)
    return {
        "subject": subject,
        "version": number,
        "id": found.id,
        "type": found.schema.type,
        "schema": found.schema.text,
    }


def _either(client: RegistryClient, name: str, kind: str | None) -> Schema:
    path = Path(name)
    if path.is_file():
        return Schema(path.read_text("utf-8"), kind or type_of(path))
    subject, colon, version = name.rpartition(":")
    if colon and version.isdigit():
        return _asked(lambda: client.version(subject, int(version))).schema
    return _asked(lambda: client.latest(name)).schema


def _pretty(text: str) -> list[str]:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False).splitlines()
    except ValueError:
        return text.splitlines()
