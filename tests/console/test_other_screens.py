"""Screens beyond topics and classic groups: what was refused, share groups, open transactions, compaction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.console.serving import console
from tests.waiting import eventually

from headrace import Producer, ShareConsumer
from headrace.client.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    Admin,
    AlterConfigOp,
    ConfigResource,
    NewTopic,
    ResourceType,
    TopicDescription,
)
from headrace.client.admin.types import AclResourceType
from headrace.console.overview import partition_problems
from headrace.console.refusals import parsed, why_refused
from headrace.testing.embedded import broker

# As brokers write them: one of ours, one of Apache Kafka's authorizer.
OURS = {
    "at": "2026-01-31T12:00:00.000+00:00",
    "event": "refused",
    "principal": "User:billing",
    "host": "10.0.0.7",
    "listener": "SASL",
    "client_id": "till-1",
    "request": "fetch",
    "operation": "read",
    "resource": "topic",
    "name": "orders",
}
CHANGED = {**OURS, "event": "changed", "request": "create_topics", "what": ["orders"], "done": True}
LOGIN = {"at": OURS["at"], "event": "login_refused", "host": "10.0.0.9", "listener": "SASL", "why": "no such user"}
APACHE = (
    "[2026-01-31 12:00:05,901] INFO Principal = User:bob is Denied operation = READ from host = 127.0.0.1 on resource "
    "= Topic:LITERAL:{} for request = Fetch with resourceRefCount = 1 based on rule {} (kafka.authorizer.logger)"
)
DENY = (
    "MatchingAcl(acl=StandardAcl[resourceType=TOPIC, resourceName=alp, patternType=PREFIXED, principal=User:bob, "
    "host=*, operation=READ, permissionType=DENY])"
)


def test_what_brokers_refused_is_one_row_for_each_kind(tmp_path: Path) -> None:
    ours, apache = tmp_path / "audit.jsonl", tmp_path / "kafka-authorizer.log"
    lines = [OURS, {**OURS, "at": "2026-01-31T12:01:00.000+00:00", "repeated": 6}, CHANGED, LOGIN]
    ours.write_text("".join(json.dumps(one) + "\n" for one in lines) + "half a li")
    apache.write_text(f"something else\n{APACHE.format('beta', 'DefaultDeny')}\n{APACHE.format('alpha', DENY)}\n")
    with broker() as kafka:
        missing = tmp_path / "none.log"
        with console(kafka.address, broker_audit=(ours, apache, missing)) as shown:
            found = shown.get("refused")
    rows = {(row["principal"], row["why"].partition(":")[0]): row for row in found["refused"]}
    assert rows["User:billing", "no rule allows it"]["times"] == 8
    assert rows["User:billing", "no rule allows it"]["client_id"] == "till-1"
    assert rows["User:bob", "no rule allows it"]["operation"] == "read"
    assert {row["name"]: "permissionType=DENY" in row["why"] for row in found["refused"]} == {
        "orders": False,
        "beta": False,
        "alpha": True,
    }
    assert [(row["host"], row["why"]) for row in found["logins"]] == [("10.0.0.9", "no such user")]
    assert [(row["request"], row["what"], row["done"]) for row in found["changed"]] == [
        ("create_topics", ["orders"], True)
    ]
    assert found["errors"] == [{"file": str(missing), "error": "No such file or directory"}]


def test_why_something_was_refused_is_the_rule_that_forbids_it() -> None:
    (event,) = parsed([json.dumps(OURS)])
    deny = AclBinding(AclResourceType.TOPIC, "ord", "User:*", AclOperation.ALL, AclPermissionType.DENY)
    assert why_refused(event, [deny]) == "no rule allows it"
    named = AclBinding(AclResourceType.TOPIC, "orders", "User:*", AclOperation.ALL, AclPermissionType.DENY)
    assert why_refused(event, [deny, named]) == "a rule forbids User:* from * to all on topic orders"


@pytest.mark.parametrize("line", ["", "{", "{}", '{"event": "refused"}', '{"event": "refused", "at": "soon"}', "[1]"])
def test_lines_of_other_programs_are_left_out(line: str) -> None:
    assert list(parsed([line])) == []


def test_a_share_group_shows_all_members_of_a_partition_and_its_lag() -> None:
    with broker() as kafka, Admin(bootstrap_servers=kafka.address) as admin:
        admin.create_topics([NewTopic("mails", 1, 1)]).all()
        earliest = [AlterConfigOp("share.auto.offset.reset", "earliest")]
        admin.incremental_alter_configs({ConfigResource(ResourceType.GROUP, "senders"): earliest}).all()
        with Producer(bootstrap_servers=kafka.address) as producer:
            for number in range(20):
                producer.send("mails", str(number).encode())
        settings = {"bootstrap.servers": kafka.address, "group.id": "senders"}
        with (
            ShareConsumer({**settings, "client.id": "one"}) as one,
            ShareConsumer({**settings, "client.id": "two"}) as two,
            console(kafka.address) as shown,
        ):
            for consumer in (one, two):
                consumer.subscribe(["mails"])

            def both() -> bool:
                for consumer in (one, two):
                    consumer.poll(0.05)
                status, _, body = shown.ask("/api/c/kafka/group?name=senders")
                rows = json.loads(body)["partitions"] if status == 200 else []
                return any(len(row["members"]) == 2 for row in rows)

            eventually(both, "both members have the partition")
            page = shown.get("group?name=senders")
            assert page["type"] == "share"
            assert [member["client"] for member in page["members"]] == ["one", "two"]

            eventually(
                lambda: any(row["lag"] is not None for row in shown.get("groups")["rows"] if row["group"] == "senders"),
                "the lag of the share group is sampled",
            )


def test_an_open_transaction_says_what_it_holds_up() -> None:
    with broker() as kafka:
        with Admin(bootstrap_servers=kafka.address) as admin:
            admin.create_topics([NewTopic("paid", 1, 1)]).all()
        with (
            Producer(bootstrap_servers=kafka.address, transactional_id="till") as till,
            Producer(bootstrap_servers=kafka.address) as others,
            console(kafka.address) as shown,
        ):
            others.send("paid", b"before").result()
            till.init_transactions()
            till.begin_transaction()
            till.send("paid", b"open").result()
            others.send("paid", b"behind").result()
            (row,) = shown.get("transactions")["rows"]
            assert (row["state"], row["held_up"], row["stable"]) == ("Ongoing", 2, {"paid-0": 1})
            till.commit_transaction()
            eventually(lambda: shown.get("transactions")["rows"][0]["held_up"] is None, "the transaction is over")


def test_how_far_a_topic_is_compacted_is_shown() -> None:
    with broker(overrides={"headrace.metrics.port": "0"}) as kafka:
        with Admin(bootstrap_servers=kafka.address) as admin:
            admin.create_topics([NewTopic("profiles", 1, 1, {"cleanup.policy": "compact"}), NewTopic("plain", 1, 1)])
        with Producer(bootstrap_servers=kafka.address) as producer:
            producer.send("profiles", b"x", key=b"k").result()
        assert kafka.broker.metrics_address is not None
        with console(kafka.address, metrics=(kafka.broker.metrics_address,)) as shown:
            (row,) = shown.get("topic?name=profiles")["partitions"]
            assert (row["compacted_to"], row["uncleanable"]) == (0, False)
            assert shown.get("topic?name=plain")["partitions"][0]["compacted_to"] is None
            assert shown.get("workers")["errors"] == []


def test_partitions_under_min_insync_replicas_are_named() -> None:
    from headrace.client.admin import TopicPartitionInfo

    all_of_them = (1, 2, 3)
    partitions = TopicPartitionInfo(0, 1, 0, all_of_them, (1,)), TopicPartitionInfo(1, 1, 0, all_of_them, (1, 2))
    topics = {"t": TopicDescription("t", bytes(16), False, partitions)}
    found = partition_problems(topics, {"t": 2})
    assert found["under_replicated"] == {"count": 2, "first": ["t-0", "t-1"]}
    assert found["under_min_isr"] == {"count": 1, "first": ["t-0"]}
    assert partition_problems(topics, {})["under_min_isr"]["count"] == 0
