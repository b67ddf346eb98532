"""Coming to ZooKeeper by TLS and as somebody: what is set up, what is refused, and that nothing is left lying."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client.test_tls import make_certificate

from headrace.broker.startup import zookeeper_access
from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.store import StoreError, StoreUnavailableError
from headrace.cluster.store.kazoo_session import KazooSession, ZooKeeperAccess, ZooKeeperRefusedError
from headrace.cluster.store.node_store import NodeStore
from headrace.cluster.store.session import ConnectionBrokenError, Create
from headrace.config import ConfigError
from headrace.net.zookeeper import kazoo_handler
from headrace.runtime import real_runtime
from headrace.testing import FaultProxy, ZooKeeperProcess

from .store_homes import member, topic, zookeeper
from .test_store import told, won

pytest.importorskip("kazoo")
pytest.importorskip("cryptography")


def access(**settings: Any) -> ZooKeeperAccess:
    values = {name.replace("_", "."): value for name, value in settings.items()}
    return zookeeper_access(BrokerConfig.parse(values))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls") / "both.pem")


# --- settings ---------------------------------------------------------------------------------------------------------


def test_without_settings_it_is_plain() -> None:
    assert access() == ZooKeeperAccess()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"zookeeper_ssl_truststore_location": "/no/such/file"}, "cannot be read"),
        ({"zookeeper_ssl_truststore_location": __file__}, "neither PEM nor PKCS#12"),
        ({"zookeeper_ssl_enabled_protocols": "SSLv3"}, "has none of TLSv1.2"),
        ({"zookeeper_ssl_crl_enable": "true"}, "not looked for; set it to false"),
    ],
)
def test_what_tls_cannot_be_set_up_by_is_refused(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        access(zookeeper_ssl_client_enable="true", **settings)


def test_nodes_of_ones_own_need_an_identity(certificate: Path) -> None:
    with pytest.raises(ConfigError, match=r"headrace\.zookeeper\.digest"):
        access(zookeeper_set_acl="true")
    with pytest.raises(ConfigError, match="user:password"):
        access(headrace_zookeeper_digest="nobody")
    assert access(zookeeper_set_acl="true", headrace_zookeeper_digest="us:secret") == ZooKeeperAccess(
        None, "us:secret", sets_acl=True
    )
    found = access(
        zookeeper_set_acl="true",
        zookeeper_ssl_client_enable="true",
        zookeeper_ssl_keystore_location=str(certificate),
    )
    assert found.sets_acl
    assert found.make_handler is not None


LOGIN = 'org.apache.zookeeper.server.auth.DigestLoginModule required username="us" password="se\\"cret";'


def test_who_logs_in_is_read_as_in_a_jaas_file() -> None:
    found = access(headrace_zookeeper_sasl_jaas_config=LOGIN, zookeeper_set_acl="true")
    assert found == ZooKeeperAccess(sets_acl=True, login=("us", 'se"cret'))
    assert "cret" not in repr(found)
    assert access(headrace_zookeeper_sasl_jaas_config=" ").login is None


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (LOGIN[:-1], "end with a semicolon"),
        ("com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;", "only .*DigestLoginModule"),
        ('org.apache.zookeeper.server.auth.DigestLoginModule required username="us";', "password="),
    ],
)
def test_what_nobody_can_log_in_by_is_refused(line: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        access(headrace_zookeeper_sasl_jaas_config=line)


class _Answer:
    """What kazoo gives for a request, with an end that is there already."""

    value = None

    def __init__(self, exception: Exception) -> None:
        self.exception = exception

    def rawlink(self, callback: Any) -> None:
        callback(self)


class _Client:
    """kazoo, whose connection ended with an error that is none of its own."""

    def __init__(self, error: Exception) -> None:
        self._answer = _Answer(error)

    def get_async(self, *_: Any) -> _Answer:
        return self._answer

    exists_async = get_children_async = sync_async = commit_async = get_async

    def transaction(self) -> _Client:
        return self

    def create(self, *_: Any, ephemeral: bool) -> None:
        pass


def test_an_answer_out_of_order_is_a_connection_that_broke() -> None:
    """kazoo's thread dies of it, and the request with it is told a RuntimeError; ZooKeeper's servers do so at times."""

    async def main() -> None:
        runtime = real_runtime(io_threads=1)
        session = KazooSession(runtime, "127.0.0.1:1", timeout_s=1.0)
        session._loop = asyncio.get_running_loop()
        session._client = _Client(RuntimeError("xids do not match, expected %r received %r", 6, 7))
        for asked in (
            session.get("/a"),
            session.get("/a", lambda: None),
            session.children("/a"),
            session.sync(),
            session.apply([Create("/a", b"", is_ephemeral=True)]),
        ):
            with pytest.raises(ConnectionBrokenError):
                await asked
        await runtime.close()

    asyncio.run(main())


def test_what_is_decrypted_is_not_waited_for(certificate: Path) -> None:
    """Two answers in one piece: when the first is read the socket has nothing more, and yet there is the second."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def serve() -> None:
        accepted, _ = listener.accept()
        with context.wrap_socket(accepted, server_side=True) as connection:
            connection.sendall(b"firstsecond")
            connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve)
        serving.start()
        handler = kazoo_handler(ssl.create_default_context(cafile=str(certificate)))
        with handler.create_connection(listener.getsockname(), hostname="127.0.0.1", timeout=10) as connection:
            assert connection.recv(5) == b"first"
            # Without end, if it looked at the socket alone.
            assert handler.select([connection], [], [], 60) == ([connection], [], [])
            assert connection.recv(6) == b"second"
            assert handler.select([connection], [], [], 0) == ([], [], [])
            connection.sendall(b"!")
        serving.join()


# --- a real server ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperProcess]:
    with zookeeper() as process:
        yield process


def run_store(where: str, accesses: list[ZooKeeperAccess], main: Any, timeout_s: float = 6.0) -> None:
    async def run() -> None:
        runtime = real_runtime()

        def store(given: ZooKeeperAccess) -> NodeStore:
            return NodeStore(
                runtime,
                lambda: KazooSession(runtime, where, timeout_s=timeout_s, access=given),
                timeout_s=timeout_s,
                where="ZooKeeper",
            )

        try:
            await main(*map(store, accesses))
        finally:
            await runtime.close()

    asyncio.run(run())


@pytest.mark.slow
def test_a_store_behind_tls(server: ZooKeeperProcess, certificate: Path) -> None:
    async def main(store: NodeStore) -> None:
        await store.open("a-cluster")
        epoch = await won(store)
        for number in range(40):
            await store.append_if_epoch(epoch, topic(number))
        # Many answers at once, some of them in one piece.
        expected = [record for number in range(40) for record in topic(number)]
        assert told(await store.read_from(0)) == expected
        await store.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    given = access(zookeeper_ssl_client_enable="true", zookeeper_ssl_truststore_location=str(certificate))
    with FaultProxy(server.address, tls=context) as proxy:
        run_store(f"{proxy.address}/tls", [given], main)


@pytest.mark.slow
def test_a_certificate_that_is_not_trusted_is_said(server: ZooKeeperProcess, certificate: Path) -> None:
    async def main(store: NodeStore) -> None:
        with pytest.raises(StoreUnavailableError, match=r"TLS with 127.0.0.1:\d+ failed: self.signed certificate"):
            await store.open("a-cluster")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with FaultProxy(server.address, tls=context) as proxy:
        run_store(f"{proxy.address}/tls", [access(zookeeper_ssl_client_enable="true")], main, timeout_s=5.0)


@pytest.mark.slow
def test_what_brokers_of_one_identity_made_no_other_changes(server: ZooKeeperProcess) -> None:
    async def main(first: NodeStore, second: NodeStore, stranger: NodeStore) -> None:
        await first.open("a-cluster")
        epoch = await won(first)
        await first.append_if_epoch(epoch, topic(1))
        await second.open("a-cluster")
        await second.register(member(2))
        await stranger.open("a-cluster")  # all is there already, and anyone may read it
        assert told(await stranger.read_from(0)) == topic(1)
        with pytest.raises(ZooKeeperRefusedError, match="another identity"):
            await stranger.register(member(3))
        for store in (first, second, stranger):
            await store.close()

    ours = access(zookeeper_set_acl="true", headrace_zookeeper_digest="us:secret")
    other = access(headrace_zookeeper_digest="them:secret")
    run_store(f"{server.address}/owned", [ours, ours, other], main)


@pytest.mark.slow
def test_a_quota_that_is_used_up_is_said_and_what_follows_it_is_written(server: ZooKeeperProcess) -> None:
    from kazoo.client import KazooClient

    async def main(store: NodeStore) -> None:
        await store.open("a-cluster")
        epoch = await won(store)
        await asyncio.to_thread(change, True)
        async with asyncio.timeout(3.0):
            with pytest.raises(ZooKeeperRefusedError, match="setquota"):
                await store.append_if_epoch(epoch, topic(1))
        await asyncio.to_thread(change, False)
        await store.append_if_epoch(epoch, topic(2))
        assert told(await store.read_from(0)) == topic(2)
        await store.close()

    def change(is_limited: bool) -> None:
        client = KazooClient(server.address)
        client.start()
        path = "/zookeeper/quota/limited"
        client.delete(path, recursive=True)
        if is_limited:
            client.create(f"{path}/zookeeper_limits", b"count=-1,bytes=-1=;byteHardLimit=100", makepath=True)
            client.create(f"{path}/zookeeper_stats", b"count=8,bytes=90")
        client.stop()
        client.close()

    run_store(f"{server.address}/limited", [access()], main)


@pytest.mark.slow
def test_who_may_not_make_nodes_of_its_own_is_told_why(server: ZooKeeperProcess) -> None:
    async def main(store: NodeStore) -> None:
        async with asyncio.timeout(3.0):
            with pytest.raises(ZooKeeperRefusedError, match=r"zookeeper\.set\.acl=false"):
                await store.open("a-cluster")

    run_store(f"{server.address}/unknown", [ZooKeeperAccess(sets_acl=True)], main)


@pytest.fixture(scope="module")
def closed_server() -> Iterator[ZooKeeperProcess]:
    """One that lets in who logs in, and nobody else."""
    pytest.importorskip("puresasl")
    with zookeeper({"us": "secret"}) as process:
        yield process


def login(password: str, **settings: str) -> ZooKeeperAccess:
    line = f'org.apache.zookeeper.server.auth.DigestLoginModule required username="us" password="{password}";'
    return access(headrace_zookeeper_sasl_jaas_config=line, **settings)


@pytest.mark.slow
def test_a_broker_logs_in_and_what_it_makes_is_its_own(closed_server: ZooKeeperProcess) -> None:
    async def main(first: NodeStore, second: NodeStore) -> None:
        await first.open("a-cluster")
        epoch = await won(first)
        await first.append_if_epoch(epoch, topic(1))
        await second.open("a-cluster")
        assert told(await second.read_from(0)) == topic(1)
        closed_server.kill()
        closed_server.start()
        # It logs in again with every connection.
        await first.append_if_epoch(epoch, topic(2))
        assert told(await second.read_from(0, latest=True)) == [*topic(1), *topic(2)]
        for store in (first, second):
            await store.close()

    ours = login("secret", zookeeper_set_acl="true")
    run_store(f"{closed_server.address}/sasl", [ours, ours], main, timeout_s=20.0)


@pytest.mark.slow
def test_a_wrong_password_is_said_at_once(closed_server: ZooKeeperProcess) -> None:
    async def main(store: NodeStore) -> None:
        async with asyncio.timeout(300):
            with pytest.raises(ZooKeeperRefusedError, match="does not let us in: check the user and the password"):
                await store.open("a-cluster")

    # It does not wait for the session's time-out, which is longer than this test may take.
    run_store(f"{closed_server.address}/sasl", [login("wrong")], main, timeout_s=3600.0)


@pytest.mark.slow
def test_a_server_that_wants_a_login_is_not_reached_without_one(closed_server: ZooKeeperProcess) -> None:
    async def main(store: NodeStore) -> None:
        with pytest.raises(StoreError):
            await store.open("a-cluster")

    run_store(f"{closed_server.address}/sasl", [access()], main, timeout_s=3.0)


@pytest.mark.slow
def test_nobody_is_let_in_unknown_where_a_server_does_not_know_of_logins(server: ZooKeeperProcess) -> None:
    pytest.importorskip("puresasl")

    async def main(store: NodeStore) -> None:
        with pytest.raises(StoreError):
            await store.open("a-cluster")

    run_store(f"{server.address}/sasl", [login("secret")], main, timeout_s=3.0)
