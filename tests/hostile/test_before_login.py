"""What somebody may do to a broker before it is known who he is: next to nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.broker import raw
from tests.broker.raw import RawClient
from tests.broker.security.settings import USERS, with_logins
from tests.waiting import eventually

from headrace.broker.security.login import STEPS_MAX
from headrace.broker.security.users import password_check
from headrace.errors import SaslAuthenticationFailedError
from headrace.net.sasl.exchange import Exchange
from headrace.net.sasl.scram import scram
from headrace.net.sasl.serving import BadCredentialsError, Proof, ScramServer, scram_keys
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.protocol.wire import uvarint
from headrace.testing import EmbeddedBroker, broker

LOGIN_KEYS = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
RECEIVE_BYTES_MAX = 524_288


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with broker(overrides=with_logins("PLAIN", "SCRAM-SHA-256")) as running:
        yield running


def limit(kafka: EmbeddedBroker, **limits: float) -> None:
    def change(inside: Any) -> None:
        inside.acceptor.limits = dataclasses.replace(inside.acceptor.limits, **limits)

    kafka.call(change)


def log_in(client: RawClient, password: str = USERS["alice"]) -> Any:
    client.request(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    return client.request(SaslAuthenticateRequest(auth_bytes=f"\0alice\0{password}".encode()), 2)


def test_nothing_but_versions_and_logins_is_decoded(kafka: EmbeddedBroker) -> None:
    malformed = kafka.call(lambda inside: inside.pipeline.malformed)
    others = kafka.call(lambda inside: [key for key in inside.pipeline.handlers if key not in LOGIN_KEYS])
    for api_key in others:
        with RawClient(kafka.port) as client:
            body = struct.pack(">hhih", api_key, 0, 1, 1) + b"x" + b"\x7f\xff\xff\xff" * 8
            client.socket.sendall(struct.pack(">i", len(body)) + body)
            assert client.is_closed_by_peer(), ApiKey(api_key).name
    assert kafka.call(lambda inside: inside.pipeline.malformed) == malformed


@pytest.mark.parametrize("size", [RECEIVE_BYTES_MAX + 1, 2**31 - 1, -1, 0])
def test_a_size_that_no_login_needs_is_refused_before_it_comes(kafka: EmbeddedBroker, size: int) -> None:
    with RawClient(kafka.port) as client:
        client.socket.sendall(struct.pack(">i", size))
        assert client.is_closed_by_peer()
    assert kafka.call(lambda inside: inside.acceptor.held_bytes) == 0


@pytest.mark.parametrize("place", ["header", "body"])
def test_tagged_fields_without_end_are_refused(kafka: EmbeddedBroker, place: str) -> None:
    tags = uvarint(200_000) + b"\x7f\0" * 200_000
    header = struct.pack(">hhih", ApiKey.API_VERSIONS, 3, 7, 3) + b"raw"
    body = header + (tags + b"\1\1\0" if place == "header" else b"\0\2a\2b" + tags)
    with RawClient(kafka.port) as client:
        client.socket.sendall(struct.pack(">i", len(body)) + body)
        assert client.is_closed_by_peer()
    eventually(lambda: kafka.call(lambda inside: inside.acceptor.held_bytes) == 0)


def test_who_takes_too_many_steps_is_hung_up_on(kafka: EmbeddedBroker) -> None:
    with RawClient(kafka.port) as client:
        client.request(ApiVersionsRequest(), 0)
        for _ in range(STEPS_MAX):
            with contextlib.suppress(OSError):
                client.send(ApiVersionsRequest(), 0)
        assert client.is_closed_by_peer()


def test_who_takes_too_long_is_hung_up_on_and_who_has_logged_in_is_not(kafka: EmbeddedBroker) -> None:
    with RawClient(kafka.port) as slow, RawClient(kafka.port) as known:
        assert log_in(known).error_code == 0
        slow.request(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        began = time.monotonic()
        limit(kafka, login_s=0.1)
        try:
            eventually(lambda: time.monotonic() - began > 0.2)
            kafka.call(lambda inside: inside.acceptor.sweep())
            assert slow.is_closed_by_peer()
            assert known.request(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
        finally:
            limit(kafka, login_s=30.0)


def test_a_flood_of_strangers_keeps_nobody_out(kafka: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.server.acceptor.STRANGER_S", 0.0)
    limit(kafka, connections_max=20)
    try:
        with contextlib.ExitStack() as stack:
            known = stack.enter_context(RawClient(kafka.port))
            assert log_in(known).error_code == 0
            flood = [stack.enter_context(RawClient(kafka.port)) for _ in range(40)]
            late = stack.enter_context(RawClient(kafka.port))
            assert log_in(late).error_code == 0
            assert known.request(raw.create_topics_request({"u": 1}), raw.CREATE_TOPICS_VERSION)
            assert flood[0].is_closed_by_peer()
            assert kafka.call(lambda inside: len(inside.acceptor.connections)) <= 20
    finally:
        limit(kafka, connections_max=2**31 - 1)


def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are(kafka: EmbeddedBroker) -> None:
    for name in ("SCRAM-SHA-512", "ANONYMOUS", "EXTERNAL", "plain", ""):
        with RawClient(kafka.port) as client:
            answer = client.request(SaslHandshakeRequest(mechanism=name), 1)
            assert (answer.error_code, answer.mechanisms) == (33, ["PLAIN", "SCRAM-SHA-256"])
            assert client.is_closed_by_peer()


# --- passwords --------------------------------------------------------------------------------------------------------


def test_what_was_heard_of_one_login_opens_no_other() -> None:
    """The broker's part of the nonce is another each time, and is looked at (CVE-2024-56128)."""
    keys = scram_keys("SCRAM-SHA-256", "secret", iterations=4096, salt=b"salt")

    def server() -> ScramServer:
        return ScramServer("SCRAM-SHA-256", lambda name, by_token: (keys, Proof(name)))

    heard: list[bytes] = []
    client: Exchange = scram("SCRAM-SHA-256", "alice", "secret")
    first_server = server()
    message = next(client)
    with contextlib.suppress(StopIteration):
        while True:
            heard.append(message)
            message = client.send(first_server.respond(message))
    assert first_server.proof == Proof("alice")
    again = server()
    again.respond(heard[0])
    with pytest.raises((BadCredentialsError, SaslAuthenticationFailedError)):
        again.respond(heard[1])
    assert again.proof is None


def test_every_password_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a user that there is not (CVE-2021-38153)."""
    compared: list[int] = []
    compare = hmac.compare_digest

    def counting(first: bytes, second: bytes) -> bool:
        compared.append(len(first))
        return compare(first, second)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    is_password = password_check({"alice": "a-secret-of-some-length"})
    for name, password in (("alice", "a-secret-of-some-length"), ("alice", "b"), ("nobody", "b" * 500)):
        is_password(name, password)
    assert len(compared) == 3
    assert len(set(compared)) == 1
    keys = scram_keys("SCRAM-SHA-256", "secret", iterations=4096, salt=b"salt")
    server = ScramServer("SCRAM-SHA-256", lambda name, by_token: (keys, Proof(name)))
    client = scram("SCRAM-SHA-256", "alice", "wrong")
    final = client.send(server.respond(next(client)))
    with pytest.raises((BadCredentialsError, SaslAuthenticationFailedError)):
        server.respond(final)
    assert len(compared) > 3


def test_a_refusal_says_the_same_of_a_wrong_user_and_a_wrong_password(kafka: EmbeddedBroker) -> None:
    told = set()
    for name, password in (("alice", "wrong"), ("nobody", "wrong"), ("*", "wrong"), ("bob", USERS["alice"])):
        with RawClient(kafka.port) as client:
            client.request(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            answer = client.request(SaslAuthenticateRequest(auth_bytes=f"\0{name}\0{password}".encode()), 2)
            told.add((answer.error_code, answer.error_message))
            assert client.is_closed_by_peer()
    assert len(told) == 1
