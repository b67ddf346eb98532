"""Who may do what, decided by rules as Apache Kafka's StandardAuthorizer decides.

In this order: a super user may do everything; a rule that denies beats any that allows, whatever its pattern; a rule
that allows gives its operation and what that implies; where no rule at all is about the resource, everybody may if
`allow.everyone.if.no.acl.found` says so; nobody else may.

Rules are found by name, then by principal and host, so that their number does not matter: a verdict looks up the name
itself, `*`, and one prefix for each length that prefixed rules have.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from headrace.cluster.acls import (
    ANY_HOST,
    EVERYONE,
    IMPLIED,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    Resource,
)

_ALL_BITS: Final = -1
# What is asked first about "any resource of this kind", as Kafka does: who may this may all, by whatever setting.
_ANY_NAME: Final = "hardcode"


class Reason(Enum):
    """Why a verdict is as it is."""

    SUPER_USER = "a super user may do everything (super.users)"
    DENIED = "a rule denies it"
    ALLOWED = "a rule allows it"
    NO_RULES = "no rule is about this resource, and then everybody may (allow.everyone.if.no.acl.found)"
    NOT_ALLOWED = "no rule allows it"


@dataclass(frozen=True, slots=True)
class Explanation:
    is_allowed: bool
    reason: Reason
    #: The rule that decided, if one did.
    rule: Acl | None = None


def parse_super_users(text: str) -> frozenset[str]:
    """The principals in `super.users`, between semicolons."""
    return frozenset(part.strip() for part in text.split(";") if part.strip())


@lru_cache(maxsize=10_000)
def java_host(host: str) -> str:
    """An address as rules have it: Java writes `::1` as `0:0:0:0:0:0:0:1`, and what is IPv4 inside IPv6 as IPv4."""
    if ":" not in host:
        return host
    text, percent, zone = host.partition("%")
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    parts = address.packed
    groups = (f"{parts[i] << 8 | parts[i + 1]:x}" for i in range(0, 16, 2))
    return ":".join(groups) + percent + zone


class _Entry:
    """What one principal may from one host (or all of either), by the rules of one resource."""

    __slots__ = ("acls", "allow", "deny")

    def __init__(self) -> None:
        self.acls: Counter[Acl] = Counter()
        self.allow = self.deny = 0

    def change(self, acl: Acl, by: int) -> None:
        self.acls[acl] += by
        if self.acls[acl] <= 0:
            del self.acls[acl]
        self.allow = self.deny = 0
        for one in self.acls:
            if one.permission == Permission.DENY:
                self.deny |= _bits(one.operation, implied=False)
            else:
                self.allow |= _bits(one.operation, implied=True)


def _bits(operation: int, *, implied: bool) -> int:
    if operation == Operation.ALL:
        return _ALL_BITS
    bits = 1 << operation
    if implied and operation in IMPLIED:
        bits |= 1 << IMPLIED[Operation(operation)]
    return bits


_Named = dict[tuple[str, str], _Entry]


class _OfKind:
    """The rules about one kind of resource."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, _Named] = {}
        self.prefixed: dict[str, _Named] = {}
        #: The lengths of all prefixes, each once.
        self.lengths: tuple[int, ...] = ()

    def change(self, acl: Acl, by: int) -> None:
        by_name = self.prefixed if acl.pattern == PatternType.PREFIXED else self.literal
        named = by_name.setdefault(acl.name, {})
        entry = named.setdefault((acl.principal, acl.host), _Entry())
        entry.change(acl, by)
        if not entry.acls:
            del named[acl.principal, acl.host]
            if not named:
                del by_name[acl.name]
        if acl.pattern == PatternType.PREFIXED and (by > 0 or acl.name not in by_name):
            length = len(acl.name)
            if by < 0:
                self.lengths = tuple(sorted({len(name) for name in by_name}))
            elif length not in self.lengths:
                self.lengths = tuple(sorted((*self.lengths, length)))

    def about(self, name: str) -> Iterator[_Named]:
        """The rules about a resource of this name."""
        found = self.literal.get(name)
        if found is not None:
            yield found
        if name != WILDCARD:
            found = self.literal.get(WILDCARD)
            if found is not None:
                yield found
        longest = len(name)
        prefixed = self.prefixed
        for length in self.lengths:
            if length > longest:
                return
            found = prefixed.get(name[:length])
            if found is not None:
                yield found


class Rules:
    """All rules, and the settings that count beside them."""

    def __init__(self, *, super_users: frozenset[str] = frozenset(), allow_everyone: bool = False) -> None:
        self.super_users = super_users
        self.allow_everyone = allow_everyone
        self._kinds: dict[int, _OfKind] = {}

    def add(self, acl: Acl) -> None:
        self._kinds.setdefault(acl.resource, _OfKind()).change(acl, 1)

    def remove(self, acl: Acl) -> None:
        self._kinds[acl.resource].change(acl, -1)

    def all(self) -> Iterator[Acl]:
        for kind in self._kinds.values():
            yield from _acls_of(kind)

    def verdict(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        if principal in self.super_users:
            return True
        kind = self._kinds.get(resource)
        if kind is None:
            return self.allow_everyone
        host = java_host(host)
        bit = 1 << operation
        has_rules = is_allowed = False
        keys = ((principal, host), (principal, ANY_HOST), (EVERYONE, host), (EVERYONE, ANY_HOST))
        for named in kind.about(name):
            has_rules = True
            for key in keys:
                entry = named.get(key)
                if entry is not None:
                    if entry.deny & bit:
                        return False
                    if entry.allow & bit:
                        is_allowed = True
        return is_allowed or (self.allow_everyone and not has_rules)

    def explain(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> Explanation:
        """The same verdict, with the rule that decided it."""
        if principal in self.super_users:
            return Explanation(True, Reason.SUPER_USER)
        host = java_host(host)
        bit = 1 << operation
        has_rules = False
        allowing: Acl | None = None
        kind = self._kinds.get(resource)
        for named in () if kind is None else kind.about(name):
            has_rules = True
            for who in (principal, EVERYONE):
                for where in (host, ANY_HOST):
                    entry = named.get((who, where))
                    for acl in () if entry is None else entry.acls:
                        is_deny = acl.permission == Permission.DENY
                        if _bits(acl.operation, implied=not is_deny) & bit:
                            if is_deny:
                                return Explanation(False, Reason.DENIED, acl)
                            allowing = allowing or acl
        if allowing is not None:
            return Explanation(True, Reason.ALLOWED, allowing)
        if not has_rules and self.allow_everyone:
            return Explanation(True, Reason.NO_RULES)
        return Explanation(False, Reason.NOT_ALLOWED)

    def may_on_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Whether there can be any resource of this kind that the principal may do this to.

        As in Kafka an operation that another implies does not count here.
        """
        if self.verdict(principal, host, operation, resource, _ANY_NAME):
            return True
        kind = self._kinds.get(resource)
        if kind is None:
            return False
        host = java_host(host)
        allowed: list[Acl] = []
        denied_names: set[str] = set()
        denied_prefixes: set[str] = set()
        for acl in _acls_of(kind):
            if acl.principal not in (principal, EVERYONE) or acl.host not in (host, ANY_HOST):
                continue
            if acl.operation not in (operation, Operation.ALL):
                continue
            if acl.permission == Permission.ALLOW:
                allowed.append(acl)
            elif acl.pattern == PatternType.PREFIXED:
                denied_prefixes.add(acl.name)
            elif acl.name == WILDCARD:
                return False
            else:
                denied_names.add(acl.name)
        for acl in allowed:
            if acl.pattern == PatternType.LITERAL:
                if acl.name == WILDCARD:
                    return True
                if acl.name in denied_names:
                    continue
            if not any(acl.name.startswith(prefix) for prefix in denied_prefixes):
                return True
        return False


def _acls_of(kind: _OfKind) -> Iterable[Acl]:
    for by_name in (kind.literal, kind.prefixed):
        for named in by_name.values():
            for entry in named.values():
                yield from entry.acls
