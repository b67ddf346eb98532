"""Apache Kafka's tools for the newer groups and for client metrics print of our broker what they print of Kafka's."""

from __future__ import annotations

import contextlib
import difflib
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.peers import ApacheKafka, kafka_libs, why_no_kafka
from tests.waiting import eventually

from headrace import Consumer, Producer, ShareConsumer
from headrace.testing import broker

from .clients import create_topic
from .java_tools import JAVA_DIRECTORY, JavaTools, java

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(kafka_libs() is None, reason=why_no_kafka()),
]

SETTINGS = {
    "num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "group.share.assignment.interval.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    # Who leaves by being killed is soon gone.
    "group.streams.min.session.timeout.ms": "1000",
    "group.streams.session.timeout.ms": "6000",
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.heartbeat.interval.ms": "1000",
}
TOPIC, PARTITIONS, RECORDS = "t", 2, 5


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaTools]:
    with JavaTools(tmp_path_factory.mktemp("tools") / "errors") as running:
        yield running


@pytest.fixture(scope="module")
def ours(tools: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("ours")
    with broker(str(directory / "data"), {**SETTINGS, "node.id": "1"}) as running:
        return Transcript(tools, running.address, directory).told


@pytest.fixture(scope="module")
def theirs(tools: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("theirs")
    with ApacheKafka(directory / "kafka", SETTINGS) as running:
        return Transcript(tools, running.address, directory).told


class Transcript:
    """One session with the tools; what differs from one broker to the next by nature is taken out."""

    def __init__(self, tools: JavaTools, address: str, directory: Path) -> None:
        self.told: dict[str, str] = {}
        self._tools, self._address, self._directory = tools, address, directory
        for topic in (TOPIC, "other", "lines", "counts"):
            create_topic(address, topic, PARTITIONS, retention_ms="-1")
        with Producer({"bootstrap.servers": address}) as producer:
            for number in range(RECORDS):
                for partition in range(PARTITIONS):
                    stamp = 1_700_000_000_000 + number * 5
                    producer.send(TOPIC, b"%d" % number, partition=partition, timestamp=stamp)
                    producer.send("lines", b"%d" % number, partition=partition, timestamp=stamp)
        self._configs()
        self._consumers()
        self._shares()
        self._streams()
        self._all_groups()
        self._client_metrics()

    def run(self, what: str, tool: str, *arguments: str, shows: str = "", hides: str | None = None) -> None:
        """Note what a tool prints, once it shows what it must: coordinators of Kafka do some of it a bit later."""

        def told() -> str | None:
            status, printed = self._tools.try_run(tool, "--bootstrap-server", self._address, *arguments)
            is_there = re.search(shows, printed) and (hides is None or hides not in printed)
            return self._plain(f"status {status}\n{printed}") if is_there else None

        self.told[what] = eventually(told, what=f"{shows or hides} in the output of {tool} for {what}") or ""

    def _plain(self, text: str) -> str:
        text = text.replace(self._address, "ADDRESS").replace(self._address.split(":")[1], "PORT")
        text = text.replace(str(self._directory), "DIRECTORY")
        text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
        text = re.sub(r"(?<![\w-])[A-Za-z0-9_-]{22}(?![\w-])", "UUID", text)
        text = re.sub(r"StreamThread-\d", "StreamThread-N", text)
        # How much of what was read the application has deleted by then is a matter of time.
        text = re.sub(r"(w-counts-repartition +\d) .*", r"\1 FIGURES", text)
        text = re.sub(
            r"(Valid states are: )(.*)", lambda found: found[1] + ", ".join(sorted(found[2].split(", "))), text
        )
        lines = [line for line in text.splitlines() if not line.startswith(("SLF4J", "\tat ", "Tools$Exited", "exit "))]
        # The columns of a table are as wide as what is in them.
        return "\n".join(re.sub(r" {2,}", "  ", line).rstrip() for line in lines)

    # --- groups of each kind, with members and without

    def _configs(self) -> None:
        group = ("--entity-type", "groups", "--entity-name", "c")
        self.run("configs of a group", "kafka-configs", *group, "--describe")
        change = "consumer.session.timeout.ms=50000,share.auto.offset.reset=earliest,streams.num.standby.replicas=1"
        self.run("change configs", "kafka-configs", *group, "--alter", "--add-config", change)
        self.run("changed configs", "kafka-configs", *group, "--describe", shows="50000")
        self.run("all configs", "kafka-configs", *group, "--describe", "--all", shows="50000")
        self.run("drop config", "kafka-configs", *group, "--alter", "--delete-config", "streams.num.standby.replicas")
        self.run("dropped config", "kafka-configs", *group, "--describe", hides="standby")
        wrong = ("--add-config", "consumer.session.timeout.ms=1")
        self.run("config out of bounds", "kafka-configs", *group, "--alter", *wrong)
        self.run("unknown config", "kafka-configs", *group, "--alter", "--add-config", "no.such=1")
        self.run("groups with configs", "kafka-configs", "--entity-type", "groups", "--describe")
        share = ("--entity-type", "groups", "--entity-name", "s")
        self.run(
            "from the start", "kafka-configs", *share, "--alter", "--add-config", "share.auto.offset.reset=earliest"
        )
        self.run("is set", "kafka-configs", *share, "--describe", shows="earliest")

    def _describe_all_ways(self, what: str, tool: str, group: str, shows: str = "") -> None:
        for option in ("--offsets", "--members", "--state"):
            for verbose in ((), ("--verbose",)):
                how = " ".join((option, *verbose))
                self.run(f"{what} {how}", tool, "--describe", "--group", group, option, *verbose, shows=shows)
        self.run(f"{what} --describe", tool, "--describe", "--group", group, shows=shows)

    def _list_all_ways(self, what: str, tool: str, states: tuple[str, ...]) -> None:
        self.run(f"{what} --list", tool, "--list")
        self.run(f"{what} --list --state", tool, "--list", "--state")
        for state in states:
            self.run(f"{what} --list --state {state}", tool, "--list", "--state", state)

    def _consumers(self) -> None:
        tool, group = "kafka-consumer-groups", ("--group", "c")
        with self._reading(Consumer, "c", **{"group.protocol": "consumer", "auto.offset.reset": "earliest"}):
            self._describe_all_ways("consumers", tool, "c", shows=f"(?s)c .*({TOPIC} |{TOPIC}:|Stable|127.0.0.1)")
            self._list_all_ways("consumers", tool, ("stable", "empty", "nonsense", "assigning,reconciling"))
            for kind in ("consumer", "classic", "share", "Consumer,Classic", "nonsense"):
                self.run(f"consumers of type {kind}", tool, "--list", "--type", kind)
            self.run("delete consumers", tool, "--delete", *group)
            self.run("delete offsets of consumers", tool, "--delete-offsets", *group, "--topic", TOPIC)
            to_earliest = ("--reset-offsets", "--to-earliest", "--execute")
            self.run("reset consumers", tool, *group, *to_earliest, "--topic", TOPIC)
            self.run("consumers as a share group", "kafka-share-groups", "--describe", *group)
            self.run("consumers as a streams group", "kafka-streams-groups", "--describe", *group)
        self.run("gone consumers", tool, "--describe", *group, "--state", shows="Empty")
        self._describe_all_ways("gone consumers", tool, "c")
        for mode in (("--to-earliest",), ("--to-latest",), ("--to-offset", "2"), ("--shift-by", "-1")):
            self.run(f"reset {mode}", tool, "--reset-offsets", *group, "--all-topics", *mode, "--execute")
        self.run("delete offsets", tool, "--delete-offsets", *group, "--topic", f"{TOPIC}:1")
        self.run("offsets then", tool, "--describe", *group)
        self.run("delete", tool, "--delete", *group)
        self.run("delete again", tool, "--delete", *group)
        self.run("describe none", tool, "--describe", *group)

    def _shares(self) -> None:
        tool, group = "kafka-share-groups", ("--group", "s")
        with self._reading(ShareConsumer, "s"):
            self._describe_all_ways(
                "shares", tool, "s", shows=f"(?s)s .*({TOPIC} +[01] .* 0\\n|{TOPIC}:|Stable|127.0.0.1)"
            )
            self._list_all_ways("shares", tool, ("stable", "empty", "dead", "nonsense", "Stable,Empty"))
            self.run("delete shares", tool, "--delete", *group)
            self.run("delete offsets of shares", tool, "--delete-offsets", *group, "--topic", TOPIC)
            to_earliest = ("--reset-offsets", "--to-earliest", "--execute")
            self.run("reset shares", tool, *group, *to_earliest, "--topic", TOPIC)
            self.run("shares as consumers", "kafka-consumer-groups", "--describe", *group)
            self.run("shares as a streams group", "kafka-streams-groups", "--describe", *group)
            self.run("delete shares as consumers", "kafka-consumer-groups", "--delete", *group)
        self.run("gone shares", tool, "--describe", *group, "--state", shows="Empty")
        self._describe_all_ways("gone shares", tool, "s")
        self.run("all shares", tool, "--describe", "--all-groups")
        self.run("all shares' states", tool, "--describe", "--all-groups", "--state")
        modes = (("--to-earliest",), ("--to-latest",), ("--to-datetime", "2023-11-14T22:13:20.010"))
        for mode in modes:
            for what in ("--dry-run", "--execute"):
                reset = ("--reset-offsets", *group, "--topic", TOPIC, *mode, what)
                self.run(f"reset shares {mode} {what}", tool, *reset)
            self.run(f"shares after {mode}", tool, "--describe", *group)
        self.run("reset all topics", tool, "--reset-offsets", *group, "--all-topics", "--to-earliest", "--execute")
        self.run("reset a new topic", tool, "--reset-offsets", *group, "--topic", "other", "--to-earliest", "--execute")
        self.run("shares of two topics", tool, "--describe", *group)
        self.run("reset no topic", tool, "--reset-offsets", *group, "--topic", "nowhere", "--to-earliest", "--execute")
        self.run("reset without a topic", tool, "--reset-offsets", *group, "--to-earliest", "--execute")
        self.run("delete offsets of no topic", tool, "--delete-offsets", *group, "--topic", "nowhere")
        self.run("delete offsets of one", tool, "--delete-offsets", *group, "--topic", "other")
        self.run("shares of one topic", tool, "--describe", *group)
        made = ("--reset-offsets", "--group", "made", "--topic", TOPIC, "--to-latest", "--execute")
        self.run("reset makes a group", tool, *made)
        self.run("made", tool, "--describe", "--group", "made")
        self.run("delete a group of shares", tool, "--delete", *group)
        self.run("delete it again", tool, "--delete", *group)
        self.run("describe no shares", tool, "--describe", *group)
        self.run("delete offsets of none", tool, "--delete-offsets", *group, "--topic", TOPIC)

    def _streams(self) -> None:
        tool, group = "kafka-streams-groups", ("--group", "w")
        state = self._directory / "state"
        command = java(
            str(JAVA_DIRECTORY / "WordCount.java"), self._address, "w", "lines", "counts", str(state), "streams"
        )
        with self._running(command):
            self.run("streams run", tool, "--describe", *group, "--state", shows="Stable")
            self.run("streams have read", tool, "--describe", *group, shows="(?s)(lines +[01].* 0\n.*){2}")
            self._describe_all_ways("streams", tool, "w", shows="w ")
            self._list_all_ways("streams", tool, ("stable", "empty", "nonsense", "NotReady"))
            self.run("delete streams", tool, "--delete", *group)
            self.run("delete offsets of streams", tool, "--delete-offsets", *group, "--input-topic", "lines")
            reset = ("--reset-offsets", "--to-earliest", "--execute", "--input-topic", "lines")
            self.run("reset streams", tool, *group, *reset)
            self.run("streams as consumers", "kafka-consumer-groups", "--describe", *group)
            self.run("streams as shares", "kafka-share-groups", "--describe", *group)
        self.run("gone streams", tool, "--describe", *group, "--state", shows="Empty")
        self._describe_all_ways("gone streams", tool, "w")
        self.run("all streams", tool, "--describe", "--all-groups")
        modes = (("--to-earliest",), ("--to-latest",), ("--to-offset", "1"), ("--shift-by", "1"), ("--to-current",),
                 ("--to-datetime", "2023-11-14T22:13:20.010"), ("--by-duration", "PT1S"))  # fmt: skip
        for mode in modes:
            for what in ("--dry-run", "--execute"):
                reset = ("--reset-offsets", *group, "--input-topic", "lines", *mode, what)
                self.run(f"reset streams {mode} {what}", tool, *reset)
        self.run("streams after that", tool, "--describe", *group)
        all_of_it = ("--reset-offsets", *group, "--all-input-topics", "--to-earliest", "--execute")
        self.run("reset all of streams", tool, *all_of_it)
        self.run("reset everything", tool, *all_of_it, "--delete-all-internal-topics")
        self.run("topics", "kafka-topics", "--list", hides="w-counts")
        self.run("delete offsets of one input", tool, "--delete-offsets", *group, "--input-topic", "lines:0")
        self.run("delete offsets of all input", tool, "--delete-offsets", *group, "--all-input-topics")
        self.run("delete a streams group", tool, "--delete", *group)
        self.run("delete streams again", tool, "--delete", *group)
        self.run("describe no streams", tool, "--describe", *group)

    def _all_groups(self) -> None:
        protocols = {"group.protocol": "consumer", "auto.offset.reset": "earliest"}
        with self._reading(Consumer, "new", **protocols), self._reading(ShareConsumer, "shared"):
            self.run("groups are there", "kafka-groups", "--list", shows="(?s)new .*shared ")
            for choice in ("--group-type consumer", "--group-type share", "--group-type classic", "--consumer",
                           "--group-type streams", "--share", "--streams", "--protocol consumer", "--protocol share",
                           "--group-type nonsense", "--protocol consumer --group-type consumer"):  # fmt: skip
                self.run(f"groups {choice}", "kafka-groups", "--list", *choice.split())

    def _client_metrics(self) -> None:
        tool, name = "kafka-client-metrics", ("--name", "m")
        self.run("no metrics", tool, "--list")
        self.run("describe no metrics", tool, "--describe")
        self.run("describe none of them", tool, "--describe", *name)
        self.run("alter", tool, "--alter", *name, "--metrics", "org.apache.kafka.producer.", "--interval", "10000",
                 "--match", "client_id=a.*,client_software_name=apache-kafka-java")  # fmt: skip
        self.run("describe metrics", tool, "--describe", *name, shows="10000")
        self.run("describe all metrics", tool, "--describe")
        self.run("list metrics", tool, "--list", shows="m\n")
        self.run("alter again", tool, "--alter", *name, "--interval", "20000", "--metrics", "")
        self.run("altered", tool, "--describe", *name, shows="20000")
        self.run("back to defaults", tool, "--alter", *name, "--interval", "", "--match", "")
        self.run("then", tool, "--describe", *name, hides="20000")
        self.run("generated name", tool, "--alter", "--generate-name", "--metrics", "*")
        self.run("wrong interval", tool, "--alter", *name, "--interval", "5")
        self.run("wrong match", tool, "--alter", *name, "--match", "colour=red")
        self.run("wrong expression", tool, "--alter", *name, "--match", "client_id=(")
        entity = ("--entity-type", "client-metrics", "--entity-name", "m")
        self.run("by configs", "kafka-configs", *entity, "--alter", "--add-config", "interval.ms=30000")
        self.run("configs", "kafka-configs", *entity, "--describe", shows="30000")
        self.run("all of the configs", "kafka-configs", *entity, "--describe", "--all")
        self.run("delete metrics", tool, "--delete", *name)
        self.run("deleted metrics", tool, "--list", hides="m\n")
        self.run("delete metrics again", tool, "--delete", *name)

    # --- members

    @contextlib.contextmanager
    def _reading(self, kind: Callable[..., Any], group: str, **more: str) -> Iterator[None]:
        """A member of a group in a thread, once it has read all."""
        ending = threading.Event()
        read: list[int] = []

        def member() -> None:
            config = {"bootstrap.servers": self._address, "group.id": group, "client.id": "reader", **more}
            with kind(config) as reader:
                reader.subscribe([TOPIC])
                while not ending.is_set():
                    read.append(len(reader.poll(0.1)))

        thread = threading.Thread(target=member, daemon=True)
        thread.start()
        try:
            eventually(lambda: sum(read) >= PARTITIONS * RECORDS or group == "shared", what=f"what {group} reads")
            yield
        finally:
            ending.set()
            thread.join(30)

    @contextlib.contextmanager
    def _running(self, command: list[str]) -> Iterator[None]:
        with (self._directory / "application.log").open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.kill()
            process.wait()


OWN_WORDS = {"config out of bounds", "wrong interval", "wrong match", "wrong expression"}  # our own text of an error


def test_the_tools_print_what_they_print_of_apache_kafka(ours: dict[str, str], theirs: dict[str, str]) -> None:
    assert ours.keys() == theirs.keys()
    differences = []
    for what in sorted(ours.keys() - OWN_WORDS):
        mine, other = (sorted(told[what].splitlines()) for told in (ours, theirs))
        if mine != other:
            found = difflib.unified_diff(other, mine, f"{what}: Kafka", f"{what}: ours", lineterm="")
            differences.append("\n".join(found))
    assert not differences, "\n\n".join(differences)


@pytest.mark.parametrize("what", sorted(OWN_WORDS))
def test_an_error_has_kafkas_kind_in_our_words(ours: dict[str, str], theirs: dict[str, str], what: str) -> None:
    def kind(text: str) -> tuple[str, set[str]]:
        return text.splitlines()[0].split(" : ")[0][:60], set(re.findall(r"\w+Exception\b", text))

    assert kind(ours[what]) == kind(theirs[what])
