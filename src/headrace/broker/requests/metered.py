"""What quotas count for one connection, which is looked up when its client id or the quotas have changed."""

from __future__ import annotations

from typing import Protocol

from headrace.broker.requests.access import BROKER_CLIENT_ID, Access, Meter
from headrace.broker.requests.route import Route


class Identified(Protocol):
    """Who asks, as far as that is known."""

    @property
    def principal(self) -> str: ...
    @property
    def is_brokers(self) -> bool: ...


class Metered:
    """Of whoever asked last on a connection."""

    __slots__ = ("_access", "_client_id", "_version", "meter")

    def __init__(self, access: Access) -> None:
        self._access = access
        self._client_id = b""
        self._version = -1
        #: None: nothing is counted.
        self.meter: Meter | None = None

    def forget(self) -> None:
        """Whoever asks next may be somebody else."""
        self._version, self.meter = -1, None

    def find(self, connection: Identified, client_id: bytes) -> None:
        """A request came under this client id."""
        access = self._access
        if self._version == access.quotas_version and self._client_id == client_id:
            return
        self._version, self._client_id = access.quotas_version, client_id
        name = client_id.decode(errors="replace")
        is_broker = name.startswith(BROKER_CLIENT_ID) and connection.is_brokers
        meter_of = None if is_broker else access.meter_of
        self.meter = None if meter_of is None else meter_of(connection.principal, name)

    def has_room(self, produced: int, consumed: int = 0) -> bool:
        """Whether so many bytes more are within the quotas of whoever asked last."""
        if self._access.meter_of is None:
            return True
        if self._version != self._access.quotas_version:
            return False
        return self.meter is None or self.meter.has_room(produced, consumed)

    def count(self, route: Route, request_bytes: int, answer_bytes: int, seconds: float) -> None:
        """A request was answered for which there was room."""
        if self.meter is not None:
            self.meter.take(request_bytes if route.produces else 0, answer_bytes if route.consumes else 0, seconds)
