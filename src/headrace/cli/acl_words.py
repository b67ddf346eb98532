"""How rules are written on the command line: `alice read topic:orders`, `alice all group:billing-*`."""

from __future__ import annotations

import shlex
from typing import Final

from headrace.cli.output import usage
from headrace.cluster.acls import ANY_HOST, CLUSTER_NAME, WILDCARD, Acl, Operation, PatternType, Permission, Resource

_USER: Final = "User:"
_RESOURCES: Final = {
    "topic": Resource.TOPIC,
    "group": Resource.GROUP,
    "cluster": Resource.CLUSTER,
    "txn": Resource.TRANSACTIONAL_ID,
    "token": Resource.DELEGATION_TOKEN,
    "user": Resource.USER,
}
_ALSO: Final = {
    "transactional-id": Resource.TRANSACTIONAL_ID,
    "transactional_id": Resource.TRANSACTIONAL_ID,
    "delegation-token": Resource.DELEGATION_TOKEN,
    "delegation_token": Resource.DELEGATION_TOKEN,
}
_WORDS: Final = {kind: word for word, kind in _RESOURCES.items()}
RESOURCE_HELP: Final = "topic:NAME, group:NAME, txn:ID, token:ID, user:PRINCIPAL, cluster. NAME*: all that begin so."
OPERATION_HELP: Final = "read, write, create, delete, alter, describe, … or all; several with commas."


def principal_of(text: str) -> str:
    """`alice` is User:alice; whatever has a type already is left as it is."""
    return text if ":" in text else _USER + text


def operation_of(text: str) -> Operation:
    try:
        return Operation[text.strip().upper().replace("-", "_")]
    except KeyError:
        known = ", ".join(operation_word(one) for one in Operation)
        raise usage(f"{text!r} is no operation; there are {known}") from None


def operations_of(text: str) -> list[Operation]:
    return list(dict.fromkeys(operation_of(part) for part in text.split(",") if part.strip()))


def operation_word(operation: int) -> str:
    return Operation(operation).name.lower().replace("_", "-")


def resource_of(text: str, *, literal: bool = False) -> tuple[Resource, PatternType, str]:
    """What a rule is about. `literal`: a star at the end of the name is a part of it."""
    word, colon, name = text.partition(":")
    kind = _RESOURCES.get(word.lower()) or _ALSO.get(word.lower())
    if kind is Resource.CLUSTER and name in ("", CLUSTER_NAME):
        return kind, PatternType.LITERAL, CLUSTER_NAME
    if kind is None or not colon or not name:
        raise usage(f"{text!r} is no resource: {RESOURCE_HELP}")
    if name != WILDCARD and name.endswith(WILDCARD) and not literal:
        return kind, PatternType.PREFIXED, name.removesuffix(WILDCARD)
    return kind, PatternType.LITERAL, name


def resource_word(resource: int, pattern: int, name: str) -> str:
    if resource == Resource.CLUSTER:
        return "cluster"
    return f"{_WORDS[Resource(resource)]}:{name}{WILDCARD if pattern == PatternType.PREFIXED else ''}"


def user_word(principal: str) -> str:
    name = principal.removeprefix(_USER)
    return principal if ":" in name else name


def written(acl: Acl) -> str:
    """One rule, as `add` and `remove` take it."""
    words = [
        user_word(acl.principal),
        operation_word(acl.operation),
        resource_word(acl.resource, acl.pattern, acl.name),
    ]
    if acl.permission == Permission.DENY:
        words.append("--deny")
    if acl.host != ANY_HOST:
        words += ["--host", acl.host]
    if acl.pattern == PatternType.LITERAL and acl.name != WILDCARD and acl.name.endswith(WILDCARD):
        words.append("--literal")
    return shlex.join(words)
