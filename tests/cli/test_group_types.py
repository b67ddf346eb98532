"""`headrace group` on groups whose coordinator assigns, and `headrace group migrate`."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.waiting import DEADLINE_S

from headrace import Consumer
from headrace.testing import EmbeddedBroker

from .conftest import Command

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def members(kafka: EmbeddedBroker, group: str, topic: str, *protocols: str) -> Iterator[list[Consumer]]:
    made = [
        Consumer({"bootstrap.servers": kafka.address, "group.id": group, "group.protocol": protocol})
        for protocol in protocols
    ]
    try:
        for consumer in made:
            consumer.subscribe([topic])
        poll_until(made, lambda: all(consumer.assignment() for consumer in made))
        yield made
    finally:
        for consumer in made:
            consumer.close()


def poll_until(consumers: list[Consumer], condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        for consumer in consumers:
            consumer.poll(0.05)


def test_a_group_of_the_consumer_protocol_is_shown_with_its_epochs(
    headrace: Command, kafka: EmbeddedBroker, topic: str
) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    with members(kafka, group, topic, "consumer") as [consumer]:
        poll_until([consumer], lambda: headrace("group", "describe", group, "--json").json()[0]["state"] == "Stable")
        [shown] = headrace("group", "describe", group, "--json").json()
        assert (shown["type"], shown["assignor"]) == ("consumer", "uniform")
        assert shown["epoch"] == shown["assignment_epoch"] > 1
        [member] = shown["members"]
        assert member["epoch"] == shown["epoch"]
        assert member["target"] == member["partitions"]
        assert {part.split("-")[-1] for part in member["partitions"]} == {
            str(p.partition) for p in consumer.assignment()
        }
        done = headrace("group", "describe", group)
        assert f"{group}  consumer group, Stable" in done.out
        assert f"epoch {shown['epoch']}" in done.out
        [row] = [row for row in headrace("group", "list", "--json").json() if row["group"] == group]
        assert row["type"] == "consumer"


def test_a_migration_says_who_is_still_to_be_restarted(headrace: Command, kafka: EmbeddedBroker, topic: str) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    with members(kafka, group, topic, "classic", "classic") as made:
        before = headrace("group", "migrate", group, "--json").json()
        assert (before["type"], len(before["to_restart"]), before["done"]) == ("classic", 2, False)
        made.pop().close()
        with members(kafka, group, topic, "consumer") as [newer]:
            poll_until([*made, newer], lambda: all(consumer.assignment() for consumer in (*made, newer)))
            mixed = headrace("group", "migrate", group, "--json").json()
            assert (mixed["type"], [one["protocol"] for one in mixed["to_restart"]]) == ("consumer", ["classic"])
            assert "1 of 2 members speak the consumer protocol" in headrace("group", "migrate", group).err
            made.pop().close()
            poll_until([newer], lambda: headrace("group", "migrate", group, "--json").json()["done"])
            assert not headrace("group", "migrate", group, "--to", "classic", "--json").json()["done"]


def test_a_group_that_does_not_exist_cannot_migrate(headrace: Command) -> None:
    done = headrace("group", "migrate", "nobody")
    assert done.code != 0
    assert "nobody" in done.err
