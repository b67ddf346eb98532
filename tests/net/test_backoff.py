"""Waits between tries."""

from __future__ import annotations

import random

from headrace.net.backoff import Backoff


def test_backoff_doubles_with_jitter_and_never_passes_its_maximum() -> None:
    rng = random.Random(1)
    backoff = Backoff(50, 1000)
    for failures, middle in [(0, 50), (1, 100), (3, 400), (4, 800)]:
        waits = [backoff.wait_ms(failures, rng) for _ in range(200)]
        assert all(middle * 0.8 <= wait <= middle * 1.2 for wait in waits)
        assert max(waits) - min(waits) > middle * 0.1
    assert all(backoff.wait_ms(1000, rng) <= 1000 for _ in range(200))
    assert Backoff(100, 100).wait_ms(9, rng) == 100
