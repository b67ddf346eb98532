"""A broker's process that is killed under load loses nothing it has acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import crash_kill


@pytest.mark.slow
def test_what_was_acknowledged_survives_kills_once_and_in_order(tmp_path: Path) -> None:
    outcome = crash_kill.run(tmp_path / "data", kills=6, seed=1)
    assert outcome.problems == []
    assert outcome.refused == 0
    assert outcome.found == outcome.sent
