"""Tokens for processes that are not the test's: a function that they can import, and an OAuth server of one's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.secured.conftest import token

LIFETIME_S = 5.0


def short_token() -> tuple[str, float]:
    """For `sasl.oauthbearer.token.callback`, by its dotted name."""
    return token(LIFETIME_S)


class OAuthServer(ThreadingHTTPServer):
    """Gives a token that ends soon to whoever asks, and counts how often."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.given = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/token"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, OAuthServer)
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.given += 1
        value, _ = token(LIFETIME_S)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"access_token": value, "expires_in": LIFETIME_S}).encode())

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def oauth_server() -> Iterator[OAuthServer]:
    server = OAuthServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
