"""Where the brokers of a cluster on one machine listen."""

from __future__ import annotations

import socket
import threading

import pytest

from headrace.cli import local_cluster
from headrace.cli.local_cluster import LocalBroker
from headrace.cli.output import CommandError


def test_a_port_that_a_killed_broker_lets_go_of_in_a_moment_is_waited_for() -> None:
    held = socket.create_server(("127.0.0.1", 0))
    letting_go = threading.Timer(0.1, held.close)
    letting_go.start()
    local_cluster._check_is_free(LocalBroker(1, held.getsockname()[1]))
    letting_go.join()
    assert held.fileno() == -1


def test_a_port_that_stays_taken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cluster, "_PORT_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(CommandError, match=f"broker 1 cannot listen on 127.0.0.1:{port}"):
            local_cluster._check_is_free(LocalBroker(1, port))
