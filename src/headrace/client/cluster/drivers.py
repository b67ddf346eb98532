"""The two clients of a cluster that everything else is built on: one blocks its caller, one runs on an event loop."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.client.cluster.core import ClientCore
from headrace.client.configs import ConnectionConfig
from headrace.errors import RequestTimedOutError
from headrace.net.blocking import Address, BlockingDriver, canonical_addresses
from headrace.net.connection import Call, OnDone
from headrace.net.loop import LoopDriver
from headrace.runtime import Clock, Runtime
from headrace.runtime.real import RealClock


class BlockingClient(BlockingDriver[ClientCore]):
    """A `ClientCore` with sockets, on the caller's thread. Not for several threads at once, but for `wakeup`."""

    def __init__(
        self,
        config: ConnectionConfig,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        resolve: Callable[[str, int], list[Address]] | None = None,
    ) -> None:
        config = canonical_bootstrap(config)
        clock, rng = clock or RealClock(), rng or random.Random(os.urandom(16))
        super().__init__(lambda transport: ClientCore(config, clock, rng, transport), resolve=resolve)

    def submit(self, node_id: int | None, request: Any, on_done: OnDone | None = None, **options: Any) -> Call:
        """`ClientCore.submit`: returns at once; `poll` moves it on. Several may be under way (pipelining)."""
        return self.core.submit(node_id, request, on_done, **options)

    def request(self, node_id: int | None, request: Any, *, timeout_ms: float | None = None, **options: Any) -> Any:
        """Send a request and wait for its answer; raises the call's error, or `RequestTimedOutError`."""
        timeout = self.core.config.request_timeout_ms if timeout_ms is None else timeout_ms
        call = self.submit(node_id, request, timeout_ms=timeout, **options)
        self.wait(call, timeout_ms=timeout * 2)
        if call.error is not None:
            raise call.error
        return call.response

    def ensure_metadata(self, deadline: float) -> None:
        """Wait for one answer to a metadata request made from now on."""
        version = self.core.view.version
        self.core.refresh_metadata()
        if not self.poll_until(lambda: self.core.view.version > version, deadline):
            cause = self.core.trouble
            raise RequestTimedOutError(f"no metadata came in time: {cause or 'no broker answered'}")


class AsyncClient(LoopDriver[ClientCore]):
    """A `ClientCore` on the running event loop."""

    def __init__(self, config: ConnectionConfig, runtime: Runtime) -> None:
        config = canonical_bootstrap(config)
        super().__init__(lambda transport: ClientCore(config, runtime.clock, runtime.rng, transport), runtime)

    def submit(self, node_id: int | None, request: Any, on_done: OnDone | None = None, **options: Any) -> Call:
        """`ClientCore.submit`, from the loop; `on_done` is called on the loop."""
        call = self.core.submit(node_id, request, on_done, **options)
        self.schedule()
        return call

    async def request(
        self, node_id: int | None, request: Any, *, timeout_ms: float | None = None, **options: Any
    ) -> Any:
        """Send a request and wait for its answer; raises the call's error. Many may be awaited at once (pipelining)."""
        future: asyncio.Future[Call] = self.loop.create_future()

        def done(call: Call) -> None:
            if not future.done():
                future.set_result(call)

        call = self.submit(node_id, request, done, timeout_ms=timeout_ms, **options)
        await future
        if call.error is not None:
            raise call.error
        return call.response

    async def ensure_metadata(self, timeout_ms: float) -> None:
        """Wait for one answer to a metadata request made from now on."""
        version = self.core.view.version
        arrived = asyncio.Event()

        def on_metadata(_: Any) -> None:
            if self.core.view.version > version:
                arrived.set()

        self.core.listeners.append(on_metadata)
        self.core.refresh_metadata()
        self.schedule()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await arrived.wait()
        except TimeoutError:
            cause = self.core.trouble or "no broker answered"
            raise RequestTimedOutError(f"no metadata came within {timeout_ms:.0f} ms: {cause}") from None
        finally:
            self.core.listeners.remove(on_metadata)


def canonical_bootstrap(config: ConnectionConfig) -> ConnectionConfig:
    """With `client.dns.lookup=resolve_canonical_bootstrap_servers_only`: the full name of every address of a host."""
    if not config.canonical_bootstrap:
        return config
    return replace(config, bootstrap=canonical_addresses(config.bootstrap))
