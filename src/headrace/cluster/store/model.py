"""A model of ZooKeeper for simulations: several servers that lag behind one another, and whatever may go wrong.

All changes have one order. Each server has made a prefix of them, and a session sees what its server has made, with its
own changes always among them. Connections break before a change is made or after it, servers are away, sessions expire,
one or all at once. Nothing here uses a thread or a socket: time is that of the running loop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Final

from headrace.cluster.store import StoreRefusedError
from headrace.cluster.store.loop_watch import LoopWatch
from headrace.cluster.store.node_tree import NodeTree, Touched, Watches
from headrace.cluster.store.session import (
    ConnectionBrokenError,
    Create,
    Operation,
    SessionBase,
    SessionExpiredError,
    SessionState,
    StoreNode,
    Watch,
    Write,
)
from headrace.runtime import Clock

_REQUEST_BYTES_MAX: Final = 1024 * 1024
_RECONNECT_S_MAX: Final = 0.05
_APART_S: Final = 2e-6


@dataclass(slots=True)
class Faults:
    """How the ensemble behaves; change it while a simulation runs."""

    delay_s_max: float = 0.002
    #: How long a server may take to make a change that others have made already.
    lag_s_max: float = 0.02
    #: The probabilities that a connection breaks before a change is made, and when it is made but not answered.
    loss_before: float = 0.0
    loss_after: float = 0.0
    #: The probability that it breaks when something is read.
    loss_reading: float = 0.0
    #: The probability that a change is refused for good, as by a quota.
    refusal: float = 0.0


class _Server:
    """One of the ensemble: a tree, and how many of all changes it has made."""

    def __init__(self) -> None:
        self.tree = NodeTree()
        self.made = 0
        self.sessions: dict[ModelSession, None] = {}


class ZooKeeperModel:
    """The ensemble. It belongs to the simulation, not to one of its hosts: make it outside of them."""

    def __init__(
        self, rng: random.Random, *, servers: int = 3, session_timeout_s: float = 6.0, faults: Faults | None = None
    ) -> None:
        self.rng = rng
        self.faults = faults or Faults()
        self.session_timeout_s = session_timeout_s
        self.is_away = False
        #: The nodes after all changes.
        self.tree = NodeTree()
        self._changes: list[tuple[str, Sequence[Operation] | None]] = []
        self._servers = [_Server() for _ in range(servers)]
        self._sessions: dict[str, ModelSession] = {}
        self._count = 0
        self.context = copy_context()

    def session(self, clock: Clock, reaches: Callable[[], bool] = lambda: True) -> ModelSession:
        """A new session of the host that calls this; `reaches` says whether it has a way to the servers."""
        self._count += 1
        return ModelSession(self, f"session-{self._count}", clock, reaches)

    # --- what a test does

    @property
    def sessions(self) -> list[ModelSession]:
        """Those that have not expired."""
        return list(self._sessions.values())

    @property
    def changes(self) -> Sequence[tuple[str, Sequence[Operation] | None]]:
        """All changes ever made, and by which sessions; None: that session was over."""
        return self._changes

    def go_away(self) -> None:
        """No server answers any more. Nothing expires meanwhile, as nobody is there to say so."""
        self.is_away = True
        for session in self.sessions:
            session.break_off()

    def come_back(self, *, expire_all: bool = False) -> None:
        """The servers answer again. Sessions have their whole time-out, or are all over."""
        self.is_away = False
        for session in self.sessions:
            session.last_contact_at = asyncio.get_running_loop().time()
            if expire_all:
                self.expire(session)

    def expire(self, session: ModelSession) -> None:
        """A session is over, of which it learns as soon as it is connected."""
        if self._sessions.pop(session.name, None) is None:
            return
        self.tree.expire(session.name)
        self._changed(session.name, None)
        if session.state is SessionState.CONNECTED:
            session.end()

    def change(self, operations: Sequence[Operation]) -> None:
        """An operator changes nodes by hand."""
        self.tree.apply("operator", operations)
        self._changed("operator", tuple(operations))

    # --- what sessions do

    def attach(self, session: ModelSession, *, is_new: bool) -> _Server:
        """Connect a session to some server, which first makes every change that the session has seen."""
        if is_new:
            self._sessions[session.name] = session
            self._look_after(session)
        elif session.name not in self._sessions:
            raise SessionExpiredError(f"{session.name} has expired")
        session.last_contact_at = asyncio.get_running_loop().time()
        server = self.rng.choice(self._servers)
        self.catch_up(server, session.seen)
        server.sessions[session] = None
        return server

    def has(self, name: str) -> bool:
        """Whether a session of that name has not expired."""
        return name in self._sessions

    def commit(self, session: ModelSession, operations: Sequence[Operation]) -> None:
        """Make a change for all; raises what is wrong with it."""
        if session.name not in self._sessions:
            raise SessionExpiredError(f"{session.name} has expired")
        self.tree.apply(session.name, operations)
        self._changed(session.name, tuple(operations))

    def _changed(self, name: str, operations: Sequence[Operation] | None) -> None:
        self._changes.append((name, operations))
        loop = asyncio.get_running_loop()
        for server in self._servers:
            lag_s = self.rng.uniform(0.0, self.faults.lag_s_max)
            loop.call_later(lag_s, self.catch_up, server, len(self._changes), context=self.context)

    def catch_up(self, server: _Server, count: int | None = None) -> None:
        """Let a server make what others have made."""
        count = len(self._changes) if count is None else count
        while server.made < count:
            name, operations = self._changes[server.made]
            server.made += 1
            touched = server.tree.expire(name) if operations is None else server.tree.apply(name, operations)
            for session in list(server.sessions):
                session.saw(touched)

    def _look_after(self, session: ModelSession) -> None:
        """Expire a session that was not heard of for too long."""
        loop = asyncio.get_running_loop()
        if session.name not in self._sessions:
            return
        if not self.is_away and loop.time() - session.last_contact_at > self.session_timeout_s:
            self.expire(session)
        else:
            loop.call_later(self.session_timeout_s / 5, self._look_after, session, context=self.context)


class ModelSession(SessionBase):
    """Implements `StoreSession`."""

    def __init__(self, model: ZooKeeperModel, name: str, clock: Clock, reaches: Callable[[], bool]) -> None:
        super().__init__(clock, model.session_timeout_s)
        self.name = name
        self.last_contact_at = asyncio.get_running_loop().time()
        #: How many of all changes it has seen.
        self.seen = 0
        self._model = model
        self._reaches = reaches
        self._context = copy_context()
        self._server: _Server | None = None
        self._watches = Watches()
        # Counts connections: an answer on one that is gone does not arrive.
        self._connection = 0
        self._arrival = 0.0
        self._is_closed = False
        self._watch = LoopWatch()

    async def start(self) -> None:
        deadline = self._clock.monotonic() + self._model.session_timeout_s
        while not self._is_reached:
            if self._clock.monotonic() > deadline:
                raise ConnectionBrokenError("no server answers")
            await asyncio.sleep(_RECONNECT_S_MAX)
        await asyncio.sleep(self._delay())
        self._connect(is_new=True)
        self._ping()

    # --- the connection

    @property
    def _is_reached(self) -> bool:
        return not self._model.is_away and self._reaches()

    def _delay(self) -> float:
        return self._model.rng.uniform(0.0, self._model.faults.delay_s_max)

    def _connect(self, *, is_new: bool) -> None:
        self._server = self._model.attach(self, is_new=is_new)
        self._heard_at = self._clock.boottime()
        self._connection += 1
        self._become(SessionState.CONNECTED)

    def _become(self, state: SessionState) -> None:
        self._set_state(state)
        loop = asyncio.get_running_loop()
        for callback in self._callbacks:
            loop.call_soon(callback, context=self._context)

    def break_off(self) -> None:
        """The connection is lost."""
        if self._state is SessionState.CONNECTED:
            self._leave(SessionState.SUSPENDED)
            self._later(self._reconnect)

    def end(self) -> None:
        """A server said that the session is over."""
        if self._state is not SessionState.EXPIRED:
            self._leave(SessionState.EXPIRED)

    def _leave(self, state: SessionState) -> None:
        if self._server is not None:
            self._server.sessions.pop(self, None)
        self._server = None
        self._connection += 1
        self._fire(self._watches.take_all())
        self._become(state)

    def _later(self, callback: Callable[[], None]) -> None:
        wait_s = self._model.rng.uniform(0.0, _RECONNECT_S_MAX)
        asyncio.get_running_loop().call_later(wait_s, callback, context=self._context)

    def _reconnect(self) -> None:
        if self._is_closed or self._state is not SessionState.SUSPENDED:
            return
        if not self._is_reached:
            self._later(self._reconnect)
            return
        try:
            self._connect(is_new=False)
        except SessionExpiredError:
            self.end()

    def _ping(self) -> None:
        """Let the servers hear of this session, as long as its host lives."""
        if self._is_closed or self._state is SessionState.EXPIRED:
            return
        loop = asyncio.get_running_loop()
        if self._state is SessionState.CONNECTED:
            if self._is_reached:
                self.last_contact_at = loop.time()
                self._heard_at = self._clock.boottime()
            else:
                self.break_off()
        self._watch.beat()
        loop.call_later(self._model.session_timeout_s / 4, self._ping, context=self._context)

    def loop_hangs(self, still: Callable[[], bool]) -> None:
        """The loop of its process does nothing, as long as `still` says; what pings is a thread of its own."""
        if not still() or self._is_closed or not self._model.has(self.name):
            return
        if self._state is SessionState.CONNECTED and self._is_reached:
            self.last_contact_at = asyncio.get_running_loop().time()
        if self._watch.look():
            self._model.expire(self)
            return
        every_s = LoopWatch.every_s(self._model.session_timeout_s)
        asyncio.get_running_loop().call_later(every_s, self.loop_hangs, still, context=self._model.context)

    def saw(self, touched: Touched) -> None:
        self._fire(self._watches.take(touched))

    def _fire(self, watches: list[Watch]) -> None:
        loop = asyncio.get_running_loop()
        for watch in watches:
            loop.call_soon(watch, context=self._context)

    # --- requests

    def _leave_for_server(self) -> tuple[int, float]:
        """The connection that a request is sent on, and when it arrives: those of a session arrive in order."""
        if self._state is SessionState.EXPIRED or self._is_closed:
            raise SessionExpiredError(f"{self.name} has expired")
        self._arrival = max(self._arrival + _APART_S, asyncio.get_running_loop().time() + self._delay())
        return self._connection, self._arrival

    def _arrive(self, connection: int) -> _Server:
        """A request that was sent on this connection is at the server now."""
        if not self._is_reached:
            self.break_off()
        elif not self._model.has(self.name):
            self.end()  # whatever it was in the middle of: a server tells whose session is over
        server = self._server
        if server is None or connection != self._connection:
            raise self._lost()
        return server

    async def _reach(self) -> tuple[_Server, int]:
        """Take a request to the server."""
        connection, arrival = self._leave_for_server()
        await asyncio.sleep(arrival - asyncio.get_running_loop().time())
        return self._arrive(connection), connection

    async def _answer(self, server: _Server, connection: int) -> None:
        """Take an answer back."""
        self.seen = max(self.seen, server.made)
        await asyncio.sleep(self._delay())
        if connection != self._connection:
            raise self._lost()

    def _lost(self) -> ConnectionBrokenError | SessionExpiredError:
        if self._state is SessionState.EXPIRED:
            return SessionExpiredError(f"{self.name} has expired")
        return ConnectionBrokenError("the connection was lost")

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._model.rng.random() < probability

    def get(self, path: str, watch: Watch | None = None) -> asyncio.Future[StoreNode | None]:
        """By far the most frequent: with two timers instead of a task that sleeps twice."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[StoreNode | None] = loop.create_future()
        try:
            connection, arrival = self._leave_for_server()
        except SessionExpiredError as error:
            answer.set_exception(error)
        else:
            loop.call_at(arrival, self._look_up, answer, connection, path, watch)
        return answer

    def _look_up(
        self, answer: asyncio.Future[StoreNode | None], connection: int, path: str, watch: Watch | None
    ) -> None:
        if answer.done():
            return
        try:
            server = self._arrive(connection)
        except (ConnectionBrokenError, SessionExpiredError) as error:
            answer.set_exception(error)
            return
        if self._happens(self._model.faults.loss_reading):
            self.break_off()
        found = server.tree.get(path)
        if watch is not None and connection == self._connection:
            self._watches.on_node(path, watch)
        self.seen = max(self.seen, server.made)
        asyncio.get_running_loop().call_later(self._delay(), self._give, answer, connection, found)

    def _give(self, answer: asyncio.Future[StoreNode | None], connection: int, found: StoreNode | None) -> None:
        if answer.done():
            return
        if connection == self._connection:
            answer.set_result(found)
        else:
            answer.set_exception(self._lost())

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        server, connection = await self._reach()
        found = server.tree.children(path)
        if watch is not None:
            self._watches.on_children(path, watch)
        await self._answer(server, connection)
        return found

    async def apply(self, operations: Sequence[Operation]) -> None:
        server, connection = await self._reach()
        size = sum(len(operation.data) for operation in operations if isinstance(operation, (Create, Write)))
        if size > _REQUEST_BYTES_MAX or self._happens(self._model.faults.loss_before):
            self.break_off()
            raise self._lost()
        if self._happens(self._model.faults.refusal):
            self._model.catch_up(server)
            await self._answer(server, connection)
            raise StoreRefusedError(f"the store does not take a change of {operations[0].path}: its quota is used up")
        try:
            self._model.commit(self, operations)
        except SessionExpiredError:
            # Whoever is told so by a server knows that the session is over.
            self.end()
            raise
        finally:
            self._model.catch_up(server)
        if self._happens(self._model.faults.loss_after):
            self.break_off()
        await self._answer(server, connection)

    async def sync(self) -> None:
        server, connection = await self._reach()
        self._model.catch_up(server)
        await self._answer(server, connection)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        await asyncio.sleep(self._delay())
        if self._state is SessionState.CONNECTED and self._is_reached:
            self._model.expire(self)
        else:
            self._leave(SessionState.EXPIRED)
