"""Verdicts are asked once, remembered until the rules change, and hold for requests that are answered at once, too."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.requests.access import ANONYMOUS, BROKER_CLIENT_ID, Access
from headrace.broker.requests.dispatch import RequestContext
from headrace.broker.requests.rights import Operation, Resource
from headrace.errors import ErrorCode
from headrace.protocol import codec
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from headrace.protocol.messages.produce import ProduceResponse

from . import raw
from .played import World, run

pytestmark = pytest.mark.usefixtures("large_segments")

ALICE, HOST = "User:alice", "10.0.0.1"


class Rules:
    """An authorizer that allows what is listed."""

    def __init__(self, *allowed: tuple[str, Operation, str]) -> None:
        self.allowed = set(allowed)
        self.rules_version = 1
        self.asked = 0

    def verdict(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        self.asked += 1
        return (principal, operation, name) in self.allowed


def test_without_an_authorizer_everything_is_allowed() -> None:
    rights = Access().rights(ANONYMOUS, HOST)
    assert rights.may(Operation.WRITE, Resource.TOPIC, "t")
    assert rights.current_key() is None


def test_a_verdict_is_asked_once_until_the_rules_change() -> None:
    access, rules = Access(), Rules((ALICE, Operation.READ, "t"))
    access.authorizer = rules
    rights = access.rights(ALICE, HOST)
    first = rights.current_key()
    for _ in range(3):
        assert rights.may(Operation.READ, Resource.TOPIC, "t")
        assert not rights.may(Operation.WRITE, Resource.TOPIC, "t")
    assert rules.asked == 2
    rules.allowed.clear()
    assert rights.may(Operation.READ, Resource.TOPIC, "t"), "no rule has changed as far as was said"
    rules.rules_version = 2
    assert not rights.may(Operation.READ, Resource.TOPIC, "t")
    assert rights.current_key() not in (None, first)
    access.authorizer = None
    assert rights.may(Operation.WRITE, Resource.TOPIC, "t")


def test_those_of_others_are_remembered_apart() -> None:
    access = Access()
    access.authorizer = Rules((ALICE, Operation.READ, "t"))
    alice, bob = access.rights(ALICE, HOST), access.rights("User:bob", HOST)
    assert access.rights(ALICE, HOST) is alice
    assert (alice.may(Operation.READ, Resource.TOPIC, "t"), bob.may(Operation.READ, Resource.TOPIC, "t")) == (
        True,
        False,
    )
    assert alice.current_key() != bob.current_key()


def test_a_client_is_nobody_until_it_has_said_who_it_is_where_it_has_to() -> None:
    access = Access()
    access.authenticated_listeners = frozenset({"SASL"})
    assert access.begin("SASL", HOST) is None
    plain = access.begin("PLAIN", HOST)
    assert plain is not None
    assert plain.principal == ANONYMOUS


def test_a_broker_is_believed_where_brokers_come_in_and_may_act_for_the_cluster() -> None:
    async def scenario(world: World) -> None:
        access = world.broker.pipeline.access
        seen: list[bool] = []

        def may(context: RequestContext, request: Any) -> None:
            seen.append(context.is_from_broker)

        world.broker.pipeline.may = may

        def ask(client_id: str) -> bool:
            topics = [MetadataRequestTopic(name=client_id)]  # each another, since answers are kept
            asked = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
            world.send_bytes(b"".join(codec.encode_request(asked, 9, 1, client_id)))
            return seen.pop()

        assert not ask("broker-1")
        assert ask(f"{BROKER_CLIENT_ID}1")
        access.authorizer = Rules()
        assert not ask(f"{BROKER_CLIENT_ID}2")
        access.authorizer = Rules((ANONYMOUS, Operation.CLUSTER_ACTION, "kafka-cluster"))
        assert ask(f"{BROKER_CLIENT_ID}3")
        access.broker_listeners = frozenset({"OTHER"})
        assert not ask(f"{BROKER_CLIENT_ID}4")

    run(scenario)


def test_what_is_not_allowed_is_not_appended_at_once_either() -> None:
    async def scenario(world: World) -> None:
        pipeline = world.broker.pipeline
        rules = Rules((ANONYMOUS, Operation.WRITE, "t"))
        pipeline.access.authorizer = rules
        refused: list[Any] = []

        def may(context: RequestContext, request: Any) -> ProduceResponse | None:
            if context.may(Operation.WRITE, Resource.TOPIC, "t"):
                return None
            refused.append(request)
            return ProduceResponse()

        pipeline.may = may
        end = world.broker.partition("t", 0).log.end_offset
        for _ in range(3):
            world.send((raw.produce_request("t", 0, raw.batch([b"one"])), 12))
        assert world.broker.partition("t", 0).log.end_offset == end + 3
        rules.allowed.clear()
        rules.rules_version += 1
        for _ in range(3):
            world.send((raw.produce_request("t", 0, raw.batch([b"two"])), 12))
        assert world.broker.partition("t", 0).log.end_offset == end + 3
        assert len(refused) == 3

    run(scenario)


def test_an_answer_that_is_kept_is_for_those_who_see_the_same() -> None:
    """What `may` leaves out of an answer to one is in the answer to another."""

    async def scenario(world: World) -> None:
        pipeline = world.broker.pipeline
        rules = Rules((ALICE, Operation.DESCRIBE, "t"))
        pipeline.access.authorizer = rules
        made: list[str] = []

        def handler(request: Any, context: RequestContext) -> MetadataResponse:
            made.append(context.principal)
            return MetadataResponse(cluster_id=context.principal)

        pipeline.functions[3] = handler, None
        asking = (MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)

        def ask(principal: str) -> str | None:
            world.connection.identify(principal)
            world.transport.written.clear()
            world.send(asking)
            found: MetadataResponse = codec.decode_response(MetadataResponse, 9, bytes(world.transport.written[4:]))[1]
            assert found.error_code == ErrorCode.NONE
            return found.cluster_id

        for _ in range(3):
            assert ask(ALICE) == ALICE
            assert ask("User:bob") == "User:bob"
        assert made == [ALICE, "User:bob"]
        rules.rules_version += 1
        assert ask(ALICE) == ALICE
        assert made == [ALICE, "User:bob", ALICE]

    run(scenario)
