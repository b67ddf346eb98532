"""Where a conversation is told: under the name of its API key, for any of its versions."""

from __future__ import annotations

from collections.abc import Callable

from ..world import World

Scenario = Callable[[World, int], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    assert function.__name__ not in SCENARIOS, f"{function.__name__} is told twice"
    SCENARIOS[function.__name__] = function
    return function
