"""OAUTHBEARER: which signed tokens are taken, by which keys, and what a token may not choose."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import confluent_kafka
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from tests.broker.security.settings import with_logins
from tests.waiting import eventually

from headrace import Admin
from headrace.broker.security.jwt_keys import SignedTokens
from headrace.cluster.broker_config import BrokerConfig
from headrace.config import ConfigError
from headrace.errors import SaslAuthenticationFailedError
from headrace.net.sasl.serving import BadCredentialsError
from headrace.testing import EmbeddedBroker, broker

RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
OTHER = rsa.generate_private_key(65537, 2048)
ISSUER = "https://issuer.example"
# Tokens that are parameters of a test are made when the tests are collected, and used up to the end of the whole run.
VALID_S = 100_000


def jwk(key: Any, kid: str, algorithm: str) -> dict[str, Any]:
    kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return json.loads(kind.to_jwk(key.public_key())) | {"kid": kid, "alg": algorithm, "use": "sig"}


JWKS = {"keys": [jwk(RSA, "one", "RS256"), jwk(EC, "two", "ES256")]}


def token(key: Any = RSA, kid: str | None = "one", algorithm: str = "RS256", **claims: Any) -> str:
    now = int(time.time())
    content = {"sub": "alice", "iss": ISSUER, "aud": "kafka", "scope": "read write", "iat": now, "exp": now + VALID_S}
    content |= claims
    content = {name: value for name, value in content.items() if value is not None}
    return jwt.encode(content, key, algorithm, headers={} if kid is None else {"kid": kid})


def settings(url: str, **more: str) -> dict[str, str]:
    return {
        "sasl.oauthbearer.jwks.endpoint.url": url,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": "kafka,others",
        "headrace.oauthbearer.expected.scope": "read",
        **more,
    }


@pytest.fixture
def tokens(tmp_path: Path) -> SignedTokens:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps(JWKS))
    return SignedTokens("L", BrokerConfig.parse(settings(file.as_uri())), file.as_uri())


def test_tokens_of_every_key_are_taken(tokens: SignedTokens) -> None:
    for given in (token(), token(EC, "two", "ES256"), token(scope=["write", "read"]), token(aud=["x", "others"])):
        proof = tokens.check(given)
        assert (proof.principal, proof.by_token) == ("User:alice", False)
        assert proof.expires_at_ms is not None
        assert 0 < proof.expires_at_ms - time.time() * 1000 <= VALID_S * 1000


def test_the_only_key_need_not_be_named(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": JWKS["keys"][:1]}))
    tokens = SignedTokens("L", BrokerConfig.parse(settings(file.as_uri())), file.as_uri())
    assert tokens.check(token(kid=None)).name == "alice"
    with pytest.raises(BadCredentialsError, match="Signature"):
        tokens.check(token(OTHER, kid=None))
    with pytest.raises(BadCredentialsError, match="no key"):
        tokens.check(token(kid="another"))


def with_header(changed: dict[str, Any], given: str) -> str:
    _, claims, signature = given.split(".")
    header = base64.urlsafe_b64encode(json.dumps(changed).encode()).decode().rstrip("=")
    return f"{header}.{claims}.{signature}"


NOW = int(time.time())
PUBLIC_PEM = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (token(OTHER), "Signature"),
        (token(EC, "one", "ES256"), "not taken"),
        (token(kid="unknown"), "no key"),
        (token(kid=None), "no key"),
        (token(iss="https://elsewhere.example"), "ssuer"),
        (token(iss=None), "iss"),
        (token(aud="another"), "udience"),
        (token(aud=None), "aud"),
        (token(scope="write"), "lacks the scope read"),
        (token(scope=None), "lacks the scope read"),
        (token(exp=NOW - 31), "xpired"),
        (token(exp=None), "exp"),
        (token(iat=None), "iat"),
        (token(iat=NOW + VALID_S), "not yet valid"),
        (token(nbf=NOW + VALID_S), "not yet valid"),
        (token(sub=""), "no name"),
        (token(sub=None), "no name"),
        (token(sub="half of a character: \ud800"), "no name"),
        (token(exp=1e300), "when it ends"),
        (token(exp=10**400), "when it ends"),
        (token(scope=[["read"]]), "lacks the scope read"),
        (with_header({"alg": "none", "kid": "one"}, token()), "signed by none"),
        (with_header({"alg": "none"}, token()).rpartition(".")[0] + ".", "signed by none"),
        (with_header({"alg": "HS256", "kid": "one"}, token()), "signed by HS256"),
        (with_header({"kid": "one"}, token()), "cannot be read|signed by None"),
        (with_header({"alg": "RS256", "kid": "one", "jwk": JWKS["keys"][1]}, token(OTHER)), "Signature"),
        ("no token at all", "cannot be read"),
        ("a.b.c", "cannot be read"),
        (token() + ".more", "cannot be read"),
    ],
)
def test_what_is_wrong_is_refused(tokens: SignedTokens, given: str, why: str) -> None:
    with pytest.raises(BadCredentialsError, match=why):
        tokens.check(given)


def test_a_public_key_is_no_shared_secret(tokens: SignedTokens) -> None:
    """Whoever signs with what everybody knows has shown nothing (the confusion of RS256 with HS256)."""
    import hashlib
    import hmac

    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"one"}').decode().rstrip("=")
    body = token().split(".")[1]
    signature = hmac.digest(PUBLIC_PEM, f"{head}.{body}".encode(), hashlib.sha256)
    forged = f"{head}.{body}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"
    with pytest.raises(BadCredentialsError, match="HS256"):
        tokens.check(forged)


def test_one_key_as_pem(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_bytes(PUBLIC_PEM)
    tokens = SignedTokens("L", BrokerConfig.parse({}), file.as_uri())
    assert tokens.check(token(kid=None, aud=None)).name == "alice"
    assert tokens.check(token(aud=None)).name == "alice"


@pytest.mark.parametrize(
    ("content", "why"),
    [("{}", "no JWKS"), ("nonsense", "Expecting value"), ('{"keys": []}', "no key in it"), (None, "No such file"),
     ('{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "s"}]}', "no key in it")],
)  # fmt: skip
def test_files_without_keys_are_said_at_start(tmp_path: Path, content: str | None, why: str) -> None:
    file = tmp_path / "jwks.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=why):
        SignedTokens("L", BrokerConfig.parse({}), file.as_uri())


@pytest.mark.parametrize("url", ["ftp://x/keys", "keys.json", "data:,x"])
def test_addresses_of_other_kinds_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="https, http or file"):
        SignedTokens("L", BrokerConfig.parse({}), url)


# --- on a broker ------------------------------------------------------------------------------------------------------


class Keys(ThreadingHTTPServer):
    """Serves a JWKS, which may change."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.document = JWKS
        self.asked = 0


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Keys)
        self.server.asked += 1
        if self.path.partition("?")[0] != "/keys":
            self.send_response(302)
            self.send_header("Location", "/keys")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.server.document).encode())

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextlib.contextmanager
def keys() -> Iterator[Keys]:
    server = Keys()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def client(kafka: EmbeddedBroker, given: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": kafka.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.callback": lambda: (given, time.time() + 600),
    }


def test_clients_log_in_by_tokens_whose_keys_are_at_a_server(caplog: pytest.LogCaptureFixture) -> None:
    with keys() as server:
        url = f"http://127.0.0.1:{server.server_port}/keys?key=hidden"
        given = with_logins("OAUTHBEARER") | settings(url)
        with broker(overrides=given) as kafka:
            eventually(lambda: server.asked)
            with Admin(client(kafka, token())) as admin:
                eventually(lambda: _lists(admin))
            with Admin(client(kafka, token(OTHER))) as admin, pytest.raises(SaslAuthenticationFailedError):
                admin.list_topics()
            producer = confluent_kafka.Producer(
                {
                    "bootstrap.servers": kafka.address,
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": "OAUTHBEARER",
                    "oauth_cb": lambda _: (token(EC, "two", "ES256"), time.time() + 600),
                }
            )
            producer.produce("t", b"x")
            assert producer.flush(20) == 0
    assert "hidden" not in caplog.text


def test_keys_that_are_exchanged_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.security.jwt_keys._LOOK_AGAIN_S", 0.01)
    with keys() as server:
        server.document = {"keys": [jwk(OTHER, "old", "RS256")]}
        url = f"http://127.0.0.1:{server.server_port}/keys"
        with broker(overrides=with_logins("OAUTHBEARER") | settings(url)) as kafka:
            eventually(lambda: server.asked)
            server.document = JWKS
            with Admin(client(kafka, token())) as admin:
                eventually(lambda: _lists(admin))


def test_keys_are_taken_from_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    with keys() as server:
        url = f"http://127.0.0.1:{server.server_port}/elsewhere"
        with broker(overrides=with_logins("OAUTHBEARER") | settings(url)) as kafka:
            eventually(lambda: "no keys can be read" in caplog.text)
            with Admin(client(kafka, token())) as admin, pytest.raises(SaslAuthenticationFailedError):
                admin.list_topics()


def _lists(admin: Admin) -> bool:
    try:
        admin.list_topics()
    except SaslAuthenticationFailedError:
        return False
    return True
