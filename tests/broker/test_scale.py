"""3,000 partitions and 500 connections on one broker: it starts, answers, and rests when nothing happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import scale


@pytest.mark.slow
def test_many_partitions_and_connections_are_no_burden(tmp_path: Path) -> None:
    """Bounds are several times what was measured (see bench/scale.py); in processor time, as machines are shared."""
    figures = scale.run(tmp_path / "data", 3_000, 500, idle_s=3.0).rows
    assert figures["making them, CPU s"] < 6
    assert figures["start after kill -9, CPU s"] < 10
    assert figures["start after a clean stop, CPU s"] < 10
    assert figures["Metadata for all, CPU s"] < 0.1
    assert figures["memory, 500 connections, MB"] < 300
    # A few timers a second, whatever the number of partitions and connections.
    assert figures["idle wake-ups, per s"] < 20
    assert figures["idle CPU, %"] < 10
