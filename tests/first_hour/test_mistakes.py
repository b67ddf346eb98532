"""Mistakes that Python would take: one name where several are wanted, a listener without methods, a misspelt key."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace.admin
from headrace import Admin, Consumer, Producer, TopicPartition, aio
from headrace.admin import ConfigResource, ElectionType, ResetTo, ResourceType
from headrace.client.configs import UnknownConfigWarning
from headrace.config import ConfigError
from headrace.testing import broker

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def admin() -> Iterator[Admin]:
    with Admin(bootstrap_servers=NOWHERE) as made:
        yield made


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    with Consumer(bootstrap_servers=NOWHERE, group_id="g") as made:
        yield made


def plural_parameters() -> list[tuple[str, str]]:
    """Every operation of Admin that takes several of something, and what."""
    found = []
    for name, method in inspect.getmembers(Admin, inspect.isfunction):
        for parameter in inspect.signature(method).parameters.values():
            if str(parameter.annotation).startswith(("Iterable", "Sequence", "Collection")):
                found.append((name, parameter.name))
    return found


def test_one_name_is_no_list_of_names(admin: Admin) -> None:
    with pytest.raises(TypeError, match=r"delete_topics takes several topics, and 'adm1' is not: .*\['adm1'\]"):
        admin.delete_topics("adm1")
    with pytest.raises(TypeError, match="create_partitions takes new_partitions as a mapping"):
        admin.create_partitions(["adm1"])  # type: ignore[arg-type]  # that is the mistake


@pytest.mark.parametrize(("operation", "parameter"), plural_parameters())
def test_no_operation_takes_letters_for_names(admin: Admin, operation: str, parameter: str) -> None:
    with pytest.raises(TypeError, match=f"{operation} takes several {parameter}"):
        getattr(admin, operation)(**{parameter: "abc"})


async def _refused_async() -> None:
    async with aio.Admin(bootstrap_servers=NOWHERE) as admin:
        with pytest.raises(TypeError, match="delete_groups takes several groups"):
            await admin.delete_groups("abc")


def test_the_asyncio_admin_refuses_it_too() -> None:
    import asyncio

    asyncio.run(_refused_async())


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer, given: consumer.assign(given),
        lambda consumer, given: consumer.pause(given),
        lambda consumer, given: consumer.resume(given),
        lambda consumer, given: consumer.seek_to_beginning(given),
        lambda consumer, given: consumer.seek_to_end(given),
        lambda consumer, given: consumer.committed(given),
        lambda consumer, given: consumer.beginning_offsets(given),
        lambda consumer, given: consumer.end_offsets(given),
    ],
)
@pytest.mark.parametrize("given", ["ab", TopicPartition("ab", 0)])
def test_one_partition_is_no_list_of_partitions(
    consumer: Consumer, call: Callable[[Consumer, Any], Any], given: Any
) -> None:
    with pytest.raises(TypeError, match="takes several partitions"):
        call(consumer, given)


def test_a_partitions_number_is_no_text(consumer: Consumer) -> None:
    with pytest.raises(TypeError, match=r"assign takes partitions by their numbers: '0' in \('t', '0'\) is none"):
        consumer.assign([("t", "0")])  # type: ignore[list-item]  # that is the mistake


@pytest.mark.parametrize("make", [Admin, Consumer, Producer, headrace.RangeReader, aio.Producer])
def test_an_address_is_no_configuration(make: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"as a mapping, \{'bootstrap.servers': 'h:9092'\}, or as keywords"):
        make("h:9092")


def test_one_value_is_no_batch() -> None:
    with Producer(bootstrap_servers=NOWHERE, value_serializer="string") as producer:
        with pytest.raises(TypeError, match="send_batch takes several values, and 'abc' is not"):
            producer.send_batch("t", "abc")
        with pytest.raises(TypeError, match="send_batch takes several keys, and b'abc' is not"):
            producer.send_batch("t", ["1", "2", "3"], keys=b"abc")


def test_subscribe_takes_a_list(consumer: Consumer) -> None:
    with pytest.raises(TypeError, match=r"subscribe takes a list of topics: \['events'\]"):
        consumer.subscribe("events")


class Deaf:
    """A listener with names of another library's."""

    def on_assign(self, partitions: list[TopicPartition]) -> None: ...

    def on_revoke(self, partitions: list[TopicPartition]) -> None: ...


class Hears:
    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None: ...

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None: ...


def test_a_listener_that_would_hear_nothing_is_refused(consumer: Consumer) -> None:
    with pytest.raises(TypeError, match="Deaf is no rebalance listener: it has no method on_partitions_revoked"):
        consumer.subscribe(["t"], Deaf())  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(TypeError, match=r"takes a listener, not its class: Hears\(\)"):
        consumer.subscribe(["t"], Hears)  # type: ignore[arg-type]  # that is the mistake
    assert consumer.subscription() == set()
    consumer.subscribe(["t"], Hears())
    assert headrace.RebalanceListener.__doc__


@pytest.mark.parametrize("make", [Admin, Consumer, Producer])
def test_a_misspelt_key_is_named_with_the_right_one(make: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"no configuration bootstrap\.servrs; did you mean bootstrap\.servers"):
        make(bootstrap_servrs="localhost:9092")
    with pytest.raises(ConfigError, match=r"Missing required configuration bootstrap\.servers"):
        make()


@pytest.mark.parametrize("make", [Admin, Consumer, Producer])
def test_a_warning_points_at_the_line_that_made_the_client(make: Callable[..., Any]) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        make(bootstrap_servers=NOWHERE, nonsense=1).close()
    assert [(one.category, Path(one.filename).name) for one in seen] == [(UnknownConfigWarning, Path(__file__).name)]


def test_one_name_deletes_nothing() -> None:
    with broker() as kafka, Admin(bootstrap_servers=kafka.address) as admin:
        admin.create_topics([headrace.NewTopic(name) for name in "abc"]).all()
        with pytest.raises(TypeError):
            admin.delete_topics("abc")
        assert set(admin.list_topics()) == {"a", "b", "c"}


class AnythingElse:
    """What no operation takes."""


def parameters_of_several() -> list[tuple[str, str, Any]]:
    """Every operation of Admin that takes several of something, and a list or dict of nothing that it knows."""
    lists = [(operation, parameter, [AnythingElse()]) for operation, parameter in plural_parameters()]
    dicts = [
        (name, parameter.name, {AnythingElse(): AnythingElse()})
        for name, method in inspect.getmembers(Admin, inspect.isfunction)
        for parameter in inspect.signature(method).parameters.values()
        if str(parameter.annotation).startswith("Mapping")
    ]
    return lists + [(name, parameter, given) for name, parameter, given in dicts if name != "__init__"]


@pytest.mark.parametrize(("operation", "parameter", "given"), parameters_of_several())
def test_no_operation_fails_inside_for_what_it_was_given(
    admin: Admin, operation: str, parameter: str, given: Any
) -> None:
    others = {"group_id": "g", "to": ResetTo.earliest(), "election_type": ElectionType.PREFERRED}
    accepted = inspect.signature(getattr(Admin, operation)).parameters
    needed = {name: value for name, value in others.items() if name in accepted}
    with pytest.raises(TypeError, match=f"{operation} takes {parameter} as .*AnythingElse.* is AnythingElse, not"):
        getattr(admin, operation)(**{**needed, parameter: given})


def test_an_element_of_the_wrong_kind_is_told_with_the_right_one(admin: Admin) -> None:
    with pytest.raises(
        TypeError, match=r"topics as a list of NewTopic\(name, …\): 'x' is str, not NewTopic\(name, …\)"
    ):
        admin.create_topics(["x"])  # type: ignore[list-item]  # that is the mistake
    with pytest.raises(TypeError, match=r"resources as a list of ConfigResource\(type, name\): 'x' is str"):
        admin.describe_configs(["x"])  # type: ignore[list-item]  # that is the mistake
    with pytest.raises(TypeError, match=r"before_offsets as a dict of \(topic, partition\): int: 'x' is str"):
        admin.delete_records({"x": 3})  # type: ignore[dict-item]  # that is the mistake
    with pytest.raises(TypeError, match=r"takes several topics, and NewTopic\(.* is not"):
        admin.create_topics(headrace.NewTopic("x"))  # type: ignore[arg-type]  # that is the mistake


def test_admin_takes_pairs_for_partitions_and_plain_values_for_settings() -> None:
    """As the consumer takes `("events", 0)`, and every client takes `1000` where a file has a text."""
    policies = ["compact", "delete"]
    topic = headrace.NewTopic("events", configs={"retention.ms": 3_600_000, "cleanup.policy": policies})  # type: ignore[dict-item]  # a list will do
    with broker() as kafka, Admin(bootstrap_servers=kafka.address) as admin:
        admin.create_topics([topic]).all()
        with Producer(bootstrap_servers=kafka.address) as producer:
            producer.send("events", b"1", key=b"k").result()
        assert admin.delete_records({("events", 0): 1})[("events", 0)] == 1  # type: ignore[dict-item, index]  # a pair will do
        resource = ConfigResource(ResourceType.TOPIC, "events")
        admin.incremental_alter_configs({resource: {"min.cleanable.dirty.ratio": 0.25, "preallocate": True}}).all()
        entries = {entry.name: entry.value for entry in admin.describe_configs([resource])[resource].values()}
    assert entries["retention.ms"] == "3600000"
    assert entries["cleanup.policy"] == "compact,delete"
    assert (entries["min.cleanable.dirty.ratio"], entries["preallocate"]) == ("0.25", "true")


_WITHOUT_EXTRAS = """
import sys
for name in ("numpy", "pyarrow", "numba", "pandas", "pyspark", "kazoo"):
    sys.modules[name] = None
from headrace import Consumer, HeadraceError, Producer, RangeReader, aio
NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
calls = [
    lambda: Consumer(NOWHERE, group_id="g").poll_arrow(0),
    lambda: Producer(NOWHERE).send_arrow("events", None),
    lambda: next(RangeReader(NOWHERE).read_arrow({("events", 0): (0, 1)})),
]
for call in calls:
    try:
        call()
    except HeadraceError as error:
        assert isinstance(error, ImportError)
        print(error)
"""


def test_a_missing_extra_is_named() -> None:
    """In a Python of its own: what is imported once is there."""
    done = subprocess.run([sys.executable, "-c", _WITHOUT_EXTRAS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 3
    assert all("pip install 'headrace[fast]'" in line for line in said), said


@pytest.mark.parametrize("one", [Admin, Consumer, Producer, headrace.RangeReader])
def test_what_a_call_takes_can_be_imported_from_a_public_place(one: type) -> None:
    """Values that a user makes to call something are in `headrace` or `headrace.admin`, like those of NewTopic."""
    missing = set()
    for name, method in inspect.getmembers(one, inspect.isfunction):
        if name.startswith("_"):
            continue
        for parameter in inspect.signature(method).parameters.values():
            for word in re.findall(r"\b[A-Z]\w+", str(parameter.annotation)):
                kind = inspect.unwrap(method).__globals__.get(word)
                is_made = dataclasses.is_dataclass(kind) or isinstance(kind, enum.EnumMeta)
                if is_made and not hasattr(headrace, word) and not hasattr(headrace.admin, word):
                    missing.add(f"{one.__name__}.{name}: {word}")
    assert not missing
