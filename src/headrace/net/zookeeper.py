"""TLS for connections to ZooKeeper: contexts from Kafka's `zookeeper.ssl.*` keys, and sockets for kazoo made of them.

kazoo has TLS of its own, with two faults that matter here: it takes nothing but files, and while it waits for a socket
it does not see what was decrypted already, so that an answer which came in one piece with another lies there until the
next ping.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.net.tls import client_context

PREFIX: Final = "zookeeper."
_PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")


def zookeeper_context(values: Mapping[str, Any]) -> ssl.SSLContext:
    """The context of a broker's connections; ValueError or OSError when `zookeeper.ssl.*` cannot be used."""
    for key in ("zookeeper.ssl.crl.enable", "zookeeper.ssl.ocsp.enable"):
        if values[key]:
            raise ValueError(f"{key}: certificates that were taken back are not looked for; set it to false")
    return client_context(
        {
            "ssl.enabled.protocols": values["zookeeper.ssl.enabled.protocols"] or _PROTOCOLS,
            "ssl.endpoint.identification.algorithm": values["zookeeper.ssl.endpoint.identification.algorithm"] or "",
            "enable.ssl.certificate.verification": True,
            "ssl.cipher.suites": values["zookeeper.ssl.cipher.suites"] or (),
            "ssl.truststore.certificates": None,
            "ssl.truststore.location": values["zookeeper.ssl.truststore.location"],
            "ssl.truststore.password": values["zookeeper.ssl.truststore.password"],
            "ssl.keystore.certificate.chain": None,
            "ssl.keystore.key": None,
            "ssl.certificate.location": None,
            "ssl.key.location": None,
            "ssl.keystore.location": values["zookeeper.ssl.keystore.location"],
            "ssl.key.password": None,
            "ssl.keystore.password": values["zookeeper.ssl.keystore.password"],
        }
    )


def kazoo_handler(context: ssl.SSLContext) -> Any:
    """What kazoo makes its connections with, and waits for them by. Its `problem` is why the last handshake failed."""
    from kazoo.handlers.threading import SequentialThreadingHandler

    class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
        problem = ""

        def create_connection(
            self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any
        ) -> ssl.SSLSocket:
            plain = socket.create_connection(address, timeout)
            try:
                connected = context.wrap_socket(plain, server_hostname=hostname or address[0])
            except OSError as error:
                plain.close()
                reason = getattr(error, "verify_message", "") or getattr(error, "reason", "") or str(error)
                self.problem = f"TLS with {hostname or address[0]}:{address[1]} failed: {reason}"
                raise
            self.problem = ""
            return connected

        def select(self, readable: Sequence[Any], *others: Any) -> tuple[list[Any], list[Any], list[Any]]:
            decrypted = [one for one in readable if isinstance(one, ssl.SSLSocket) and one.pending()]
            if not decrypted:
                found: tuple[list[Any], list[Any], list[Any]] = super().select(readable, *others)
                return found
            rest, writable, broken = super().select(readable, *others[:2], 0)
            return [*decrypted, *(one for one in rest if one not in decrypted)], writable, broken

    return TlsHandler()
