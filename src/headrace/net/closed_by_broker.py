"""Why a broker may have closed a connection: what is said of it, and what the next connection finds out.

A broker that wants TLS or a login, or has no TLS, closes the connection of who comes otherwise, and says nothing.
"""

from __future__ import annotations

import errno
import ssl
from enum import Enum

from headrace.errors import NetworkError
from headrace.net.connection import Connection, ConnectionState
from headrace.net.security import Security
from headrace.net.tls import needs_tls
from headrace.protocol.api import ApiKey

_CLOSED_BY_PEER = (errno.ECONNRESET, errno.EPIPE)


class Doubt(Enum):
    """Why a broker may have closed a connection before it answered what was asked."""

    TLS = "it may speak none"
    LOGIN = "it may want one"


def doubt_about(connection: Connection, error: BaseException | None, security: Security) -> Doubt | None:
    """What the next connection may find out of why the broker closed this one. Nobody guesses: it may be down."""
    if connection.is_question or not _was_closed(error):
        return None
    if connection.state is ConnectionState.CONNECTING and connection.tls is not None:
        return Doubt.TLS
    is_let_in = connection.state is ConnectionState.READY and security.authenticate is None
    return Doubt.LOGIN if is_let_in and ApiKey.SASL_HANDSHAKE in connection.versions else None


def hinted(
    connection: Connection, error: BaseException | None, security: Security, *, was_answered: bool
) -> BaseException | None:
    """The error that a connection ended with, or one that says what may be wrong where the broker closed it."""
    if not _was_closed(error):
        return error
    if connection.was_sent_an_alert and not connection.is_question:
        return needs_tls(connection.node)
    is_handshaking = connection.state is ConnectionState.CONNECTING and connection.tls is not None
    if is_handshaking or connection.is_question:
        return NetworkError(
            f"{connection.node} closed the connection in the TLS handshake: it may not speak TLS there. Check the "
            "port, and security.protocol"
        )
    is_plain = security.tls is None and security.authenticate is None
    if not is_plain or was_answered:
        return error
    return NetworkError(
        f"{connection.node} closed the connection before it answered anything. If it wants TLS or a login, set "
        "security.protocol (SSL, SASL_SSL, SASL_PLAINTEXT)"
    )


def _was_closed(error: BaseException | None) -> bool:
    """Whether the other end closed the connection, by whatever way a driver heard of it."""
    if error is None:
        return True
    while error is not None:
        if isinstance(error, (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError)):
            return True
        if isinstance(error, OSError) and error.errno in _CLOSED_BY_PEER:
            return True
        error = error.__cause__
    return False
