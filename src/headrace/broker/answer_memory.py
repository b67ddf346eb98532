"""The memory of answers that clients have not read yet, over all connections.

Records go from files to sockets and take none. Other answers are in memory until their clients take them, and a client
that does not is given a minute (`acceptor.sweep`). Where that is too much all together, those are given up that have
held theirs longest, of the address that holds the most: they lose their connection, and nobody else anything.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.connection import ServerConnection

ANSWERS_BYTES_MAX = 256 * 1024 * 1024


class AnswerMemory:
    """Counts what waits to be read."""

    def __init__(self, bytes_max: int = ANSWERS_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._held: dict[ServerConnection, int] = {}  # those that hold longest first

    def hold(self, connection: ServerConnection, nbytes: int) -> None:
        """So much waits to be read by this client now."""
        before = self._held.get(connection, 0)
        self.held_bytes += nbytes - before
        if nbytes:
            self._held[connection] = nbytes
        elif before:
            del self._held[connection]
        if nbytes > before:
            while self.held_bytes > self.bytes_max and self._held:
                self._give_up_one()

    def _give_up_one(self) -> None:
        of_address: Counter[str] = Counter()
        for connection, nbytes in self._held.items():
            of_address[connection.peer_host] += nbytes
        most = of_address.most_common(1)[0][0]
        victim = next(connection for connection in self._held if connection.peer_host == most)
        nbytes = self._held.pop(victim)
        self.held_bytes -= nbytes
        victim.abort(f"{nbytes} bytes of an answer were not read, and {self.bytes_max} are all that may wait")
