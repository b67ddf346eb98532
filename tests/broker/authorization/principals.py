"""A broker that knows its clients by the address that they come from, and the recordings played against it.

How a client shows who it is has no part in what it may do: so rights can be held against the recordings without it.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

from headrace import testing
from headrace.broker.requests.access import ANONYMOUS, Access, Rights

BEHAVIOUR = Path(__file__).parents[2] / "reference" / "behaviour"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
HOST = "127.0.0.1"
ADDRESSES = {"admin": "127.0.0.11", "alice": "127.0.0.12", "bob": "127.0.0.13", "carol": "127.0.0.14"}
_USERS = {address: f"User:{user}" for user, address in ADDRESSES.items()}
SETTINGS = {
    "num.partitions": "4",
    "offsets.topic.num.partitions": "50",
    "transaction.state.log.num.partitions": "50",
    "authorizer.class.name": AUTHORIZER,
    "super.users": "User:admin",
}
REPLAY_TIMEOUT_S = 300


def _begin(self: Access, listener: str, host: str) -> Rights:
    return self.rights(_USERS.get(host, ANONYMOUS), HOST)


@contextlib.contextmanager
def broker(overrides: Mapping[str, str] | None = None) -> Iterator[testing.EmbeddedBroker]:
    """One whose rules allow nothing but to the super user."""
    with mock.patch.object(Access, "begin", _begin), testing.broker(overrides={**SETTINGS, **(overrides or {})}) as one:
        yield one


def connect(address: str, user: str | None) -> socket.socket:
    host, port = address.rsplit(":", 1)
    source = (HOST if user is None else ADDRESSES[user], 0)
    return socket.create_connection((host, int(port)), timeout=20, source_address=source)


def replay(address: str, arguments: list[str]) -> str:
    """Play recordings; the last line says how many passed. Users log in by where they come from."""
    command = [sys.executable, "-m", "tests.broker.authorization.principals", "--sasl", address]
    for unneeded in ("oauth", "tokens", "scram"):
        command += ["--without", unneeded]
    command += ["--anonymous", address, *arguments, str(BEHAVIOUR / "security.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=REPLAY_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout.rstrip().rsplit("\n", 1)[-1]


def main() -> int:
    sys.path.insert(0, str(BEHAVIOUR))
    import replay as player

    def begin(self: player.Connection, address: tuple[str, int], user: str | None = None) -> None:
        self.sock = connect(f"{address[0]}:{address[1]}", user)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.correlation = 100
        self.waiting = []

    with mock.patch.object(player.Connection, "__init__", begin):
        return int(player.main())


if __name__ == "__main__":
    sys.exit(main())
