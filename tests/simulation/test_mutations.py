"""It can fail: mistakes that Kafka made once are found by whole clusters under a seed."""

from __future__ import annotations

import pytest
from tests.simulation.mutation import Mutation
from tests.simulation.mutations import MUTATIONS, find

_QUICK = [mutation for mutation in MUTATIONS if mutation.is_quick]


@pytest.mark.slow
@pytest.mark.parametrize("mutation", _QUICK, ids=lambda mutation: mutation.name)
def test_a_mistake_is_found(mutation: Mutation) -> None:
    assert find(mutation, range(mutation.seeds)) is not None


@pytest.mark.long
@pytest.mark.parametrize(
    "mutation",
    [mutation for mutation in MUTATIONS if not mutation.is_quick and mutation.seeds],
    ids=lambda mutation: mutation.name,
)
@pytest.mark.timeout(1800)
def test_a_rarer_mistake_is_found(mutation: Mutation) -> None:
    assert find(mutation, range(mutation.seeds)) is not None
