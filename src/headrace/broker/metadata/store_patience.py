"""How long a broker that starts goes on trying to come into its cluster, through whatever may pass by itself.

Kafka 3 waits for the first connection to ZooKeeper (`zookeeper.connection.timeout.ms`), and a broker of KRaft asks the
controller to register it again and again (`initial.broker.registration.timeout.ms`); then both end. Here the second is
the bound of all of it: a store that is away, a session that is lost, a controller that is missing, changes or does not
answer. It is counted twice, for the store and, once the logs are open, for the controller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.store import SessionLostError, Store, StoreUnavailableError
from headrace.errors import DuplicateBrokerRegistrationError, HeadraceError, RetriableError
from headrace.runtime import Clock
from headrace.runtime.letting_go import let_go

log = logging.getLogger("headrace.broker")

T = TypeVar("T")

REGISTRATION_TIMEOUT: Final = "initial.broker.registration.timeout.ms"
CONNECTION_TIMEOUT: Final = "zookeeper.connection.timeout.ms"

# Another life of this broker may have died just now, with its session still alive.
_PASSING: Final = (StoreUnavailableError, SessionLostError, DuplicateBrokerRegistrationError, RetriableError)
_RETRY_S: Final = 0.1


class StartGivenUpError(HeadraceError):
    """The broker was asked to stop while it waited for its cluster."""


class Patience:
    """A time in which something is tried again, unless the start is given up meanwhile."""

    def __init__(self, clock: Clock, timeout_s: float, setting: str, given_up: asyncio.Event) -> None:
        """`setting` is what to change for another time; `given_up` is set when the broker is to stop."""
        self._clock = clock
        self._timeout_s = timeout_s
        self._setting = setting
        self._given_up = given_up
        self._deadline = clock.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._deadline - self._clock.monotonic())

    async def insist(self, what: str, attempt: Callable[[], Awaitable[T]], *, cut: bool = False) -> T:
        """The result of the first attempt that succeeds; what the last one failed with, when the time is over.

        `what` this broker cannot do meanwhile, for the log and the error. `cut`: an attempt that lasts beyond the time
        is ended. Whatever does not pass by itself is raised at once.
        """
        said = ""
        while True:
            try:
                return await self._attempted(attempt, what, cut=cut)
            except _PASSING as error:
                if self.left_s <= _RETRY_S:
                    words = f"{what} for {self._timeout_s:g} s ({self._setting}), and ends: {error}"
                    raise type(error)(words) from error
                if str(error) != said:
                    log.warning("%s, and goes on trying for %.0f s: %s", what, self.left_s, error)
                said = str(error)
            await self._pause(what)

    async def _attempted(self, attempt: Callable[[], Awaitable[T]], what: str, *, cut: bool) -> T:
        trying = asyncio.ensure_future(attempt())
        giving_up = asyncio.ensure_future(self._given_up.wait())
        try:
            timeout_s = self.left_s if cut else None
            await asyncio.wait([trying, giving_up], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if trying.done():
                return trying.result()
            if giving_up.done():
                raise StartGivenUpError(f"{what}, and was asked to stop")
            raise StoreUnavailableError("nobody answered")
        finally:
            await let_go(trying, giving_up)

    async def _pause(self, what: str) -> None:
        try:
            async with asyncio.timeout(_RETRY_S):
                await self._given_up.wait()
        except TimeoutError:
            return
        raise StartGivenUpError(f"{what}, and was asked to stop")


class StorePatience:
    """The store while a broker starts: begun anew when a session is lost before there is anything to come back to."""

    def __init__(self, clock: Clock, config: BrokerConfig, store: Store, given_up: asyncio.Event) -> None:
        timeout_s = config.get_int(REGISTRATION_TIMEOUT) / 1000
        self._patience = Patience(clock, timeout_s, REGISTRATION_TIMEOUT, given_up)
        self._first = self._patience
        connection_ms = config[CONNECTION_TIMEOUT]
        if config["zookeeper.connect"] and isinstance(connection_ms, int):
            self._first = Patience(clock, connection_ms / 1000, CONNECTION_TIMEOUT, given_up)
        self._store = store
        self._cluster_id: str | None = None
        self._is_lost = False

    async def open(self, cluster_id: str | None) -> str:
        """Open the store; the cluster's id."""
        what = "this broker cannot open the store of its metadata"
        self._cluster_id = await self._first.insist(what, lambda: self._store.open(cluster_id), cut=True)
        return self._cluster_id

    async def insist(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Ask something of the store that was opened."""
        return await self._patience.insist(what, lambda: self._tried(attempt))

    async def _tried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        if self._is_lost:
            await self._store.open(self._cluster_id)
            self._is_lost = False
        try:
            return await attempt()
        except SessionLostError:
            self._is_lost = True
            raise
