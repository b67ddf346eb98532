"""Rules decide as Kafka's StandardAuthorizer does, and their number does not matter."""

from __future__ import annotations

import gzip
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cluster.acl_authorizer import AclAuthorizer, is_authorized
from headrace.cluster.acls import Acl, Operation, PatternType, Permission, Resource
from headrace.cluster.authorizer import Reason, Rules, java_host, parse_super_users
from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.image import Image
from headrace.cluster.records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from headrace.config import ConfigError

VECTORS = Path(__file__).parents[1] / "reference" / "vectors" / "authorizer.jsonl.gz"
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ALICE, BOB, HOST = "User:alice", "User:bob", "10.0.0.1"
NEW_US_MAX, BUILD_S_MAX = 20.0, 5.0


def vectors() -> Iterator[dict[str, Any]]:
    with gzip.open(VECTORS, "rt") as lines:
        yield from map(json.loads, lines)


def acl(permission: str, principal: str, operation: str, kind: str, pattern: str, name: str, host: str = "*") -> Acl:
    return Acl(
        Permission[permission], principal, host, Operation[operation], Resource[kind], PatternType[pattern], name
    )


def test_every_verdict_is_that_of_the_real_authorizer() -> None:
    checked = 0
    for case in vectors():
        rules = Rules(super_users=parse_super_users(case["super_users"]), allow_everyone=case["allow_everyone"])
        for permission, principal, operation, kind, pattern, name, host in case["acls"]:
            rules.add(acl(permission, principal, operation, kind, pattern, name, host))
        for principal, host, operation, kind, name, expected in case["checks"]:
            asked = (principal, host, Operation[operation], Resource[kind], name)
            assert rules.verdict(*asked) == (expected == "ALLOWED"), (case["id"], asked)
            assert rules.explain(*asked).is_allowed == (expected == "ALLOWED"), (case["id"], asked)
            checked += 1
        for principal, host, operation, kind, expected in case["by_resource_type"]:
            any_of = (principal, host, Operation[operation], Resource[kind])
            assert rules.may_on_any(*any_of) == (expected == "ALLOWED"), (case["id"], any_of)
            checked += 1
    assert checked == 13_520


def test_the_rule_that_decided_is_told() -> None:
    rules = Rules(super_users=frozenset({"User:root"}), allow_everyone=True)
    reads = acl("ALLOW", ALICE, "READ", "TOPIC", "PREFIXED", "orders")
    never = acl("DENY", "User:*", "WRITE", "TOPIC", "LITERAL", "orders.eu", HOST)
    rules.add(reads)
    rules.add(never)

    def explain(principal: str, operation: Operation, name: str, host: str = HOST) -> tuple[bool, Reason, Acl | None]:
        found = rules.explain(principal, host, operation, Resource.TOPIC, name)
        return found.is_allowed, found.reason, found.rule

    assert explain("User:root", Operation.WRITE, "orders.eu") == (True, Reason.SUPER_USER, None)
    assert explain(ALICE, Operation.DESCRIBE, "orders.eu") == (True, Reason.ALLOWED, reads)
    assert explain(BOB, Operation.WRITE, "orders.eu") == (False, Reason.DENIED, never)
    assert explain(ALICE, Operation.WRITE, "orders.eu", "10.0.0.2") == (False, Reason.NOT_ALLOWED, None)
    assert explain(BOB, Operation.READ, "other") == (True, Reason.NO_RULES, None)


_ACLS = st.builds(
    acl,
    st.sampled_from(["ALLOW", "DENY"]),
    st.sampled_from([ALICE, BOB, "User:*"]),
    st.sampled_from(["ALL", "READ", "WRITE", "DESCRIBE", "ALTER_CONFIGS"]),
    st.sampled_from(["TOPIC", "GROUP"]),
    st.sampled_from(["LITERAL", "PREFIXED"]),
    st.sampled_from(["a", "ab", "abc", "b", "*"]),
    st.sampled_from(["*", HOST]),
)


@given(st.lists(st.tuples(_ACLS, st.booleans()), max_size=12))
@settings(max_examples=150, deadline=None)
def test_rules_that_came_and_went_leave_nothing_behind(changes: list[tuple[Acl, bool]]) -> None:
    """Added and removed in any order, they decide as those that are left do."""
    present: list[Acl] = []
    rules = Rules(allow_everyone=True)
    for one, is_removal in changes:
        if is_removal and present:
            gone = present.pop(len(present) // 2)
            rules.remove(gone)
        present.append(one)
        rules.add(one)
    fresh = Rules(allow_everyone=True)
    for one in present:
        fresh.add(one)
    assert sorted(rules.all()) == sorted(set(present))
    for principal in (ALICE, "User:carol"):
        for operation in (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS):
            for name in ("a", "abcd", "c", "*"):
                asked = (principal, HOST, operation, Resource.TOPIC, name)
                assert rules.verdict(*asked) == fresh.verdict(*asked)


def test_ten_thousand_rules_are_decided_by_in_microseconds() -> None:
    rng = random.Random(1)
    rules = Rules()
    began = time.perf_counter()
    for number in range(10_000):
        name = f"{rng.choice(['orders', 'payments', 'users'])}.{number % 3000}.{'x' * rng.randrange(20)}"
        pattern, operation = rng.choice(["LITERAL", "PREFIXED"]), rng.choice(["READ", "WRITE", "DELETE", "DESCRIBE"])
        rules.add(acl("ALLOW", f"User:u{number % 300}", operation, "TOPIC", pattern, name))
    assert time.perf_counter() - began < BUILD_S_MAX
    names = [f"orders.{number}.xxxxx" for number in range(1000)]
    best_us = min(_verdicts_us(rules, names) for _ in range(5))
    assert best_us < NEW_US_MAX


def _verdicts_us(rules: Rules, names: list[str]) -> float:
    began = time.perf_counter()
    for name in names:
        rules.verdict("User:u7", HOST, Operation.READ, Resource.TOPIC, name)
    return (time.perf_counter() - began) / len(names) * 1e6


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::a%eth0", "fe80:0:0:0:0:0:0:a%eth0"),
        ("?", "?"),
    ],
)
def test_addresses_are_compared_as_java_writes_them(host: str, shown: str) -> None:
    assert java_host(host) == shown


def settings_of(**given_settings: str) -> BrokerConfig:
    return BrokerConfig.parse({name.replace("_", "."): value for name, value in given_settings.items()})


def test_an_authorizer_that_is_not_known_is_refused_rather_than_left_out() -> None:
    assert not is_authorized(settings_of())
    assert is_authorized(settings_of(authorizer_class_name=STANDARD))
    with pytest.raises(ConfigError, match="is not known here"):
        is_authorized(settings_of(authorizer_class_name="com.example.Mine"))


def test_settings_of_the_authorizer_are_checked() -> None:
    with pytest.raises(ConfigError, match="is no principal"):
        AclAuthorizer(Image(), settings_of(super_users="admin"))
    with pytest.raises(ConfigError, match="neither true nor false"):
        AclAuthorizer(Image(), BrokerConfig.parse({"allow.everyone.if.no.acl.found": "yes"}))
    assert settings_of(super_users="User:a").unknown() == {}


def test_rules_follow_the_metadata() -> None:
    image = Image()
    authorizer = AclAuthorizer(image, settings_of(super_users="User:root; User:boss"))
    asked = (ALICE, HOST, Operation.READ, Resource.TOPIC, "t")
    version = authorizer.rules_version
    assert not authorizer.verdict(*asked)
    assert authorizer.verdict("User:boss", *asked[1:])
    record = AccessControlEntryRecord(
        id=b"1" * 16,
        resource_type=Resource.TOPIC,
        resource_name="t",
        pattern_type=PatternType.LITERAL,
        principal=ALICE,
        host="*",
        operation=Operation.READ,
        permission_type=Permission.ALLOW,
    )
    image.apply(record)
    assert authorizer.rules_version != version
    assert authorizer.verdict(*asked)
    from_snapshot = Image(version=image.version + 1)
    for each in image.to_records():
        from_snapshot.apply(each)
    image.become(from_snapshot)
    assert authorizer.verdict(*asked)
    version = authorizer.rules_version
    image.apply(RemoveAccessControlEntryRecord(id=b"1" * 16))
    assert authorizer.rules_version != version
    assert not authorizer.verdict(*asked)


def test_nobody_is_everyone() -> None:
    """As a principal's name the wildcard has no rights, whatever the rules for everyone are."""
    image = Image()
    image.apply(
        AccessControlEntryRecord(
            id=b"1" * 16,
            resource_type=Resource.TOPIC,
            resource_name="*",
            pattern_type=PatternType.LITERAL,
            principal="User:*",
            host="*",
            operation=Operation.ALL,
            permission_type=Permission.ALLOW,
        )
    )
    authorizer = AclAuthorizer(image, settings_of())
    assert authorizer.verdict(ALICE, HOST, Operation.READ, Resource.TOPIC, "t")
    assert not authorizer.verdict("User:*", HOST, Operation.READ, Resource.TOPIC, "t")
    assert not authorizer.may_on_any("User:*", HOST, Operation.READ, Resource.TOPIC)
