"""What connections need to know, in their own types; whoever opens them reads it from its configuration."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.net.backoff import Backoff
from headrace.net.security import PLAINTEXT, Security


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """`setup_backoff` is how long connecting may take: longer after every failure, as in Java."""

    client_id: str
    reconnect_backoff: Backoff
    setup_backoff: Backoff
    request_timeout_ms: int
    idle_max_ms: int
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    in_flight_max: int = 100
    security: Security = PLAINTEXT
