"""Many small requests, as clients send them: what a broker spends on each, next to Apache Kafka in the same run.

    python -m bench.requests [--seconds 1] [--rounds 3] [--connections 16,64,256] [--only headrace|kafka]
                             [--versions old|new|both] [--replicas 3] [--rights] [--tls] [--idempotent]

Every connection has one request in flight: a Produce of one record of 60 to 180 bytes, a Metadata of one topic, a
Fetch of one batch. Each has a correlation id, time, key, size and bytes of its own, and is for the next of four
partitions; of the versions an old one and the newest take turns. The load comes from a program in Go (`bench/go`),
which costs less than what it measures: `load µs` is what a request costs it. Brokers take turns; the median of the
rounds counts. With three replicas one of three brokers leads all partitions, and this one's CPU is told; with
`--rights` an ACL is looked up and a quota (that nobody comes near) counted for each request; with `--tls` the load
comes through TLS, to Headrace alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from bench import peers
from bench.broker import PARTITIONS, make_topic, started
from bench.three import NODES, three
from headrace.certificates import Authority
from headrace.runtime.free_ports import free_ports

TOPIC = "requests"
KINDS = ("produce", "metadata", "fetch")
CONNECTIONS = (16, 64, 256)
#: An old version of each that some clients still send, and the newest.
VERSIONS = {"produce": (7, 13), "metadata": (4, 13), "fetch": (4, 18)}
RECORDS = 20_000
_SOURCE = Path(__file__).parent / "go"
_WARM_UP_S = 0.5
#: Who logs in with nothing may do what the rules of the topic allow, and everything where there are none.
RIGHTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def build_load(directory: Path) -> Path:
    """The load generator, compiled; SystemExit with a reason where there is no Go."""
    go = shutil.which("go")
    if go is None:
        raise SystemExit("bench.requests is skipped: its load generator needs Go (https://go.dev), which is not found")
    program = directory / "requests"
    subprocess.run([go, "build", "-o", str(program), "."], cwd=_SOURCE, check=True, timeout=300)
    return program


class Target:
    """A running broker (or the one of a cluster that leads the topic), and what has to be known to send it requests."""

    def __init__(self, address: str, pids: list[int], *, tls_address: str | None = None) -> None:
        from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
        from confluent_kafka.admin import AdminClient

        self.address = tls_address or address
        self.has_tls = tls_address is not None
        self._watched = [psutil.Process(pid) for pid in pids]
        self._producers = 1 << 40
        producer = Producer({"bootstrap.servers": address, "batch.num.messages": 1, "linger.ms": 0})
        for number in range(RECORDS):
            producer.produce(TOPIC, b"x" * 100, partition=number % PARTITIONS)
            if not number % 1000:
                producer.flush()
        assert producer.flush(60) == 0, "the topic could not be written to"
        consumer = Consumer({"bootstrap.servers": address, "group.id": "bench"})
        ends = [
            consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=30)[1]
            for partition in range(PARTITIONS)
        ]
        consumer.close()
        self.ends = ",".join(map(str, ends))
        admin = AdminClient({"bootstrap.servers": address})
        id_ = admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result(30).topic_id
        most, least = id_.get_most_significant_bits(), id_.get_least_significant_bits()
        self.topic_id = f"{most % 2**64:016x}{least % 2**64:016x}"

    def cpu_s(self) -> float:
        return sum(times.user + times.system for times in (one.cpu_times() for one in self._watched))

    def measure(self, load: Path, kind: str, connections: int, options: argparse.Namespace) -> dict[str, float]:
        versions = {"old": VERSIONS[kind][:1], "new": VERSIONS[kind][1:], "both": VERSIONS[kind]}[options.versions]
        self._producers += 10_000
        command: list[object] = [load, "-address", self.address, "-kind", kind, "-topic", TOPIC, "-ends", self.ends]
        command += ["-topic-id", self.topic_id, "-versions", ",".join(map(str, versions)), "-warm-up", _WARM_UP_S]
        command += ["-partitions", PARTITIONS, "-connections", connections, "-seconds", options.seconds]
        command += ["-producer", self._producers]
        if options.idempotent:
            command.append("-idempotent")
        if self.has_tls:
            command.append("-tls")
        with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            spent = 0.0
            found: dict[str, float] = {}
            for line in process.stdout:
                if line == "begin\n":
                    spent = -self.cpu_s()
                elif line == "end\n":
                    spent += self.cpu_s()
                else:
                    found = json.loads(line)
        if process.returncode or not found:
            raise RuntimeError(f"the load generator failed at {kind} with {connections} connections (see above)")
        found["cpu"] = spent / found["done"] * 1e6
        return found


@contextlib.contextmanager
def _target(kind: str, options: argparse.Namespace) -> Iterator[Target]:
    settings = dict(RIGHTS) if options.rights else {}
    with tempfile.TemporaryDirectory(prefix=f"bench-{kind}-") as name:
        directory = Path(name)
        if options.replicas > 1:
            with three(kind, directory, settings=settings) as cluster:
                cluster.start()
                leader = cluster.nodes[NODES[0]]
                _make_led_by(leader.address, NODES)
                cluster.await_whole()
                if options.rights:
                    _restrict(leader.address)
                yield Target(leader.address, [leader.pid])
            return
        tls_address = None
        if options.tls:
            own, tls_address = (f"127.0.0.1:{port}" for port in free_ports(2))
            settings |= {
                "listeners": f"PLAINTEXT://{own},SSL://{tls_address}",
                "ssl.keystore.location": str(Authority().issue("broker").save(directory / "broker.pem")),
            }
        with started(kind, directory, settings) as (broker, _):
            make_topic(broker.address, TOPIC)
            if options.rights:
                _restrict(broker.address)
            yield Target(broker.address, [broker.pid], tls_address=tls_address)


def _make_led_by(address: str, nodes: Sequence[int]) -> None:
    """The first of them leads every partition."""
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = NewTopic(TOPIC, PARTITIONS, replica_assignment=[list(nodes)] * PARTITIONS)
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([topic])[TOPIC].result(30)


def _restrict(address: str) -> None:
    """Everybody may use the topic because a rule says so, and each client has a quota that it does not exceed."""
    operations = "read,write,describe,describe-configs,create,alter,delete"
    for command in (
        ["acl", "add", "*", operations, f"topic:{TOPIC}"],
        ["quota", "set", "--client", "default", "produce=10000000000", "consume=10000000000"],
    ):
        subprocess.run([sys.executable, "-m", "headrace.cli", *command, "-b", address], check=True, timeout=60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", default=",".join(map(str, CONNECTIONS)))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--versions", choices=("old", "new", "both"), default="both")
    parser.add_argument("--idempotent", action="store_true", help="batches with a producer id")
    parser.add_argument("--replicas", type=int, choices=(1, 3), default=1)
    parser.add_argument("--rights", action="store_true", help="with a checked right and a quota")
    parser.add_argument("--tls", action="store_true", help="over TLS (Headrace alone, one replica)")
    parser.add_argument("--only", choices=("headrace", "kafka"))
    options = parser.parse_args()
    kinds = [options.only] if options.only else ["headrace", "kafka"]
    if options.tls:
        kinds = ["headrace"]
    if "kafka" in kinds and peers.kafka_libs() is None:
        print(f"Apache Kafka is not measured: {peers.why_no_kafka()}")
        kinds.remove("kafka")
    with contextlib.ExitStack() as stack:
        load = build_load(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-load-"))))
        targets = {kind: stack.enter_context(_target(kind, options)) for kind in kinds}
        heads = (f"{kind + ' req/s':>16}{'CPU µs':>8}{'p50 µs':>9}{'p99 µs':>9}{'load µs':>9}" for kind in kinds)
        print(f"{'':24}" + "".join(heads))
        for request in options.kinds.split(","):
            for count in map(int, options.connections.split(",")):
                rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
                for _ in range(options.rounds):
                    for kind in kinds:
                        rounds[kind].append(targets[kind].measure(load, request, count, options))
                medians = {
                    kind: {name: statistics.median(one[name] for one in found) for name in found[0]}
                    for kind, found in rounds.items()
                }
                line = f"{request + ' ' + str(count) + ' conn.':24}"
                for one in medians.values():
                    line += (
                        f"{one['rate']:16,.0f}{one['cpu']:8.1f}{one['p50']:9,.0f}{one['p99']:9,.0f}{one['own']:9.1f}"
                    )
                if len(kinds) == 2:
                    line += f"   {medians['headrace']['rate'] / medians['kafka']['rate']:.2f}x"
                print(line, flush=True)


if __name__ == "__main__":
    main()
