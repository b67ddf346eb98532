"""Where a broker is."""

from __future__ import annotations

import errno
from dataclasses import dataclass

_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Node:
    """A broker's address. Ids below zero are bootstrap servers, whose real ids are not known yet."""

    id: int
    host: str
    port: int
    rack: str | None = None
    incarnation: bytes | None = None
    """The life of the broker that is meant, where that matters: another that answers there refuses."""

    def __str__(self) -> str:
        where = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return f"bootstrap server {where}" if self.id < 0 else f"broker {self.id} ({where})"

    def check_port(self) -> None:
        """`OSError` where the port is none, as a broker may advertise: the system would take its last 16 bits."""
        if not 0 < self.port <= _PORT_MAX:
            raise OSError(errno.EADDRNOTAVAIL, f"there is no port {self.port}")
