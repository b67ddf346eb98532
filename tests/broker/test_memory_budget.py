"""What a broker's memory is shared out to."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from headrace.broker.memory import MemoryBudget
from headrace.cluster.broker_config import BrokerConfig

MIB = 1024 * 1024


@pytest.mark.parametrize("whole", [256 * MIB, 1024 * MIB, 64 * 1024 * MIB])
def test_all_shares_together_fit_the_budget(whole: int) -> None:
    budget = MemoryBudget.of(BrokerConfig.parse({"headrace.memory.max": str(whole)}))
    assert all(share > 0 for share in astuple(budget))
    assert sum(astuple(budget)) <= whole


def test_requests_may_be_given_their_own_bound() -> None:
    budget = MemoryBudget.of(BrokerConfig.parse({"queued.max.request.bytes": str(8 * MIB)}))
    assert (budget.requests, budget.spares) == (8 * MIB, MIB)
    assert budget.answers == MemoryBudget.of(BrokerConfig.parse({})).answers
