"""How much of the broker's time each peer has had lately: who had less goes first where several wait.

Counted per address and, within it, per connection, and halved with every second: a client of many hours is not behind
one that has just connected, and connecting anew does not make an address new.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

HALVED_IN_S = 1.0
# Below this nobody is told apart.
NOTHING_S = 0.001
ADDRESSES_MAX = 10_000


class Peer(Protocol):
    """A connection, as far as its time is counted."""

    peer_host: str

    @property
    def is_lost(self) -> bool: ...


class _Use:
    """Seconds that were used, fading."""

    __slots__ = ("_at", "_seconds")

    def __init__(self) -> None:
        self._seconds = self._at = 0.0

    def now(self, now: float) -> float:
        seconds = self._seconds * 0.5 ** ((now - self._at) / HALVED_IN_S) if self._seconds else 0.0
        return seconds if seconds > NOTHING_S else 0.0

    def add(self, seconds: float, now: float) -> None:
        self._seconds = self.now(now) + seconds
        self._at = now


class TimeUsed:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._now = monotonic
        self._addresses: dict[str, _Use] = {}
        self._connections: dict[Peer, _Use] = {}

    def add(self, connection: Peer, seconds: float) -> None:
        if seconds < NOTHING_S:
            return
        now = self._now()
        # What was begun for one that is lost goes on, and nobody forgets it a second time.
        if not connection.is_lost:
            if connection not in self._connections:
                self._connections[connection] = _Use()
            self._connections[connection].add(seconds, now)
        if connection.peer_host not in self._addresses:
            if len(self._addresses) >= ADDRESSES_MAX:
                self._addresses = {address: use for address, use in self._addresses.items() if use.now(now)}
            self._addresses[connection.peer_host] = _Use()
        self._addresses[connection.peer_host].add(seconds, now)

    def forget(self, connection: Peer) -> None:
        self._connections.pop(connection, None)

    def order(self, connection: Peer) -> tuple[float, float]:
        """A key to sort connections by: who had the least comes first."""
        now = self._now()
        address, own = self._addresses.get(connection.peer_host), self._connections.get(connection)
        return 0.0 if address is None else address.now(now), 0.0 if own is None else own.now(now)
