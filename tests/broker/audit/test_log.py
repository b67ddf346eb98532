"""The audit log: what is in a line, that nobody writes lines of his own, and that a flood does not fill a disk."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from headrace.broker.audit.log import AGAIN_S, LINES_PER_S_MAX, AuditLog
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

from .. import raw
from ..played import World, run

CREATE, METADATA = raw.CREATE_TOPICS_VERSION, 9


class Nobody:
    """May read nothing, and change the cluster."""

    rules_version = 1

    def verdict(self, principal: str, host: str, operation: Any, resource: Any, name: str) -> bool:
        return resource.name == "CLUSTER" and not name.endswith("-hidden")

    def may_on_any(self, *asked: Any) -> bool:
        return False


def audited(world: World) -> list[str]:
    from headrace.broker.authorization.checks import RightsCheck

    lines: list[str] = []
    access = world.broker.pipeline.access
    access.authorizer = Nobody()
    access.audit = AuditLog(world.broker.runtime.clock, lines.append)
    world.broker.pipeline.may = RightsCheck(world.broker.cluster)
    return lines


def ask_for(world: World, *topics: str, client_id: str = "client") -> None:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in topics], allow_auto_topic_creation=False
    )
    world.send_bytes(raw.frame(request, METADATA, client_id=client_id))


def test_a_refusal_says_who_wanted_what_from_where() -> None:
    async def scenario(world: World) -> None:
        lines = audited(world)
        world.connection.identify("User:alice")
        ask_for(world, "secret")
        (line,) = map(json.loads, lines)
        assert line.pop("at").endswith("+00:00")
        assert line == {
            "event": "refused",
            "principal": "User:alice",
            "host": world.connection.peer_host,
            "listener": "PLAINTEXT",
            "client_id": "client",
            "request": "metadata",
            "operation": "describe",
            "resource": "topic",
            "name": "secret",
        }

    run(scenario)


def test_nobody_writes_lines_of_his_own() -> None:
    async def scenario(world: World) -> None:
        lines = audited(world)
        ask_for(world, 'x\n{"event": "refused"}\r\u2028', client_id='y"\n\x1b[2J')
        (line,) = lines
        assert line.isascii()
        assert line.isprintable()
        assert json.loads(line)["name"].startswith("x\n")
        lines.clear()
        ask_for(world, "n" * 30_000)
        assert len(lines[0]) < 1000

    run(scenario)


def test_the_same_refusal_is_written_once_a_minute_with_its_number() -> None:
    async def scenario(world: World) -> None:
        lines = audited(world)
        for _ in range(50):
            ask_for(world, "secret")
        assert len(lines) == 1
        await asyncio.sleep(AGAIN_S)
        ask_for(world, "secret")
        assert [json.loads(line).get("repeated") for line in lines] == [None, 49]

    run(scenario)


def test_a_flood_of_refusals_fills_no_disk() -> None:
    async def scenario(world: World) -> None:
        lines = audited(world)
        await asyncio.sleep(1)
        for number in range(10):
            ask_for(world, *(f"t-{number}-{at}" for at in range(100)))
        assert len(lines) == LINES_PER_S_MAX
        await asyncio.sleep(1)
        ask_for(world, "another")
        assert json.loads(lines[-2])["lines"] == 1000 - LINES_PER_S_MAX

    run(scenario)


def test_changes_are_written_with_their_names_and_how_they_ended() -> None:
    async def scenario(world: World) -> None:
        lines = audited(world)
        topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("made", "t")]
        world.send((CreateTopicsRequest(topics=topics[:1]), CREATE))
        world.send((CreateTopicsRequest(topics=topics), CREATE))
        await asyncio.sleep(1)
        told = [json.loads(line) for line in lines]
        changes = [(line["request"], line["what"], line["done"]) for line in told if line["event"] == "changed"]
        assert changes == [("create_topics", ["made"], True), ("create_topics", ["made", "t"], False)]

    run(scenario)


def test_a_refused_login_says_from_where_and_why() -> None:
    async def scenario(world: World) -> None:
        lines: list[str] = []
        AuditLog(world.broker.runtime.clock, lines.append).login_refused(
            "10.0.0.7", "SASL", "no\nsuch user" + "x" * 999
        )
        (line,) = lines
        told = json.loads(line)
        assert (told["event"], told["host"], told["listener"]) == ("login_refused", "10.0.0.7", "SASL")
        assert len(line) < 800
        assert line.isprintable()

    run(scenario)
