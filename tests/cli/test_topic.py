"""`headrace topic`, `config` and `cluster`."""

from __future__ import annotations

import json
import uuid

from .conftest import Command


def test_create_says_what_it_made(headrace: Command) -> None:
    first, second = f"t-{uuid.uuid4().hex[:8]}", f"t-{uuid.uuid4().hex[:8]}"
    result = headrace("topic", "create", first, second, "-p", "2", "-c", "retention.ms=1000")
    assert (result.code, result.out) == (
        0,
        f"{first} created: 2 partitions, 1 replica\n{second} created: 2 partitions, 1 replica\n",
    )


def test_what_can_be_made_is_made_and_the_rest_is_told(headrace: Command, topic: str) -> None:
    fresh = f"t-{uuid.uuid4().hex[:8]}"
    result = headrace("topic", "create", fresh, topic)
    assert result.code == 1
    assert result.out == f"{fresh} created: 1 partition, 1 replica\n"
    assert topic in result.err
    assert result.err.startswith("headrace: ")
    again = headrace("topic", "create", topic, "--if-not-exists")
    assert (again.code, again.out) == (0, f"{topic} exists already\n")


def test_replicas_may_be_named(headrace: Command) -> None:
    assert headrace("topic", "create", "placed", "--replica-assignment", "1,1").out == (
        "placed created: 2 partitions, 1 replica\n"
    )
    assert headrace("topic", "create", "u", "--replica-assignment", "1:x").code == 2
    assert "leave --partitions" in headrace("topic", "create", "u", "--replica-assignment", "1", "-p", "2").err


def test_a_dry_run_makes_nothing(headrace: Command) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    assert "could be created" in headrace("topic", "create", name, "--dry-run").out
    assert name not in headrace("topic", "list").out


def test_a_setting_that_is_none_is_a_usage_error(headrace: Command) -> None:
    result = headrace("topic", "create", "x", "-c", "retention.ms")
    assert (result.code, result.err) == (2, "headrace: --config 'retention.ms' is not KEY=VALUE\n")


def test_list_as_table_and_json(headrace: Command, topic: str) -> None:
    headrace("produce", topic, stdin="a\nb\nc\n")
    result = headrace("topic", "list", "--long")
    titles, *rows = result.lines
    assert titles.split() == ["TOPIC", "PARTITIONS", "REPLICAS", "RECORDS", "SIZE"]
    row = next(row.split() for row in rows if row.startswith(topic))
    assert row[:4] == [topic, "3", "1", "3"]
    (entry,) = [entry for entry in headrace("topic", "list", "--json").json() if entry["name"] == topic]
    assert entry["partitions"] == 3
    assert "__consumer_offsets" not in headrace("topic", "list").out


def test_describe(headrace: Command, topic: str) -> None:
    headrace("topic", "alter", topic, "-c", "retention.ms=777")
    headrace("produce", topic, "-p", "1", stdin="a\nb\n")
    result = headrace("topic", "describe", topic)
    assert result.code == 0
    assert result.lines[0].startswith(f"{topic}  3 partitions, 1 replica, id ")
    assert "  retention.ms=777" in result.lines
    assert result.lines[2].split() == ["PARTITION", "LEADER", "REPLICAS", "ISR", "FIRST", "NEXT", "RECORDS", "SIZE"]
    assert result.lines[4].split()[:7] == ["1", "1", "1", "1", "0", "2", "2"]
    document = headrace("topic", "describe", topic, "--json").json()[0]
    assert document["configs"] == {"retention.ms": "777"}
    assert [row["records"] for row in document["partition_details"]] == [0, 2, 0]
    missing = headrace("topic", "describe", topic, "nope")
    assert missing.code == 1
    assert topic in missing.out
    assert "nope" in missing.err


def test_alter(headrace: Command, topic: str) -> None:
    assert "has 5 partitions now" in headrace("topic", "alter", topic, "-p", "5").out
    assert headrace("topic", "alter", topic).code == 2
    wrong = headrace("topic", "alter", topic, "-c", "retention.mss=1")
    assert (wrong.code, wrong.out) == (1, "")
    assert "retention.mss" in wrong.err


def test_nothing_is_deleted_where_nobody_can_be_asked(headrace: Command, topic: str) -> None:
    headrace("produce", topic, "-p", "0", stdin="one\n")
    for arguments in (("delete", topic), ("delete-records", topic, "--all")):
        result = headrace("topic", *arguments)
        assert (result.code, result.out) == (2, "")
        assert "add --yes" in result.err
    assert headrace("consume", topic).lines == ["one"]


def test_the_oldest_records_are_deleted(headrace: Command, topic: str) -> None:
    headrace("produce", topic, "-p", "1", stdin="one\ntwo\nthree\n")
    assert headrace("topic", "delete-records", topic, "-y").code == 2
    assert headrace("topic", "delete-records", f"{topic}:one", "--all", "-y").code == 2
    result = headrace("topic", "delete-records", f"{topic}:1", "--before", "2", "-y")
    assert (result.code, result.out) == (0, f"{topic}-1 begins at offset 2 now\n")
    assert headrace("consume", topic).lines == ["three"]
    assert headrace("topic", "delete-records", topic, "--all", "--yes").code == 0
    assert headrace("consume", topic).lines == []
    beyond = headrace("topic", "delete-records", f"{topic}:1", "--before", "99", "-y")
    assert beyond.code == 1


def test_delete(headrace: Command, topic: str) -> None:
    result = headrace("topic", "delete", topic, "nope", "--yes")
    assert (result.code, result.out) == (1, f"{topic} deleted\n")
    assert "nope" in result.err
    assert topic not in headrace("topic", "list").out


def test_settings_are_shown_set_and_taken_back(headrace: Command, topic: str) -> None:
    assert f"topic {topic}: retention.ms=42" in headrace("config", "set", "topic", topic, "retention.ms=42").out
    shown = headrace("config", "get", "topic", topic, "retention.ms")
    assert shown.lines[1].split() == ["retention.ms", "42", "topic"]
    (entry,) = headrace("config", "get", "topic", topic, "retention.ms", "--json").json()
    assert (entry["value"], entry["synonyms"][0]["source"]) == ("42", "DYNAMIC_TOPIC_CONFIG")
    assert "default again, 604800000" in headrace("config", "delete", "topic", topic, "retention.ms").out
    assert "retention.ms " not in headrace("config", "get", "topic", topic).out
    assert "retention.ms " in headrace("config", "get", "topic", topic, "--all").out
    missing = headrace("config", "get", "topic", topic, "nope")
    assert missing.code == 1
    assert "no setting nope" in missing.err


def test_settings_of_a_broker_and_of_all(headrace: Command) -> None:
    assert "log.dirs" in headrace("config", "get", "broker", "1").out
    assert headrace("config", "set", "broker", "default", "log.retention.ms=99999").code == 0
    assert "99999" in headrace("config", "get", "broker", "1").out
    assert headrace("config", "delete", "broker", "default", "log.retention.ms").code == 0
    refused = headrace("config", "set", "broker", "1", "log.dirs=/elsewhere")
    assert refused.code == 1
    assert "log.dirs" in refused.err


def test_the_cluster(headrace: Command, topic: str) -> None:
    result = headrace("cluster", "--features")
    assert result.code == 0
    assert result.lines[0].startswith("cluster ")
    assert "LOG DIRECTORY" in result.out
    assert "metadata.version" in result.out
    document = json.loads(headrace("cluster", "--json").out)
    assert document["leaderless"] == document["under_replicated"] == 0
    assert document["brokers"][0]["controller"] is True
