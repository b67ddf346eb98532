"""A schema registry inside the test's own process, on a thread with its own event loop.

with headrace.testing.registry() as schemas:
    client = SchemaRegistryClient({"url": schemas.url})
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from headrace.registry.server import RegistryServer
from headrace.registry.thread import running_registry


class EmbeddedRegistry:
    """A running registry. `url` is what clients are given."""

    def __init__(self, server: RegistryServer) -> None:
        self._server = server

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def is_leading(self) -> bool:
        """Whether this instance is the one that writes."""
        return self._server.is_leading


@contextlib.contextmanager
def registry(
    bootstrap_servers: str | None = None, overrides: Mapping[str, str] | None = None, *, port: int = 0
) -> Iterator[EmbeddedRegistry]:
    """Start a registry on a free port, and stop it at the end.

    Its schemas are in the topic `_schemas` of the Kafka at `bootstrap_servers`; without one they are in memory.
    """
    settings = {"listeners": f"http://127.0.0.1:{port}", **(overrides or {})}
    if bootstrap_servers is not None:
        settings["kafkastore.bootstrap.servers"] = bootstrap_servers
    with running_registry(settings, in_memory=bootstrap_servers is None) as server:
        yield EmbeddedRegistry(server)
