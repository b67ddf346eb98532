"""Transactions whose coordinator, partitions and offsets are at different brokers, some of which go away."""

from __future__ import annotations

import pytest

from .cluster_transactions import Outcome, play


@pytest.mark.slow
@pytest.mark.parametrize("transaction_version", [0, 2])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_transaction_has_one_outcome_in_all_partitions(seed: int, transaction_version: int) -> None:
    writers = play(seed, transaction_version)
    outcomes = [transaction.outcome for writer in writers for transaction in writer.transactions]
    assert outcomes.count(Outcome.COMMITTED) > 20
    assert outcomes.count(Outcome.ABORTED) > 5
