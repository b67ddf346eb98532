"""A connection that has to prove who it is: before its first request, and again when its session is about to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.client.fake import CUT, SILENCE, FakeCluster, VirtualClock, World

from headrace.client.cluster.core import ANY_NODE
from headrace.errors import ErrorCode, NetworkError, SaslAuthenticationFailedError, error_for
from headrace.net.authentication import Flow
from headrace.net.connection import Call
from headrace.net.node import Node
from headrace.net.sasl.exchange import Exchange, authenticate_by
from headrace.net.security import Security
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

LIFETIME_MS = 60_000


def two_steps(node: Node) -> Flow:
    """A mechanism with a challenge: what the broker answers goes into the next token."""
    yield SaslHandshakeRequest(mechanism="TEST")
    challenge = yield SaslAuthenticateRequest(auth_bytes=b"who")
    verdict = yield SaslAuthenticateRequest(auth_bytes=b"answer to " + bytes(challenge.auth_bytes))
    if verdict.error_code:
        raise error_for(verdict.error_code, f"{node} does not know this password")
    lifetime_ms: int = verdict.session_lifetime_ms
    return lifetime_ms


def two_tokens() -> Exchange:
    challenge = yield b"who"
    yield b"answer to " + challenge


class Broker:
    """Answers the exchange; `refuses` makes its verdict a no."""

    def __init__(self) -> None:
        self.refuses = False
        self.lifetime_ms = 0
        self.exchanges = 0
        self.override: Callable[[str, Any], Any] = lambda name, request: None

    def __call__(self, node: int, name: str, request: Any) -> Any:
        told = self.override(name, request)
        if told is not None:
            return told
        if name == "SaslHandshake":
            return SaslHandshakeResponse(mechanisms=["TEST"])
        if name != "SaslAuthenticate":
            return None
        if request.auth_bytes == b"who":
            return SaslAuthenticateResponse(auth_bytes=b"challenge")
        assert request.auth_bytes == b"answer to challenge"
        self.exchanges += 1
        if self.refuses:
            return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, auth_bytes=b"")
        return SaslAuthenticateResponse(auth_bytes=b"", session_lifetime_ms=self.lifetime_ms)


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def world(broker: Broker) -> World:
    cluster = FakeCluster(VirtualClock())
    cluster.served |= {ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.SASL_AUTHENTICATE: (0, 2)}
    cluster.script = broker
    world = World(cluster)
    world.core.settings = replace(world.core.config, security=Security(authenticate=two_steps))
    return world


def names(world: World) -> list[str]:
    return [name for _, name, _, _ in world.cluster.requests]


def test_nothing_is_asked_before_the_exchange_is_over(world: World) -> None:
    call = world.core.submit(ANY_NODE, ListGroupsRequest())
    world.run_until(lambda: call.done)
    assert call.error is None
    first = names(world)[:5]
    assert first[:4] == ["ApiVersions", "SaslHandshake", "SaslAuthenticate", "SaslAuthenticate"]
    assert first[4] in ("Metadata", "ListGroups")


def test_a_refusal_ends_the_calls_at_once_and_says_why(world: World, broker: Broker) -> None:
    broker.refuses = True
    begun = world.clock.now
    call = world.core.submit(ANY_NODE, ListGroupsRequest())
    world.run_until(lambda: call.done)
    assert isinstance(call.error, SaslAuthenticationFailedError)
    assert "does not know this password" in str(call.error)
    assert world.clock.now - begun < 1, "nobody waits for a time-out"
    assert "ListGroups" not in names(world)


def test_an_answer_that_a_mechanism_stumbles_over_ends_nothing_but_its_connection(world: World) -> None:
    """Whoever moves the bytes (a producer's thread, a poll) goes on; the secret is not told."""

    def stumbling() -> Exchange:
        answer = yield b"who"
        raise ValueError(f"the secret, and {answer!r}")

    authenticate = authenticate_by("TEST", stumbling)
    world.core.settings = replace(world.core.config, security=Security(authenticate=authenticate))
    call = world.core.submit(ANY_NODE, ListGroupsRequest())
    world.run_until(lambda: call.done)
    assert isinstance(call.error, SaslAuthenticationFailedError)
    assert "ValueError" in str(call.error)
    assert "secret" not in str(call.error)


def test_a_session_is_renewed_before_it_ends_and_requests_wait_for_that(world: World, broker: Broker) -> None:
    broker.lifetime_ms = LIFETIME_MS
    call = world.core.submit(ANY_NODE, ListGroupsRequest())
    world.run_until(lambda: call.done)
    exchanges = broker.exchanges
    opened = world.cluster.opened
    world.clock.now += LIFETIME_MS / 1000 * 0.96
    del world.cluster.requests[:]
    again = world.core.submit(call.node_id, ListGroupsRequest())
    world.run_until(lambda: again.done)
    assert again.error is None
    assert broker.exchanges == exchanges + 1
    assert world.cluster.opened == opened, "on the same connection"
    wanted = [name for name in names(world) if name.startswith("Sasl") or name == "ListGroups"]
    assert wanted == ["SaslHandshake", "SaslAuthenticate", "SaslAuthenticate", "ListGroups"]


def test_a_session_is_not_renewed_while_an_answer_is_awaited(world: World, broker: Broker) -> None:
    broker.lifetime_ms = LIFETIME_MS
    first = world.core.submit(ANY_NODE, ListGroupsRequest())
    world.run_until(lambda: first.done)
    held: list[Any] = []
    broker.override = lambda name, request: held.append(request) or SILENCE if name == "ListGroups" else None
    slow = world.core.submit(first.node_id, ListGroupsRequest(), timeout_ms=LIFETIME_MS * 2)
    world.run_until(lambda: bool(held))
    world.clock.now += LIFETIME_MS / 1000 * 0.96
    exchanges = broker.exchanges
    waiting = world.core.submit(first.node_id, ListGroupsRequest(), timeout_ms=LIFETIME_MS * 2)
    world.settle()
    assert broker.exchanges == exchanges
    assert not waiting.done
    assert not slow.done


@pytest.mark.parametrize("to", ["that node", "any node"])
def test_a_refused_renewal_fails_what_waits_for_it(world: World, broker: Broker, to: str) -> None:
    broker.lifetime_ms = LIFETIME_MS
    call = world.core.submit(ANY_NODE, ListGroupsRequest())
    world.run_until(lambda: call.done)
    broker.refuses = True
    world.clock.now += LIFETIME_MS / 1000 * 0.96
    again = world.core.submit(ANY_NODE if to == "any node" else call.node_id, ListGroupsRequest())
    world.run_until(lambda: again.done)
    assert isinstance(again.error, SaslAuthenticationFailedError)


def session_not_renewed(world: World, broker: Broker) -> tuple[Call, list[Any]]:
    """A call in a session that is about to end, and how often the broker is going to refuse to renew it."""
    broker.lifetime_ms = 300
    world.core.settings = replace(
        world.core.config, security=Security(authenticate=authenticate_by("TEST", two_tokens))
    )
    call = world.core.submit(ANY_NODE, ListGroupsRequest())
    world.run_until(lambda: call.done)
    too_soon: list[Any] = [SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)]
    broker.override = lambda name, request: too_soon.pop() if name == "SaslHandshake" and too_soon else None
    return call, too_soon


def test_a_broker_that_does_not_renew_a_session_yet_is_connected_to_again(world: World, broker: Broker) -> None:
    """Apache Kafka takes no SaslHandshake within a second of the last: a token that soon expires leads to that."""
    call, _ = session_not_renewed(world, broker)
    opened = world.cluster.opened
    world.clock.now += 0.29
    refused = world.core.submit(call.node_id, ListGroupsRequest())
    world.run_until(lambda: refused.done)
    assert isinstance(refused.error, NetworkError), "to be tried again"
    again = world.core.submit(call.node_id, ListGroupsRequest())
    world.run_until(lambda: again.done)
    assert again.error is None
    assert world.cluster.opened == opened + 1


@pytest.mark.parametrize("brokers", [1, 2])
def test_a_call_to_any_node_goes_elsewhere_when_a_session_is_not_renewed(broker: Broker, brokers: int) -> None:
    cluster = FakeCluster(VirtualClock(), brokers=brokers)
    cluster.served |= {ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.SASL_AUTHENTICATE: (0, 2)}
    cluster.script = broker
    world = World(cluster)
    _, too_soon = session_not_renewed(world, broker)
    world.clock.now += 0.29
    again = world.core.submit(ANY_NODE, ListGroupsRequest())
    world.run_until(lambda: again.done)
    assert too_soon == []
    assert again.error is None


def test_a_connection_that_breaks_within_the_exchange_is_made_again(world: World, broker: Broker) -> None:
    breaks = [CUT, CUT]
    broker.override = lambda name, request: breaks.pop() if name == "SaslAuthenticate" and breaks else None
    call = world.core.submit(ANY_NODE, ListGroupsRequest())
    world.run_until(lambda: call.done)
    assert call.error is None
    assert world.cluster.opened >= 3


def test_a_broker_without_sasl_is_named_as_one(world: World) -> None:
    world.cluster.served.pop(ApiKey.SASL_HANDSHAKE)
    call = world.core.submit(ANY_NODE, ListGroupsRequest(), timeout_ms=3000)
    world.run_until(lambda: call.done)
    assert call.error is not None
    assert not isinstance(call.error, NetworkError)
    assert "does not serve SaslHandshake" in str(call.error)
