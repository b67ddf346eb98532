"""A session with a real ZooKeeper, through kazoo, whose threads end here: everything outside runs on the event loop.

What kazoo does not do by itself: a transaction's `commit` gives errors in its result instead of raising them; a request
over 1 MB ends the connection, and would do so again for ever when repeated; without a server the client stays suspended
for as long as it takes (`NodeLink` has the time-outs); and after an expired session it begins another one unasked.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.cluster.store import StoreError, StoreRefusedError
from headrace.cluster.store.loop_watch import LoopWatch
from headrace.cluster.store.session import (
    CheckVersion,
    ConnectionBrokenError,
    Create,
    Delete,
    NodeChangedError,
    NodeError,
    NodeExistsError,
    NodeMissingError,
    NodeNotEmptyError,
    Operation,
    SessionBase,
    SessionExpiredError,
    SessionState,
    StoreNode,
    Watch,
    Write,
)
from headrace.errors import HeadraceError
from headrace.runtime import Runtime

logger = logging.getLogger("headrace.cluster.store")

REQUEST_BYTES_MAX: Final = 900 * 1024
_LOOK_S: Final = 0.02
#: How often a server is asked for something in the time that a session lasts.
_BEATS: Final = 8


class ZooKeeperUnsupportedError(StoreError):
    """`zookeeper.connect` is set, but the package that talks to ZooKeeper is missing."""


class ZooKeeperRefusedError(StoreRefusedError):
    """ZooKeeper does not let this broker in, or not do what it asks for; its words say what an operator has to do."""


@dataclass(frozen=True, slots=True)
class ZooKeeperAccess:
    """How a broker comes to ZooKeeper, and whom it lets at what it makes there."""

    #: What kazoo makes its connections with; None for plain ones.
    make_handler: Callable[[], Any] | None = None
    #: `user:password` of ZooKeeper's own scheme of that name.
    digest: str | None = field(default=None, repr=False)
    #: Whether only brokers of the same identity may change what this one makes; anyone may read it.
    sets_acl: bool = False
    #: User and password of SASL's DIGEST-MD5.
    login: tuple[str, str] | None = field(default=None, repr=False)


PLAIN_ACCESS: Final = ZooKeeperAccess()


def _digest_md5(user: str, password: str) -> dict[str, str]:
    """SASL as kazoo takes it, with the package pure-sasl."""
    if importlib.util.find_spec("puresasl") is None:
        raise ZooKeeperUnsupportedError(
            "headrace.zookeeper.sasl.jaas.config needs the package pure-sasl: pip install 'headrace[zookeeper]'"
        )
    return {"mechanism": "DIGEST-MD5", "username": user, "password": password}


def _notice_refusals(client: Any, is_refused: threading.Event) -> None:
    """Set the event when a server refuses the user, of which kazoo tells nobody who waits for its start.

    Where a server lets in only who logs in, kazoo takes its answer for a defect of its own, and its thread dies of it.
    """
    from kazoo.exceptions import AuthFailedError, SessionClosedRequireSaslError

    connection = client._connection
    log_in = connection._authenticate_with_sasl

    def noticed(*args: Any) -> None:
        try:
            log_in(*args)
        except (AuthFailedError, SessionClosedRequireSaslError) as error:
            is_refused.set()
            raise AuthFailedError(str(error)) from error

    connection._authenticate_with_sasl = noticed


def _notice_time_out(client: Any, told: Callable[[float], None]) -> None:
    """Tell the time-out that a server has settled on, of which kazoo keeps two thirds to itself."""
    connection = client._connection
    connect = connection._connect

    def noticed(*args: Any) -> Any:
        read_timeout_ms, connect_timeout_ms = connect(*args)
        told(read_timeout_ms * 1.5 / 1000)
        return read_timeout_ms, connect_timeout_ms

    connection._connect = noticed


def _owned_acl() -> Any:
    from kazoo.security import CREATOR_ALL_ACL, READ_ACL_UNSAFE

    return [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]


class KazooSession(SessionBase):
    """Implements `StoreSession`."""

    def __init__(
        self,
        runtime: Runtime,
        connect: str,
        *,
        timeout_s: float,
        access: ZooKeeperAccess = PLAIN_ACCESS,
    ) -> None:
        """`connect` is Kafka's `zookeeper.connect`: host:port pairs, and perhaps a path below which all nodes are."""
        super().__init__(runtime.clock, timeout_s)
        self._runtime = runtime
        # Not kazoo's business: it warns where the path is not there yet.
        self._hosts, _, root = connect.partition("/")
        self._root = f"/{root.strip('/')}" if root.strip("/") else ""
        self._access = access
        self._handler: Any = None
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches: dict[Callable[[], None], None] = {}
        self._is_refused = threading.Event()
        self._beating: asyncio.Task[None] | None = None
        self._watch = LoopWatch()
        self._watching: asyncio.TimerHandle | None = None
        self._is_over = threading.Event()

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = await self._runtime.offload(self._make_client)
        self._client.add_listener(self._on_state)
        errors = _kazoo_errors()
        try:
            await self._runtime.offload(self._start_client, self._client)
            if self._root:
                await self._runtime.offload(self._client.ensure_path, self._root)
        except errors.LOGIN as error:
            await self._stop()
            user = self._access.login[0] if self._access.login is not None else ""
            raise ZooKeeperRefusedError(
                f"ZooKeeper at {self._hosts} does not let {user or 'this broker'} in: check the user and the password, "
                "and that it knows SASL (an authProvider in its configuration, a section Server in its JAAS file)"
            ) from error
        except errors.START as error:
            problem = getattr(self._handler, "problem", "")
            await self._stop()
            refused = errors.translated(error, self._root)
            if isinstance(refused, ZooKeeperRefusedError):
                raise refused from error
            raise ConnectionBrokenError(
                problem or f"no ZooKeeper answers at {self._hosts} within {self._timeout_s:g} s"
            ) from error
        if self._client.connected:
            # Not if it was lost again meanwhile: kazoo has told of that, and tells when it is back.
            self._become(SessionState.CONNECTED)
        if self._state is not SessionState.EXPIRED:
            self._beating = self._loop.create_task(self._beat())
            self._loop_runs()
            watch = functools.partial(self._watch_loop, self._client)
            threading.Thread(target=watch, name="zookeeper-loop-watch", daemon=True).start()

    def _loop_runs(self) -> None:
        """Let the thread that watches it know."""
        assert self._loop is not None
        self._watch.beat()
        if not self._is_over.is_set():
            self._watching = self._loop.call_later(LoopWatch.every_s(self._timeout_s) / 2, self._loop_runs)

    def _watch_loop(self, client: Any) -> None:
        """On a thread of its own: end the session when the loop hangs, which kazoo's pings would keep alive."""
        while not self._is_over.wait(LoopWatch.every_s(self._timeout_s)):
            if not self._watch.look():
                continue
            logger.error(
                "the event loop of this broker has not run for %.1f s: its session with ZooKeeper is ended, so that "
                "others take its place",
                LoopWatch.hung_after_s(self._timeout_s),
            )
            self._is_over.set()
            try:
                # Not forgotten here: the loop may be in the middle of asking it something.
                client.stop()
            except Exception as error:  # noqa: BLE001 - whatever it is, nothing keeps the session alive any more
                logger.warning("the session with ZooKeeper could not be ended in order: %s", error)
            self._on_loop(self._become, SessionState.EXPIRED)

    async def _beat(self) -> None:
        """Ask for something now and then: when kazoo's own pings were answered, it tells nobody.

        Each is waited for, however long it takes: while others are sent, kazoo does not look whether any is answered.
        """
        while True:
            try:
                await self.sync()
            except HeadraceError as error:
                logger.debug("ZooKeeper did not answer: %s", error)
            except Exception:
                # Nobody else asks when nothing happens: the broker would count as one that is out of touch.
                logger.exception("ZooKeeper could not be asked, by a defect: please report it")
            await asyncio.sleep(self._timeout_s / _BEATS)

    def _make_client(self) -> Any:
        try:
            from kazoo.client import KazooClient
        except ImportError as error:
            raise ZooKeeperUnsupportedError(
                "zookeeper.connect needs the package kazoo: pip install 'headrace[zookeeper]'"
            ) from error
        access = self._access
        self._handler = None if access.make_handler is None else access.make_handler()
        client = KazooClient(
            hosts=self._hosts,
            handler=self._handler,
            sasl_options=None if access.login is None else _digest_md5(*access.login),
            auth_data=None if access.digest is None else [("digest", access.digest)],
            default_acl=_owned_acl() if access.sets_acl else None,
            timeout=self._timeout_s,
            # For ever: whether the session is over is a server's word, not a matter of tries.
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0, "ignore_expire": False},
            logger=logging.getLogger("headrace.cluster.store.kazoo"),
        )
        if access.login is not None:
            _notice_refusals(client, self._is_refused)
        _notice_time_out(client, self._is_given)
        return client

    def _is_given(self, timeout_s: float) -> None:
        """A server gives the session less time than was asked for, or more."""
        self._timeout_s = timeout_s

    def _start_client(self, client: Any) -> None:
        """As kazoo's own `start`, which would wait for all of its time-out when a server has refused the user."""
        from kazoo.exceptions import AuthFailedError
        from kazoo.handlers.threading import KazooTimeoutError

        is_live = client.start_async()
        deadline = self._runtime.clock.monotonic() + self._timeout_s
        while not is_live.wait(_LOOK_S):
            if self._is_refused.is_set():
                raise AuthFailedError
            if self._state is SessionState.EXPIRED:
                # Nobody waits for it any more; whoever closed it may have done so before it was started.
                client.stop()
                client.close()
                raise KazooTimeoutError("The start was given up")
            if self._runtime.clock.monotonic() > deadline:
                raise KazooTimeoutError("Connection time-out")

    # --- the state, of which kazoo tells on a thread of its own

    def _on_state(self, state: str) -> None:
        assert self._loop is not None
        from kazoo.protocol.states import KazooState

        told = {
            KazooState.CONNECTED: SessionState.CONNECTED,
            KazooState.SUSPENDED: SessionState.SUSPENDED,
            KazooState.LOST: SessionState.EXPIRED,
        }[state]
        self._on_loop(self._become, told)

    def _on_loop(self, callback: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            pass  # the loop is closed: nobody is left to be told

    def _become(self, state: SessionState) -> None:
        if state is self._state or self._state is SessionState.EXPIRED:
            return
        self._set_state(state)
        if state is not SessionState.CONNECTED:
            for fire in list(self._watches):
                fire()
        if state is SessionState.EXPIRED:
            self._is_over.set()
            if self._watching is not None:
                self._watching.cancel()
            if self._beating is not None:
                self._beating.cancel()
            # Before kazoo begins another session.
            self._runtime.offload(self._stop_client)
        for callback in list(self._callbacks):
            callback()

    async def close(self) -> None:
        self._become(SessionState.EXPIRED)
        await self._stop()

    async def _stop(self) -> None:
        await self._runtime.offload(self._stop_client)

    def _stop_client(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        try:
            client.stop()
            client.close()
        except Exception as error:  # noqa: BLE001 - whatever it is, the session ends with its time-out
            logger.warning("the session with ZooKeeper could not be ended in order: %s", error)

    # --- requests

    def _sent(self, result: Any) -> asyncio.Future[Any]:
        """A result of kazoo's, to be waited for on the loop."""
        assert self._loop is not None
        future: asyncio.Future[Any] = self._loop.create_future()
        result.rawlink(functools.partial(self._on_loop, _settle, future))
        return future

    async def _ask(self, method: str, path: str, *args: Any) -> Any:
        if self._state is SessionState.EXPIRED:
            raise SessionExpiredError("the session with ZooKeeper is over")
        asked_at = self._clock.boottime()
        answer = await self._sent(getattr(self._client, f"{method}_async")(self._root + path, *args))
        self._heard_at = max(self._heard_at, asked_at)
        return answer

    def _watched(self, watch: Watch) -> Callable[[Any], None]:
        """The watch as kazoo calls it, on a thread of its own."""

        def fire() -> None:
            # Once: the loss of the connection has perhaps been told already.
            if fire in self._watches:
                del self._watches[fire]
                watch()

        self._watches[fire] = None
        return lambda event: self._on_loop(fire)

    async def get(self, path: str, watch: Watch | None = None) -> StoreNode | None:
        errors = _kazoo_errors()
        try:
            if watch is not None and await self._ask("exists", path, self._watched(watch)) is None:
                return None
            data, stat = await self._ask("get", path)
        except errors.MISSING:
            return None
        except errors.ALL as error:
            raise errors.translated(error, path) from error
        return StoreNode(data, stat.version)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        errors = _kazoo_errors()
        try:
            args = () if watch is None else (self._watched(watch),)
            return sorted(await self._ask("get_children", path, *args))
        except errors.ALL as error:
            raise errors.translated(error, path) from error

    async def sync(self) -> None:
        errors = _kazoo_errors()
        try:
            await self._ask("sync", "/epoch")
        except errors.ALL as error:
            raise errors.translated(error, "/") from error

    async def apply(self, operations: Sequence[Operation]) -> None:
        size = sum(len(operation.data) for operation in operations if isinstance(operation, (Create, Write)))
        if size > REQUEST_BYTES_MAX:
            # A server would close the connection, as often as it is tried.
            raise ValueError(f"a change of {size} bytes is too large for ZooKeeper (at most {REQUEST_BYTES_MAX})")
        if self._state is SessionState.EXPIRED:
            raise SessionExpiredError("the session with ZooKeeper is over")
        transaction, root = self._client.transaction(), self._root
        for operation in operations:
            match operation:
                case Create(path, data, is_ephemeral):
                    transaction.create(root + path, data, ephemeral=is_ephemeral)
                case Write(path, data, version):
                    transaction.set_data(root + path, data, version)
                case Delete(path, version):
                    transaction.delete(root + path, version)
                case CheckVersion(path, version):
                    transaction.check(root + path, version)
        errors = _kazoo_errors()
        try:
            results = await self._sent(transaction.commit_async())
        except errors.ALL as error:
            raise errors.translated(error, operations[0].path) from error
        for operation, result in zip(operations, results):
            if isinstance(result, Exception) and not isinstance(result, errors.ROLLED_BACK):
                raise errors.translated(result, operation.path) from result


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    error = result.exception
    if error is None:
        future.set_result(result.value)
    elif isinstance(error, _kazoo_errors().ALL):
        future.set_exception(error)
    else:
        # A server that answers out of order, which some do after a change of their leader, ends kazoo's connection with
        # an error that is none of its own: what was asked for has been done, or not.
        future.set_exception(_kazoo_errors().LOST(repr(error)))


class _Errors:
    """kazoo's exceptions, and what they are here."""

    def __init__(self) -> None:
        from kazoo import exceptions
        from kazoo.handlers.threading import KazooTimeoutError

        self.ALL = (exceptions.KazooException, KazooTimeoutError)
        self.START = (*self.ALL, OSError)
        self.LOGIN = exceptions.AuthFailedError
        self.LOST = exceptions.ConnectionLoss
        self.MISSING = exceptions.NoNodeError
        self.ROLLED_BACK = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
        self._expired = (exceptions.SessionExpiredError, exceptions.AuthFailedError)
        # Of the connection, or of a server that is busy or cut off from the others: it was done, or not, and passes.
        self._passing = (
            exceptions.ConnectionLoss,
            exceptions.OperationTimeoutError,
            exceptions.RequestTimeoutError,
            exceptions.SessionMovedError,
            exceptions.NotReadOnlyCallError,
            exceptions.ThrottledOpError,
        )
        self._of_server = exceptions.ZookeeperError
        self._advice: tuple[tuple[type[Exception], str], ...] = (
            (
                exceptions.NoAuthError,
                "it was made by another identity: give this broker that one (headrace.zookeeper.digest, "
                "headrace.zookeeper.sasl.jaas.config, or the certificate in zookeeper.ssl.keystore.location)",
            ),
            (
                exceptions.QuotaExceededError,
                "the quota that was set there is used up: raise it or take it away (setquota, delquota in zkCli.sh); "
                "until then nothing of the cluster can be changed",
            ),
            (
                exceptions.InvalidACLError,
                "it does not know who this broker is, so that nothing can be its own: give it an identity "
                "(headrace.zookeeper.digest, headrace.zookeeper.sasl.jaas.config, or a certificate in "
                "zookeeper.ssl.keystore.location), or set zookeeper.set.acl=false",
            ),
        )
        self._nodes: tuple[tuple[type[Exception], type[NodeError]], ...] = (
            (exceptions.NoNodeError, NodeMissingError),
            (exceptions.NodeExistsError, NodeExistsError),
            (exceptions.BadVersionError, NodeChangedError),
            (exceptions.NotEmptyError, NodeNotEmptyError),
        )

    def translated(self, error: Exception, path: str) -> Exception:
        for kind, ours in self._nodes:
            if isinstance(error, kind):
                return ours(path)  # type: ignore[call-arg]  # each of them takes the path alone
        if isinstance(error, self._expired):
            return SessionExpiredError("ZooKeeper says that the session is over")
        for kind, advice in self._advice:
            if isinstance(error, kind):
                return ZooKeeperRefusedError(f"ZooKeeper does not let this broker at {path or '/'}: {advice}")
        if isinstance(error, self._of_server) and not isinstance(error, self._passing):
            what = type(error).__name__
            return ZooKeeperRefusedError(f"ZooKeeper refuses a request of this broker at {path or '/'} ({what})")
        return ConnectionBrokenError(f"the connection to ZooKeeper was lost ({type(error).__name__})")


@functools.cache
def _kazoo_errors() -> _Errors:
    return _Errors()
