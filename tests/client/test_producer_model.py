"""Some seeds of the producer's model, and that it finds the faults it is there for."""

from __future__ import annotations

import pytest

from .producer_model import kinds
from .producer_mutations import (
    believe_a_refusal_after_a_lost_answer,
    forget_partitions_under_the_same_epoch,
    found_within,
    lose_numbers_of_what_cannot_be_encoded,
    renumber_what_is_open,
    rewind_before_the_outcome_is_known,
    silenced,
    take_late_records,
)

SEEDS = {"plain": 60, "idempotent": 100, "transactional": 150, "asyncio": 40, "once": 30, "once_asyncio": 10}
#: So many of them are quick tests.
QUICK = {"plain": 15, "idempotent": 30, "transactional": 40, "asyncio": 20, "once": 20, "once_asyncio": 10}

ONCE_FAILED = [("idempotent", 20214), ("once", 22040)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), ONCE_FAILED)
def test_a_seed_that_failed_before_passes(kind: str, seed: int) -> None:
    with silenced():
        kinds()[kind](seed)


@pytest.mark.parametrize("kind", list(SEEDS))
def test_no_seed_loses_doubles_or_leaves_anything_waiting(kind: str) -> None:
    _play(kind, range(QUICK[kind]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in SEEDS if SEEDS[kind] > QUICK[kind]])
def test_no_further_seed_loses_doubles_or_leaves_anything_waiting(kind: str) -> None:
    _play(kind, range(QUICK[kind], SEEDS[kind]))


def _play(kind: str, seeds: range) -> None:
    run = kinds()[kind]
    with silenced():
        for seed in seeds:
            run(seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutation", "kind"),
    [
        (renumber_what_is_open, "idempotent"),
        (lose_numbers_of_what_cannot_be_encoded, "idempotent"),
        (forget_partitions_under_the_same_epoch, "idempotent"),
        (take_late_records, "transactional"),
        (believe_a_refusal_after_a_lost_answer, "transactional"),
        (rewind_before_the_outcome_is_known, "once"),
    ],
)
def test_the_model_finds_a_fault_that_is_put_in(mutation: object, kind: str) -> None:
    with silenced():
        assert found_within(mutation, kind, 200) is not None  # type: ignore[arg-type]  # it is one of them
