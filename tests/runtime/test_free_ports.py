"""Ports that a server still finds free when it is started again."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headrace.runtime import free_ports as module
from headrace.runtime.free_ports import free_ports


def test_they_are_free_differ_and_are_none_that_connections_are_given() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    first_of_connections = module._first_of_connections()
    if first_of_connections >= module._FIRST + module._FEWEST:
        assert max(ports) < first_of_connections
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_without_such_ports_the_system_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "range"
    given.write_text("1024\t65535\n")
    for path in (given, tmp_path / "missing"):
        monkeypatch.setattr(module, "_RANGE_OF_CONNECTIONS", path)
        assert len(set(free_ports(3))) == 3
