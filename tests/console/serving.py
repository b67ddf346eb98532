"""A console that tests ask over HTTP, and its browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn

from headrace.console.app import make_app
from headrace.console.serving import bind
from headrace.console.settings import ClusterSettings, ConsoleSettings

CHANGE = {"x-headrace-console": "1", "content-type": "application/json"}


@dataclass
class Console:
    """A running console."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(
        self, path: str, method: str = "GET", body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, _, body = self.ask(f"/api/c/kafka/{path}")
        assert status == 200, (status, body)
        return json.loads(body)

    def change(self, change: str, /, **body: Any) -> tuple[int, Any]:
        status, _, answer = self.ask(f"/api/c/kafka/change/{change}", "POST", body, CHANGE)
        return status, json.loads(answer)


@contextlib.contextmanager
def console(address: str, **settings: Any) -> Iterator[Console]:
    """A console of one cluster, on a free port."""
    metrics = settings.pop("metrics", ())
    registry, audit = settings.pop("registry", None), settings.pop("broker_audit", ())
    cluster = ClusterSettings("kafka", {"bootstrap.servers": address}, tuple(metrics), registry, tuple(audit))
    made = ConsoleSettings((cluster,), port=0, **settings)
    listening = bind(made)
    server = uvicorn.Server(
        uvicorn.Config(make_app(made), log_level="warning", log_config=None, timeout_graceful_shutdown=1, ws="none")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert thread.is_alive(), "the console did not start"
        assert time.monotonic() < deadline, "the console did not start in time"
        time.sleep(0.01)
    try:
        yield Console(listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
