"""Whether any of the servers that a user named takes a connection: asked before a client waits for them in vain."""

from __future__ import annotations

from headrace.client.configs import parse_address
from headrace.net.reachable import refusals


def unreachable(servers: str, timeout_s: float) -> list[str]:
    """Why each of `bootstrap.servers` takes no connection; nothing when one does."""
    return refusals([parse_address(one.strip()) for one in servers.split(",") if one.strip()], timeout_s)
