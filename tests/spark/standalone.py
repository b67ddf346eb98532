"""A standalone Spark cluster on this machine: a master and two workers, each a process that can be killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pyspark
from tests.waiting import eventually

from headrace.spark.java import find_java
from headrace.testing import free_port

START_S = 120.0
EXECUTOR = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.driver.host": "127.0.0.1"}
_PACKAGE = "org.apache.spark.deploy"
_LOCAL = ("--host", "127.0.0.1", "--webui-port", "0")


class Node:
    """A master or a worker, in a process group of its own: its executors go with it."""

    def __init__(self, name: str, directory: Path, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        java = find_java()
        environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
        if java.home is not None:
            environment["JAVA_HOME"] = java.home
        # The workers are not to find the package by themselves.
        environment.pop("PYTHONPATH", None)
        self.log = (directory / f"{name}.log").open("wb")
        self.process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *arguments],
            env=environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()


class Standalone:
    """`with Standalone(directory) as cluster:` and `cluster.master` is what Spark has to be told."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        self.directory = directory
        self._count = workers
        self._started = 0
        self._nodes: list[Node] = []
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        self._port = port

    def __enter__(self) -> Standalone:
        self.directory.mkdir(parents=True, exist_ok=True)
        arguments = (f"{_PACKAGE}.master.Master", *_LOCAL, "--port", str(self._port))
        self._nodes.append(Node("master", self.directory, *arguments))
        try:
            eventually(lambda: _listens(self._port), "the master", START_S)
        except AssertionError:
            self.__exit__()
            raise
        for _ in range(self._count):
            self.add_worker()
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._nodes:
            node.kill()

    def add_worker(self) -> None:
        name = f"worker-{self._started}"
        self._started += 1
        size = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.directory / name))
        self._nodes.append(Node(name, self.directory, f"{_PACKAGE}.worker.Worker", *_LOCAL, *size, self.master))

    def replace_worker(self) -> None:
        """Kill the oldest worker, its executor and the tasks in it with it; another takes its place."""
        victim = self._nodes.pop(1)
        victim.kill()
        self.add_worker()


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
