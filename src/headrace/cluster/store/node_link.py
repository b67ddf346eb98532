"""A store's way to its nodes: one session at a time, waited for as long as may be, and asked again after a break."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from headrace.cluster.store import SessionLostError, StoreUnavailableError
from headrace.cluster.store.session import (
    ConnectionBrokenError,
    Operation,
    SessionExpiredError,
    SessionState,
    StoreSession,
    Watch,
)
from headrace.runtime import Clock

T = TypeVar("T")

_PAUSE_S = 0.02


class NodeLink:
    """The session that there is, and what may be asked of it.

    A session that nobody answers stays suspended for as long as it takes, so every question has a time of its own,
    by the monotonic clock.
    """

    def __init__(self, clock: Clock, make_session: Callable[[], StoreSession], timeout_s: float, where: str) -> None:
        self._clock = clock
        self._make_session = make_session
        self._timeout_s = timeout_s
        self.where = where
        self._session: StoreSession | None = None
        self._changed = asyncio.Event()
        #: Whether a session was ever suspended, or over before it was closed.
        self.was_away = False
        self._reached_s = 0.0
        self._reached_since: float | None = None

    @property
    def session(self) -> StoreSession | None:
        return self._session

    @property
    def connected_since(self) -> float | None:
        return None if self._session is None else self._session.connected_since

    @property
    def reached_s(self) -> float:
        since = self._reached_since
        return self._reached_s + (0.0 if since is None else self._clock.monotonic() - since)

    @property
    def sure_until(self) -> float:
        return float("-inf") if self._session is None else self._session.sure_until

    async def begin(self) -> None:
        """Begin a session, unless there is one that lives."""
        if self._session is not None and self._session.state is not SessionState.EXPIRED:
            return
        await self.close()
        session = self._make_session()
        session.on_change(self._tell)
        try:
            await session.start()
        except (Exception, asyncio.CancelledError) as error:
            # Also when nobody waits for it any more: it must not go on to connect.
            await session.close()
            if isinstance(error, ConnectionBrokenError):
                raise StoreUnavailableError(f"{self.where} cannot be reached: {error}") from error
            raise
        self._session = session
        self._tell()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            self._tell()

    def _tell(self) -> None:
        self._reached_s = self.reached_s
        is_reached = self._session is not None and self._session.state is SessionState.CONNECTED
        self._reached_since = self._clock.monotonic() if is_reached else None
        if self._session is not None and self._session.state is not SessionState.CONNECTED:
            self.was_away = True
        self._changed.set()
        self._changed = asyncio.Event()

    async def lost(self) -> None:
        """Wait until the session is over."""
        while self._session is not None and self._session.state is not SessionState.EXPIRED:
            await self._changed.wait()

    async def _connected(self, deadline: float | None) -> StoreSession:
        """The session once it is connected."""
        while True:
            session = self._session
            if session is None or session.state is SessionState.EXPIRED:
                raise SessionLostError(f"the session with {self.where} is over; this broker has to register again")
            if session.state is SessionState.CONNECTED:
                return session
            changed = self._changed
            try:
                async with asyncio.timeout(self._left(deadline)):
                    await changed.wait()
            except TimeoutError:
                raise self._unavailable() from None

    def _left(self, deadline: float | None) -> float | None:
        return None if deadline is None else max(0.0, deadline - self._clock.monotonic())

    def _unavailable(self) -> StoreUnavailableError:
        return StoreUnavailableError(f"{self.where} has not answered for {self._timeout_s:g} s; it is tried again")

    async def read(self, ask: Callable[[StoreSession], Awaitable[T]], *, patiently: bool = False) -> T:
        """Ask something that changes nothing; again, when the connection breaks. `patiently`: however long it takes."""
        deadline = None if patiently else self._clock.monotonic() + self._timeout_s
        while True:
            session = await self._connected(deadline)
            try:
                async with asyncio.timeout(self._timeout_s if deadline is None else self._left(deadline)):
                    return await ask(session)
            except SessionExpiredError as error:
                raise SessionLostError(f"the session with {self.where} is over: {error}") from error
            except TimeoutError:
                if deadline is not None:
                    raise self._unavailable() from None
            except ConnectionBrokenError:
                # The state may lag behind what has just happened to this question.
                await asyncio.sleep(_PAUSE_S)

    async def change(self, operations: Sequence[Operation]) -> None:
        """Make a change, once. A `ConnectionBrokenError` leaves open whether it was made; any other: it was not."""
        deadline = self._clock.monotonic() + self._timeout_s
        session = await self._connected(deadline)
        try:
            async with asyncio.timeout(self._timeout_s):
                await session.apply(operations)
        except TimeoutError:
            raise ConnectionBrokenError(f"{self.where} did not answer within {self._timeout_s:g} s") from None
        except SessionExpiredError as error:
            # It may have been made in the session's last moments.
            raise ConnectionBrokenError(f"the session with {self.where} is over: {error}") from error

    async def before_another_try(self) -> None:
        """After a change that did not fit, or was not answered: rest, then see what others have changed meanwhile.

        What this session was shown may be older than what its change was held against, and would not fit again.
        """
        await asyncio.sleep(_PAUSE_S)
        await self.read(lambda session: session.sync())

    async def other_than(self, known: Sequence[T], look: Callable[[StoreSession, Watch | None], Awaitable[T]]) -> T:
        """What `look` finds; where something is `known`, as soon as it is not that."""
        if not known:
            return await self.read(lambda session: look(session, None))
        while True:
            changed = asyncio.Event()
            found = await self.read(functools.partial(_look, look, changed.set), patiently=True)
            if found != known[0]:
                return found
            await changed.wait()


def _look(
    look: Callable[[StoreSession, Watch | None], Awaitable[T]], watch: Watch, session: StoreSession
) -> Awaitable[T]:
    return look(session, watch)
