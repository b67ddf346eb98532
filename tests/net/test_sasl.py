"""SASL mechanisms without a socket: published examples, refusals, tokens that end, secrets that nobody gets to see."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

import pytest

from headrace import Producer
from headrace.client.configs import COMMON_KEYS, read_config
from headrace.config import ConfigDefinition, ConfigError
from headrace.errors import ErrorCode, NetworkError, SaslAuthenticationFailedError, UnsupportedSaslMechanismError
from headrace.net.node import Node
from headrace.net.sasl import sasl_security
from headrace.net.sasl.exchange import authenticate_by
from headrace.net.sasl.jaas import InvalidJaasError, parse_jaas
from headrace.net.sasl.oauthbearer import ClientCredentials, Token, TokenSource, oauthbearer, token_of
from headrace.net.sasl.plain import plain
from headrace.net.sasl.scram import scram
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeResponse

NODE = Node(1, "broker", 9092)
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"

# RFC 7677, section 3.
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def ends(conversation: Generator[Any, Any, Any], answer: Any) -> bool:
    try:
        conversation.send(answer)
    except StopIteration:
        return True
    return False


def settings(**given: Any) -> dict[str, Any]:
    definition = ConfigDefinition(COMMON_KEYS)
    dotted = {name.replace("_", "."): value for name, value in given.items()}
    return read_config(definition, {"bootstrap.servers": "broker:9092", **dotted})


def test_plain_is_one_message() -> None:
    conversation = plain("müller", "geheim")
    assert next(conversation) == b"\0m\xc3\xbcller\0geheim"
    assert ends(conversation, b"")


def test_scram_says_what_the_standard_shows() -> None:
    conversation = scram("SCRAM-SHA-256", "user", "pencil", nonce=CLIENT_NONCE)
    assert next(conversation) == f"n,,n=user,r={CLIENT_NONCE}".encode()
    assert conversation.send(SERVER_FIRST) == CLIENT_FINAL
    assert ends(conversation, SERVER_FINAL)


def test_names_with_commas_and_equals_signs_are_escaped() -> None:
    assert b"n=a=3Db=2Cc,r=" in next(scram("SCRAM-SHA-512", "a=b,c", "x"))


def test_a_delegation_token_is_said_to_be_one() -> None:
    assert next(scram("SCRAM-SHA-256", "id", "hmac", token_authenticated=True)).endswith(b",tokenauth=true")


@pytest.mark.parametrize(
    "server_first",
    [
        SERVER_FIRST.replace(b"r=rOpr", b"r=xOpr"),
        f"r={CLIENT_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode(),
        SERVER_FIRST.replace(b"i=4096", b"i=1"),
        SERVER_FIRST.replace(b"i=4096", b"i=999999999"),
        SERVER_FIRST.replace(b"i=4096", b"i=" + b"4" * 5000),
        SERVER_FIRST.replace(b"s=W22", b"s=!!!"),
        SERVER_FIRST.replace(b"s=W22", "s=Wéé".encode()),
        b"\xff\xfe",
        b"",
    ],
)
def test_a_server_that_does_not_play_by_the_rules_is_refused(server_first: bytes) -> None:
    conversation = scram("SCRAM-SHA-256", "user", "pencil", nonce=CLIENT_NONCE)
    next(conversation)
    with pytest.raises(SaslAuthenticationFailedError):
        conversation.send(server_first)


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    conversation = scram("SCRAM-SHA-256", "user", "pencil", nonce=CLIENT_NONCE)
    next(conversation)
    conversation.send(SERVER_FIRST)
    with pytest.raises(SaslAuthenticationFailedError, match="may not be the one"):
        conversation.send(b"v=" + base64.b64encode(b"x" * 32))


def test_the_messages_around_a_mechanism() -> None:
    flow = authenticate_by("PLAIN", lambda: plain("u", "p"))(NODE)
    assert next(flow).mechanism == "PLAIN"
    assert flow.send(SaslHandshakeResponse(mechanisms=["PLAIN"])).auth_bytes == b"\0u\0p"
    with pytest.raises(StopIteration) as end:
        flow.send(SaslAuthenticateResponse(auth_bytes=b"", session_lifetime_ms=4000))
    assert end.value.value == 4000


def test_a_mechanism_that_the_broker_lacks_is_answered_with_those_it_has() -> None:
    flow = authenticate_by("PLAIN", lambda: plain("u", "p"))(NODE)
    next(flow)
    with pytest.raises(UnsupportedSaslMechanismError, match="SCRAM-SHA-512"):
        flow.send(SaslHandshakeResponse(error_code=33, mechanisms=["SCRAM-SHA-512"]))


def test_jaas_lines_are_read_as_java_writes_them() -> None:
    entry = parse_jaas(f'{PLAIN_MODULE} required username="a b" password="x\\"y;=z";')
    assert entry.options == {"username": "a b", "password": 'x"y;=z'}
    assert "a b" not in repr(entry)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Module",
        f"{PLAIN_MODULE} required",
        f'{PLAIN_MODULE} perhaps username="a";',
        f'{PLAIN_MODULE} required username="secret;',
    ],
)
def test_a_jaas_line_that_cannot_be_read_is_refused_without_showing_it(line: str) -> None:
    with pytest.raises(InvalidJaasError) as refused:
        parse_jaas(line)
    assert "secret" not in str(refused.value)


def test_credentials_come_from_either_set_of_names() -> None:
    by_name = settings(sasl_mechanism="PLAIN", sasl_username="u", sasl_password="p")
    by_jaas = settings(sasl_mechanism="PLAIN", sasl_jaas_config=f'{PLAIN_MODULE} required username="u" password="p";')
    for values in (by_name, by_jaas):
        authenticate, prepare = sasl_security(values)
        assert prepare is None
        flow = authenticate(NODE)
        next(flow)
        assert flow.send(SaslHandshakeResponse(mechanisms=["PLAIN"])).auth_bytes == b"\0u\0p"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sasl_mechanism": "GSSAPI"}, "SCRAM-SHA-512"),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "u"}, "sasl.password is not set"),
        ({"sasl_mechanism": "PLAIN", "sasl_password": "p"}, "sasl.username is not set"),
        ({"sasl_mechanism": "OAUTHBEARER"}, "sasl.oauthbearer.token.callback"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": f"{SCRAM_MODULE} required;"}, "is for SCRAM-SHA-256"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": "com.evil.Module required;"}, "not known"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_said_when_the_client_is_made(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sasl_security(settings(**given))


def test_a_bearer_token_goes_out_with_its_extensions() -> None:
    conversation = oauthbearer(Token("abc", None, {"logicalCluster": "lkc-1"}))
    assert next(conversation) == b"n,,\x01auth=Bearer abc\x01logicalCluster=lkc-1\x01\x01"
    assert ends(conversation, b"")


def test_a_refused_token_is_acknowledged_so_that_the_broker_can_say_no() -> None:
    conversation = oauthbearer(Token("abc"))
    next(conversation)
    assert conversation.send(b'{"status":"invalid_token"}') == b"\x01"


def jwt(expires_at: float) -> str:
    body = base64.urlsafe_b64encode(json.dumps({"exp": expires_at}).encode()).decode().rstrip("=")
    return f"e30.{body}.c2ln"


def test_tokens_are_kept_until_most_of_their_time_is_over() -> None:
    now = [1000.0]
    given: list[Token] = []

    def provider() -> Token:
        given.append(Token(f"token{len(given)}", now[0] + 100))
        return given[-1]

    source = TokenSource(provider, now=lambda: now[0])
    for at, count in [(1000.0, 1), (1079.0, 1), (1081.0, 2), (1100.0, 2)]:
        now[0] = at
        source.refresh()
        assert len(given) == count
    assert b"Bearer token1" in next(source.exchange())


def test_a_token_is_used_to_its_end_while_no_other_is_to_be_had() -> None:
    now = [1000.0]
    given: list[Any] = [Token("first", 1100.0), ConnectionError("away"), ConnectionError("away"), Token("next", 1300.0)]

    def provider() -> Token:
        one = given.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    source = TokenSource(provider, now=lambda: now[0])
    for at, left, token in [(1000.0, 3, b"first"), (1085.0, 2, b"first"), (1086.0, 2, b"first"), (1096.0, 1, b"first")]:
        now[0] = at
        source.refresh()
        assert len(given) == left, "asked again, but not at every connection"
        assert b"Bearer " + token in next(source.exchange())
    now[0] = 1100.0
    source.refresh()
    assert b"Bearer next" in next(source.exchange())
    given.append(ConnectionError("away"))
    now[0] = 1301.0
    with pytest.raises(NetworkError, match="there is no token now: ConnectionError: away"):
        source.refresh()


def refuse(source: TokenSource) -> None:
    flow = authenticate_by("OAUTHBEARER", source.exchange)(NODE)
    next(flow)
    flow.send(SaslHandshakeResponse(mechanisms=["OAUTHBEARER"]))
    with pytest.raises(SaslAuthenticationFailedError):
        flow.send(SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, auth_bytes=b""))


def accept(source: TokenSource) -> bytes:
    conversation = source.exchange()
    said = next(conversation)
    assert ends(conversation, b"")
    return said


def test_a_token_without_an_end_is_asked_for_anew_at_each_authentication() -> None:
    given: list[Any] = ["first", "second", ConnectionError("away"), ConnectionError("away")]

    def callback() -> Token:
        one = given.pop(0)
        if isinstance(one, Exception):
            raise one
        return token_of(one)

    source = TokenSource(callback, now=lambda: 1000.0)
    for token in (b"first", b"second", b"second"):
        source.refresh()
        assert b"Bearer " + token in accept(source), "the last one is good while no other is to be had"
    assert len(given) == 1, "and the source is not asked at every connection then"


def test_a_refused_token_is_forgotten() -> None:
    given: list[Any] = [Token("first", 2000.0), Token("second", 2000.0), ConnectionError("away")]

    def provider() -> Token:
        one = given.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    source = TokenSource(provider, now=lambda: 1000.0)
    source.refresh()
    refuse(source)
    source.refresh()
    assert b"Bearer second" in accept(source)
    refuse(source)
    with pytest.raises(NetworkError, match="there is no token now"):
        source.refresh()


def test_an_expired_token_is_named_as_the_cause() -> None:
    source = TokenSource(lambda: token_of(jwt(990.0)), now=lambda: 1000.0)
    with pytest.raises(SaslAuthenticationFailedError, match="expired 10 s ago"):
        source.refresh()


@pytest.mark.parametrize("given", [None, 5, ("a",), ("a", 1, 2, 3, 4), b"bytes"])
def test_a_callback_that_returns_something_else_is_told_what_to_return(given: Any) -> None:
    with pytest.raises(SaslAuthenticationFailedError, match="return the token"):
        token_of(given)


@pytest.mark.parametrize(
    "given", [("a", "soon"), ("a", 9e9, None, [1]), Token("a", None, {"b": 5}), Token(5), Token("a", "soon")]
)  # type: ignore[arg-type]  # what a callback gives is checked at run time
def test_whatever_a_callback_gives_ends_nothing_but_its_connection(given: Any) -> None:
    _, prepare = sasl_security(settings(sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token_callback=lambda: given))
    assert prepare is not None
    with pytest.raises(SaslAuthenticationFailedError, match="there is no token: "):
        prepare()


def test_a_callback_that_raises_is_a_refusal_that_says_so() -> None:
    def callback() -> str:
        raise RuntimeError("no ticket")

    _, prepare = sasl_security(settings(sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token_callback=callback))
    assert prepare is not None
    with pytest.raises(SaslAuthenticationFailedError, match="RuntimeError: no ticket"):
        prepare()


def token_by_name() -> tuple[str, float]:
    return "named", 4e9


def test_a_callback_is_found_by_its_dotted_name() -> None:
    name = f"{__name__}.token_by_name"
    _, prepare = sasl_security(settings(sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token_callback=name))
    assert prepare is not None
    prepare()


@pytest.mark.parametrize("name", ["token", "no.such.module", f"{__name__}.nothing", "os.path"])
def test_a_name_that_is_no_callback_is_refused_when_the_client_is_made(name: str) -> None:
    with pytest.raises(ConfigError, match="callback"):
        sasl_security(settings(sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token_callback=name))


def test_a_secret_in_the_address_of_an_oauth_server_is_not_shown() -> None:
    provider = ClientCredentials(
        url="http://me:hush@127.0.0.1:1/token", client_id="me", client_secret="hush", attempts=1
    )
    with pytest.raises(NetworkError) as failed:
        provider()
    assert "hush" not in str(failed.value) + repr(provider)
    assert "http://127.0.0.1:1/token" in str(failed.value)


@pytest.fixture
def oauth_server() -> Any:
    """Answers with what `script` says, one after the other, and keeps what it was asked."""

    class Server(HTTPServer):
        script: list[tuple[int, Any]]
        asked: list[tuple[str | None, dict[str, list[str]]]]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            server.asked.append((self.headers["Authorization"], parse_qs(body)))
            status, answer = server.script.pop(0)
            self.send_response(status)
            if status == 302:
                self.send_header("Location", answer)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def do_GET(self) -> None:
            server.asked.append((self.headers["Authorization"], {}))
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    server.script, server.asked = [], []
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def credentials(server: Any) -> ClientCredentials:
    url = f"http://127.0.0.1:{server.server_address[1]}/token"
    return ClientCredentials(url, "me", "s3cret&", scope="kafka", sleep=lambda _: None)


def test_tokens_are_fetched_by_client_credentials(oauth_server: Any) -> None:
    oauth_server.script = [(503, {}), (200, {"access_token": "abc", "expires_in": 60})]
    token = credentials(oauth_server)()
    assert token.value == "abc"
    assert token.expires_at is not None
    header, body = oauth_server.asked[-1]
    assert header == "Basic " + base64.b64encode(b"me:s3cret%26").decode()
    assert body == {"grant_type": ["client_credentials"], "scope": ["kafka"]}


def test_whatever_a_server_answers_ends_nothing_but_its_connection(
    oauth_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    oauth_server.script = [(200, {"access_token": "abc", "expires_in": "soon"})]
    with pytest.raises(SaslAuthenticationFailedError, match="there is no token: "):
        TokenSource(credentials(oauth_server)).refresh()

    def speaks_no_http(*_: Any, **__: Any) -> None:
        raise http.client.BadStatusLine("SSH-2.0")

    monkeypatch.setattr("urllib.request.OpenerDirector.open", speaks_no_http)
    with pytest.raises(NetworkError, match=r"gives no token now: SSH-2\.0"):
        TokenSource(credentials(oauth_server)).refresh()


def test_the_secret_is_sent_to_nobody_whom_a_server_names(oauth_server: Any) -> None:
    elsewhere = f"http://127.0.0.1:{oauth_server.server_address[1]}/elsewhere"
    oauth_server.script = [(302, elsewhere)]
    with pytest.raises(SaslAuthenticationFailedError, match="gives no token to client me: 302"):
        credentials(oauth_server)()
    assert len(oauth_server.asked) == 1


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/token", "data:,{}", "/etc/passwd"])
def test_tokens_come_from_no_other_kind_of_address(url: str) -> None:
    oauth = {
        "sasl.mechanism": "OAUTHBEARER",
        "security.protocol": "SASL_PLAINTEXT",
        "bootstrap.servers": "127.0.0.1:1",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.client.credentials.client.id": "me",
        "sasl.oauthbearer.client.credentials.client.secret": "hidden",
    }
    with pytest.raises(ConfigError, match="has to begin with https or http") as refused:
        Producer(oauth)
    assert "hidden" not in str(refused.value)


def test_a_server_that_refuses_the_client_is_not_asked_again(oauth_server: Any) -> None:
    oauth_server.script = [(401, {"error": "invalid_client"})]
    with pytest.raises(SaslAuthenticationFailedError, match="401") as refused:
        credentials(oauth_server)()
    assert "s3cret" not in str(refused.value)
    assert len(oauth_server.asked) == 1


def test_a_server_that_is_away_is_a_passing_failure(oauth_server: Any) -> None:
    oauth_server.script = [(500, {})] * 3
    with pytest.raises(NetworkError, match="500"):
        credentials(oauth_server)()


def test_no_secret_is_in_a_repr() -> None:
    shown = repr(ClientCredentials("http://x", "me", "s3cret")) + repr(Token("s3cret"))
    assert "s3cret" not in shown
    assert "hunter2" not in repr(settings(sasl_password="hunter2", sasl_jaas_config="hunter2"))
