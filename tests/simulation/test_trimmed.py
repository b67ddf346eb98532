"""The check of topics of which brokers remove records: it can fail."""

from __future__ import annotations

import pytest

from headrace.testing.simulated.checks import Contents, check_trimmed
from headrace.testing.simulated.history import BrokenError, History
from headrace.topics import TopicPartition

COMPACTED, RETAINED = TopicPartition("compacted", 0), TopicPartition("retained", 0)
VALUES = ["a:00000:", "b:00001:", "a:00002:", "b:00003:"]


def _history(partition: TopicPartition) -> History:
    history = History()
    history.sent[partition.topic] = set(VALUES)
    history.acknowledged[partition] = dict(enumerate(VALUES))
    return history


def _kept(*offsets: int) -> Contents:
    return Contents(len(VALUES), {offset: (VALUES[offset], 1) for offset in offsets})


@pytest.mark.parametrize("other", [(0, 1, 2, 3), (2, 3), (1, 2, 3)])
def test_what_a_key_had_before_may_be_gone_here_and_there_still(other: tuple[int, ...]) -> None:
    found = {1: _kept(2, 3), 2: _kept(*other)}
    check_trimmed(_history(COMPACTED), COMPACTED, found, {1: 0, 2: 0})


def test_the_newest_record_of_a_key_is_never_gone() -> None:
    with pytest.raises(BrokenError, match="acknowledged at 3"):
        check_trimmed(_history(COMPACTED), COMPACTED, {1: _kept(1, 2)}, {1: 0})
    history = _history(COMPACTED)
    del history.acknowledged[COMPACTED][3]
    with pytest.raises(BrokenError, match="differ"):
        check_trimmed(history, COMPACTED, {1: _kept(2, 3), 2: _kept(1, 2)}, {1: 0, 2: 0})


def test_the_beginning_may_be_gone_earlier_here_than_there() -> None:
    check_trimmed(_history(RETAINED), RETAINED, {1: _kept(1, 2, 3), 2: _kept(2, 3)}, {1: 1, 2: 2})
    check_trimmed(_history(RETAINED), RETAINED, {1: _kept()}, {1: 4})


def test_nothing_but_the_beginning_is_ever_gone() -> None:
    with pytest.raises(BrokenError, match="acknowledged at 2"):
        check_trimmed(_history(RETAINED), RETAINED, {1: _kept(1)}, {1: 1})
    history = _history(RETAINED)
    del history.acknowledged[RETAINED][3]
    with pytest.raises(BrokenError, match="differ"):
        check_trimmed(history, RETAINED, {1: _kept(2, 3), 2: _kept(2)}, {1: 2, 2: 2})
