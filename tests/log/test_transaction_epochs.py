"""A transaction of a newer epoch cannot begin in a partition where the older one has not ended (KIP-890)."""

from __future__ import annotations

import pytest

from headrace.errors import InvalidTxnStateError
from headrace.log.producer_state import LogProducers, Origin
from headrace.records import Batch, BatchHeader, build_batch
from headrace.topics import TopicPartition

PRODUCER_ID = 7


def batch(epoch: int, sequence: int = 0) -> BatchHeader:
    made = build_batch(
        [(1_700_000_000_000, b"k", b"v", ())],
        producer_id=PRODUCER_ID,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    return Batch(made).header()


def test_an_open_transaction_of_an_older_epoch_does_not_vouch_for_a_newer_one() -> None:
    state = LogProducers(TopicPartition("t", 0))
    guard = state.start_verification(PRODUCER_ID, 0, 3, 0)
    first = batch(3)
    state.check(first, Origin.CLIENT, 0, guard)
    state.apply_batch(first, 0)
    assert state.start_verification(PRODUCER_ID, 1, 3, 0) is None
    newer = state.start_verification(PRODUCER_ID, 0, 4, 0)
    assert newer is not None
    for verification in (newer, None):
        with pytest.raises(InvalidTxnStateError):
            state.check(batch(4), Origin.CLIENT, 1, verification)


@pytest.mark.parametrize("other", [2, 5], ids=["a producer that was replaced", "one that makes up its epoch"])
def test_who_asks_with_another_epoch_does_not_get_in_the_way_of_an_open_transaction(other: int) -> None:
    """It is refused by the coordinator, but what it asked about is not forgotten before the transaction ends."""
    state = LogProducers(TopicPartition("t", 0))
    guard = state.start_verification(PRODUCER_ID, 0, 4, 0)
    state.check(batch(4), Origin.CLIENT, 0, guard)
    state.apply_batch(batch(4), 0)
    assert state.start_verification(PRODUCER_ID, 0, other, 0) is not None
    state.check(batch(4, sequence=1), Origin.CLIENT, 1, None)
