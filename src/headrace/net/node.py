"""Where a broker is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """A broker's address. Ids below zero are bootstrap servers, whose real ids are not known yet."""

    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        where = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return f"bootstrap server {where}" if self.id < 0 else f"broker {self.id} ({where})"
