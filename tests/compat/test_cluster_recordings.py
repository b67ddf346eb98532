"""What a real Kafka 4.3.1 cluster of three brokers answered (tests/reference/behaviour/cluster), asked of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.local_cluster import LocalBroker, LocalCluster
from headrace.runtime.free_ports import free_ports

RECORDED = Path(__file__).parents[1] / "reference" / "behaviour" / "cluster"
HARMLESS = ("placement.jsonl", "every_node.jsonl", "epochs.jsonl", "moves.jsonl", "more.jsonl")
HARMLESS_TIMEOUT_S = 600
FAILURES_TIMEOUT_S = 1800
# Of the real cluster: see the README there.
SETTINGS = {
    "broker.rack": "r{id}",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "num.partitions": "2",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.num.partitions": "6",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "5000",
    "auto.leader.rebalance.enable": "false",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.cleaner.enable": "false",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    directories = f"{tmp_path}/node{{id}}/data1,{tmp_path}/node{{id}}/data2"
    brokers = [LocalBroker(at + 1, port) for at, port in enumerate(free_ports(3))]
    found = LocalCluster(tmp_path, brokers, overrides={**SETTINGS, "log.dirs": directories})
    try:
        found.start(brokers)
        yield found
    finally:
        # Some may have been started again meanwhile, by the command line.
        for broker in [*LocalCluster.load(tmp_path).brokers, *found.brokers]:
            found.kill(broker)


# Cases in which ours differs on purpose; docs/differences.md says why.
LEFT_OUT = {"partitions/internal": "no partitions are added to topics of coordinators, also where it is only validated"}


def replay(cluster: LocalCluster, names: tuple[str, ...], timeout_s: float, *, hurting: bool) -> None:
    command = [sys.executable, str(RECORDED / "replay_cluster.py"), *(broker.address for broker in cluster.brokers)]
    for case in LEFT_OUT:
        command += ["-x", case]
    if hurting:
        command += ["--control", str(control(cluster))]
    command += [str(RECORDED / name) for name in names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    logs = "".join(cluster.log_path(broker).read_text(errors="replace")[-1500:] for broker in cluster.brokers)
    assert done.returncode == 0, f"{done.stdout[-6000:]}{done.stderr[-2000:]}\n{logs}"
    assert int(done.stdout.rsplit(" passed", 1)[0].rsplit(maxsplit=1)[-1]) > 0


def control(cluster: LocalCluster) -> Path:
    """How the runner stops, kills, pauses and starts a broker: by the command line that users have."""
    commands = {
        verb: f"{sys.executable} -m headrace.cli cluster {command} {{node}} --dir {cluster.directory}"
        for verb, command in (
            ("start", "restart"),
            ("stop", "stop"),
            ("kill", "kill"),
            ("pause", "pause"),
            ("resume", "resume"),
        )
    }
    commands["wipe"] = f"rm -rf {cluster.directory}/node{{node}}"
    path = cluster.directory / "control.json"
    path.write_text(json.dumps(commands))
    return path


@pytest.mark.slow
@pytest.mark.timeout(HARMLESS_TIMEOUT_S + 60)
def test_answers_as_the_real_cluster_did(cluster: LocalCluster) -> None:
    replay(cluster, HARMLESS, HARMLESS_TIMEOUT_S, hurting=False)


@pytest.mark.long
@pytest.mark.timeout(2 * FAILURES_TIMEOUT_S)
@pytest.mark.parametrize("name", ["failures.jsonl", "more_failures.jsonl", "coordinators.jsonl"])
def test_answers_as_the_real_cluster_did_when_brokers_fail(cluster: LocalCluster, name: str) -> None:
    replay(cluster, (name,), FAILURES_TIMEOUT_S, hurting=True)
