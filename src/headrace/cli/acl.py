"""`headrace acl`: who may do what. Rules are added, listed, removed; verdicts explained; missing rules suggested."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.acl_suggesting import refusals, suggest
from headrace.cli.acl_words import (
    OPERATION_HELP,
    RESOURCE_HELP,
    operation_of,
    operation_word,
    operations_of,
    principal_of,
    resource_of,
    resource_word,
    written,
)
from headrace.cli.exits import Exit
from headrace.cli.options import Json, Target, Yes, targeted
from headrace.cli.output import Column, CommandError, check_errors, confirm, note, print_json, show_rows, usage
from headrace.client.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    Admin,
    ConfigResource,
    PatternType,
    ResourceType,
)
from headrace.cluster.acls import ANY_HOST, Acl, Operation, Permission, Resource
from headrace.cluster.authorizer import Explanation, Reason, Rules
from headrace.errors import HeadraceError
from headrace.words import plural, visible

app = typer.Typer(no_args_is_help=True)

User = Annotated[str, typer.Argument(metavar="USER", help="alice, User:alice, or * for everybody.")]
Operations = Annotated[str, typer.Argument(metavar="OPERATION[,…]", help=OPERATION_HELP)]
Resources = Annotated[list[str], typer.Argument(metavar="RESOURCE…", help=RESOURCE_HELP)]
Deny = Annotated[bool, typer.Option("--deny", help="A rule that denies, which counts before all that allow.")]
RuleHost = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="From this address only.")]
Literal = Annotated[bool, typer.Option("--literal", help="A star at the end of a name is a part of it.")]

_SUPER_USERS, _EVERYONE = "super.users", "allow.everyone.if.no.acl.found"


def _bindings(
    user: str, operations: str, resources: list[str], *, deny: bool, host: str, literal: bool
) -> list[AclBinding]:
    principal = principal_of(user)
    permission = AclPermissionType.DENY if deny else AclPermissionType.ALLOW
    return [
        AclBinding(
            AclResourceType(kind), name, principal, AclOperation(operation), permission, host, PatternType(pattern)
        )
        for text in resources
        for kind, pattern, name in [resource_of(text, literal=literal)]
        for operation in operations_of(operations)
    ]


def _acl(one: AclBinding) -> Acl:
    return Acl(
        one.permission_type, one.principal, one.host, one.operation, one.resource_type, one.pattern_type,
        one.resource_name,
    )  # fmt: skip


@app.command()
@targeted
def add(
    user: User,
    operations: Operations,
    resources: Resources,
    deny: Deny = False,
    host: RuleHost = ANY_HOST,
    literal: Literal = False,
    *,
    target: Target,
) -> None:
    """Allow something to a user, or deny it."""
    wanted = _bindings(user, operations, resources, deny=deny, host=host, literal=literal)
    with target.admin() as admin:
        results = admin.create_acls(wanted)
    for one in results.ok:
        print(f"added: {_acl(one)}")
    check_errors(results.errors.values())


@app.command("list")
@targeted
def list_(
    user: Annotated[str | None, typer.Option("--user", "-u", help="Rules about this user and everybody.")] = None,
    resource: Annotated[
        str | None, typer.Option("--resource", "-r", metavar="RESOURCE", help="Rules that count for this one.")
    ] = None,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """List rules."""
    wanted = AclBindingFilter()
    if resource is not None:
        kind, _, name = resource_of(resource, literal=True)
        wanted = AclBindingFilter(AclResourceType(kind), name, pattern_type=PatternType.MATCH)
    with target.admin() as admin:
        found = [_acl(one) for one in admin.describe_acls(wanted)]
    if user is not None:
        found = [acl for acl in found if acl.principal in (principal_of(user), "User:*")]
    rows = [
        {
            "permission": Permission(acl.permission).name.lower(),
            "principal": acl.principal,
            "operation": operation_word(acl.operation),
            "resource": resource_word(acl.resource, acl.pattern, acl.name),
            "host": acl.host,
        }
        for acl in sorted(found, key=lambda acl: (acl.principal, acl.resource, acl.name, acl.operation))
    ]
    columns = [Column(key, key.upper()) for key in ("principal", "permission", "operation", "resource", "host")]
    show_rows(rows, columns, as_json=as_json, empty="There are no such rules. Add one with: headrace acl add")


@app.command()
@targeted
def remove(
    user: User,
    operations: Operations,
    resources: Resources,
    deny: Deny = False,
    host: RuleHost = ANY_HOST,
    literal: Literal = False,
    yes: Yes = False,
    *,
    target: Target,
) -> None:
    """Take rules back, exactly those that `add` makes of the same words."""
    wanted = _bindings(user, operations, resources, deny=deny, host=host, literal=literal)
    with target.admin() as admin:
        there = {_acl(one) for one in admin.describe_acls(AclBindingFilter(principal=principal_of(user)))}
        missing = [_acl(one) for one in wanted if _acl(one) not in there]
        if missing:
            known = "\n".join(f"  {acl}" for acl in sorted(there, key=str)) or "  none"
            raise CommandError(f"there is no rule: {missing[0]}\nThe rules of {principal_of(user)} are:\n{known}")
        if deny:
            confirm(f"{plural(len(wanted), 'rule')} that deny would be gone.", yes=yes)
        results = admin.delete_acls(
            [
                AclBindingFilter(
                    one.resource_type, one.resource_name, one.principal, one.operation, one.permission_type, one.host,
                    one.pattern_type,
                )
                for one in wanted
            ]
        )  # fmt: skip
    for found in results.ok.values():
        for one in found:
            print(f"removed: {_acl(one)}")
    check_errors(results.errors.values())


# --- why --------------------------------------------------------------------------------------------------------------


@app.command()
@targeted
def explain(
    user: User,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="read, write, …")],
    resource: Annotated[str, typer.Argument(metavar="RESOURCE", help="topic:NAME, group:NAME, …, cluster")],
    host: Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Where the user comes from.")] = None,
    super_user: Annotated[
        list[str] | None, typer.Option("--super-user", help="One of super.users, which brokers do not tell; several.")
    ] = None,
    everyone: Annotated[
        bool, typer.Option("--everyone", help="As with allow.everyone.if.no.acl.found=true, which is not told either.")
    ] = False,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """May a user do something? Which rule decides, or which is missing. The exit code is 0 for yes and 1 for no."""
    principal, asked = principal_of(user), operation_of(operation)
    if asked is Operation.ALL:
        raise usage("ask for one operation: all is what a rule may allow")
    kind, _, name = resource_of(resource, literal=True)
    with target.admin() as admin:
        found = [_acl(one) for one in admin.describe_acls(AclBindingFilter(AclResourceType(kind)))]
        untold = _untold(admin) if not (super_user or everyone) else []
    rules = Rules(super_users=frozenset(map(principal_of, super_user or ())), allow_everyone=everyone)
    for acl in found:
        rules.add(acl)
    told = rules.explain(principal, host or ANY_HOST, asked, kind, name)
    elsewhere = [] if host else _of_other_hosts(found, principal, asked, kind, name)
    missing = Acl(Permission.ALLOW, principal, ANY_HOST, asked, kind, PatternType.LITERAL, name)
    if as_json:
        print_json(
            {
                "allowed": told.is_allowed,
                "reason": told.reason.name.lower(),
                "rule": None if told.rule is None else str(told.rule),
                "missing": str(missing) if told.reason is Reason.NOT_ALLOWED else None,
                "rules_of_other_hosts": [str(acl) for acl in elsewhere],
                "settings_not_told": untold,
            }
        )
    else:
        where = f" from {host}" if host else ""
        print(
            f"{'yes' if told.is_allowed else 'no'}: {principal} {'may' if told.is_allowed else 'may not'} "
            f"{operation_word(asked)} {visible(resource_word(kind, PatternType.LITERAL, name))}{where}, as "
            f"{told.reason.value}"
        )
        for line in _because(told, missing):
            print(f"  {visible(line)}")
        for acl in elsewhere:
            print(f"  only from {acl.host}: {visible(str(acl))}")
        if untold and not told.is_allowed:
            note(
                f"{' and '.join(untold)}: set on the broker, which does not tell the values. See --super-user and "
                "--everyone."
            )
    if not told.is_allowed:
        raise typer.Exit(Exit.FAILED)


def _because(told: Explanation, missing: Acl) -> Iterator[str]:
    if told.rule is not None:
        yield str(told.rule)
        if not told.is_allowed:
            yield f"to take it back: headrace acl remove {written(told.rule)}"
    elif told.reason is Reason.NOT_ALLOWED:
        yield f"to allow it: headrace acl add {written(missing)}"


def _of_other_hosts(found: Iterable[Acl], principal: str, operation: Operation, kind: Resource, name: str) -> list[Acl]:
    """Rules that would decide for some addresses only."""
    others = []
    for acl in found:
        if acl.host != ANY_HOST:
            alone = Rules()
            alone.add(acl._replace(permission=Permission.ALLOW))
            if alone.verdict(principal, acl.host, operation, kind, name):
                others.append(acl)
    return others


def _untold(admin: Admin) -> list[str]:
    """The settings of the broker that decide, too, and that it does not show."""
    try:
        broker = ConfigResource(ResourceType.BROKER, str(admin.describe_cluster().nodes[0].id))
        settings = admin.describe_configs([broker])[broker]
    except HeadraceError:
        return [_SUPER_USERS, _EVERYONE]
    return [key for key in (_SUPER_USERS, _EVERYONE) if key in settings]


# --- what is missing --------------------------------------------------------------------------------------------------


@app.command("suggest")
def suggest_(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="AUDIT_LOG…", help="audit.jsonl of brokers; none: standard input."),
    ] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="For this user only.")] = None,
    prefixes: Annotated[
        bool,
        typer.Option("--prefixes", help="One rule for many names that begin alike, which allows more."),
    ] = False,
    by_host: Annotated[bool, typer.Option("--by-host", help="Only from the addresses that were seen.")] = False,
) -> None:
    """The fewest rules that a client's refusals in the audit log ask for, as commands. Look before you run them."""
    principal = None if user is None else principal_of(user)
    found = [one for one in refusals(_lines(files or [])) if principal in (None, one.principal)]
    if not found:
        note("Nothing was refused" + (f" to {principal}." if principal else "."))
        return
    for acl in suggest(found, prefixes=prefixes, by_host=by_host):
        print(f"headrace acl add {visible(written(acl))}")


def _lines(files: list[Path]) -> Iterator[str]:
    if not files or files == [Path("-")]:
        yield from sys.stdin
        return
    for path in files:
        try:
            with path.open(encoding="utf-8", errors="replace") as lines:
                yield from lines
        except OSError as error:
            raise usage(f"{path} cannot be read: {error.strerror}") from error
