"""PLAIN (RFC 4616): user name and password in one message."""

from __future__ import annotations

from headrace.net.sasl.exchange import Exchange


def plain(username: str, password: str) -> Exchange:
    yield b"\0" + username.encode() + b"\0" + password.encode()
