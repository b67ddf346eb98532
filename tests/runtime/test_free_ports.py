"""Ports that a server still finds free when it is started again."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headrace.runtime.free_ports import free_ports
from headrace.runtime.system import first_port_of_connections


def test_they_are_free_differ_and_are_none_that_connections_are_given() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    first_of_connections = first_port_of_connections()
    if first_of_connections >= 11_000:
        assert max(ports) < first_of_connections
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


@pytest.mark.parametrize("first", [0, 1024])
def test_without_such_ports_the_system_chooses(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.runtime.free_ports.first_port_of_connections", lambda: first)
    assert len(set(free_ports(3))) == 3


def test_a_system_that_does_not_say_which_ports_connections_are_given(tmp_path: Path) -> None:
    given = tmp_path / "range"
    assert first_port_of_connections(given) == 0
    given.write_text("")
    assert first_port_of_connections(given) == 0
