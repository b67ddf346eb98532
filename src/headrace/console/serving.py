"""The console as a server, in the foreground."""

from __future__ import annotations

import logging
import socket

import uvicorn

from headrace.console.app import make_app
from headrace.console.settings import ConsoleSettings

CONNECTIONS_MAX = 500


def bind(settings: ConsoleSettings) -> socket.socket:
    """Take the port, so that one in use is said before anything else; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError:
        listening.close()
        raise
    return listening


def address_of(settings: ConsoleSettings, listening: socket.socket) -> str:
    """What a person types."""
    host = settings.host if settings.host not in ("", "0.0.0.0", "::") else socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/"


def serve(settings: ConsoleSettings, listening: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = uvicorn.Config(
        make_app(settings),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=1,
        ws="none",
        log_config=None,
        # A proxy's word for who asks would be anybody's.
        proxy_headers=False,
    )
    uvicorn.Server(config).run(sockets=[listening])
