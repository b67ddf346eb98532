"""Where administrative operations run: on the caller's thread (`BlockingRunner`) or on the event loop (`AsyncRunner`).

A runner owns the connections.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from headrace.client.admin.core import Context
from headrace.client.cluster.drivers import AsyncClient, BlockingClient
from headrace.client.configs import COMMON_KEYS, ConnectionConfig, key, merge, read_config
from headrace.client.errors import ClientClosedError
from headrace.client.flows import Flow, Task, UserCode, drive, drive_async
from headrace.config import ConfigDefinition, ConfigType, at_least
from headrace.runtime import Runtime, real_runtime

R = TypeVar("R")

ADMIN_CONFIGS = ConfigDefinition(
    (
        *COMMON_KEYS,
        key("default.api.timeout.ms", ConfigType.INT, 60_000, at_least(0), "How long an operation may take in all."),
        key(
            "retries",
            ConfigType.INT,
            2_147_483_647,
            at_least(0),
            doc="Without effect: default.api.timeout.ms bounds every operation.",
        ),
    )
)


def admin_config(config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Typed values of an Admin's configuration."""
    return read_config(ADMIN_CONFIGS, merge(config, keywords))


class BlockingRunner:
    """Connections and a lock: any thread may run an operation, one at a time. Rebuilds itself in a forked child."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._config = ConnectionConfig.of(values)
        self._lock = threading.Lock()
        self._closed = False
        self._client = self._connect()

    def _connect(self) -> BlockingClient:
        self._pid = os.getpid()
        client = BlockingClient(self._config)
        client.core.allow_auto_topic_creation = False
        return client

    def run(self, operation: Callable[[Context], Flow[R]], timeout_ms: float) -> R:
        if self._is_forked() and not self._closed:
            self._client = self._connect()
        with self._lock:
            if self._closed:
                raise ClientClosedError("this Admin is closed; make a new one")
            return self._drive(operation, timeout_ms)

    def _drive(self, operation: Callable[[Context], Flow[R]], timeout_ms: float) -> R:
        client = self._client
        context = Context(client.core, timeout_ms)
        return drive(operation(context), client.core.clock.monotonic, context, client.poll, _no_code)

    def _is_forked(self) -> bool:
        """Whether this is a child: the connections are its parent's, and so may be who holds the lock."""
        if os.getpid() == self._pid:
            return False
        self._lock = threading.Lock()
        self._client.abandon()
        return True

    def close(self) -> None:
        self._is_forked()
        with self._lock:
            if not self._closed:
                self._closed = True
                self._client.close()


class AsyncRunner:
    """Connections on an event loop; any number of operations may run at once."""

    def __init__(self, values: Mapping[str, Any], runtime: Runtime | None = None) -> None:
        self._own_runtime = runtime is None
        self._runtime = real_runtime() if runtime is None else runtime
        self._client = AsyncClient(ConnectionConfig.of(values), self._runtime)
        self._client.core.allow_auto_topic_creation = False
        self._closed = False
        self._running: set[asyncio.Event] = set()
        """What operations wait for that are under way."""

    async def run(self, operation: Callable[[Context], Flow[R]], timeout_ms: float) -> R:
        self._check_open()
        client = self._client
        changed = asyncio.Event()
        context = Context(client.core, timeout_ms, changed.set)

        async def wait(seconds: float) -> None:
            client.schedule()
            try:
                async with asyncio.timeout(seconds):
                    await changed.wait()
            except TimeoutError:
                pass
            changed.clear()
            # By another task, meanwhile: nobody answers any more, however often is asked.
            self._check_open()

        self._running.add(changed)
        try:
            return await drive_async(operation(context), client.core.clock.monotonic, context, wait, _no_code)
        finally:
            self._running.discard(changed)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("this Admin is closed; make a new one")

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            for changed in self._running:
                changed.set()
            await self._client.close()
            if self._own_runtime:
                await self._runtime.close()


def _no_code(task: Task[Any], code: UserCode) -> NoReturn:
    raise AssertionError(f"no operation of an Admin runs code of the user's: {code.name}")
