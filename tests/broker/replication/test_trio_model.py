"""Three whole brokers under random faults: a few seeds of `trio_model.py`."""

from __future__ import annotations

import pytest
from tests.broker.replication.trio_model import run


def test_nothing_acknowledged_is_lost_by_faults_between_brokers() -> None:
    run(0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_nothing_acknowledged_is_lost_under_more_seeds(seed: int) -> None:
    run(seed)
