"""A registry that runs: its log, its election, and the HTTP server in front of them."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from headrace.config import RawValue
from headrace.errors import HeadraceError
from headrace.registry import errors
from headrace.registry.access import RegistryAccess, User
from headrace.registry.catalog import Catalog, PlannedChange
from headrace.registry.config import RegistryConfig
from headrace.registry.election import InstanceIdentity, WriterElection
from headrace.registry.errors import RegistryRefusalError
from headrace.registry.forwarding import FORWARDED, Forwarding
from headrace.registry.log import LogUnavailableError, MemoryLog, NoLongerWriterError, RegistryLog, TopicLog
from headrace.registry.routes import RestRequest, Routes
from headrace.registry.state import RegistryState
from headrace.registry.tls import server_context
from headrace.schemas.extras import need

log = logging.getLogger("headrace.registry")

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
BODY_BYTES_MAX = 16 << 20
_WRITING_METHODS = ("POST", "PUT", "DELETE")


class RegistryServer:
    """One instance of a registry. `start` returns when it answers.

    Without `kafkastore.bootstrap.servers` its schemas are kept in memory, and end with it: that is for tests.
    """

    def __init__(self, settings: Mapping[str, RawValue], *, in_memory: bool = False) -> None:
        given = {"kafkastore.bootstrap.servers": "none:1", **settings} if in_memory else settings
        self._config = config = RegistryConfig.parse(given)
        self._state = RegistryState(default_level=str(config["schema.compatibility.level"]).upper())
        self._catalog = Catalog(
            self._state,
            schema_characters_max=config["schema.max.size"],
            validates_defaults=config["schema.providers.avro.validate.defaults"],
        )
        self._access = RegistryAccess.of(
            config["authentication.method"],
            config["authentication.users"],
            config["authorization.rights"],
        )
        self._log: RegistryLog = MemoryLog() if in_memory else self._topic_log(config)
        self._in_memory = in_memory
        self._election: WriterElection | None = None
        self._leader: str | None = None
        self._is_leading = in_memory
        self._needs_take_over = not in_memory
        self._lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(config["schema.requests.max"])
        self._leader_changed = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._server: Any = None
        self._forwarding = Forwarding(config["ssl.truststore.location"])
        self.url = ""
        self._routes = Routes(
            self._catalog,
            self,
            modes_may_change=config["mode.mutability"],
            cluster_id=str(config["schema.registry.group.id"]),
        )

    def _topic_log(self, config: RegistryConfig) -> TopicLog:
        return TopicLog(
            config.client,
            config["kafkastore.topic"],
            writer=f"{config['schema.registry.group.id']}-{config['kafkastore.topic']}-writer",
            replicas=config["kafkastore.topic.replication.factor"],
            start_timeout_s=config["kafkastore.init.timeout.ms"] / 1000,
        )

    # --- running ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the topic, listen, and take part in the election."""
        listener = self._config.listener
        need("uvicorn")
        from headrace.registry.http import http_server

        tls = server_context(self._config.values) if listener.scheme == "https" else None
        bound = _listen(listener.host or "0.0.0.0", listener.port)
        try:
            await self._log.start(self._state.apply)
        except BaseException:
            bound.close()
            raise
        self.url = listener.url(bound.getsockname()[1], self._config["host.name"])
        self._server = http_server(self._answer, tls)
        self._serving = asyncio.create_task(self._server.serve([bound]), name="headrace-registry-serving")
        while not self._server.started:
            if self._serving.done():
                await self._serving
            await asyncio.sleep(0.001)
        if not self._in_memory:
            identity = InstanceIdentity(self.url, self._config["leader.eligibility"])
            self._election = WriterElection(
                self._config.client,
                self._config["schema.registry.group.id"],
                self._config["kafkastore.topic"],
                identity,
                self._on_leader,
            )
            self._election.start()
        log.info("the schema registry answers at %s", self.url)

    async def wait_for_leader(self, timeout_s: float) -> None:
        """Wait until it is decided which instance writes."""
        async with asyncio.timeout(timeout_s):
            while not self._is_leading and self._leader is None:
                self._leader_changed.clear()
                await self._leader_changed.wait()

    async def stop(self) -> None:
        if self._election is not None:
            await self._election.close()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)
        await self._log.close()
        self._forwarding.close()

    @property
    def is_leading(self) -> bool:
        """Whether this instance is the one that writes."""
        return self._is_leading

    def _on_leader(self, url: str | None) -> None:
        leads = url == self.url
        if leads and not self._is_leading:
            self._needs_take_over = True
            log.info("this instance of the registry writes from now on")
        elif not leads and self._is_leading:
            log.info("this instance of the registry no longer writes")
        self._leader, self._is_leading = url, leads
        self._leader_changed.set()

    # --- writing ------------------------------------------------------------------------------------------------------

    async def change(self, decide: Callable[[], PlannedChange]) -> Any:
        """Take a decision after all that was decided before, and make it last."""
        timeout_ms = self._config["kafkastore.timeout.ms"]
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._lock:
                if self._needs_take_over:
                    await self._log.take_over()
                    self._needs_take_over = False
                decision = decide()
                if decision.changes:
                    try:
                        await self._log.write(decision.changes)
                    except BaseException:
                        self._needs_take_over = not self._in_memory
                        raise
                return decision.result
        except TimeoutError:
            raise errors.timed_out(
                f"the change was not written within kafkastore.timeout.ms={timeout_ms}; it"
            ) from None
        except NoLongerWriterError as error:
            raise errors.forwarding_failed(error) from error
        except LogUnavailableError as error:
            raise errors.store_failed(error) from error

    # --- answering ----------------------------------------------------------------------------------------------------

    async def _answer(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """The ASGI application. Paths are taken apart before they are decoded: a subject may have a slash."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        challenge = None
        try:
            async with self._slots:
                body = await _body(receive)
                status, answer = await self._answered(scope, headers, body)
        except RegistryRefusalError as refusal:
            if refusal.status == 401:
                challenge = self._access.challenge
            status, answer = refusal.status, {"error_code": refusal.code, "message": refusal.message}
        except HeadraceError as error:
            status, answer = 500, {"error_code": 50001, "message": str(error)}
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            status, answer = 500, {"error_code": 500, "message": "Internal Server Error"}
        data = answer if isinstance(answer, bytes) else _encoded(answer)
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-type", CONTENT_TYPE.encode()),
                    (b"content-length", str(len(data)).encode()),
                    *([(b"www-authenticate", challenge.encode())] if challenge else []),
                ],
            }
        )
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else data})

    async def _answered(self, scope: Mapping[str, Any], headers: Mapping[str, str], body: bytes) -> tuple[int, Any]:
        raw_path = scope["raw_path"].decode("ascii", "replace").partition("?")[0]
        path = tuple(unquote(part) for part in raw_path.strip("/").split("/")) if raw_path.strip("/") else ()
        method = scope["method"]
        user = self._user(headers)
        if _is_change(method, path) and not self._is_leading:
            return await self._forward(method, scope, headers, body, user)
        asked = RestRequest(method, path, _query(scope["query_string"]), _json(body), user)
        return 200, await self._routes.answer(asked)

    def _user(self, headers: Mapping[str, str]) -> User:
        return self._access.user(headers.get("authorization"))

    async def _forward(
        self, method: str, scope: Mapping[str, Any], headers: Mapping[str, str], body: bytes, user: User
    ) -> tuple[int, Any]:
        """Let the instance that writes answer."""
        if FORWARDED in headers:
            raise errors.forwarding_failed("the instance that it was sent to does not write any more")
        timeout_s = self._config["kafkastore.timeout.ms"] / 1000
        try:
            await self.wait_for_leader(timeout_s)
        except TimeoutError:
            raise errors.unknown_leader() from None
        leader = self._leader
        if self._is_leading or leader is None:
            return await self._answered(scope, headers, body)
        target = leader + scope["raw_path"].decode("ascii", "replace").partition("?")[0]
        query = scope["query_string"].decode("ascii", "replace")
        return await self._forwarding.send(
            method, f"{target}?{query}" if query else target, headers.get("authorization"), body, timeout_s
        )


def _is_change(method: str, path: tuple[str, ...]) -> bool:
    """Whether a request changes something: those that look a schema up or check one are sent by POST, too."""
    if method not in _WRITING_METHODS:
        return False
    return not (method == "POST" and (path[:1] == ("compatibility",) or (path[:1] == ("subjects",) and len(path) == 2)))


async def _body(receive: Any) -> bytes:
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RegistryRefusalError(400, "the client is gone")
        part = message.get("body", b"")
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise RegistryRefusalError(413, f"the body of a request has at most {BODY_BYTES_MAX} bytes")
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def _json(body: bytes) -> Any:
    if not body.strip():
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RegistryRefusalError(400, f"the body of the request is no JSON: {error}") from error


def _query(raw: bytes) -> dict[str, str]:
    pairs = (part.partition("=") for part in raw.decode("ascii", "replace").split("&") if part)
    return {unquote(name.replace("+", " ")): unquote(value.replace("+", " ")) for name, _, value in pairs}


def _encoded(answer: Any) -> bytes:
    if isinstance(answer, str):
        return answer.encode()
    return json.dumps(answer, separators=(",", ":"), ensure_ascii=False).encode()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise LogUnavailableError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    bound.set_inheritable(False)
    return bound
