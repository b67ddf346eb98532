"""Brokers among themselves: each mechanism over TLS, who is believed to be one, a cluster that moves to SASL_SSL."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.broker.security.settings import MODULES, plain_jaas, with_logins
from tests.broker.security.tls import with_tls
from tests.waiting import eventually

from headrace import Admin, Consumer, NewTopic, Producer
from headrace.certificates import Authority
from headrace.config import ConfigError
from headrace.errors import ErrorCode, HeadraceError
from headrace.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from headrace.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from headrace.runtime.free_ports import free_ports
from headrace.testing import EmbeddedBroker, ZooKeeperNotFoundError, ZooKeeperProcess, broker

AUTHORITY = Authority()
PASSWORD = "what brokers know"
SETTINGS = {
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "200",
    "offsets.topic.num.partitions": "1",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
}


class Brokers:
    """Several in this process, which can be stopped and started with other settings."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self._directory = directory
        self.settings = dict(settings)
        self.ports = {number: free_ports(3) for number in (1, 2, 3)}
        self._running: dict[int, contextlib.ExitStack] = {}
        self.brokers: dict[int, EmbeddedBroker] = {}

    def start(self, number: int) -> None:
        plain, secure, extra = self.ports[number]
        own = {
            name: value.format(plain=plain, secure=secure, extra=extra, number=number)
            if name.endswith(("listeners", "keystore.location"))
            else value
            for name, value in self.settings.items()
        }
        own["node.id"] = str(number)
        if "zookeeper.connect" not in own:
            own["headrace.metadata.dir"] = str(self._directory / "metadata")
        stack = contextlib.ExitStack()
        self.brokers[number] = stack.enter_context(broker(str(self._directory / f"broker-{number}"), SETTINGS | own))
        self._running[number] = stack

    def stop(self, number: int) -> None:
        self._running.pop(number).close()

    def restart_all(self, **changed: str) -> None:
        """One after the other, each when all replicas are in sync again."""
        for name, value in changed.items():
            self.settings[name.replace("_", ".")] = value
        for number in self.ports:
            self.stop(number)
            self.start(number)
            self.await_whole()

    def await_whole(self) -> None:
        def is_whole() -> bool:
            image = self.brokers[1].broker.image
            whole = all(len(p.isr) == len(p.replicas) for topic in image.topics.values() for p in topic.partitions)
            return whole and sum(one.is_active for one in image.brokers.values()) == len(self._running)

        eventually(is_whole, "every replica in sync")

    def close(self) -> None:
        for number in list(self._running):
            self.stop(number)


@contextlib.contextmanager
def running(directory: Path, settings: Mapping[str, str]) -> Iterator[Brokers]:
    made = Brokers(directory, settings)
    try:
        for number in made.ports:
            made.start(number)
        made.await_whole()
        yield made
    finally:
        made.close()


def jaas(mechanism: str) -> str:
    if mechanism == "PLAIN":
        own = f'username="broker" password="{PASSWORD}" user_broker="{PASSWORD}" user_alice="alice-secret"'
        return f"{MODULES}plain.PlainLoginModule required {own};"
    return f'{MODULES}scram.ScramLoginModule required username="broker" password="{PASSWORD}";'


def secured(directory: Path, mechanism: str) -> dict[str, str]:
    """Brokers by a mechanism over TLS, or by certificate; clients in the clear."""
    tls = with_tls(directory, AUTHORITY)
    found = tls | {
        "listeners": "PLAINTEXT://127.0.0.1:{plain},BROKERS://127.0.0.1:{secure}",
        "listener.security.protocol.map": "BROKERS:SASL_SSL,PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "BROKERS",
    }
    if mechanism == "certificate":
        return found | {
            "listener.security.protocol.map": "BROKERS:SSL,PLAINTEXT:PLAINTEXT",
            "listener.name.brokers.ssl.client.auth": "required",
        }
    return found | {
        "sasl.enabled.mechanisms": mechanism,
        "sasl.mechanism.inter.broker.protocol": mechanism,
        f"listener.name.brokers.{mechanism.lower()}.sasl.jaas.config": jaas(mechanism),
    }


def plain(brokers: Brokers) -> str:
    return ",".join(f"127.0.0.1:{ports[0]}" for ports in brokers.ports.values())


@pytest.mark.parametrize("mechanism", ["certificate", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_brokers_replicate_by_every_mechanism_over_tls(tmp_path: Path, mechanism: str) -> None:
    with running(tmp_path, secured(tmp_path, mechanism)) as brokers:
        with Admin(bootstrap_servers=plain(brokers)) as admin:
            admin.create_topics([NewTopic("t", 3, 3)]).all()
        with Producer(bootstrap_servers=plain(brokers), acks="all") as producer:
            for number in range(30):
                producer.send("t", b"%d" % number, partition=number % 3)
            producer.flush()
        for one in brokers.brokers.values():
            principals = one.call(lambda found: {c.principal for c in found.acceptor.connections if c.is_brokers})
            assert principals == {"User:CN=a broker" if mechanism == "certificate" else "User:broker"}


def test_brokers_whose_certificates_name_each_by_itself_know_each_other_by_super_users(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        AUTHORITY.issue(f"broker-{number}").save(tmp_path / f"certificate-{number}.pem")
    settings = with_tls(tmp_path, AUTHORITY) | {
        "listeners": "SSL://127.0.0.1:{secure}",
        "ssl.client.auth": "required",
        "ssl.keystore.location": str(tmp_path / "certificate-{number}.pem"),
        "super.users": "User:CN=broker-1;User:CN=broker-2;User:CN=broker-3",
    }
    with running(tmp_path, settings) as brokers:
        client = {
            "bootstrap.servers": ",".join(f"127.0.0.1:{ports[1]}" for ports in brokers.ports.values()),
            "security.protocol": "SSL",
            "ssl.truststore.certificates": AUTHORITY.certificate,
            "ssl.keystore.location": str(AUTHORITY.issue("alice").save(tmp_path / "alice.pem")),
        }
        with Admin(client) as admin:
            admin.create_topics([NewTopic("t", 3, 3)]).all()
        with Producer(client, acks="all") as producer:
            for number in range(3):
                producer.send("t", b"%d" % number, partition=number).result(30)
        brokers.await_whole()


@pytest.mark.slow
@pytest.mark.java
def test_brokers_that_log_in_at_each_other_and_at_zookeeper(tmp_path: Path) -> None:
    try:
        zookeeper = ZooKeeperProcess(tmp_path / "zookeeper", users={"headrace": PASSWORD})
        zookeeper.start()
    except ZooKeeperNotFoundError as error:
        pytest.skip(str(error))
    login = "org.apache.zookeeper.server.auth.DigestLoginModule"
    settings = secured(tmp_path, "SCRAM-SHA-512") | {
        "zookeeper.connect": zookeeper.address,
        "headrace.zookeeper.sasl.jaas.config": f'{login} required username="headrace" password="{PASSWORD}";',
    }
    with zookeeper_ends(zookeeper), running(tmp_path, settings) as brokers:
        with Admin(bootstrap_servers=plain(brokers)) as admin:
            admin.create_topics([NewTopic("t", 1, 3)]).all()
        with Producer(bootstrap_servers=plain(brokers), acks="all") as producer:
            producer.send("t", b"x").result(30)


@contextlib.contextmanager
def zookeeper_ends(zookeeper: ZooKeeperProcess) -> Iterator[None]:
    try:
        yield
    finally:
        zookeeper.kill()


def test_a_broker_without_a_login_for_others_is_refused_at_start(tmp_path: Path) -> None:
    settings = secured(tmp_path, "PLAIN")
    for key in ("sasl.mechanism.inter.broker.protocol", "listener.name.brokers.plain.sasl.jaas.config"):
        lacking = {name: value for name, value in settings.items() if name != key}
        made = Brokers(tmp_path, lacking)
        with pytest.raises(ConfigError, match=r"sasl.mechanism.inter.broker.protocol|has no users"):
            made.start(1)


# --- who is a broker --------------------------------------------------------------------------------------------------


def asked_as_a_broker(
    address: tuple[str, int], api_key: int, version: int, body: bytes, tls: ssl.SSLContext | None = None
) -> bool:
    """Whether a request with a client id as brokers have it is answered."""
    client_id = b"__headrace_broker-2-control"
    header = struct.pack(">hhih", api_key, version, 7, len(client_id)) + client_id + b"\0"
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.create_connection(address, timeout=30))
        if tls is not None:
            sock = stack.enter_context(tls.wrap_socket(sock, server_hostname=address[0]))
        sock.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
            return bool(sock.recv(4))
    return False


#: Registration, heartbeat, AlterPartition, producer ids, directories: with bodies that say nothing.
BETWEEN_BROKERS = {62: (0, 60), 63: (0, 30), 56: (2, 20), 67: (0, 14), 73: (0, 30)}


def test_nobody_is_a_broker_by_its_client_id_alone(tmp_path: Path) -> None:
    with running(tmp_path, secured(tmp_path, "PLAIN")) as brokers:
        for api_key, (version, size) in BETWEEN_BROKERS.items():
            assert not asked_as_a_broker(("127.0.0.1", brokers.ports[1][0]), api_key, version, bytes(size)), api_key
        login = {
            "bootstrap.servers": f"127.0.0.1:{brokers.ports[1][1]}",
            "security.protocol": "SASL_SSL",
            "ssl.truststore.certificates": AUTHORITY.certificate,
            "sasl.mechanism": "PLAIN",
        }
        for user, password, is_one in (("broker", PASSWORD, True), ("alice", "alice-secret", False)):
            with Admin({**login, "sasl.username": user, "sasl.password": password}) as admin:
                admin.list_topics()
                found = brokers.brokers[1].call(
                    lambda one, user=user: {
                        c.is_brokers for c in one.acceptor.connections if c.principal == f"User:{user}"
                    }
                )
                assert is_one in found
                assert is_one or found == {False}


@pytest.mark.parametrize(("asks", "shown"), [("required", "alice"), ("requested", "alice"), ("requested", None)])
def test_nobody_is_a_broker_whose_certificate_is_not_theirs(tmp_path: Path, asks: str, shown: str | None) -> None:
    """Also where there is one listener for all, and no authorizer to say who may act as a broker."""
    context = ssl.create_default_context(cadata=AUTHORITY.certificate)
    if shown is not None:
        context.load_cert_chain(AUTHORITY.issue(shown).save(tmp_path / "client.pem"))
    own = ssl.create_default_context(cadata=AUTHORITY.certificate)
    with broker(overrides=with_tls(tmp_path, AUTHORITY) | {"ssl.client.auth": asks}) as kafka:
        own.load_cert_chain(tmp_path / "broker.pem")
        address = kafka.broker.addresses[0]
        for api_key, (version, size) in BETWEEN_BROKERS.items():
            assert not asked_as_a_broker(address, api_key, version, bytes(size), context), api_key
        assert asked_as_a_broker(address, 67, *BETWEEN_BROKERS[67][:1], bytes(BETWEEN_BROKERS[67][1]), own)


def test_a_user_whose_name_is_that_of_nobody_is_no_broker(tmp_path: Path) -> None:
    settings = with_logins("PLAIN") | {
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": plain_jaas({"ANONYMOUS": "secret", "broker": "word"})
    }
    with broker(overrides=settings) as kafka:
        login = {"bootstrap.servers": kafka.address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        with Admin({**login, "sasl.username": "ANONYMOUS", "sasl.password": "secret"}) as admin:
            admin.list_topics()
            found = kafka.call(lambda one: {c.is_brokers for c in one.acceptor.connections if c.rights is not None})
    assert found == {False}


@contextlib.contextmanager
def server_of_tokens(key: Any) -> Iterator[str]:
    """Gives whoever knows the secret a signed token for the user "broker"."""
    secret = "Basic " + base64.b64encode(b"broker:of-brokers").decode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            now = int(time.time())
            token = jwt.encode({"sub": "broker", "iat": now, "exp": now + 600}, key, "ES256", headers={"kid": "one"})
            self.send_response(200 if self.headers["Authorization"] == secret else 401)
            self.end_headers()
            self.wfile.write(json.dumps({"access_token": token, "expires_in": 600}).encode())

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_brokers_get_tokens_for_each_other(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    known = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())) | {"kid": "one"}
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [known]}))
    with server_of_tokens(key) as url:
        prefix = "listener.name.brokers."
        of_tokens = {
            prefix + "oauthbearer.sasl.oauthbearer.jwks.endpoint.url": (tmp_path / "keys.json").as_uri(),
            prefix + "oauthbearer.sasl.oauthbearer.token.endpoint.url": url,
            prefix + "oauthbearer.sasl.oauthbearer.client.credentials.client.id": "broker",
            prefix + "oauthbearer.sasl.oauthbearer.client.credentials.client.secret": "of-brokers",
            "super.users": "User:broker",
        }
        settings = secured(tmp_path, "OAUTHBEARER") | of_tokens
        del settings[prefix + "oauthbearer.sasl.jaas.config"]
        with running(tmp_path, settings) as brokers, Admin(bootstrap_servers=plain(brokers)) as admin:
            admin.create_topics([NewTopic("t", 3, 3)]).all()
            with Producer(bootstrap_servers=plain(brokers), acks="all") as producer:
                for number in range(3):
                    producer.send("t", b"%d" % number, partition=number).result(30)
            brokers.await_whole()


# --- tokens of a cluster ----------------------------------------------------------------------------------------------


def asks(principal: str) -> Any:
    """A request of a client that has logged in, as handlers see it."""
    connection = SimpleNamespace(login=None)
    return SimpleNamespace(
        is_from_broker=False,
        principal=principal,
        connection=connection,
        is_allowed=lambda *_: True,
        may=lambda *_: False,
    )


def test_tokens_are_made_and_ended_at_any_broker_and_good_at_all(tmp_path: Path) -> None:
    settings = secured(tmp_path, "PLAIN") | {"delegation.token.secret.key": "of the cluster"}
    with running(tmp_path, settings) as brokers:
        for number, one in brokers.brokers.items():
            request = CreateDelegationTokenRequest(
                owner_principal_type="User", owner_principal_name="bob", renewers=[], max_lifetime_ms=-1
            )
            made = one.call(lambda b, r=request: b.security.tokens.create(asks("User:alice"), r, b.metadata))
            told = (made.error_code, made.principal_name, made.token_requester_principal_name)
            assert told == (ErrorCode.NONE, "bob", "alice"), number
            for other in brokers.brokers.values():
                proof = eventually(
                    lambda o=other, t=made.token_id: o.broker.security.tokens.look_up("SCRAM-SHA-256", t)
                )
                assert proof[1].principal == "User:bob"
            for principal, error in (
                ("User:alice", ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
                ("User:bob", ErrorCode.NONE),
            ):
                ending = ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1)
                ended = one.call(lambda b, r=ending, p=principal: b.security.tokens.expire(asks(p), r, b.metadata))
                assert ended.error_code == error
            for other in brokers.brokers.values():
                eventually(lambda o=other: not o.broker.image.tokens)


# --- a cluster that is moved ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cluster_is_moved_from_plaintext_to_sasl_ssl_while_clients_go_on(tmp_path: Path) -> None:
    """First all brokers listen both ways, then they speak the new one, at last the old one is closed."""
    start = {
        "listeners": "PLAINTEXT://127.0.0.1:{plain}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
    }
    secure = {
        **{name: value for name, value in with_tls(tmp_path, AUTHORITY).items() if name.startswith("ssl.")},
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": jaas("SCRAM-SHA-512"),
        "listener.name.secure.plain.sasl.jaas.config": jaas("PLAIN"),
    }
    both = "PLAINTEXT://127.0.0.1:{plain},SECURE://127.0.0.1:{secure}"
    with running(tmp_path, start) as brokers:
        servers = plain(brokers)
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics([NewTopic("t", 3, 3)]).all()
        with Traffic({"bootstrap.servers": servers}) as traffic:
            brokers.settings |= secure
            brokers.restart_all(listeners=both)
            brokers.restart_all(inter_broker_listener_name="SECURE")
            for one in brokers.brokers.values():
                trusted = one.call(lambda found: found.pipeline.access.broker_listeners)
                assert trusted == {"SECURE"}, "nobody comes in at the former one any more"
            traffic.has_moved_on()
        moved = {
            "bootstrap.servers": ",".join(f"127.0.0.1:{ports[1]}" for ports in brokers.ports.values()),
            "security.protocol": "SASL_SSL",
            "ssl.truststore.certificates": AUTHORITY.certificate,
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "alice-secret",
        }
        with Traffic(moved, first=traffic.count) as traffic:
            brokers.restart_all(listeners="SECURE://127.0.0.1:{secure}")
            traffic.has_moved_on()
        late = {"bootstrap.servers": servers, "default.api.timeout.ms": 1000}
        with Admin(late) as admin, pytest.raises((HeadraceError, TimeoutError)):
            admin.list_topics()
        values = read_all(moved)
        assert values == list(range(traffic.count)), "each once, and none is missing"


class Traffic:
    """Writes numbers as long as it is asked to, and hears of each."""

    def __init__(self, config: Mapping[str, Any], first: int = 0) -> None:
        self._producer = Producer({**config, "acks": "all", "enable.idempotence": True})
        self.count = first
        self._stopping = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        try:
            while not self._stopping.wait(0.005):
                self._producer.send("t", b"%d" % self.count, partition=self.count % 3).result(60)
                self.count += 1
        except BaseException as error:  # noqa: BLE001 - told to the test
            self._failed = error

    def has_moved_on(self) -> None:
        before = self.count
        eventually(lambda: self._failed or self.count > before + 20, "more records")

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._producer.close()
        if self._failed is not None:
            raise self._failed


def read_all(config: Mapping[str, Any]) -> list[int]:
    with Consumer({**config, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([("t", partition) for partition in range(3)])
        ends = consumer.end_offsets([("t", partition) for partition in range(3)])
        values: list[int] = []
        while len(values) < sum(ends.values()):
            values += [int(record.value) for record in consumer.poll(10)]
    return sorted(values)
