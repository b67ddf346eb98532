"""A few of the kills of `python -m tests.parallel.kills`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.parallel.kills import run_kills


@pytest.mark.slow
@pytest.mark.parametrize("model", ["pool", "window"])
def test_killed_at_random_nothing_is_lost_and_only_the_unfinished_is_repeated(
    address: str, tmp_path: Path, model: str
) -> None:
    run_kills(address, str(tmp_path / "handled"), kills=5, seed=3, model=model)
