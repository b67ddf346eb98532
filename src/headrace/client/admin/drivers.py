"""Run plans: on the caller's thread (`BlockingRunner`) or on the event loop (`AsyncRunner`).

A runner owns the connections. `method` and `amethod` make a plan a method of a class that has a runner, with the plan's
own signature and documentation.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from headrace.client.admin.core import Ask, Context, Pause, Plan, Reply, Step
from headrace.client.arguments import check_mapping, check_several
from headrace.client.cluster.core import ClientCore
from headrace.client.cluster.drivers import AsyncClient, BlockingClient
from headrace.client.configs import COMMON_KEYS, ConnectionConfig, key, merge, read_config
from headrace.client.errors import ClientClosed
from headrace.config import ConfigDefinition, ConfigType, at_least
from headrace.errors import RequestTimedOutError
from headrace.net.connection import Call
from headrace.runtime import Runtime, real_runtime

P = ParamSpec("P")
R = TypeVar("R")

ADMIN_CONFIGS = ConfigDefinition(
    (
        *COMMON_KEYS,
        key("default.api.timeout.ms", ConfigType.INT, 60_000, at_least(0), "How long an operation may take in all."),
        key("retries", ConfigType.INT, 2_147_483_647, at_least(0)),
    )
)
_PLURAL = ("Iterable", "Sequence", "Collection")
# The core says why a request could not be sent when its time is over; that is worth a moment more.
_GRACE_S = 0.05


def admin_config(config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Typed values of an Admin's configuration."""
    return read_config(ADMIN_CONFIGS, merge(config, keywords))


class BlockingRunner:
    """Connections and a lock: any thread may run a plan, one at a time. Rebuilds itself in a forked child."""

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

    def run(self, operation: Callable[[Context], Plan[R]], timeout_ms: float) -> R:
        if os.getpid() != self._pid:
            self._client.abandon()
            self._lock = threading.Lock()
            self._client = self._connect()
        with self._lock:
            if self._closed:
                raise ClientClosed("this Admin is closed; make a new one")
            return self._drive(operation, timeout_ms)

    def _drive(self, operation: Callable[[Context], Plan[R]], timeout_ms: float) -> R:
        client = self._client
        context = Context(client.core, timeout_ms)
        plan = operation(context)
        try:
            step = next(plan)
            while True:
                if isinstance(step, Pause):
                    client.poll_until(lambda: False, client.core.clock.monotonic() + step.seconds)
                    step = plan.send([])
                    continue
                calls = [_submit(client, context, ask) for ask in step]
                client.poll_until(lambda: all(call.done for call in calls), context.deadline + _GRACE_S)  # noqa: B023
                step = plan.send([_reply(call, context) for call in calls])
        except StopIteration as end:
            result: R = end.value
            return result
        finally:
            plan.close()

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._client.close()


class AsyncRunner:
    """Connections on an event loop; any number of plans may run at once."""

    def __init__(self, values: Mapping[str, Any], runtime: Runtime | None = None) -> None:
        self._own_runtime = runtime is None
        self._runtime = real_runtime() if runtime is None else runtime
        self._client = AsyncClient(ConnectionConfig.of(values), self._runtime)
        self._client.core.allow_auto_topic_creation = False
        self._closed = False

    async def run(self, operation: Callable[[Context], Plan[R]], timeout_ms: float) -> R:
        if self._closed:
            raise ClientClosed("this Admin is closed; make a new one")
        context = Context(self._client.core, timeout_ms)
        plan = operation(context)
        try:
            step = next(plan)
            while True:
                step = plan.send(await self._take(step, context))
        except StopIteration as end:
            result: R = end.value
            return result
        finally:
            plan.close()

    async def _take(self, step: Step, context: Context) -> list[Reply]:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return []
        all_done = asyncio.Event()
        left = len(step)

        def done(_: Call) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                all_done.set()

        calls = [_submit(self._client, context, ask, done) for ask in step]
        if calls:
            try:
                async with asyncio.timeout(context.left_ms / 1000 + _GRACE_S):
                    await all_done.wait()
            except TimeoutError:
                pass  # those that are not done say so below
        return [_reply(call, context) for call in calls]

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._client.close()
            if self._own_runtime:
                await self._runtime.close()


class _Client(Protocol):
    core: ClientCore

    def submit(
        self, node_id: int | None, request: Any, on_done: Callable[[Call], None] | None = None, **options: Any
    ) -> Call: ...


def _submit(client: _Client, context: Context, ask: Ask, done: Callable[[Call], None] | None = None) -> Call:
    timeout_ms = min(context.left_ms, client.core.config.request_timeout_ms)
    return client.submit(ask.node_id, ask.request, done, timeout_ms=timeout_ms, version_max=ask.version_max)


def _reply(call: Call, context: Context) -> Reply:
    if call.done:
        return Reply(call.response, call.error)
    return Reply(None, RequestTimedOutError(f"{call.name} was not answered within {context.timeout_ms:.0f} ms"))


class HasBlockingRunner(Protocol):
    _runner: BlockingRunner
    _timeout_ms: float


class HasAsyncRunner(Protocol):
    _runner: AsyncRunner
    _timeout_ms: float


def _argument_check(operation: Callable[..., Any]) -> Callable[[tuple[Any, ...], Mapping[str, Any]], None]:
    """What refuses arguments of a wrong kind, by the operation's own annotations: `delete_topics("abc")` would
    otherwise delete the topics a, b and c."""
    names = list(inspect.signature(operation).parameters)[1:]
    kinds = {name: str(operation.__annotations__.get(name, "")).partition("[")[0] for name in names}

    def check(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        for name, value in [*zip(names, args), *kwargs.items()]:
            if value is not None and kinds.get(name) in _PLURAL:
                check_several(value, operation.__name__, name)
            elif value is not None and kinds.get(name) == "Mapping":
                check_mapping(value, operation.__name__, name)

    return check


def method(operation: Callable[Concatenate[Context, P], Plan[R]]) -> Callable[Concatenate[HasBlockingRunner, P], R]:
    """An operation as a method that blocks."""
    check = _argument_check(operation)

    @functools.wraps(operation)
    def run(self: HasBlockingRunner, /, *args: P.args, **kwargs: P.kwargs) -> R:
        check(args, kwargs)
        return self._runner.run(lambda context: operation(context, *args, **kwargs), self._timeout_ms)

    return run


def amethod(
    operation: Callable[Concatenate[Context, P], Plan[R]],
) -> Callable[Concatenate[HasAsyncRunner, P], Coroutine[Any, Any, R]]:
    """An operation as a method that is awaited."""
    check = _argument_check(operation)

    @functools.wraps(operation)
    async def run(self: HasAsyncRunner, /, *args: P.args, **kwargs: P.kwargs) -> R:
        check(args, kwargs)
        return await self._runner.run(lambda context: operation(context, *args, **kwargs), self._timeout_ms)

    return run
