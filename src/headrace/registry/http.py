"""uvicorn, set up to serve one application on a socket that is bound already."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Generator
from typing import Any

import uvicorn

_KEEP_ALIVE_S = 60
_SHUTDOWN_S = 2


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are for whoever runs the program to handle."""
        yield


def http_server(application: Any, tls: ssl.SSLContext | None) -> uvicorn.Server:
    """A server of an ASGI application, to be run with `serve([socket])`."""
    return _Server(
        uvicorn.Config(
            application,
            interface="asgi3",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_SHUTDOWN_S,
            ssl_context_factory=None if tls is None else lambda config, default: tls,
        )
    )
