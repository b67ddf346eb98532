"""How a connection proves who it is: before its first request, and again when its session is about to end (KIP-368).

A flow is a generator without I/O: it yields requests, is sent their answers, and returns for how many milliseconds the
broker takes its word (0: as long as the connection lives). It raises one of `REFUSALS` when it is not let in.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from headrace.errors import IllegalSaslStateError, SaslAuthenticationFailedError, UnsupportedSaslMechanismError
from headrace.net.node import Node
from headrace.net.tls import TlsRefusedError

Flow = Generator[Any, Any, int]
Authenticate = Callable[[Node], Flow]
"""Makes a new flow for a connection to a node."""

REFUSALS = (SaslAuthenticationFailedError, UnsupportedSaslMechanismError, IllegalSaslStateError, TlsRefusedError)
"""Errors that another try would meet again: whoever waits for the connection is told at once."""

_REAUTHENTICATE_FROM, _REAUTHENTICATE_TO = 0.85, 0.95


def renewal_s(lifetime_ms: int, spread: float) -> float:
    """After how many seconds a session is renewed; `spread` (0 to 1) keeps many clients from doing it at once."""
    part = _REAUTHENTICATE_FROM + (_REAUTHENTICATE_TO - _REAUTHENTICATE_FROM) * spread
    return lifetime_ms * part / 1000
