"""The memory of requests, over all connections: who may read on, and who waits.

Three bounds keep a few peers from taking all of it. What is left for frames of up to a megabyte, larger ones cannot
have; one address cannot have more than its share; and where a bound is reached the frames that wait are read on one at
a time, each to its end, so that all get through and no more than one is over the bound. Whoever sends next to nothing
while it is the one, and others wait for what it holds, is given up. A frame of up to a megabyte does not wait for turns
where others have stopped sending: of the address that holds too much, those are given up for it that are latest.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from headrace.broker.server.watched_connection import WatchedConnection


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """In bytes, over all connections."""

    held_bytes_max: int = 256 * 1024 * 1024
    #: What frames over `small_frame_bytes` may have of that, all together and of one address; and what of one address
    #: others may.
    large_percent: int = 75
    large_of_address_percent: int = 50
    small_of_address_percent: int = 88
    small_frame_bytes: int = 1024 * 1024
    #: How much has to come in what time of a large frame that is read on while others wait.
    turn_s: float = 0.5
    turn_bytes_min: int = 1024 * 1024
    #: For how much longer than at that rate a frame may take, and how often is looked who does.
    late_s: float = 0.1
    look_s: float = 0.05


# How many frames are looked at for one that is late, those that began first.
LOOKED_AT_MAX = 500


class FrameMemory:
    """Counts what frames take, and says who may read on."""

    def __init__(self, limits: FrameLimits, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._now = monotonic
        self.held_bytes = 0
        self._per_address: Counter[str] = Counter()
        self._arriving: dict[WatchedConnection, None] = {}  # whose large frames are under way
        self._waiting: dict[WatchedConnection, None] = {}
        self._favoured: WatchedConnection | None = None
        self._favoured_had = 0
        self._turn: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._is_wake_due = False

    def hold(self, connection: WatchedConnection, nbytes: int) -> None:
        """Count memory that a request takes (or, negative, gives back)."""
        self.held_bytes += nbytes
        address = connection.peer_host
        self._per_address[address] += nbytes
        if self._per_address[address] == 0:
            del self._per_address[address]
        if nbytes < 0 and self._waiting and not self._is_wake_due:
            # Once a turn of the loop: thousands may wait, and every request that ends gives back some memory.
            self._is_wake_due = True
            _soon(self._wake)

    def may_go_on(self, connection: WatchedConnection, frame_bytes: int) -> bool:
        """Whether a large frame, of that announced size, may be read on; if not, it is told when it may."""
        self._arriving[connection] = None
        if self._has_room(connection, frame_bytes) or self._make_room(connection, frame_bytes):
            self._waiting.pop(connection, None)
            if self._favoured is connection:
                self._end_turn()
                self._favour_next()
            return True
        if self._favoured is None:
            self._begin_turn(connection)
        if self._favoured is not connection:
            self._waiting[connection] = None
            if frame_bytes <= self.limits.small_frame_bytes:
                self._look_later()
        return self._favoured is connection

    def has_arrived(self, connection: WatchedConnection) -> None:
        """A large frame is whole, or its connection gone: the next that waits may be read on."""
        self._arriving.pop(connection, None)
        self._waiting.pop(connection, None)
        if self._favoured is connection:
            self._end_turn()
            self._favour_next()

    def _has_room(self, connection: WatchedConnection, frame_bytes: int) -> bool:
        limits = self.limits
        is_large = frame_bytes > limits.small_frame_bytes
        of_address = limits.large_of_address_percent if is_large else limits.small_of_address_percent
        # The one that is read on beyond the bounds takes nothing away from those that are within.
        favoured = self._favoured
        beyond = 0 if favoured is None or favoured is connection else favoured.arrived_bytes
        held, held_by_address = self.held_bytes - beyond, self._per_address[connection.peer_host]
        if favoured is not None and favoured.peer_host == connection.peer_host:
            held_by_address -= beyond
        if held_by_address * 100 >= limits.held_bytes_max * of_address:
            return False
        return held * 100 < limits.held_bytes_max * (limits.large_percent if is_large else 100)

    def _wake(self) -> None:
        """There is more room than before: all that fit now go on."""
        self._is_wake_due = False
        for connection in list(self._waiting):
            if self._has_room(connection, connection.frame_bytes):
                del self._waiting[connection]
                _soon(connection.resume)

    # --- those that are late

    def _make_room(self, connection: WatchedConnection, frame_bytes: int) -> bool:
        """Whether a small frame has room once those are given up that should have ended before."""
        if frame_bytes > self.limits.small_frame_bytes:
            return False
        while not self._has_room(connection, frame_bytes):
            late = self._latest(connection)
            if late is None:
                return False
            late.abort("a request does not come to its end, while others wait for room")
        return True

    def _latest(self, connection: WatchedConnection) -> WatchedConnection | None:
        limits = self.limits
        address = connection.peer_host
        if self._per_address[address] * 100 < limits.held_bytes_max * limits.small_of_address_percent:
            address = self._per_address.most_common(1)[0][0]
        now, found, found_s = self._now(), None, 0.0
        for other in islice(self._arriving, LOOKED_AT_MAX):
            if other.peer_host == address and other is not connection and not other.is_reading_paused:
                late_s = self._late_s(other, now)
                if late_s > found_s:
                    found, found_s = other, late_s
        return found

    def _late_s(self, connection: WatchedConnection, now: float) -> float:
        limits = self.limits
        allowed_s = connection.arrived_bytes * limits.turn_s / limits.turn_bytes_min + limits.late_s
        return max(now - connection.frame_began - allowed_s, now - connection.last_progress - limits.turn_s)

    def _look_later(self) -> None:
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(self.limits.look_s, self._look_for_room)

    def _look_for_room(self) -> None:
        self._look = None
        small_max = self.limits.small_frame_bytes
        for connection in [one for one in islice(self._waiting, LOOKED_AT_MAX) if one.frame_bytes <= small_max]:
            if not self._make_room(connection, connection.frame_bytes):
                self._look_later()
                return
            self._waiting.pop(connection, None)
            _soon(connection.resume)

    # --- turns

    def _begin_turn(self, connection: WatchedConnection) -> None:
        self._favoured = connection
        self._favoured_had = connection.arrived_bytes
        self._turn = asyncio.get_running_loop().call_later(self.limits.turn_s, self._turn_over)

    def _end_turn(self) -> None:
        self._favoured = None
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _turn_over(self) -> None:
        connection, limits = self._favoured, self.limits
        assert connection is not None
        arrived = connection.arrived_bytes - self._favoured_had
        self._end_turn()
        if not self._waiting:
            self._begin_turn(connection)
        elif connection.is_reading_paused:
            # It is not read for another reason (a quota), and asks again when it is.
            self._favour_next()
            self._waiting[connection] = None
        elif arrived < limits.turn_bytes_min and connection.frame_bytes > limits.small_frame_bytes:
            # Its memory is what the others wait for.
            connection.abort(f"{arrived} bytes of a request came in {limits.turn_s} s, while others wait for room")
            self._favour_next()
        else:
            self._begin_turn(connection)

    def _favour_next(self) -> None:
        connection = next(iter(self._waiting), None)
        if connection is not None and self._favoured is None:
            del self._waiting[connection]
            self._begin_turn(connection)
            _soon(connection.resume)


def _soon(step: Callable[[], None]) -> None:
    """Not at once: the one whose memory became free may be in the middle of its answer."""
    asyncio.get_running_loop().call_soon(step)
