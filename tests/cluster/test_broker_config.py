"""Broker configuration: the same keys, types, defaults and update modes as Kafka; what may change while running."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headrace
from headrace.cluster.broker_config import (
    BROKER_CONFIGS,
    BROKER_KEYS,
    BrokerConfig,
    UpdateMode,
    base_name,
    dynamic_problem,
    inert_keys,
    is_secret,
    synonyms_of,
)
from headrace.cluster.group_config import GROUP_CONFIGS
from headrace.config import ConfigError, Password, format_value

REFERENCE = Path(__file__).parent.parent / "reference" / "configs" / "broker.jsonl"
# A broker here starts without a configuration file, and keeps its logs apart from Kafka's.
OWN_DEFAULTS = {"node.id", "process.roles", "controller.listener.names", "log.dir"}


def described_by_kafka() -> list[dict[str, object]]:
    return [json.loads(line) for line in REFERENCE.read_text().splitlines()]


def test_every_key_that_kafka_describes_is_here_and_no_other() -> None:
    visible = {name for name, row in BROKER_KEYS.items() if not row.internal and not row.dynamic_only}
    assert visible == {entry["name"] for entry in described_by_kafka()}


def test_types_defaults_modes_and_sensitivity_are_kafkas() -> None:
    compared = 0
    for entry in described_by_kafka():
        row = BROKER_KEYS[str(entry["name"])]
        assert row.key.type.name == entry["type"], row.name
        assert (row.mode is UpdateMode.READ_ONLY) == entry["read_only"], row.name
        assert row.key.is_sensitive == entry["sensitive"], row.name
        if entry["source"] != "STATIC_BROKER_CONFIG" and row.name not in OWN_DEFAULTS:
            default = row.key.default
            assert not row.key.required
            assert (None if row.key.is_sensitive else format_value(default)) == entry["value"], row.name  # type: ignore[arg-type]
            compared += 1
    assert compared > 300


def test_every_default_passes_its_own_check() -> None:
    for key in BROKER_CONFIGS:
        if key.default is not None:
            assert key.parse(key.default) == key.default, key.name  # type: ignore[arg-type]


def test_every_key_is_documented_and_keys_without_effect_are_listed() -> None:
    assert all(row.key.doc for row in BROKER_KEYS.values())
    inert = inert_keys()
    assert "remote.log.reader.threads" in inert
    assert "num.partitions" not in inert
    assert inert == sorted(inert)


# Names that are put together where they are read, from the topic's prefix and what is common to both.
_PREFIXES = ("offsets.topic.", "transaction.state.log.", "share.coordinator.state.topic.")
_READ_BY = ("broker", "cluster", "log", "net", "groups", "transactions", "coordination")


def test_a_key_says_that_it_changes_nothing_just_when_nobody_reads_it() -> None:
    """An operator relies on it: a broker warns of those that were set."""
    root = Path(headrace.__file__).parent
    tables = root / "cluster" / "broker_keys"
    # Of net/, which reads what clients set under the same names, only what is a broker's alone.
    files = [root / "cli" / "start.py", root / "net" / "zookeeper.py"]
    files += [file for room in _READ_BY for file in (root / room).rglob("*.py")]
    text = "\n".join(file.read_text("utf-8") for file in files if tables not in file.parents)

    def is_read(name: str) -> bool:
        of_both = next((name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)), None)
        return is_of_groups(name) or f'"{name}"' in text or f"{{prefix}}.{of_both}" in text

    def is_of_groups(name: str) -> bool:
        """What groups may have for themselves is read as theirs, and so are its limits."""
        kind, _, rest = name.removeprefix("group.").partition(".")
        return any(
            f"{kind}.{one}" in GROUP_CONFIGS for one in (rest, rest.removeprefix("min."), rest.removeprefix("max."))
        )

    said = {row.name for row in BROKER_KEYS.values() if not row.inert}
    assert {name for name in said if not is_read(name)} == set()


def test_what_was_set_in_vain_is_named() -> None:
    given = {"num.network.threads": "3", "background.threads": "20", "num.partitions": "7"}
    given |= {"listener.name.a.ssl.provider": "Other"}
    found = BrokerConfig.parse(given).without_effect()
    assert found == ["background.threads", "listener.name.a.ssl.provider"]


def test_a_broker_starts_with_nothing_configured() -> None:
    config = BrokerConfig.parse({})
    assert config.node_id == -1
    assert config.log_dirs == ("/tmp/headrace-logs",)
    assert config.get_int("num.partitions") == 1
    assert config.get_bool("auto.create.topics.enable") is True


def test_everything_wrong_is_said_at_once() -> None:
    wrong = {"num.partitions": "0", "log.segment.bytes": "10", "listener.name.a.ssl.client.auth": "maybe"}
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.parse(wrong)
    assert set(caught.value.problems) == set(wrong)
    assert all(name in problem for name, problem in caught.value.problems.items())


@pytest.mark.parametrize(
    "given",
    [
        {"node.id": "1", "broker.id": "2"},
        {"group.min.session.timeout.ms": "10", "group.max.session.timeout.ms": "5"},
        {"log.retention.hours": "0"},
        {"log.retention.ms": "-2"},
        {"listeners": "PLAINTEXT://:1,,PLAINTEXT://:2"},
    ],
)
def test_contradictions_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        BrokerConfig.parse(given)


def test_unknown_keys_come_with_the_nearest_known_one_but_listener_prefixes_are_known() -> None:
    config = BrokerConfig.parse({"num.partition": "1", "listener.name.x.ssl.client.auth": "none", "my.plugin": "7"})
    assert config.unknown() == {"num.partition": "num.partitions", "my.plugin": None}


def test_dynamic_values_win_over_those_given_at_start() -> None:
    config = BrokerConfig.parse({"log.cleaner.threads": "2", "message.max.bytes": "5000"})
    changed = config.with_dynamic(
        {"log.cleaner.threads": "3", "message.max.bytes": "6000"}, {"log.cleaner.threads": "4"}
    )
    assert changed.get_int("log.cleaner.threads") == 4
    assert changed.get_int("message.max.bytes") == 6000
    assert changed.with_dynamic({}, {}).get_int("log.cleaner.threads") == 2


def test_a_listener_may_have_values_of_its_own() -> None:
    given = {
        "ssl.client.auth": "none",
        "listener.name.internal.ssl.client.auth": "required",
        "listener.name.internal.plain.sasl.jaas.config": "secret",
    }
    config = BrokerConfig.parse(given)
    assert config.listener_value("INTERNAL", "ssl.client.auth") == "required"
    assert config.listener_value("EXTERNAL", "ssl.client.auth") == "none"
    assert config.listener_value("INTERNAL", "sasl.jaas.config", "PLAIN") == Password("secret")
    assert base_name("listener.name.internal.plain.sasl.jaas.config") == "sasl.jaas.config"


def test_settings_of_tokens_may_name_listener_and_mechanism() -> None:
    prefix = "listener.name.internal.oauthbearer."
    name = prefix + "sasl.oauthbearer.client.credentials.client.secret"
    assert base_name(name) == "sasl.oauthbearer.client.credentials.client.secret"
    assert is_secret(name)
    config = BrokerConfig.parse({prefix + "sasl.oauthbearer.expected.audience": "one,two"})
    audience = config.listener_value("INTERNAL", "sasl.oauthbearer.expected.audience", "OAUTHBEARER")
    assert audience == ("one", "two")
    with pytest.raises(ConfigError, match="skew"):
        BrokerConfig.parse({prefix + "sasl.oauthbearer.clock.skew.seconds": "soon"})


@pytest.mark.parametrize(
    ("values", "per_broker", "word"),
    [
        ({"broker.id": "8", "num.network.threads": "3"}, True, "[broker.id]"),
        ({"ssl.keystore.location": "/x"}, True, "listener"),
        ({"listeners": "PLAINTEXT://:1"}, False, "name a broker"),
        ({"listener.name.a.ssl.keystore.location": "/x"}, False, "name a broker"),
        ({"log.cleaner.threads": "many"}, True, "whole number"),
        ({"log.retention.ms": "0"}, True, "at least 1"),
        ({"log.cleaner.threads": "2"}, False, None),
        ({"listener.name.a.ssl.keystore.location": "/x"}, True, None),
        ({"no.such.key": "1"}, True, None),
        ({"leader.replication.throttled.rate": "1000"}, False, None),
    ],
)
def test_what_may_change_while_a_broker_runs(values: dict[str, str], per_broker: bool, word: str | None) -> None:
    problem = dynamic_problem(values, per_broker=per_broker)
    assert (problem is None) if word is None else (problem is not None and word in problem)


def test_node_id_and_broker_id_are_two_names_of_one_number() -> None:
    for given in ({"node.id": "7"}, {"broker.id": "7"}, {"node.id": 7, "broker.id": 7}):
        config = BrokerConfig.parse(given)
        assert config.node_id == config["node.id"] == config["broker.id"] == 7
        assert config.given == {"node.id": "7", "broker.id": "7"}


def test_synonyms_of_time_keys() -> None:
    assert synonyms_of("log.retention.hours") == ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
    assert synonyms_of("num.partitions") == ("num.partitions",)
    assert synonyms_of("listener.name.a.ssl.client.auth") == ("listener.name.a.ssl.client.auth", "ssl.client.auth")
