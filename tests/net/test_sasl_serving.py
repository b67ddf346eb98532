"""The server's side of SASL, held against what Apache Kafka's own classes made of the same messages."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tests.protocol.vectors import load

from headrace.errors import SaslAuthenticationFailedError
from headrace.net.sasl.exchange import Exchange
from headrace.net.sasl.plain import plain
from headrace.net.sasl.scram import scram
from headrace.net.sasl.serving import (
    BadCredentialsError,
    OauthServer,
    PlainServer,
    Proof,
    ScramKeys,
    ScramServer,
    scram_keys,
    unescape,
)

VECTORS = load("scram.jsonl.gz")


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [row for row in VECTORS if row["kind"] == kind]


EACH_TENTH = pytest.param(10, id="some")
ALL = pytest.param(1, id="all", marks=pytest.mark.slow)


@pytest.mark.parametrize("every", [EACH_TENTH, ALL])
def test_keys_are_made_of_passwords_as_kafka_does(every: int) -> None:
    for row in of_kind("credential")[::every]:
        if row.get("error"):
            continue  # an empty password, which Java refuses; `headrace user` does
        salt = base64.b64decode(row["salt"])
        keys = scram_keys(row["mechanism"], row["password"], iterations=row["iterations"], salt=salt)
        assert base64.b64encode(keys.stored_key).decode() == row["stored_key"], row
        assert base64.b64encode(keys.server_key).decode() == row["server_key"], row


@pytest.mark.parametrize("every", [EACH_TENTH, ALL])
def test_exchanges_end_as_with_kafka(every: int) -> None:
    for row in of_kind("exchange")[::every]:
        salt = base64.b64decode(row["salt"])
        keys = scram_keys(row["mechanism"], row["password"], iterations=row["iterations"], salt=salt)

        def look_up(name: str, by_token: bool, keys: ScramKeys = keys) -> tuple[ScramKeys, Proof]:
            return keys, Proof(f"owner of {name}" if by_token else name)

        server = ScramServer(row["mechanism"], look_up, nonce=row["server_nonce"])
        assert server.respond(row["client_first"].encode()).decode() == row["server_first"], row
        if row["error"] is None:
            assert server.respond(row["client_final"].encode()).decode() == row["server_final"], row
            assert server.proof == Proof(row["authorization_id"])
        else:
            with pytest.raises(BadCredentialsError):
                server.respond(row["client_final"].encode())
            assert server.proof is None


def test_first_and_final_messages_are_read_as_by_kafka() -> None:
    keys = ScramKeys(b"salt", b"s" * 32, b"k" * 32, 4096)
    for row in of_kind("parse_client_first"):
        server = ScramServer("SCRAM-SHA-256", lambda name, by_token: (keys, Proof(name)), nonce="own")
        message = row["message"].encode()
        if row["error"]:
            with pytest.raises(BadCredentialsError):
                server.respond(message)
        elif row["parsed"]["authorization_id"]:
            # It is another's, which is found out after the message was read.
            with pytest.raises(SaslAuthenticationFailedError):
                server.respond(message)
        else:
            assert server.respond(message).decode().startswith(f"r={row['parsed']['nonce']}own,s="), row
    for row in of_kind("parse_client_final"):
        server = ScramServer("SCRAM-SHA-256", lambda name, by_token: (keys, Proof(name)), nonce="def")
        server.respond(b"n,,n=alice,r=abc")
        with pytest.raises(BadCredentialsError) as refused:
            server.respond(row["message"].encode())
        assert ("cannot be read" in str(refused.value)) is (row["error"] is not None), row


def test_names_are_unescaped_as_by_kafka() -> None:
    for row in of_kind("unescape"):
        if row["error"]:
            with pytest.raises(BadCredentialsError):
                unescape(row["sasl_name"])
        else:
            assert unescape(row["sasl_name"]) == row["user"]


def talk(client: Exchange, server: Any) -> None:
    message = next(client)
    while True:
        answer = server.respond(message)
        try:
            message = client.send(answer)
        except StopIteration:
            return


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("name", ["alice", "a,b=c", "="])
def test_our_own_client_gets_in(mechanism: str, name: str) -> None:
    keys = scram_keys(mechanism, "p,=ß", iterations=4096, salt=b"salt")
    server = ScramServer(mechanism, lambda asked, by_token: (keys, Proof(asked)) if asked == name else None)
    talk(scram(mechanism, name, "p,=ß"), server)
    assert server.proof == Proof(name)


def test_a_token_is_told_from_a_user_of_that_name() -> None:
    asked: list[tuple[str, bool]] = []

    def look_up(name: str, by_token: bool) -> None:
        asked.append((name, by_token))

    for extension in ("", ",tokenauth=true", ",tokenauth=false", ",x=1,tokenauth=true"):
        with pytest.raises(BadCredentialsError):
            ScramServer("SCRAM-SHA-256", look_up).respond(f"n,,n=one,r=nonce{extension}".encode())
    assert asked == [("one", False), ("one", True), ("one", False), ("one", True)]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"alice", "expected 3 tokens, got 1"),
        (b"\0alice\0secret\0", "expected 3 tokens, got 4"),
        (b"\0\0secret", "username not specified"),
        (b"\0alice\0", "password not specified"),
        (b"\0alice\0wrong", "Invalid username or password"),
        (b"\0bob\0secret", "Invalid username or password"),
        (b"bob\0alice\0secret", "different from username"),
        (b"\0al\xffice\0secret", "Invalid username or password"),
    ],
)
def test_a_password_that_is_not_right_is_refused(message: bytes, told: str) -> None:
    server = PlainServer(lambda name, password: (name, password) == ("alice", "secret"))
    with pytest.raises(SaslAuthenticationFailedError, match=told):
        server.respond(message)
    assert server.proof is None


def test_a_password_that_is_right_is_taken() -> None:
    server = PlainServer(lambda name, password: (name, password) == ("alice", "secret"))
    talk(plain("alice", "secret"), server)
    assert server.proof is not None
    assert server.proof.principal == "User:alice"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"junk",
        b"n,,\x01auth=Bearer a.b.c\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01x=1\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
    ],
)
def test_a_bearer_message_that_is_none_is_refused(message: bytes) -> None:
    with pytest.raises(BadCredentialsError):
        OauthServer(lambda token: Proof("alice")).respond(message)


def test_a_refused_token_is_told_twice() -> None:
    def check(token: str) -> Proof:
        raise BadCredentialsError("it has expired")

    server = OauthServer(check)
    assert server.respond(b"n,,\x01auth=Bearer a.b.c\x01\x01") == b'{"status":"invalid_token"}'
    assert server.proof is None
    assert server.refused == "it has expired"
    with pytest.raises(SaslAuthenticationFailedError, match="invalid_token"):
        server.respond(b"\x01")
