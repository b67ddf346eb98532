"""Ports for servers that are stopped and started again at the same place.

A port that the system chooses is one of those that it also gives to outgoing connections: while the server is away, it
may be somebody's. So these are others, where there are others.
"""

from __future__ import annotations

import contextlib
import random
import socket

from headrace.runtime.system import first_port_of_connections

_FIRST = 10_000
_FEWEST = 1_000
_TRIES_PER_PORT = 100


def free_ports(count: int) -> list[int]:
    """That many ports of the loopback interface that were free a moment ago."""
    end = first_port_of_connections()
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        for _ in range(count * _TRIES_PER_PORT if end - _FIRST >= _FEWEST else 0):
            if len(sockets) == count:
                break
            with contextlib.suppress(OSError):
                sockets.append(stack.enter_context(_bound(random.SystemRandom().randrange(_FIRST, end))))
        while len(sockets) < count:
            sockets.append(stack.enter_context(_bound(0)))
        return [sock.getsockname()[1] for sock in sockets]


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    try:
        sock.bind(("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    return sock
