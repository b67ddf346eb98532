"""`headrace user`: who can log in by SCRAM. Passwords are asked for, read from standard input, or made up."""

from __future__ import annotations

import secrets
import sys
from typing import Annotated

import typer

from headrace.cli.options import Json, Target, Yes, targeted
from headrace.cli.output import Column, CommandError, check_errors, confirm, print_json, show_rows, usage
from headrace.client.admin import ScramMechanism, UserScramCredentialDeletion, UserScramCredentialUpsertion

app = typer.Typer(no_args_is_help=True)

_MECHANISMS = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
_NAMES = {mechanism: name for name, mechanism in _MECHANISMS.items()}
_GENERATED_BYTES = 24


@app.command()
@targeted
def create(
    name: str,
    mechanisms: Annotated[
        list[str] | None,
        typer.Option("--mechanism", "-m", help="SCRAM-SHA-256 or SCRAM-SHA-512; several times. [default: both]"),
    ] = None,
    iterations: Annotated[
        int, typer.Option("--iterations", min=4096, max=16_384, help="How costly a guess is.")
    ] = 8192,
    generate: Annotated[bool, typer.Option("--generate", help="Make up a password, and print it.")] = False,
    from_stdin: Annotated[bool, typer.Option("--password-stdin", help="Read it from standard input.")] = False,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Let a user log in, or give one another password.

    No option takes the password itself: everybody on this machine can see command lines.
    """
    chosen = [_mechanism(text) for text in mechanisms or list(_MECHANISMS)]
    password = _password(name, generate=generate, from_stdin=from_stdin)
    with target.admin() as admin:
        for mechanism in chosen:  # Kafka takes one change of a user in a request
            change = UserScramCredentialUpsertion(name, mechanism, password, iterations)
            admin.alter_user_scram_credentials([change]).all()
    names = [_NAMES[mechanism] for mechanism in chosen]
    if as_json:
        print_json({"user": name, "mechanisms": names, **({"password": password} if generate else {})})
        return
    print(f"user {name} can log in by {' and '.join(names)}")
    if generate:
        print(f"password {password}")


@app.command("list")
@targeted
def list_(as_json: Json = False, *, target: Target) -> None:
    """List users, and how each can log in."""
    with target.admin() as admin:
        results = admin.describe_user_scram_credentials()
    rows = [
        {
            "user": name,
            "mechanisms": [f"{_NAMES.get(one.mechanism, one.mechanism)} ({one.iterations})" for one in found],
        }
        for name, found in sorted(results.ok.items())
    ]
    columns = [Column("user", "USER"), Column("mechanisms", "MECHANISMS (ITERATIONS)")]
    shown = rows if as_json else [row | {"mechanisms": ", ".join(row["mechanisms"])} for row in rows]
    show_rows(
        shown, columns, as_json=as_json, empty="There are no users. (Those of PLAIN are in the brokers' settings.)"
    )
    check_errors(results.errors.values())


@app.command()
@targeted
def delete(names: Annotated[list[str], typer.Argument(metavar="NAME")], yes: Yes = False, *, target: Target) -> None:
    """Let users log in no more. Those who are connected stay so until their connections end."""
    confirm(f"Delete {', '.join(names)}?", yes=yes)
    with target.admin() as admin:
        found = admin.describe_user_scram_credentials(names)
        check_errors(found.errors.values())
        for mechanism in _MECHANISMS.values():  # Kafka takes one change of a user in a request
            has_it = [name for name in names if mechanism in {one.mechanism for one in found.ok[name]}]
            admin.alter_user_scram_credentials([UserScramCredentialDeletion(name, mechanism) for name in has_it]).all()
    for name in names:
        print(f"user {name} is deleted")


def _mechanism(text: str) -> ScramMechanism:
    found = _MECHANISMS.get(text.upper())
    if found is None:
        raise usage(f"{text} is no mechanism of users in the metadata; there are {', '.join(_MECHANISMS)}")
    return found


def _password(name: str, *, generate: bool, from_stdin: bool) -> str:
    if generate and from_stdin:
        raise usage("--generate makes a password up, --password-stdin reads one: give one of them")
    if generate:
        return secrets.token_urlsafe(_GENERATED_BYTES)
    if from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    elif sys.stdin.isatty():
        password = typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True)
    else:
        raise usage("there is nobody to ask for a password: give --password-stdin or --generate")
    if not password:
        raise CommandError("the password is empty")
    return password
