"""Every fetch is answered when it is due, with what it has to bring (`fetch_model.py` has the model)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.waiting import eventually

from . import fetch_model, fetch_stress


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 3, 6, 218, 275])
def test_fetches_are_answered_in_time_and_with_the_right_records(failures: list[str], seed: int) -> None:
    assert fetch_model.run(seed)["fetches"] >= fetch_model.FETCHES_PER_CONSUMER // 2
    assert failures == []


@pytest.mark.slow
def test_fetches_over_real_sockets_bring_the_right_records(failures: list[str], tmp_path: Path) -> None:
    with fetch_stress.stressed(tmp_path / "data", seed=1) as stress:
        eventually(lambda: stress.over.is_set() or stress.counts["fetched"] > 500)
    assert stress.problems == []
    assert failures == []
