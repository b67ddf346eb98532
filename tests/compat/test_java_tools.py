"""Apache Kafka's own tools print of our broker what they print of Apache Kafka."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.peers import ApacheKafka, kafka_libs, why_no_kafka
from tests.waiting import eventually

from headrace import Admin
from headrace.testing import EmbeddedBroker, broker

from .clients import PYTHON_CLIENTS, Message
from .java_tools import JavaTools
from .members import ConfluentMember, wait_until_shared_out
from .served import Served

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.skipif(kafka_libs() is None, reason=why_no_kafka()),
]

SETTINGS = {"num.partitions": "1", "offsets.topic.num.partitions": "4", "group.initial.rebalance.delay.ms": "0"}
RESETS = {
    "to-earliest": ("--to-earliest",),
    "to-latest": ("--to-latest",),
    "to-offset": ("--to-offset", "1"),
    "shift-by": ("--shift-by", "1"),
    "shift-by below the start": ("--shift-by", "-10"),
    "to-datetime": ("--to-datetime", "2023-11-14T22:13:20.010"),
    "to-datetime after the end": ("--to-datetime", "2024-01-01T00:00:00.000"),
    "by-duration": ("--by-duration", "P1D"),
    "to-current": ("--to-current",),
}


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaTools]:
    with JavaTools(tmp_path_factory.mktemp("tools") / "errors") as running:
        yield running


@pytest.fixture(scope="module")
def ours(tools: JavaTools, served: Served, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("ours")
    with broker(str(directory / "data"), {**SETTINGS, "node.id": "1"}) as running:
        return Transcript(tools, running.address, directory).told


@pytest.fixture(scope="module")
def theirs(tools: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("theirs")
    with ApacheKafka(directory, SETTINGS) as running:
        return Transcript(tools, running.address, directory).told


class Transcript:
    """One session with all the tools; what differs from one broker to the next by nature is taken out."""

    def __init__(self, tools: JavaTools, address: str, directory: Path) -> None:
        self.told: dict[str, str] = {}
        self._tools, self._address, self._directory = tools, address, directory
        self._topics()
        self._configs()
        self._records()
        self._groups()
        self._offsets_and_directories()
        self._cluster()
        self._mistakes()

    def run(
        self,
        what: str,
        tool: str,
        *arguments: str,
        typed: str = "",
        shows: str = "",
        hides: str | None = None,
    ) -> None:
        """Note what a tool prints, once it shows what it must: Apache Kafka's broker hears of changes a bit later."""

        def told() -> str | None:
            status, printed = self._tools.try_run(tool, "--bootstrap-server", self._address, *arguments, typed=typed)
            is_there = shows in printed and (hides is None or hides not in printed)
            return self._plain(f"status {status}\n{printed}") if is_there else None

        self.told[what] = eventually(told, what=f"{shows or hides} in the output of {tool}") or ""

    def _plain(self, text: str) -> str:
        text = text.replace(self._address, "ADDRESS").replace(self._address.split(":")[1], "PORT")
        text = text.replace(str(self._directory), "DIRECTORY")
        text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
        text = re.sub(r"TopicId: \S+", "TopicId: ID", text)
        text = re.sub(r"Cluster ID: \S+", "Cluster ID: ID", text)
        text = re.sub(r"console-consumer-\d+ *", "console-consumer-NUMBER  ", text)
        lines = [line for line in text.splitlines() if not line.startswith(("SLF4J", "\tat ", "Tools$Exited", "exit "))]
        # The columns of a table are as wide as what is in them.
        return "\n".join(re.sub(r" {2,}", "  ", line).rstrip() for line in lines)

    def _file(self, name: str, content: object) -> str:
        path = self._directory / name
        path.write_text(json.dumps(content))
        return str(path)

    def _topics(self) -> None:
        topic = ("--topic", "t")
        self.run("create", "kafka-topics", "--create", *topic, "--partitions", "2", "--config", "retention.ms=-1")
        self.run("create again", "kafka-topics", "--create", *topic)
        self.run("create if not there", "kafka-topics", "--create", *topic, "--if-not-exists")
        self.run("add partitions", "kafka-topics", "--alter", *topic, "--partitions", "3")
        self.run("fewer partitions", "kafka-topics", "--alter", *topic, "--partitions", "1")
        self.run("describe", "kafka-topics", "--describe", *topic, shows="PartitionCount: 3")
        self.run("describe all", "kafka-topics", "--describe", "--exclude-internal")
        self.run("list", "kafka-topics", "--list")
        for problem in ("under-replicated-partitions", "unavailable-partitions", "under-min-isr-partitions"):
            self.run(problem, "kafka-topics", "--describe", f"--{problem}")
        self.run("overrides", "kafka-topics", "--describe", "--topics-with-overrides")

    def _configs(self) -> None:
        topic = ("--entity-type", "topics", "--entity-name", "t")
        self.run("configs", "kafka-configs", *topic, "--describe", shows="retention.ms=-1")
        change = "segment.bytes=2000000,cleanup.policy=[compact,delete]"
        self.run("change configs", "kafka-configs", *topic, "--alter", "--add-config", change)
        self.run("all configs", "kafka-configs", *topic, "--describe", "--all", shows="cleanup.policy=compact,delete")
        drop = "segment.bytes,cleanup.policy"
        self.run("drop configs", "kafka-configs", *topic, "--alter", "--delete-config", drop)
        self.run("configs at the end", "kafka-configs", *topic, "--describe", hides="segment.bytes")
        self.run("bad config", "kafka-configs", *topic, "--alter", "--add-config", "retention.ms=soon")
        self.run("unknown config", "kafka-configs", *topic, "--alter", "--add-config", "no.such.thing=1")
        one, default = (
            ("--entity-type", "brokers", "--entity-name", "1"),
            ("--entity-type", "brokers", "--entity-default"),
        )
        self.run("broker configs", "kafka-configs", *one, "--describe")
        self.run("broker default", "kafka-configs", *default, "--alter", "--add-config", "log.retention.ms=7200000")
        self.run("broker", "kafka-configs", *one, "--alter", "--add-config", "log.retention.ms=7300000")
        self.run("broker default configs", "kafka-configs", *default, "--describe", shows="log.retention.ms=7200000")
        self.run(
            "changed broker configs", "kafka-configs", *one, "--describe", shows="log.retention.ms=7300000 sensitive"
        )
        self.run("broker reset", "kafka-configs", *one, "--alter", "--delete-config", "log.retention.ms")
        self.run("default reset", "kafka-configs", *default, "--alter", "--delete-config", "log.retention.ms")
        self.run("read-only", "kafka-configs", *one, "--alter", "--add-config", "log.dirs=/elsewhere")
        self.run("quotas", "kafka-configs", "--entity-type", "clients", "--entity-name", "c", "--describe")
        self.run("users", "kafka-configs", "--entity-type", "users", "--describe")

    def _records(self) -> None:
        lines = "".join(f"key {number}:value {number}\n" for number in range(6))
        keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
        for codec in ("none", "zstd"):
            self.run(f"produce {codec}", "kafka-console-producer", "--topic", f"c-{codec}", *keyed,
                     "--compression-codec", codec, typed=lines)  # fmt: skip
            self.run(f"consume {codec}", "kafka-console-consumer", "--topic", f"c-{codec}", "--from-beginning",
                     "--max-messages", "6", "--formatter-property", "print.key=true",
                     "--formatter-property", "print.offset=true")  # fmt: skip
        self.run("produce with headers", "kafka-console-producer", "--topic", "headers", "--reader-property",
                 "parse.headers=true", typed="h1:v1,h2:v2\tvalue\n")  # fmt: skip
        self.run("consume headers", "kafka-console-consumer", "--topic", "headers", "--from-beginning",
                 "--max-messages", "1", "--formatter-property", "print.headers=true")  # fmt: skip
        self.run("acks 0", "kafka-console-producer", "--topic", "unanswered", "--producer-property", "acks=0",
                 "--producer-property", "enable.idempotence=false", typed="unanswered\n")  # fmt: skip
        messages = [
            Message(b"key", b"%d" % number, 1_700_000_000_000 + number * 5, partition=partition)
            for partition in (0, 1)
            for number in range(4)
        ]
        self.run("timed", "kafka-topics", "--create", "--topic", "timed", "--partitions", "3")
        PYTHON_CLIENTS[0].produce(self._address, "timed", messages)

    def _groups(self) -> None:
        group, topic = ("--group", "g"), ("--topic", "timed")
        self.run("read in a group", "kafka-console-consumer", *topic, *group, "--from-beginning", "--max-messages", "8",
                 "--formatter-property", "print.timestamp=true")  # fmt: skip
        self.run("describe group", "kafka-consumer-groups", "--describe", *group)
        self.run("group's state", "kafka-consumer-groups", "--describe", *group, "--state")
        self.run("group's members", "kafka-consumer-groups", "--describe", *group, "--members", "--verbose")
        for name, mode in RESETS.items():
            self.run(f"reset {name}", "kafka-consumer-groups", "--reset-offsets", *group, *topic, *mode, "--execute")
            self.run(f"after {name}", "kafka-consumer-groups", "--describe", *group)
        self.run("plan", "kafka-consumer-groups", "--reset-offsets", *group, *topic, "--to-latest", "--dry-run")
        exported = self._directory / "offsets.csv"
        exported.write_text("timed,0,2\ntimed,1,3\n")
        self.run("reset from file", "kafka-consumer-groups", "--reset-offsets", *group, "--from-file", str(exported),
                 "--execute")  # fmt: skip
        self.run("reset of one partition", "kafka-consumer-groups", "--reset-offsets", *group, "--topic", "timed:1",
                 "--to-earliest", "--execute")  # fmt: skip
        self.run("export", "kafka-consumer-groups", "--reset-offsets", *group, *topic, "--to-current", "--export",
                 "--dry-run")  # fmt: skip
        self.run("delete offsets", "kafka-consumer-groups", "--delete-offsets", *group, "--topic", "timed:0")
        with running_member(self._address, "active", "timed"):
            for option in ((), ("--members", "--verbose"), ("--state",)):
                self.run(f"active {option}", "kafka-consumer-groups", "--describe", "--group", "active", *option)
            self.run("delete active", "kafka-consumer-groups", "--delete", "--group", "active")
            self.run("reset active", "kafka-consumer-groups", "--reset-offsets", "--group", "active", *topic,
                     "--to-earliest", "--execute")  # fmt: skip
            self.run("delete active offsets", "kafka-consumer-groups", "--delete-offsets", "--group", "active", *topic)
        self.run("states", "kafka-consumer-groups", "--list", "--state")
        self.run("types", "kafka-consumer-groups", "--list", "--type")
        self.run("groups", "kafka-groups", "--list")
        self.run("describe all groups", "kafka-consumer-groups", "--describe", "--all-groups", "--state")
        self.run("delete group", "kafka-consumer-groups", "--delete", "--group", "g", "--group", "active")
        self.run("delete again", "kafka-consumer-groups", "--delete", "--group", "g")
        self.run("describe none", "kafka-consumer-groups", "--describe", "--group", "g")

    def _offsets_and_directories(self) -> None:
        self.run("perf", "kafka-producer-perf-test", "--topic", "perf", "--num-records", "5000", "--record-size", "100",
                 "--throughput", "-1")  # fmt: skip
        self.run("read perf", "kafka-consumer-perf-test", "--topic", "perf", "--num-records", "5000")
        for time in ("-1", "-2", "-3", "-4", "-5", "1700000000006"):
            self.run(f"offsets at {time}", "kafka-get-offsets", "--topic", "timed", "--time", time)
        self.run("offsets of all", "kafka-get-offsets", "--exclude-internal-topics")
        asked = {"partitions": [{"topic": "perf", "partition": 0, "offset": 100}], "version": 1}
        self.run("delete records", "kafka-delete-records", "--offset-json-file", self._file("delete.json", asked))
        self.run("start after that", "kafka-get-offsets", "--topic", "perf", "--time", "earliest")
        asked["partitions"][0]["offset"] = 999_999  # type: ignore[index] # a dict of dicts, as JSON is
        self.run("delete too many", "kafka-delete-records", "--offset-json-file", self._file("delete.json", asked))
        self.run("log dirs", "kafka-log-dirs", "--describe", "--topic-list", "timed")

    def _cluster(self) -> None:
        self.run("elect", "kafka-leader-election", "--election-type", "preferred", "--topic", "t", "--partition", "0")
        self.run("elect unclean", "kafka-leader-election", "--election-type", "unclean", "--topic", "t",
                 "--partition", "0")  # fmt: skip
        self.run("elect all", "kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions")
        plan = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}
        path = self._file("plan.json", plan)
        self.run("reassign", "kafka-reassign-partitions", "--reassignment-json-file", path, "--execute")
        self.run("reassigned", "kafka-reassign-partitions", "--reassignment-json-file", path, "--verify")
        self.run("reassignments", "kafka-reassign-partitions", "--list")
        plan["partitions"][0]["replicas"] = [1, 2]  # type: ignore[index]
        path = self._file("plan.json", plan)
        self.run("reassign to nobody", "kafka-reassign-partitions", "--reassignment-json-file", path, "--execute")
        topics = self._file("topics.json", {"topics": [{"topic": "timed"}], "version": 1})
        self.run("plan a move", "kafka-reassign-partitions", "--topics-to-move-json-file", topics, "--broker-list", "1",
                 "--generate")  # fmt: skip
        self.run("producers", "kafka-transactions", "describe-producers", "--topic", "timed", "--partition", "2")
        self.run("transactions", "kafka-transactions", "list")
        status, printed = self._tools.try_run("kafka-cluster", "cluster-id", "--bootstrap-server", self._address)
        self.told["cluster id"] = self._plain(f"{status} {printed}")
        status, printed = self._tools.try_run("kafka-cluster", "list-endpoints", "--bootstrap-server", self._address)
        self.told["endpoints"] = self._plain(f"{status} {printed}")
        self.run("features", "kafka-features", "describe")
        self.run("api versions", "kafka-broker-api-versions")
        self.run("acls", "kafka-acls", "--list")

    def _mistakes(self) -> None:
        self.run("bad name", "kafka-topics", "--create", "--topic", "bad name")
        self.run("too many replicas", "kafka-topics", "--create", "--topic", "x", "--replication-factor", "3")
        self.run("no such topic", "kafka-topics", "--describe", "--topic", "nowhere")
        self.run("delete", "kafka-topics", "--delete", "--topic", "t")
        self.run("delete topic again", "kafka-topics", "--delete", "--topic", "t")
        self.run("at the end", "kafka-topics", "--list", hides="\nt\n")


@contextlib.contextmanager
def running_member(address: str, group: str, topic: str) -> Iterator[None]:
    member = ConfluentMember(address, group, [topic]).start()
    try:
        wait_until_shared_out([member], {(topic, 0), (topic, 1), (topic, 2)})
        with Admin({"bootstrap.servers": address}) as admin:
            # It commits what it has read: the tools are to see that it has, not that it is about to.
            eventually(lambda: len(admin.list_group_offsets([group])[group]) == 2, "commits of both partitions")
        yield
    finally:
        member.stop()


FIGURES = {"perf", "read perf", "features", "api versions"}  # not the same by nature
OWN_WORDS = {"acls", "bad config", "bad name", "fewer partitions", "too many replicas"}  # our own text of an error


def test_the_tools_print_what_they_print_of_apache_kafka(ours: dict[str, str], theirs: dict[str, str]) -> None:
    assert ours.keys() == theirs.keys()
    differences = []
    for what in sorted(ours.keys() - FIGURES - OWN_WORDS):
        mine, other = (sorted(told[what].splitlines()) for told in (ours, theirs))
        if mine != other:
            found = difflib.unified_diff(other, mine, f"{what}: Kafka", f"{what}: ours", lineterm="")
            differences.append("\n".join(found))
    assert not differences, "\n\n".join(differences)


@pytest.mark.parametrize("what", sorted(OWN_WORDS))
def test_an_error_has_kafkas_kind_in_our_words(ours: dict[str, str], theirs: dict[str, str], what: str) -> None:
    def kind(text: str) -> tuple[str, set[str]]:
        return text.splitlines()[0], set(re.findall(r"\w+Exception\b", text))

    assert kind(ours[what]) == kind(theirs[what])
    assert not ours[what].startswith("status 0")


def test_the_perf_tools_send_and_read_all(ours: dict[str, str]) -> None:
    assert "5000 records sent" in ours["perf"]
    assert " 5000," in ours["read perf"]


def test_features_are_a_part_of_kafkas(ours: dict[str, str], theirs: dict[str, str]) -> None:
    def features(text: str) -> dict[str, list[str]]:
        rows = [line.split() for line in text.splitlines() if line.startswith("Feature:")]
        return {row[1]: row[2:8] for row in rows}  # without the epoch

    mine, other = features(ours["features"]), features(theirs["features"])
    assert mine
    assert mine == {name: row for name, row in other.items() if name in mine}


def test_no_version_is_served_that_kafka_does_not_serve(ours: dict[str, str], theirs: dict[str, str]) -> None:
    pattern = re.compile(r"(\w+)\(\d+\): (\d+)(?: to (\d+))? \[usable")
    mine, other = (
        {name: (int(low), int(high or low)) for name, low, high in pattern.findall(told["api versions"])}
        for told in (ours, theirs)
    )
    assert len(mine) > 40
    # Apache Kafka has them where a plugin of its own takes what clients push; ours takes it by itself.
    for name in ("GetTelemetrySubscriptions", "PushTelemetry"):
        assert mine.pop(name) == (0, 0)
    assert mine == {name: versions for name, versions in other.items() if name in mine}


def test_all_tools_run_on_the_shared_broker_too(tools: JavaTools, kafka: EmbeddedBroker, topic: str) -> None:
    """The shared broker has seen many clients by now; it must still be fit to be described."""
    tools.run("kafka-topics", "--bootstrap-server", kafka.address, "--create", "--topic", topic)
    for tool, arguments in (
        ("kafka-topics", ("--describe",)),
        ("kafka-consumer-groups", ("--describe", "--all-groups")),
    ):
        tools.run(tool, "--bootstrap-server", kafka.address, *arguments)
