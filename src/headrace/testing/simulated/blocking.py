"""Blocking programs in a simulated cluster: they run on threads of their own, in turns with the simulation.

While such a thread runs, the simulation stands still; when it calls a client, it stands still until the simulation has
come to the answer. So nothing depends on how fast either is, virtual time passes only in calls, and the same seed takes
the same course each time. The clients that it is given have the names and results of the blocking ones, and are those
of asyncio underneath: blocking ones proper would wait for real sockets and real time.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.client.producer.delivery import Delivery

if TYPE_CHECKING:
    from headrace.testing.simulated.cluster import SimulatedCluster

T = TypeVar("T")

#: What a thread asks for: something to run on the loop.
_Call = Callable[[], Any]
_FAULTS = ("kill", "lose_power", "restart", "stop", "pause", "resume", "partition", "heal", "fill_disk", "empty_disk")
#: Whose turns the thread that runs has part in; the simulation's own has no such attribute.
_current = threading.local()


class _Callback:
    """Something that the simulation lets a thread do while that waits for an answer: a listener's method."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._function(*self._arguments)
        except BaseException as error:  # noqa: BLE001 - raised again for whoever asked for it
            self.error = error


class Turns:
    """One thread and the simulation, one at a time."""

    def __init__(self) -> None:
        #: None: the thread is through with what it was given to do.
        self._asked: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._answered: queue.SimpleQueue[tuple[Any, BaseException | None] | _Callback] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_over = False

    def begin(self, work: Callable[[], None]) -> None:
        """Let a thread of its own do this."""

        def run() -> None:
            _current.turns = self
            try:
                work()
            finally:
                self._asked.put(None)

        # In the context of whoever began it: what it logs is said by that host.
        context = copy_context()
        self._thread = threading.Thread(target=context.run, args=(run,), name="headrace-story", daemon=True)
        self._thread.start()

    def call(self, call: _Call) -> Any:
        """On the thread: let the simulation run this, and wait until it has. In the simulation itself: run it. On the
        thread of another program, which has the turn: let it ask."""
        mine: Turns | None = getattr(_current, "turns", None)
        if mine is None:
            return call()
        if mine is not self:
            return mine.call(call)
        if self._is_over:
            raise RuntimeError("the simulation is over, and with it all that its programs could call")
        self._asked.put(call)
        while isinstance(answer := self._answered.get(), _Callback):
            answer.run()
            self._asked.put(None)
        found, error = answer
        if error is not None:
            raise error
        return found

    def join(self) -> None:
        """In the simulation, when nobody serves the thread any more: let it come to its end."""
        if self._thread is not None:
            self._thread.join()

    async def serve(self) -> None:
        """In the simulation: run what the thread asks for, until it is through."""
        while (call := self._asked.get()) is not None:
            try:
                found = call()
                if inspect.iscoroutine(found):
                    found = await found
            except Exception as error:  # noqa: BLE001 - it is for whoever called
                self._answered.put((None, error))
            except BaseException as error:
                # Nobody will serve it any more: it ends with its next call.
                self._is_over = True
                self._answered.put((None, error))
                raise
            else:
                self._answered.put((found, None))

    async def call_back(self, function: Callable[..., Any], *arguments: Any) -> None:
        """In the simulation, while the thread waits for an answer: let it do this first."""
        callback = _Callback(function, arguments)
        self._answered.put(callback)
        await self.serve()
        if callback.error is not None:
            raise callback.error


class _Listener:
    """A program's listener: its methods run on the program's thread, and may call the consumer."""

    def __init__(self, turns: Turns, listener: Any) -> None:
        self._turns = turns
        self._listener = listener

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._listener, name)
        return lambda *arguments: self._turns.call_back(method, *arguments)


class BlockingDelivery:
    """What `send` gives: `result` waits until the record is acknowledged."""

    def __init__(self, turns: Turns, delivery: Delivery) -> None:
        self._turns = turns
        self._delivery = delivery

    def result(self, timeout: float | None = None) -> Any:
        async def wait() -> Any:
            return await self._delivery

        return self._turns.call(wait)

    def done(self) -> bool:
        return self._delivery.done()


class ThreadedClient:
    """A client of asyncio, called from a thread: each of its coroutines is a call that returns its result."""

    def __init__(self, turns: Turns, client: Any) -> None:
        self._turns = turns
        self._client = client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            return self._given(self._turns.call(lambda: found(*arguments, **named)))

        return call

    def subscribe(self, topics: Any, listener: Any = None, **named: Any) -> None:
        """As the client's own."""
        wrapped = None if listener is None else _Listener(self._turns, listener)
        self._turns.call(lambda: self._client.subscribe(topics, wrapped, **named))

    def _given(self, found: Any) -> Any:
        if isinstance(found, Delivery):
            return BlockingDelivery(self._turns, found)
        if type(found) is type(self._client):
            return ThreadedClient(self._turns, found)
        return found

    def __iter__(self) -> Iterator[Any]:
        """The records of a consumer, one by one, for ever."""
        while True:
            yield from self.poll(1.0)

    def __enter__(self) -> ThreadedClient:
        self._turns.call(self._client.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._turns.call(lambda: self._client.__aexit__(*error))


class BlockingCluster:
    """A simulated cluster as a blocking program sees it: clients, faults, and time."""

    def __init__(self, cluster: SimulatedCluster, turns: Turns) -> None:
        self.cluster = cluster
        self.turns = turns

    def __getattr__(self, name: str) -> Any:
        if name not in _FAULTS:
            return getattr(self.cluster, name)
        fault = getattr(self.cluster, name)
        return lambda *arguments, **named: self.turns.call(lambda: fault(*arguments, **named))

    def producer(self, **config: Any) -> ThreadedClient:
        return self._client(self.cluster.producer, config)

    def consumer(self, **config: Any) -> ThreadedClient:
        return self._client(self.cluster.consumer, config)

    def admin(self, **config: Any) -> ThreadedClient:
        return self._client(self.cluster.admin, config)

    def _client(self, make: Callable[..., Any], config: dict[str, Any]) -> ThreadedClient:
        return ThreadedClient(self.turns, self.turns.call(lambda: make(**config)))

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass; `time.sleep` would take real time, in which nothing happens."""
        self.turns.call(lambda: asyncio.sleep(seconds))

    def until(self, condition: Callable[[], bool], timeout_s: float, otherwise: str) -> float:
        waited: float = self.turns.call(lambda: self.cluster.until(condition, timeout_s, otherwise))
        return waited


async def run_blocking(cluster: SimulatedCluster, story: Callable[[BlockingCluster], T]) -> T:
    """Run a blocking program on a thread of its own, in turns with the simulation; give what it gives."""
    turns = Turns()
    told: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            told.append(story(BlockingCluster(cluster, turns)))
        except BaseException as error:  # noqa: BLE001 - raised again where the story was begun
            failed.append(error)

    turns.begin(run)
    await turns.serve()
    if failed:
        raise failed[0]
    return told[0]
