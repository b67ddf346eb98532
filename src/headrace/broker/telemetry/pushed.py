"""What clients have pushed, as they pushed it: the newest of each, within a bound. An exporter reads it by `clients`.

The bytes are a `MetricsData` of OpenTelemetry, uncompressed. Sums in them count from one push to the next (they are
deltas), as clients are told to send them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.broker.telemetry.subscriptions import ClientIdentity

Listener = Callable[["PushedMetrics"], None]


@dataclass(frozen=True, slots=True)
class PushedMetrics:
    client: ClientIdentity
    data: bytes
    received_ms: int
    is_last: bool
    """Whether the client ended with it."""


class ClientMetrics:
    """The newest push of each client; the longest silent ones go where there are too many bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._newest: OrderedDict[str, PushedMetrics] = OrderedDict()
        self.listeners: list[Listener] = []
        """Called with each push, before the next one replaces it: whoever adds deltas up needs all of them."""

    def put(self, pushed: PushedMetrics) -> None:
        self.forget(pushed.client.client_instance_id)
        self._newest[pushed.client.client_instance_id] = pushed
        self._bytes += len(pushed.data)
        while self._bytes > self._bytes_max:
            _, oldest = self._newest.popitem(last=False)
            self._bytes -= len(oldest.data)
        for listener in self.listeners:
            listener(pushed)

    def forget(self, client_instance_id: str) -> None:
        before = self._newest.pop(client_instance_id, None)
        if before is not None:
            self._bytes -= len(before.data)

    def clients(self) -> Iterator[PushedMetrics]:
        """The newest push of each client."""
        yield from list(self._newest.values())
