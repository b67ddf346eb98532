"""`headrace group`."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import becomes

from headrace.cli.exits import Exit
from headrace.client.consumer.blocking import Consumer
from headrace.testing import EmbeddedBroker

from .conftest import Command

pytestmark = pytest.mark.slow


@pytest.fixture
def group(headrace: Command, topic: str) -> str:
    """A group that has read the first 4 of the 10 records of partition 0."""
    name = f"g-{uuid.uuid4().hex[:8]}"
    headrace("produce", topic, "-p", "0", stdin="".join(f"{number}\n" for number in range(10)))
    done = headrace("group", "reset", name, "--topic", f"{topic}:0", "--to-offset", "4", "--execute")
    assert done.code == 0, done.err
    return name


def test_the_groups_with_the_most_lag_come_first(headrace: Command, group: str, topic: str) -> None:
    done, behind = f"{group}-done", f"{group}-behind"
    for name, where in ((done, "--to-latest"), (behind, "--to-earliest")):
        assert headrace("group", "reset", name, "--topic", f"{topic}:0", where, "--execute").code == 0
    rows = [row for row in headrace("group", "list", "--json").json() if row["group"].startswith(group)]
    assert [(row["group"], row["lag"]) for row in rows] == [(behind, 10), (group, 6), (done, 0)]


def test_a_group_is_watched(headrace: Command, kafka: EmbeddedBroker, group: str, topic: str) -> None:
    command = [sys.executable, "-m", "headrace.cli", "group", "describe", group, "--watch", "-b", kafka.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            headings = (line for line in process.stdout if line.startswith(group))
            assert next(headings).startswith(f"{group}  Empty, 0 members, lag 6, ")
            headrace("produce", topic, "-p", "0", stdin="1\n2\n")
            assert any(re.search(r"lag 8 \(\+\d+ per second\)", line) for line in headings)
        finally:
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (Exit.INTERRUPTED, "")


def test_what_never_ends_is_no_document(headrace: Command, group: str) -> None:
    refused = headrace("group", "describe", group, "--watch", "--json")
    assert (refused.code, "cannot go with --json" in refused.err) == (Exit.USAGE, True)


def test_a_member_with_a_subscription_of_its_own_kind_is_shown_with_its_partitions(
    headrace: Command, kafka: EmbeddedBroker, topic: str
) -> None:
    """As Faust's, which is made of aiokafka: it gives a version without the fields of that version."""
    aiokafka = pytest.importorskip("aiokafka")
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata

    class Own(RoundRobinPartitionAssignor):  # type: ignore[misc]  # aiokafka has no types
        name = "own"

        @classmethod
        def metadata(cls, topics: Iterable[str]) -> Any:
            return ConsumerProtocolMemberMetadata(4, list(topics), b"{}")

    name = f"faust-{uuid.uuid4().hex[:8]}"

    async def described() -> Any:
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=kafka.address, group_id=name, partition_assignment_strategy=[Own]
        )
        await consumer.start()
        try:
            await becomes(lambda: len(consumer.assignment()) == 3, "an assignment")
            return headrace("group", "describe", name, "--json").json()
        finally:
            await consumer.stop()

    (document,) = asyncio.run(described())
    (member,) = document["members"]
    assert member["topics"] == [topic]
    assert member["partitions"] == [f"{topic}-{number}" for number in range(3)]


def offset(headrace: Command, group: str) -> int | None:
    (document,) = headrace("group", "describe", group, "--json").json()
    rows = [row for row in document["offsets"] if row["partition"] == 0]
    return rows[0]["offset"] if rows else None


def test_list(headrace: Command, group: str) -> None:
    result = headrace("group", "list")
    assert result.lines[0].split() == ["GROUP", "TYPE", "STATE", "MEMBERS", "LAG", "ASSIGNOR", "COORDINATOR"]
    assert [group, "classic", "Empty", "0", "6", "-", "1"] in [line.split() for line in result.lines]
    assert group not in headrace("group", "list", "--state", "Stable").out
    assert group in [row["group"] for row in headrace("group", "list", "--json").json()]


def test_describe_shows_the_lag(headrace: Command, topic: str, group: str) -> None:
    result = headrace("group", "describe", group)
    assert result.lines == [
        f"{group}  Empty, 0 members, lag 6, coordinator 1",
        f"TOPIC{' ' * (len(topic) - 5)}  PARTITION  OFFSET  END  LAG",
        f"{topic}          0       4   10    6",
    ]
    missing = headrace("group", "describe", "nope")
    assert missing.code == 1
    assert "nope" in missing.err


@pytest.fixture
def member(kafka: EmbeddedBroker, topic: str, group: str) -> Iterator[Consumer]:
    with Consumer(bootstrap_servers=kafka.address, group_id=group, client_id="worker") as consumer:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.1, 1)
        yield consumer


@pytest.mark.usefixtures("member")
def test_describe_shows_members_and_what_they_own(headrace: Command, group: str) -> None:
    result = headrace("group", "describe", group)
    assert f"{group}  Stable, 1 member," in result.lines[0]
    assert result.lines[2].split()[:3] == ["worker", "127.0.0.1", "3"]
    assert all(line.endswith("worker") for line in result.lines[-3:])


@pytest.mark.usefixtures("member")
def test_a_group_with_members_is_neither_reset_nor_deleted(headrace: Command, group: str) -> None:
    result = headrace("group", "reset", group, "--to-earliest", "--execute")
    assert result.code == 1
    assert "stop its consumers" in result.err
    assert headrace("group", "delete", group, "--yes").code == 1


def test_a_reset_shows_what_it_would_do_and_does_it_when_told(headrace: Command, topic: str, group: str) -> None:
    shown = headrace("group", "reset", group, "--to-latest")
    assert shown.lines[-1].split() == [topic, "0", "4", "10"]
    assert "Add --execute" in shown.err
    assert offset(headrace, group) == 4
    assert headrace("group", "reset", group, "--to-latest", "--execute").err == ""
    assert offset(headrace, group) == 10


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 10),
        (("--to-current",), 4),
        (("--to-offset", "7"), 7),
        (("--to-offset", "99"), 10),
        (("--shift-by", "-3"), 1),
        (("--shift-by", "2"), 6),
        (("--by-duration", "1h"), 0),
        (("--by-duration", "PT1H"), 0),
        (("--to-datetime", "2999-12-31T00:00"), 10),
    ],
)
def test_every_way_to_reset(headrace: Command, group: str, arguments: tuple[str, ...], expected: int) -> None:
    assert headrace("group", "reset", group, *arguments, "--execute").code == 0
    assert offset(headrace, group) == expected


def test_a_reset_to_another_group_and_from_a_file(headrace: Command, topic: str, group: str, tmp_path: Path) -> None:
    other = f"{group}-2"
    assert headrace("group", "reset", other, "--to-group", group, "--execute").code == 0
    assert offset(headrace, other) == 4
    exported = headrace("group", "reset", group, "--to-offset", "2", "--export")
    assert exported.out == f"{topic},0,2\n"
    path = tmp_path / "offsets.csv"
    path.write_text(exported.out)
    assert headrace("group", "reset", other, "--from-file", str(path), "--execute").code == 0
    assert offset(headrace, other) == 2
    path.write_text("rubbish\n")
    wrong = headrace("group", "reset", other, "--from-file", str(path))
    assert wrong.code == 2
    assert "line 1" in wrong.err


def test_a_reset_needs_one_way_and_topics_when_nothing_is_committed(headrace: Command, group: str) -> None:
    assert headrace("group", "reset", group).code == 2
    both = headrace("group", "reset", group, "--to-latest", "--to-earliest")
    assert both.code == 2
    assert "--to-earliest and --to-latest" in both.err
    assert headrace("group", "reset", group, "--to-latest", "--execute", "--dry-run").code == 2
    assert headrace("group", "reset", group, "--topic", "t:x", "--to-latest").code == 2
    assert headrace("group", "reset", group, "--by-duration", "soon").code == 2
    fresh = headrace("group", "reset", "fresh-group", "--to-latest")
    assert fresh.code == 1
    assert "name the topics" in fresh.err


def test_delete_a_group_or_its_offsets_of_a_topic(headrace: Command, topic: str, group: str) -> None:
    assert headrace("group", "delete", group, "--topic", "other", "-y").code == 1
    removed = headrace("group", "delete", group, "--topic", f"{topic}:0", "-y")
    assert removed.out == f"{group}: offset of {topic}-0 deleted\n"
    headrace("group", "reset", group, "--topic", topic, "--to-earliest", "--execute")
    result = headrace("group", "delete", group, "nope", "-y")
    assert (result.code, result.out) == (1, f"{group} deleted\n")
    assert "nope" in result.err


def test_nothing_is_deleted_where_nobody_can_be_asked(headrace: Command, topic: str, group: str) -> None:
    for arguments in ((group,), (group, "--topic", topic)):
        result = headrace("group", "delete", *arguments)
        assert (result.code, result.out) == (2, "")
        assert "add --yes" in result.err
    assert offset(headrace, group) == 4


@pytest.mark.usefixtures("member")
def test_members_are_removed(headrace: Command, group: str) -> None:
    assert headrace("group", "remove-members", group).code == 2
    result = headrace("group", "remove-members", group, "--all", "--reason", "moved away")
    assert result.code == 0, result.err
    assert result.out.startswith(f"{group}: ")
    assert result.out.endswith(" removed\n")
    assert headrace("group", "remove-members", group, "--instance", "nobody").code == 1


def test_who_has_no_members_is_told_so(headrace: Command, group: str) -> None:
    result = headrace("group", "remove-members", group, "--all")
    assert (result.code, result.err) == (0, f"{group} has no members.\n")
