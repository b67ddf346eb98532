"""Clusters on this machine by hand: what is refused at once, what is printed to be typed next, rolling restarts."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Command
from tests.first_hour.test_readme import three_ports

from headrace.cli import rolling_restart
from headrace.cli.exits import Exit
from headrace.cli.local_cluster import LocalBroker, LocalCluster
from headrace.client.admin import Admin
from headrace.client.producer.blocking import Producer
from headrace.errors import RequestTimedOutError
from headrace.testing import EmbeddedBroker


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HEADRACE_BOOTSTRAP", raising=False)


@pytest.mark.parametrize("port", ["65534", "65535"])
def test_ports_that_there_are_not_are_refused_with_those_that_would_do(
    command: Command, tmp_path: Path, port: str
) -> None:
    refused = command("cluster", "start", "--port", port, "--dir", str(tmp_path / "c"))
    assert refused.code == Exit.USAGE
    assert f"the last that there is is 65535: begin with --port {65_535 - 2} or a lower one" in refused.err
    assert not (tmp_path / "c").exists()


def test_a_zookeeper_that_is_not_there_is_said_at_once(command: Command, tmp_path: Path) -> None:
    refused = command("cluster", "start", "--zookeeper", "127.0.0.1:1/a", "--dir", str(tmp_path / "c"))
    assert refused.code == Exit.FAILED
    assert refused.err.startswith("headrace: no ZooKeeper can be reached at 127.0.0.1:1 (Connection refused). ")
    assert refused.err.count("\n") == 1
    assert command("cluster", "start", "--zookeeper", "here", "--dir", str(tmp_path / "c")).code == Exit.USAGE


def test_what_is_to_be_typed_next_names_the_directory(command: Command, tmp_path: Path) -> None:
    directory = tmp_path / "my cluster"
    option = f"--dir '{directory}'"
    assert (
        f"start one with `headrace cluster start {option}`" in command("cluster", "status", "--dir", str(directory)).err
    )
    directory.mkdir()
    LocalCluster(directory, [LocalBroker(1, 19_000)]).save()
    for asked in ("kill", "pause", "resume"):
        assert (
            f"`headrace cluster restart 1 {option}` starts it"
            in command("cluster", asked, "1", "--dir", str(directory)).err
        )
    usual = LocalCluster.default_directory()
    usual.mkdir(parents=True)
    LocalCluster(usual, [LocalBroker(1, 19_000)]).save()
    assert "`headrace cluster restart 1` starts it" in command("cluster", "kill", "1").err


def test_a_cluster_keeps_its_ports(command: Command, tmp_path: Path) -> None:
    LocalCluster(tmp_path, [LocalBroker(1, 19_000)]).save()
    refused = command("cluster", "start", "--dir", str(tmp_path), "--port", "19001")
    assert refused.code == Exit.USAGE
    assert "was made on port 19000, which it keeps" in refused.err


def test_data_is_not_deleted_where_nobody_can_be_asked(command: Command, tmp_path: Path) -> None:
    LocalCluster(tmp_path, [LocalBroker(1, 19_000)]).save()
    (tmp_path / "broker-1").mkdir()
    refused = command("cluster", "stop", "--remove", "--dir", str(tmp_path))
    assert refused.code == Exit.USAGE
    assert "add --yes" in refused.err
    assert (tmp_path / "broker-1").exists()
    assert command("cluster", "stop", "--remove", "--yes", "--dir", str(tmp_path)).code == Exit.OK
    assert not tmp_path.exists()


def test_the_status_of_any_cluster(command: Command, kafka: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    named = command("cluster", "status", "-b", kafka.address)
    assert named.code == Exit.OK
    assert kafka.address in named.out
    assert "PROCESS" not in named.out
    found = command("cluster", "status", "-b", kafka.address, "--json").json()
    assert [(one["id"], one["address"], one["registered"]) for one in found["brokers"]] == [(1, kafka.address, True)]
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", kafka.address)
    assert kafka.address in command("cluster", "status").out
    refused = command("cluster", "status", "-b", kafka.address, "--dir", "there")
    assert refused.code == Exit.USAGE
    assert "give one of them" in refused.err


def test_a_status_of_nothing_says_so_at_once(command: Command) -> None:
    down = command("cluster", "status", "-b", "127.0.0.1:1")
    assert down.code == Exit.FAILED
    assert "no broker can be reached at 127.0.0.1:1" in down.err


def test_describe_is_a_command_too(headrace: Command) -> None:
    described, alone = (headrace("cluster", *words, "--json").json() for words in (["describe"], []))
    assert described.keys() == alone.keys()
    assert described["cluster_id"] == alone["cluster_id"]
    assert "FEATURE" in headrace("cluster", "describe", "--features").out


def test_which_brokers_are_restarted_has_to_be_said(command: Command, tmp_path: Path) -> None:
    LocalCluster(tmp_path, [LocalBroker(1, 19_000)]).save()
    for given in ((), ("1", "--all")):
        refused = command("cluster", "restart", *given, "--dir", str(tmp_path))
        assert refused.code == Exit.USAGE
        assert "say which: a broker's number, or --all" in refused.err


# --- a rolling restart


@pytest.fixture
def three(command: Command, tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "three"
    started = command("cluster", "start", "--dir", str(directory), "--port", str(three_ports()))
    assert started.code == Exit.OK, started.err
    yield directory
    command("cluster", "stop", "--remove", "--yes", "--dir", str(directory))


@pytest.mark.slow
def test_a_rolling_restart_loses_no_record_and_no_broker(command: Command, three: Path) -> None:
    servers = LocalCluster.load(three).bootstrap
    options = ("-p", "6", "--replication-factor", "3", "-c", "min.insync.replicas=2")
    made = command("topic", "create", "t", *options, "-b", servers)
    assert made.code == Exit.OK, made.err
    before = {broker.id: broker.pid for broker in LocalCluster.load(three).brokers}
    stopping = threading.Event()
    sent = 0

    def produce() -> None:
        nonlocal sent
        with Producer(bootstrap_servers=servers) as producer:
            while not stopping.wait(0.01):
                producer.send("t", b"x").result()
                sent += 1

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        done = command("cluster", "restart", "--all", "--dir", str(three))
    finally:
        stopping.set()
        thread.join()
    assert done.code == Exit.OK, done.err
    assert re.fullmatch(r"(broker [123]: up after [0-9.]+ s, in sync [0-9.]+ s later\n){3}all 3 brokers .*\n", done.out)
    after = {broker.id: broker.pid for broker in LocalCluster.load(three).brokers}
    assert not set(before.values()) & set(after.values())
    assert "6 partitions, all led and whole" in command("cluster", "status", "--dir", str(three)).out
    described = json.loads(command("topic", "describe", "t", "--json", "-b", servers).out)
    assert sum(one["records"] for one in described[0]["partition_details"]) == sent > 0


@pytest.mark.slow
def test_one_that_is_down_is_started_first(command: Command, three: Path) -> None:
    assert command("cluster", "kill", "2", "--dir", str(three)).code == Exit.OK
    done = command("cluster", "restart", "--all", "--dir", str(three))
    assert done.code == Exit.OK, done.err
    assert re.match(r"1 broker that did not run: up after .*\nbroker 1: .*\nbroker 3: .*\nall 3", done.out)


def test_the_next_is_not_stopped_while_something_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admin, "describe_cluster", lambda admin: (_ for _ in ()).throw(RequestTimedOutError("silence")))
    stopped: list[LocalBroker] = []
    monkeypatch.setattr(LocalCluster, "stop", lambda cluster, brokers: stopped.extend(brokers))
    monkeypatch.setattr(LocalCluster, "start", lambda cluster, brokers: 0.0)
    with pytest.raises(
        rolling_restart.CommandError, match="not in sync after 0 s: silence; nothing was restarted"
    ) as e:
        rolling_restart.restart_all(LocalCluster(tmp_path, [LocalBroker(1, 19_000)]), 0)
    assert e.value.exit_code is Exit.TIMEOUT
    assert stopped == []
