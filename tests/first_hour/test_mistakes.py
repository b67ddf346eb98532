"""Mistakes that Python would take: one name where several are wanted, a listener without methods, a misspelt key."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import Admin, Consumer, Producer, TopicPartition, aio
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
