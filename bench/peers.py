"""Apache Kafka itself, and Spark's own connector to it: the peers that Headrace is measured and checked against.

Their jars come from Maven's registry once (`make peers`, or `python -m bench.peers`) into a cache, or from where
HEADRACE_KAFKA_LIBS (a directory) and HEADRACE_SPARK_KAFKA_JARS (files, comma-separated) say. Without Java or jars
everything that needs them says so and is left out.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

KAFKA_VERSION = "4.3.1"
# Of each of these releases, the Java client speaks some version of a request that the others do not.
OLD_CLIENTS = (
    *("2.0.1", "2.1.1", "2.2.2", "2.3.1", "2.4.1", "2.5.1", "2.6.3", "2.7.2", "2.8.2"),
    *("3.0.2", "3.3.2", "3.5.2", "3.7.2", "3.9.1", "4.0.0"),
)
SPARK_CONNECTOR_VERSION = "4.2.0"
"""The newest that Maven's registry has; it also runs in Spark 4.3."""

_SPARK_JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK_CONNECTOR_VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
START_TIMEOUT_S = 60.0

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>peer</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging><dependencies>
{dependencies}
</dependencies></project>
"""
_DEPENDENCY = (
    "<dependency><groupId>org.apache.kafka</groupId>"
    "<artifactId>{name}</artifactId><version>{version}</version></dependency>"
)

_COPYING_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>peer</groupId><artifactId>clients</artifactId><version>1</version><packaging>pom</packaging><build><plugins><plugin>
<groupId>org.apache.maven.plugins</groupId><artifactId>maven-dependency-plugin</artifactId><configuration>
<outputDirectory>${{project.basedir}}</outputDirectory><artifactItems>
{items}
</artifactItems></configuration></plugin></plugins></build></project>
"""
_ARTIFACT_ITEM = (
    "<artifactItem><groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId>"
    "<version>{version}</version></artifactItem>"
)

_PROPERTIES = """process.roles=broker,controller
node.id={node_id}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={directory}/data
num.partitions=4
offsets.topic.replication.factor={copies}
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={copies_min}
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={copies_min}
group.initial.rebalance.delay.ms=0
"""


def _cache(name: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "headrace" / name


def cache_directory() -> Path:
    return _cache(f"kafka-{KAFKA_VERSION}")


def kafka_libs() -> Path | None:
    """The directory of Apache Kafka's jars, if they and a Java are here."""
    if shutil.which("java") is None:
        return None
    named = os.environ.get("HEADRACE_KAFKA_LIBS")
    directory = Path(named) if named else cache_directory() / "libs"
    return directory if any(directory.glob("kafka-clients-*.jar")) else None


def why_no_kafka() -> str:
    if shutil.which("java") is None:
        return "no Java on the PATH"
    return "no Apache Kafka jars: run `make peers` (needs Maven), or set HEADRACE_KAFKA_LIBS"


def old_clients() -> dict[str, Path] | None:
    """The jars of older Java clients by release, if all of them and a Java compiler are here."""
    jars = {
        version: cache_directory().parent / "kafka-clients" / f"kafka-clients-{version}.jar" for version in OLD_CLIENTS
    }
    return jars if shutil.which("javac") is not None and all(jar.exists() for jar in jars.values()) else None


def why_no_old_clients() -> str:
    if shutil.which("javac") is None:
        return "no Java compiler on the PATH"
    return "no jars of older Kafka clients: run `make peers` (needs Maven)"


def fetch_old_clients() -> None:
    """Get the jars of older Java clients by Maven, once."""
    if old_clients() is not None or shutil.which("javac") is None or shutil.which("mvn") is None:
        return
    directory = cache_directory().parent / "kafka-clients"
    directory.mkdir(parents=True, exist_ok=True)
    items = "\n".join(_ARTIFACT_ITEM.format(version=version) for version in OLD_CLIENTS)
    (directory / "pom.xml").write_text(_COPYING_POM.format(items=items))
    print(f"peers: fetching {len(OLD_CLIENTS)} older Kafka clients into {directory}")
    subprocess.run(["mvn", "-q", "-B", "dependency:copy"], cwd=directory, check=True, timeout=900)


def fetch() -> Path | None:
    """Get the jars by Maven, once. None, with the reason printed, where that cannot be done."""
    found = kafka_libs()
    if found is not None:
        return found
    if shutil.which("java") is None or shutil.which("mvn") is None:
        print("peers: Java and Maven are needed to fetch Apache Kafka; what needs it will be skipped")
        return None
    directory = cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    names = ("kafka_2.13", "kafka-tools", "kafka-clients", "kafka-streams")
    dependencies = "\n".join(_DEPENDENCY.format(name=name, version=KAFKA_VERSION) for name in names)
    (directory / "pom.xml").write_text(_POM.format(dependencies=dependencies))
    print(f"peers: fetching Apache Kafka {KAFKA_VERSION} into {directory}")
    subprocess.run(
        ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"],
        cwd=directory,
        check=True,
        timeout=900,
    )
    return kafka_libs()


def spark_jars() -> str | None:
    """The jars of Spark's own Kafka connector, comma-separated as `spark.jars` wants them, if all are here."""
    named = os.environ.get("HEADRACE_SPARK_KAFKA_JARS")
    if named:
        return named
    libs = _cache(f"spark-kafka-{SPARK_CONNECTOR_VERSION}") / "libs"
    jars = [libs / f"{name}-{version}.jar" for _, name, version in _SPARK_JARS]
    return ",".join(map(str, jars)) if all(jar.exists() for jar in jars) else None


def why_no_spark_jars() -> str:
    return "no jars of Spark's own Kafka connector: run `make peers` (needs Maven), or set HEADRACE_SPARK_KAFKA_JARS"


def fetch_spark() -> str | None:
    """Get the jars of Spark's own connector by Maven, once. None, with the reason printed, where it cannot be done."""
    found = spark_jars()
    if found is not None:
        return found
    if shutil.which("mvn") is None:
        print("peers: Maven is needed to fetch Spark's own Kafka connector; what needs it will be skipped")
        return None
    libs = _cache(f"spark-kafka-{SPARK_CONNECTOR_VERSION}") / "libs"
    libs.mkdir(parents=True, exist_ok=True)
    print(f"peers: fetching Spark's own Kafka connector {SPARK_CONNECTOR_VERSION} into {libs}")
    for group, name, version in _SPARK_JARS:
        # One by one and without what they depend on: not every version that they name is to be had.
        subprocess.run(
            [
                "mvn",
                "-q",
                "-B",
                "dependency:copy",
                f"-Dartifact={group}:{name}:{version}",
                f"-DoutputDirectory={libs}",
            ],
            cwd=libs,
            check=True,
            timeout=300,
        )
    return spark_jars()


def tool_command(class_name: str, *arguments: str) -> list[str]:
    """The command line of one of Apache Kafka's own tools, by its Java class."""
    libs = kafka_libs()
    assert libs is not None, why_no_kafka()
    return ["java", "-Xmx256m", "-cp", f"{libs}/*", class_name, *arguments]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class Quorum:
    """Which nodes make up a cluster: each is a broker, and one of the controllers."""

    cluster_id: str
    controller_ports: Mapping[int, int]
    """By node."""

    @classmethod
    def of(cls, nodes: Sequence[int]) -> Quorum:
        run = tool_command("kafka.tools.StorageTool", "random-uuid")
        cluster_id = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60).stdout.split()[-1]
        return cls(cluster_id, {node: _free_port() for node in nodes})

    @property
    def voters(self) -> str:
        return ",".join(f"{node}@127.0.0.1:{port}" for node, port in self.controller_ports.items())


class ApacheKafka:
    """One KRaft node of Apache Kafka on the loopback interface: alone, or one of a quorum's."""

    def __init__(
        self,
        directory: Path,
        extra: Mapping[str, str] | None = None,
        *,
        node_id: int = 1,
        quorum: Quorum | None = None,
    ) -> None:
        self.directory = directory
        self.port = _free_port()
        self.extra = dict(extra or {})
        self.node_id = node_id
        self.quorum = quorum
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        quorum = self.quorum or Quorum.of([self.node_id])
        copies = min(3, len(quorum.controller_ports))
        properties = _PROPERTIES.format(
            node_id=self.node_id,
            voters=quorum.voters,
            port=self.port,
            controller_port=quorum.controller_ports[self.node_id],
            directory=self.directory,
            copies=copies,
            copies_min=min(2, copies),
        )
        properties += "".join(f"{key}={value}\n" for key, value in self.extra.items())
        path = self.directory / "server.properties"
        path.write_text(properties)
        arguments = ("format", "--ignore-formatted", "-t", quorum.cluster_id, "-c", str(path))
        subprocess.run(tool_command("kafka.tools.StorageTool", *arguments), capture_output=True, check=True, timeout=60)

    def start(self) -> None:
        libs = kafka_libs()
        heap = ("-Xmx1g", "-Xms1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true")
        with (self.directory / "server.log").open("ab") as output:
            self.process = subprocess.Popen(
                ["java", *heap, "-cp", f"{libs}/*", "kafka.Kafka", str(self.directory / "server.properties")],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(
                    f"Apache Kafka ended with {self.process.returncode}; see {self.directory}/server.log"
                )
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.01)
        self.stop()
        raise RuntimeError(f"Apache Kafka did not listen within {START_TIMEOUT_S:.0f} s")

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def __enter__(self) -> ApacheKafka:
        for _ in range(2):
            try:
                self.prepare()
                self.start()
                return self
            except RuntimeError:
                # Somebody may have taken one of its ports between our look and its start: another try with others.
                shutil.rmtree(self.directory, ignore_errors=True)
                self.port = _free_port()
        self.prepare()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def serve(address_file: Path) -> None:
    """Run one Apache Kafka until SIGTERM or Ctrl-C; its address is in the file once it can be used."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with tempfile.TemporaryDirectory(prefix="kafka-") as directory, ApacheKafka(Path(directory) / "kafka") as kafka:
        unfinished = address_file.with_suffix(".new")
        unfinished.write_text(kafka.address)
        unfinished.rename(address_file)
        ended.wait()


def main() -> int:
    """Fetch every peer; or `serve FILE`, see there."""
    if sys.argv[1:2] == ["serve"]:
        if kafka_libs() is None:
            print(f"peers: {why_no_kafka()}")
            return 1
        serve(Path(sys.argv[2]))
        return 0
    fetched = fetch(), fetch_spark()
    fetch_old_clients()
    return 0 if all(fetched) else 1


if __name__ == "__main__":
    sys.exit(main())
