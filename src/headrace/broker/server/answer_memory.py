"""The memory of answers that clients have not read yet, over all connections.

Records go from files to sockets and take none. Other answers are in memory until their clients take them, and a client
that does not is given a minute (`acceptor.sweep`). Where that is too much all together, those are given up that have
held theirs longest, of the address that holds the most: they lose their connection, and nobody else anything.
"""

from __future__ import annotations

from collections import Counter

from headrace.broker.server.watched_connection import WatchedConnection

ANSWERS_BYTES_MAX = 256 * 1024 * 1024


class AnswerMemory:
    """Counts what waits to be read."""

    def __init__(self, bytes_max: int = ANSWERS_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        # By address; those that hold longest first.
        self._held: dict[str, dict[WatchedConnection, int]] = {}
        self._of_address: Counter[str] = Counter()

    def hold(self, connection: WatchedConnection, nbytes: int) -> None:
        """So much waits to be read by this client now."""
        before = self._held.get(connection.peer_host, {}).get(connection, 0)
        if nbytes != before:
            self._change(connection, nbytes, before)
        if nbytes > before:
            while self.held_bytes > self.bytes_max and self._held:
                self._give_up_one()

    def _change(self, connection: WatchedConnection, nbytes: int, before: int) -> None:
        address = connection.peer_host
        self.held_bytes += nbytes - before
        self._of_address[address] += nbytes - before
        of_address = self._held.setdefault(address, {})
        if nbytes:
            of_address[connection] = nbytes
            return
        del of_address[connection]
        if not of_address:
            del self._held[address], self._of_address[address]

    def _give_up_one(self) -> None:
        most = max(self._of_address, key=self._of_address.__getitem__)
        victim, nbytes = next(iter(self._held[most].items()))
        self._change(victim, 0, nbytes)
        victim.abort(f"{nbytes} bytes of an answer were not read, and {self.bytes_max} are all that may wait")
