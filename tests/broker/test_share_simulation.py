"""A few seeds of `share_simulation`, whole and with mistakes planted."""

from __future__ import annotations

import pytest

from . import share_simulation

pytestmark = pytest.mark.slow


def test_what_was_accepted_stays_so_and_nothing_is_left_while_brokers_come_and_go() -> None:
    for seed in (101, 102):
        history = share_simulation.play(seed)
        assert len(history.accepted) > 100


@pytest.mark.parametrize("mistake", share_simulation.MISTAKES)
def test_a_mistake_is_found(mistake: str) -> None:
    for seed in range(1, 4):
        with share_simulation.MISTAKES[mistake]():
            try:
                share_simulation.play(seed)
            except share_simulation.BrokenPromiseError:
                return
    pytest.fail(f"{mistake} was not found")
