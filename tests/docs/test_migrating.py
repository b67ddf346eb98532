"""What `docs/migrating.md` and the tables of names say, held against the code and the libraries that it names."""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import Admin, Consumer, Producer, aio
from headrace.client.admin.drivers import ADMIN_CONFIGS
from headrace.client.configs import UnknownConfigWarning, has_no_effect, read_config
from headrace.client.consumer.config import CONSUMER_CONFIGS
from headrace.client.other_names import LIBRDKAFKA_INSTEAD, LIBRDKAFKA_SAME, PYTHON_INSTEAD, PYTHON_SAME, equivalent
from headrace.client.producer.config import PRODUCER_CONFIGS
from headrace.config import ConfigDefinition

PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text("utf-8")
NOWHERE = "127.0.0.1:1"
DEFINITIONS = (PRODUCER_CONFIGS, CONSUMER_CONFIGS, ADMIN_CONFIGS)
VALUES = {"bootstrap.servers": NOWHERE, "sasl.mechanism": "PLAIN", "acks": "1", "retries": "3"}
# Of kafka-python and aiokafka: how they are built inside, or what there is nothing like here.
WITHOUT_COUNTERPART = {
    "bootstrap.timeout.ms", "enable.incremental.fetch.sessions", "kafka.client", "metric.group.prefix",
    "metrics.enabled", "proxy.url", "receive.message.max.bytes", "selector", "socket.options", "socks5.proxy",
    "ssl.crlfile",
}  # fmt: skip


def owner(name: str) -> ConfigDefinition:
    """A client that has this setting of Kafka's."""
    return next(definition for definition in DEFINITIONS if name in definition)


@pytest.mark.parametrize(("theirs", "ours"), [*LIBRDKAFKA_SAME.items(), *PYTHON_SAME.items()])
def test_a_name_that_is_understood_sets_what_the_table_says(theirs: str, ours: str) -> None:
    definition = owner(ours)
    key = definition[ours]
    value = VALUES.get(ours, "some" if key.default is None else str(key.default))
    given = {"bootstrap.servers": NOWHERE, theirs: value}
    if ours == "bootstrap.servers":
        del given["bootstrap.servers"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_config(definition, given) == read_config(definition, {"bootstrap.servers": NOWHERE, ours: value})


@pytest.mark.parametrize(("theirs", "instead"), [*LIBRDKAFKA_INSTEAD.items(), *PYTHON_INSTEAD.items()])
@pytest.mark.parametrize("definition", DEFINITIONS, ids=["producer", "consumer", "admin"])
def test_a_name_that_there_is_none_of_is_answered_with_what_to_use(
    definition: ConfigDefinition, theirs: str, instead: str
) -> None:
    with pytest.warns(
        UnknownConfigWarning, match=re.escape(f"unknown configuration {theirs} has no effect; it is")
    ) as seen:
        read_config(definition, {"bootstrap.servers": NOWHERE, theirs: "1"})
    assert str(seen[0].message).endswith(f"use {instead}")


@pytest.mark.parametrize("theirs", [*LIBRDKAFKA_SAME, *LIBRDKAFKA_INSTEAD])
def test_the_names_that_are_called_librdkafkas_are(theirs: str) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    if theirs in ("logger", "on_delivery"):
        return  # of confluent-kafka itself: checked by their kind, below librdkafka
    refusals = []
    for make in (confluent_kafka.Producer, confluent_kafka.Consumer):
        try:
            make({"group.id": "g", theirs: "1"})
        except (confluent_kafka.KafkaException, TypeError, ValueError) as error:
            refusals.append(str(error))
    assert not [text for text in refusals if "No such configuration property" in text], refusals


def keywords_of_python_libraries() -> dict[str, set[str]]:
    """The settings of each class, with dots for underscores."""
    found: dict[str, set[str]] = {}
    for module, names in {
        "kafka": ("KafkaConsumer", "KafkaProducer", "KafkaAdminClient"),
        "aiokafka": ("AIOKafkaConsumer", "AIOKafkaProducer"),
    }.items():
        library = pytest.importorskip(module, reason=f"{module} is not installed")
        for name in names:
            one = getattr(library, name)
            given = getattr(one, "DEFAULT_CONFIG", None) or [
                parameter.name
                for parameter in inspect.signature(one.__init__).parameters.values()
                if parameter.default is not inspect.Parameter.empty
            ]
            found[name] = {key.replace("_", ".") for key in given}
    return found


def test_every_setting_of_kafka_python_and_aiokafka_is_known_or_answered() -> None:
    unknown = {
        f"{name}: {key}"
        for name, keys in keywords_of_python_libraries().items()
        for key in keys - WITHOUT_COUNTERPART
        if not any(key in definition for definition in DEFINITIONS)
        and key not in PYTHON_SAME
        and not equivalent(key)
        and not has_no_effect(key)
    }
    assert not unknown
    theirs = set().union(*keywords_of_python_libraries().values())
    assert {*PYTHON_SAME, *PYTHON_INSTEAD} <= theirs


def rows(heading: str) -> list[tuple[str, str]]:
    """The table of a section, by its two columns."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.M)
    assert len(found) > 3, heading
    return found[1:]


def calls(cell: str) -> list[str]:
    """The names of what is called in the code of a cell: `poll(timeout)`, `consumer.poll(…)`, `commit_sync`."""
    code = re.findall(r"`([^`]+)`", cell)
    return [
        name
        for text in code
        for found in re.findall(r"\b([a-z_]+)\(|^([a-z]+_[a-z_]+)$", text)
        for name in found
        if name
    ]


# Calls of what the classes give, and words in code that are no calls.
_OURS = {"compile", "partitions", "result", "serialize", "on_delivery"}
_THEIRS = {
    "value", "key", "offset", "timestamp", "error", "get", "add_callback", "add_errback", "serialize",
    "value_serializer", "consumer_timeout_ms",
}  # fmt: skip
_CLASSES = {
    "From confluent-kafka": ("confluent_kafka", ["Producer", "Consumer", "admin.AdminClient"]),
    "From kafka-python": ("kafka", ["KafkaProducer", "KafkaConsumer", "KafkaAdminClient"]),
    "From aiokafka": ("aiokafka", ["AIOKafkaProducer", "AIOKafkaConsumer"]),
}


@pytest.mark.parametrize("heading", _CLASSES)
def test_the_calls_in_the_tables_exist_on_both_sides(heading: str) -> None:
    module, names = _CLASSES[heading]
    library = pytest.importorskip(module, reason=f"{module} is not installed")
    importlib.import_module(f"{module}.admin")
    theirs = []
    for name in names:
        one: Any = library
        for part in name.split("."):
            one = getattr(one, part)
        theirs.append(one)
    ours = [Producer, Consumer, Admin, aio.Producer, aio.Consumer, headrace]
    for left, right in rows(heading):
        for name in calls(left):
            assert name in _THEIRS or any(hasattr(one, name) for one in theirs), f"{module}: {name} in {left}"
        for name in calls(right):
            assert name in _OURS or any(hasattr(one, name) for one in ours), f"ours: {name} in {right}"
