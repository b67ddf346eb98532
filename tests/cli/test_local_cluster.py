"""The processes of a cluster on this machine: each is waited for when it ends, whoever ended it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import eventually

from headrace.cli import local_cluster
from headrace.cli.local_cluster import Health, LocalBroker, LocalCluster
from headrace.runtime.processes import ProcessInfo, process_info
from headrace.testing.zookeeper import ZooKeeperNotFoundError, find_jars

WAITS_FOR_A_SIGNAL = [sys.executable, "-c", "import signal; signal.pause()"]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(WAITS_FOR_A_SIGNAL) as process:
        local_cluster._CHILDREN[process.pid] = process
        yield process
        local_cluster._CHILDREN.pop(process.pid, None)
        process.kill()


def as_broker(process: subprocess.Popen[bytes]) -> LocalBroker:
    found = process_info(process.pid)
    assert found is not None
    return LocalBroker(1, 9092, process.pid, found.began)


def has_ended(pid: int) -> bool:
    """And nobody has waited for it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def test_a_broker_that_ends_between_two_looks_at_it_is_waited_for(
    child: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = as_broker(child)
    wait, send = child.wait, os.kill
    sent: list[int] = []

    def end() -> None:
        if sent:
            send(child.pid, signal.SIGKILL)
            eventually(lambda: has_ended(child.pid))

    def look_later(pid: int) -> ProcessInfo | None:
        end()
        return process_info(pid)

    def wait_later(timeout: float | None = None) -> int:
        end()
        return wait(timeout)

    monkeypatch.setattr(local_cluster, "process_info", look_later)
    monkeypatch.setattr(child, "wait", wait_later)
    monkeypatch.setattr(local_cluster.os, "kill", lambda pid, number: sent.append(number))
    LocalCluster(tmp_path, [broker]).kill(broker)
    assert sent == [signal.SIGKILL]
    assert child.returncode == -signal.SIGKILL
    assert child.pid not in local_cluster._CHILDREN


def test_a_broker_that_others_have_killed_is_waited_for_when_the_cluster_is_stopped(
    child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    broker = as_broker(child)
    os.kill(child.pid, signal.SIGKILL)
    eventually(lambda: broker.health is Health.DEAD)
    assert LocalCluster(tmp_path, [broker]).stop([broker]) == []
    assert child.returncode == -signal.SIGKILL
    assert child.pid not in local_cluster._CHILDREN


def test_one_that_does_not_stop_is_killed_and_waited_for(
    child: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = as_broker(child)
    cluster = LocalCluster(tmp_path, [broker])
    send = LocalCluster.signal

    def deaf(cluster: LocalCluster, broker: LocalBroker, number: signal.Signals) -> None:
        if number is signal.SIGKILL:
            monkeypatch.setattr(local_cluster, "_STOP_TIMEOUT_S", 60.0)
            send(cluster, broker, number)

    monkeypatch.setattr(LocalCluster, "signal", deaf)
    monkeypatch.setattr(local_cluster, "_STOP_TIMEOUT_S", 0.01)
    assert cluster.stop([broker]) == [1]
    assert child.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_zookeeper_that_was_started_with_the_brokers_is_waited_for(tmp_path: Path) -> None:
    try:
        find_jars()
    except ZooKeeperNotFoundError as error:
        pytest.skip(str(error))
    cluster = LocalCluster(tmp_path)
    cluster.start_zookeeper()
    gc.collect()  # it runs on, and that is no mistake
    cluster.stop_zookeeper()
    assert process_info(cluster.zookeeper_pid) is None


def test_a_broker_that_is_paused_is_not_asked(child: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """It takes connections, and never answers."""
    paused, ours = as_broker(child), process_info(os.getpid())
    assert ours is not None
    cluster = LocalCluster(tmp_path, [paused, LocalBroker(2, 9093, os.getpid(), ours.began)])
    os.kill(child.pid, signal.SIGSTOP)
    eventually(lambda: paused.health is Health.PAUSED)
    assert cluster.client()["bootstrap.servers"] == "127.0.0.1:9093"
    assert cluster.bootstrap == "127.0.0.1:9092,127.0.0.1:9093"
