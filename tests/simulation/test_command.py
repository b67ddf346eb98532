"""`headrace simulate`, without clusters."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.testing.simulated import command
from headrace.testing.simulated.command import Played, play_many


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_every_seed_is_played_once(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(seed: int) -> Played:
        return Played(seed, None, 1, 1.0, {}, {})

    def pool(workers: int, **options: Any) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(workers)

    monkeypatch.setattr(command, "play_seed", play)
    monkeypatch.setattr(command, "ProcessPoolExecutor", pool)
    assert sorted(played.seed for played in play_many(5, 20, None, jobs)) == list(range(5, 25))
