"""The fewest rules that give a client what the audit log says it was refused, and no more."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from headrace.cluster.acls import ANY_HOST, CLUSTER_NAME, IMPLIED, Acl, Operation, PatternType, Permission, Resource

#: A prefix takes the place of names from so many on.
PREFIX_FROM: Final = 3
_SEPARATORS: Final = ".-_"
_CUT: Final = "…"


class Refusal(NamedTuple):
    principal: str
    host: str
    operation: Operation
    resource: Resource
    name: str


def refusals(lines: Iterable[str]) -> Iterator[Refusal]:
    """What was refused, by the lines of an audit log. What stands before the JSON, as journals have it, is left out."""
    for line in lines:
        begin = line.find("{")
        if begin < 0:
            continue
        try:
            told: Any = json.loads(line[begin:])
            if told.get("event") != "refused" or str(told["name"]).endswith(_CUT):
                continue
            operation, resource = Operation[told["operation"].upper()], Resource[told["resource"].upper()]
            yield Refusal(str(told["principal"]), str(told["host"]), operation, resource, str(told["name"]))
        except (ValueError, KeyError, AttributeError, TypeError):
            continue  # another program's line


def suggest(found: Iterable[Refusal], *, prefixes: bool = False, by_host: bool = False) -> list[Acl]:
    """Rules that allow all of it. `prefixes`: one for many names that begin alike, which allows more than was asked."""
    wanted: dict[tuple[str, str], dict[tuple[Resource, str], set[Operation]]] = defaultdict(lambda: defaultdict(set))
    for one in found:
        host = one.host if by_host else ANY_HOST
        wanted[one.principal, host][one.resource, one.name].add(one.operation)
    rules: list[Acl] = []
    for (principal, host), resources in sorted(wanted.items()):
        _drop_what_narrower_rules_give(resources)
        by_need: dict[tuple[Resource, tuple[Operation, ...]], list[str]] = defaultdict(list)
        for (resource, name), operations in resources.items():
            needed = _not_implied(operations)
            if needed:
                by_need[resource, needed].append(name)
        for (resource, needed), names in sorted(by_need.items()):
            for pattern, name in _patterns(names, prefixes=prefixes and resource != Resource.CLUSTER):
                rules += [Acl(Permission.ALLOW, principal, host, one, resource, pattern, name) for one in needed]
    return rules


def _not_implied(operations: set[Operation]) -> tuple[Operation, ...]:
    """Without what the others give."""
    if Operation.ALL in operations:
        return (Operation.ALL,)
    given = {IMPLIED[one] for one in operations if one in IMPLIED}
    return tuple(sorted(operations - given))


def _drop_what_narrower_rules_give(resources: dict[tuple[Resource, str], set[Operation]]) -> None:
    """A right to the cluster is not needed where rights to topics do."""
    of_cluster = resources.get((Resource.CLUSTER, CLUSTER_NAME))
    if of_cluster is None:
        return
    of_topics = {one for (kind, _), operations in resources.items() if kind == Resource.TOPIC for one in operations}
    if Operation.WRITE in of_topics:
        of_cluster.discard(Operation.IDEMPOTENT_WRITE)
    if Operation.CREATE in of_topics:
        of_cluster.discard(Operation.CREATE)


def _patterns(names: Iterable[str], *, prefixes: bool) -> list[tuple[PatternType, str]]:
    names = sorted(set(names))
    if not prefixes:
        return [(PatternType.LITERAL, name) for name in names]
    alike: dict[str, list[str]] = defaultdict(list)
    for name in names:
        alike[_stem(name)].append(name)
    found: list[tuple[PatternType, str]] = []
    for stem, same in alike.items():
        if stem and len(same) >= PREFIX_FROM:
            found.append((PatternType.PREFIXED, stem))
        else:
            found += [(PatternType.LITERAL, name) for name in same]
    return sorted(found, key=lambda one: one[1])


def _stem(name: str) -> str:
    """A name up to its first separator, that included; nothing for a name that has none."""
    ends = [at for at in map(name.find, _SEPARATORS) if at > 0]
    return name[: min(ends) + 1] if ends else ""
