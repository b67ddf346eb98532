"""A standalone Spark cluster of two workers on this machine: the package is sent to them, one worker is killed.

    python -m tests.spark.standalone [--rows N]

A stream is written exactly once while one of the workers is killed (SIGKILL, its executor with it) in the middle of a
micro-batch; then the output is audited by confluent-kafka. Takes a minute or two; exits with 1 when anything is lost or
doubled, or when the tasks did not run from the archive that was sent.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyspark
from tests.spark.auditing import audit, read_topic
from tests.spark.test_exactly_once import with_keys
from tests.spark.topics import make_topic, numbers

from headrace.spark import exactly_once, session
from headrace.spark.java import find_java
from headrace.testing import BrokerProcess, free_port

START_S = 120.0


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


def start_cluster(directory: Path) -> tuple[str, list[Node]]:
    port = free_port()
    package = "org.apache.spark.deploy"
    local = ("--host", "127.0.0.1", "--webui-port", "0")
    nodes = [Node("master", directory, f"{package}.master.Master", *local, "--port", str(port))]
    deadline = time.monotonic() + START_S
    while True:
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                break
        if time.monotonic() > deadline:
            raise SystemExit("the master did not start")
        time.sleep(0.2)
    master = f"spark://127.0.0.1:{port}"
    for number in range(2):
        work = directory / f"work-{number}"
        size = ("--cores", "1", "--memory", "1g", "--work-dir", str(work))
        nodes.append(Node(f"worker-{number}", directory, f"{package}.worker.Worker", *local, *size, master))
    return master, nodes


def wait_for_executors(spark: Any, count: int) -> None:
    deadline = time.monotonic() + START_S
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < count + 1:
        if time.monotonic() > deadline:
            raise SystemExit(f"{count} executors did not come")
        time.sleep(0.2)


def where_tasks_import_from(spark: Any) -> set[str]:
    def look(_: Any) -> Any:
        import headrace

        yield headrace.__file__

    return set(spark.sparkContext.parallelize(range(4), 4).mapPartitions(look).collect())


def run(rows: int, directory: Path, nodes: list[Node], master: str, servers: str) -> bool:
    spark = session(
        "standalone",
        master=master,
        config={"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.driver.host": "127.0.0.1"},
    )
    spark.sparkContext.setLogLevel("ERROR")
    wait_for_executors(spark, 2)
    places = where_tasks_import_from(spark)
    print(f"tasks import the package from {sorted(places)}")
    shipped = all(".zip" in place for place in places)
    source, sink = make_topic(servers, "source", 4), make_topic(servers, "sink", 4)
    values = numbers(rows)
    with_keys(servers, source, values)
    once = exactly_once(sink, servers)
    victim = nodes[-1]

    def write(frame: Any, batch_id: int) -> None:
        if batch_id == 1:
            print("killing a worker in the middle of batch 1")
            threading.Timer(0.3, victim.kill).start()
        outcome = once.write(frame, batch_id)
        print(f"batch {batch_id}: {outcome.value}")

    stream = spark.readStream.format("headrace").option("kafka.bootstrap.servers", servers)
    stream = stream.option("subscribe", source).option("startingOffsets", "earliest")
    frame = stream.option("maxOffsetsPerTrigger", max(rows // 4, 1)).load().select("key", "value")
    query = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(directory / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    lost, doubled = audit(Counter(values), [value for _, _, value in read_topic(servers, sink) if value is not None])
    print(f"in {rows:,} · lost {lost} · doubled {doubled} · from the archive: {shipped}")
    return lost == 0 and doubled == 0 and shipped


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory(prefix="standalone-", ignore_cleanup_errors=True) as directory:
        master, nodes = start_cluster(Path(directory))
        try:
            with BrokerProcess(Path(directory) / "broker") as broker:
                return 0 if run(rows, Path(directory), nodes, master, broker.address) else 1
        finally:
            for node in nodes:
                node.kill()


if __name__ == "__main__":
    sys.exit(main())
