"""`headrace acl` and `headrace quota`."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import testing
from headrace.cli import start
from headrace.cli.acl_suggesting import Refusal, refusals, suggest
from headrace.cluster.acls import Operation, Resource
from headrace.cluster.broker_config import BrokerConfig

from .conftest import Command

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def kafka() -> Iterator[testing.EmbeddedBroker]:
    """One where everybody who comes without a name may do everything."""
    overrides = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with testing.broker(overrides=overrides) as embedded:
        yield embedded


def test_rules_are_added_listed_and_removed(headrace: Command) -> None:
    added = headrace("acl", "add", "alice", "read,describe-configs", "topic:orders", "group:billing-*")
    assert added.code == 0, added.err
    assert added.lines == [
        "added: allow User:alice read on topic orders",
        "added: allow User:alice describe_configs on topic orders",
        "added: allow User:alice read on group prefix billing-",
        "added: allow User:alice describe_configs on group prefix billing-",
    ]
    assert headrace("acl", "add", "CN=a,O=b", "all", "cluster", "--deny", "--host", "10.0.0.1").code == 0
    listed = headrace("acl", "list", "--json").json()
    assert len(listed) == 5
    assert listed[0] == {
        "permission": "deny",
        "principal": "User:CN=a,O=b",
        "operation": "all",
        "resource": "cluster",
        "host": "10.0.0.1",
    }
    of_one = headrace("acl", "list", "-u", "alice", "-r", "group:billing-7").lines
    assert [line.split()[2:4] for line in of_one[1:]] == [
        ["read", "group:billing-*"],
        ["describe-configs", "group:billing-*"],
    ]
    wrong = headrace("acl", "remove", "alice", "write", "topic:orders")
    assert wrong.code == 1
    assert "allow User:alice read on topic orders" in wrong.err
    assert headrace("acl", "remove", "CN=a,O=b", "all", "cluster", "--deny", "--host", "10.0.0.1").code == 2
    assert headrace("acl", "remove", "CN=a,O=b", "all", "cluster", "--deny", "--host", "10.0.0.1", "-y").code == 0
    gone = headrace("acl", "remove", "alice", "read,describe-configs", "topic:orders", "group:billing-*")
    assert len(gone.lines) == 4
    assert headrace("acl", "list", "--json").json() == []


@pytest.mark.parametrize(
    "words",
    [("alice", "reed", "topic:t"), ("alice", "read", "topics:t"), ("alice", "read", "t"), ("alice", "read", "topic:")],
)
def test_wrong_words_are_refused_with_the_right_ones(headrace: Command, words: tuple[str, ...]) -> None:
    result = headrace("acl", "add", *words)
    assert result.code == 2
    assert "describe" in result.err or "topic:NAME" in result.err


def test_explain_names_the_rule_that_decides_or_the_one_that_is_missing(headrace: Command) -> None:
    missing = headrace("acl", "explain", "bob", "write", "topic:explained")
    assert (missing.code, missing.lines) == (
        1,
        [
            "no: User:bob may not write topic:explained, as no rule allows it",
            "  to allow it: headrace acl add bob write topic:explained",
        ],
    )
    assert "super.users" in missing.err
    headrace("acl", "add", "bob", "write", "topic:expl*")
    allowed = headrace("acl", "explain", "bob", "describe", "topic:explained")
    assert allowed.code == 0
    assert allowed.lines[1] == "  allow User:bob write on topic prefix expl"
    headrace("acl", "add", "*", "write", "topic:explained", "--deny", "--host", "10.0.0.1")
    elsewhere = headrace("acl", "explain", "bob", "write", "topic:explained")
    assert elsewhere.code == 0
    assert elsewhere.lines[-1] == "  only from 10.0.0.1: deny User:* write on topic explained from 10.0.0.1"
    denied = headrace("acl", "explain", "bob", "write", "topic:explained", "--host", "10.0.0.1", "--json")
    assert denied.code == 1
    assert denied.json()["reason"] == "denied"
    words = headrace("acl", "explain", "bob", "write", "topic:explained", "--host", "10.0.0.1").lines[-1]
    assert words == "  to take it back: headrace acl remove '*' write topic:explained --deny --host 10.0.0.1"
    assert headrace("acl", "explain", "bob", "alter", "cluster", "--super-user", "bob").code == 0


# --- suggest ----------------------------------------------------------------------------------------------------------


def refused(operation: str, resource: str, name: str, principal: str = "User:alice") -> str:
    told = {"event": "refused", "principal": principal, "host": "10.0.0.1", "operation": operation}
    return json.dumps({**told, "resource": resource, "name": name})


def test_suggest_asks_for_the_fewest_rules_that_give_what_was_refused(command: Command, tmp_path: Path) -> None:
    lines = [
        "not json",
        '{"event": "changed"}',
        refused("describe", "topic", "orders"),
        "broker[7]: " + refused("write", "topic", "orders"),
        refused("write", "topic", "orders"),
        refused("idempotent_write", "cluster", "kafka-cluster"),
        refused("describe", "group", "billing"),
        refused("read", "group", "billing"),
        refused("read", "topic", "x", principal="User:bob"),
        refused("read", "topic", "y" * 600 + "…"),
        refused("nonsense", "topic", "z"),
    ]
    path = tmp_path / "audit.jsonl"
    path.write_text("\n".join(lines))
    result = command("acl", "suggest", str(path))
    assert result.lines == [
        "headrace acl add alice write topic:orders",
        "headrace acl add alice read group:billing",
        "headrace acl add bob read topic:x",
    ]
    assert command("acl", "suggest", "-u", "bob", stdin="\n".join(lines)).lines == result.lines[2:]
    assert "--host 10.0.0.1" in command("acl", "suggest", "-u", "bob", "--by-host", str(path)).out
    assert "Nothing was refused to User:carol" in command("acl", "suggest", "-u", "carol", str(path)).err


def test_many_names_that_begin_alike_become_one_prefix_where_that_is_wanted() -> None:
    asked = [
        Refusal("User:a", "h", Operation.READ, Resource.TOPIC, name)
        for name in ("orders.eu", "orders.us", "orders.jp", "alone", "few-1", "few-2")
    ]
    assert len(suggest(asked)) == 6
    assert [str(acl) for acl in suggest(asked, prefixes=True)] == [
        "allow User:a read on topic alone",
        "allow User:a read on topic few-1",
        "allow User:a read on topic few-2",
        "allow User:a read on topic prefix orders.",
    ]


def test_what_is_suggested_is_what_a_refused_client_lacked(tmp_path: Path, command: Command) -> None:
    """From the refusals of a broker to the rules that end them."""
    audit = tmp_path / "audit" / "log.jsonl"
    settings = {"authorizer.class.name": AUTHORIZER, "super.users": "User:admin", "headrace.audit.file": str(audit)}
    start.write_audit_log(BrokerConfig.parse({"log.dirs": str(tmp_path / "data"), **settings}))
    with testing.broker(overrides=settings) as running:
        failed = command("produce", "wanted", "-b", running.address, stdin="a\n")
        assert failed.code == 1
        suggested = command("acl", "suggest", str(audit))
    assert suggested.lines == ["headrace acl add ANONYMOUS describe topic:wanted"]
    assert stat.S_IMODE(os.stat(audit).st_mode) == 0o600
    assert [one.name for one in refusals(audit.read_text().splitlines())][-1] == "wanted"


# --- quotas -----------------------------------------------------------------------------------------------------------


def test_quotas_are_set_listed_described_and_taken_back(headrace: Command) -> None:
    done = headrace("quota", "set", "produce=5MB", "requests=50%", "-u", "alice", "-c", "app")
    assert done.code == 0, done.err
    assert done.lines == [
        "produce of user alice, client app is 5 MB/s now",
        "requests of user alice, client app is 50 % of a core now",
    ]
    assert headrace("quota", "set", "consume=1000", "-u", "default").code == 0
    assert headrace("quota", "set", "connections=20", "-a", "10.0.0.1").code == 0
    listed = headrace("quota", "list", "--json").json()
    assert [(row["who"], row["key"], row["value"]) for row in listed] == [
        ("address 10.0.0.1", "connection_creation_rate", 20.0),
        ("user (default)", "consumer_byte_rate", 1000.0),
        ("user alice, client app", "producer_byte_rate", 5e6),
        ("user alice, client app", "request_percentage", 50.0),
    ]
    counting = headrace("quota", "describe", "-u", "alice", "-c", "app").lines[1:]
    assert [line.split()[-3:-1] for line in counting[:1]] == [["consume", "1"]]
    assert len(counting) == 3
    assert headrace("quota", "describe", "-u", "bob").lines[1].split() == ["user", "(default)", "consume", "1", "KB/s"]
    assert headrace("quota", "set", "produce=", "requests=", "-u", "alice", "-c", "app").code == 0
    assert len(headrace("quota", "list", "--json").json()) == 2


@pytest.mark.parametrize(
    "words", [("produce=5", "--dry-run"), ("produse=5", "-u", "a"), ("produce=much", "-u", "a"), ("produce", "-u", "a")]
)
def test_a_wrong_quota_is_a_usage_error(headrace: Command, words: tuple[str, ...]) -> None:
    assert headrace("quota", "set", *words).code == 2


def test_a_quota_that_kafka_refuses_is_refused(headrace: Command) -> None:
    result = headrace("quota", "set", "connections=1", "-u", "alice")
    assert (result.code, "connection_creation_rate" in result.err) == (1, True)
