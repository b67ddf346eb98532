"""The page that Prometheus scrapes: a registry served over HTTP, on a port of its own and in a thread of its own."""

from __future__ import annotations

import hmac
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any, Protocol, runtime_checkable
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from headrace.errors import HeadraceError
from headrace.metrics.clients import ClientCollector, HasMetrics

PATH = "/metrics"
_TIMEOUT_S = 30


class MetricsError(HeadraceError):
    """Metrics cannot be served like this; the message says what to change."""


def registry_of(*sources: Collects | HasMetrics) -> CollectorRegistry:
    """A registry of these sources."""
    registry = CollectorRegistry()
    for source in sources:
        registry.register(_Source(source))
    return registry


@runtime_checkable
class Collects(Protocol):
    """As collectors of prometheus-client."""

    def collect(self) -> Iterable[Metric]: ...


class _Source(Collector):
    """Asks a source when it is scraped, and never before: the registry would otherwise do so to learn its names."""

    def __init__(self, source: Collects | HasMetrics) -> None:
        self._source = source if isinstance(source, Collects) else ClientCollector(source)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._source.collect()


def text(*sources: Collects | HasMetrics) -> str:
    """What these sources say now, in the text format of Prometheus."""
    return generate_latest(registry_of(*sources)).decode()


def serve(port: int, *sources: Collects | HasMetrics, host: str = "127.0.0.1", token: str | None = None) -> Exporter:
    """Serve what these sources say at http://HOST:PORT/metrics, until the exporter is closed."""
    return Exporter(registry_of(*sources), port, host=host, token=token)


class Exporter:
    """Serves a registry. Port 0 takes a free one (see `port`).

    Whoever scrapes from elsewhere than this machine has to show a token (`Authorization: Bearer …`), which a host that
    is not a loopback address therefore needs.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        port: int,
        *,
        host: str = "127.0.0.1",
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if not token and not is_loopback(host):
            raise MetricsError(
                f"metrics on {host or '*'} could be read by everyone who reaches this machine: set a token that "
                "Prometheus shows (authorization: credentials), or serve them on 127.0.0.1"
            )
        kind = _Server6 if ":" in host else _Server
        try:
            self._server = make_server(host, port, _guarded(make_wsgi_app(registry), token), kind, _QuietHandler)
        except OSError as error:
            raise MetricsError(f"metrics cannot be served on {host}:{port}: {error.strerror or error}") from error
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.host = host
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="headrace-metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where Prometheus finds it."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}{PATH}"

    def close(self) -> None:
        """Serve nothing any more. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()


def is_loopback(host: str) -> bool:
    """Whether only this machine itself can reach that address."""
    try:
        found = socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    return bool(host) and all(ipaddress.ip_address(str(one[4][0]).partition("%")[0]).is_loopback for one in found)


def _guarded(app: Callable[..., Iterable[bytes]], token: str | None) -> Callable[..., Iterable[bytes]]:
    expected = None if token is None else f"Bearer {token}".encode()

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != PATH:
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"only /metrics is here\n"]
        given = str(environ.get("HTTP_AUTHORIZATION", "")).encode("latin-1", "replace")
        if expected is not None and not hmac.compare_digest(given, expected):
            start("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")])
            return [b"a token is needed: Authorization: Bearer ...\n"]
        return app(environ, start)

    return answer


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = _TIMEOUT_S

    def log_message(self, format: str, *args: object) -> None:
        """A scrape every few seconds is nothing to write down."""
