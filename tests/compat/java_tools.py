"""Apache Kafka's own tools, run in one JVM (java/Tools.java)."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.peers import kafka_libs

JAVA_DIRECTORY = Path(__file__).parent / "java"
_TOOLS = "org.apache.kafka.tools"
CLASSES = {
    "kafka-topics": f"{_TOOLS}.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-producer": f"{_TOOLS}.ConsoleProducer",
    "kafka-console-consumer": f"{_TOOLS}.consumer.ConsoleConsumer",
    "kafka-consumer-groups": f"{_TOOLS}.consumer.group.ConsumerGroupCommand",
    "kafka-share-groups": f"{_TOOLS}.consumer.group.ShareGroupCommand",
    "kafka-streams-groups": f"{_TOOLS}.streams.StreamsGroupCommand",
    "kafka-groups": f"{_TOOLS}.GroupsCommand",
    "kafka-client-metrics": f"{_TOOLS}.ClientMetricsCommand",
    "kafka-producer-perf-test": f"{_TOOLS}.ProducerPerformance",
    "kafka-consumer-perf-test": f"{_TOOLS}.ConsumerPerformance",
    "kafka-get-offsets": f"{_TOOLS}.GetOffsetShell",
    "kafka-delete-records": f"{_TOOLS}.DeleteRecordsCommand",
    "kafka-log-dirs": f"{_TOOLS}.LogDirsCommand",
    "kafka-cluster": f"{_TOOLS}.ClusterTool",
    "kafka-features": f"{_TOOLS}.FeatureCommand",
    "kafka-broker-api-versions": f"{_TOOLS}.BrokerApiVersionsCommand",
    "kafka-leader-election": f"{_TOOLS}.LeaderElectionCommand",
    "kafka-reassign-partitions": f"{_TOOLS}.reassign.ReassignPartitionsCommand",
    "kafka-acls": f"{_TOOLS}.AclCommand",
    "kafka-delegation-tokens": f"{_TOOLS}.DelegationTokenCommand",
    "kafka-transactions": f"{_TOOLS}.TransactionsCommand",
    "kafka-dump-log": f"{_TOOLS}.DumpLogSegments",
}


def java(*arguments: str) -> list[str]:
    return ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_libs()}/*", *arguments]


class JavaProcess:
    """One of our Java programs, as a process that is told on its standard input what to do."""

    source = ""

    def __init__(self, errors: Path) -> None:
        self.errors = errors
        with errors.open("wb") as file:
            self._process = subprocess.Popen(
                java(str(JAVA_DIRECTORY / self.source)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class JavaTransactions(JavaProcess):
    """Transactional producers and readers of committed records."""

    source = "Transactions.java"

    def run(self, *arguments: str) -> list[str]:
        """The lines that a run prints."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(arguments).encode() + b"\n")
        self._process.stdin.flush()
        printed: list[str] = []
        for line in iter(self._process.stdout.readline, b""):
            printed.append(line.decode().rstrip("\n"))
            if printed[-1] == "done":
                return printed[:-1]
            if printed[-1].startswith("failed "):
                break
        raise AssertionError(f"{arguments}: {printed[-3:]}\n{self.errors.read_text()[-3000:]}")


class JavaTools(JavaProcess):
    """The JVM with the tools."""

    source = "Tools.java"

    def try_run(self, tool: str, *arguments: str, typed: str = "") -> tuple[int, str]:
        """The exit status and all that was printed."""
        texts = [typed, *arguments]
        line = " ".join([CLASSES[tool], *("." + base64.b64encode(text.encode()).decode() for text in texts)])
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the JVM of the tools ended: {self.errors.read_text()}"
        status, count = map(int, answer.split())
        return status, self._process.stdout.read(count).decode()

    def run(self, tool: str, *arguments: str, typed: str = "") -> str:
        status, printed = self.try_run(tool, *arguments, typed=typed)
        assert status == 0, printed
        assert "Exception" not in printed, printed
        return printed
