"""Whether anybody listens at an address: asked before a client waits for it in vain."""

from __future__ import annotations

import socket
from collections.abc import Iterable


def refusals(addresses: Iterable[tuple[str, int]], timeout_s: float) -> list[str]:
    """Why none of these takes a connection, each with its address; nothing when one does."""
    found = []
    for host, port in addresses:
        try:
            socket.create_connection((host, port), timeout=timeout_s).close()
        except OSError as error:
            shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            found.append(f"{shown} ({error.strerror or 'no answer'})")
        else:
            return []
    return found
