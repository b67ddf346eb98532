"""What a member of a plain group may be given, what its group may have committed in the end, and who notices."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace.testing.simulated.checks import Contents, check_committed, not_given
from headrace.testing.simulated.handled import not_committed
from headrace.testing.simulated.history import BrokenError, CommitCall, History, ParallelCommit
from headrace.testing.simulated.shares import MemberShare
from headrace.testing.simulated.variants import KEYED
from headrace.topics import TopicPartition

_PARTITION = TopicPartition("t", 0)


def _history(*commits: CommitCall) -> History:
    history = History()
    history.group_commits["g", _PARTITION] = list(commits)
    return history


def _share(history: History) -> MemberShare:
    share = MemberShare(cast("Any", None), history, "g", "member")
    share.assigned([_PARTITION])
    return share


def test_a_member_is_given_what_was_not_committed_in_order_with_gaps() -> None:
    share = _share(_history(CommitCall(3, 1, 2), CommitCall(9, 3)))
    for offset in (3, 4, 8):
        share.given(_PARTITION, offset)


def test_a_member_is_not_given_what_its_group_has_committed() -> None:
    with pytest.raises(BrokenError, match="all before 3 was committed"):
        _share(_history(CommitCall(3, 1, 2))).given(_PARTITION, 2)


def test_a_member_is_not_given_a_record_again_while_it_has_the_partition() -> None:
    share = _share(_history())
    share.given(_PARTITION, 5)
    with pytest.raises(BrokenError, match="given to it already"):
        share.given(_PARTITION, 5)
    # When the partition comes again, what was not committed does, too.
    share.gone([_PARTITION])
    share.assigned([_PARTITION])
    share.given(_PARTITION, 5)


def test_a_member_is_given_nothing_of_a_partition_that_it_let_go() -> None:
    share = _share(_history())
    share.gone([_PARTITION])
    with pytest.raises(BrokenError, match="without having the partition"):
        share.given(_PARTITION, 0)


def test_the_last_commit_may_be_one_without_an_answer() -> None:
    history = _history(CommitCall(3, 1, 2), CommitCall(9, 3))
    for offset in (3, 9):
        check_committed(history, "g", {_PARTITION: offset})


@pytest.mark.parametrize("told", [{}, {_PARTITION: 2}, {_PARTITION: 7}])
def test_a_group_has_what_it_committed(told: dict[TopicPartition, int]) -> None:
    history = _history(CommitCall(2, 1, 2), CommitCall(3, 3, 4), CommitCall(9, 5))
    with pytest.raises(BrokenError, match="g had committed 3, and in the end"):
        check_committed(history, "g", told)


def test_a_reader_that_was_given_nothing_at_all_of_a_partition_is_noticed() -> None:
    history = History()
    history.reads_from("reader", _PARTITION, True)
    assert not_given(history, {}, ()) is None
    found = {_PARTITION: Contents(1, {0: ("w:0", 1)})}
    assert not_given(history, found, ()) == "t-0: reader was not given offset 0"


def test_parallel_consumers_that_stay_commit_what_they_have_finished() -> None:
    partition = TopicPartition(KEYED, 0)
    found = {partition: Contents(3, {0: ("w:0:a", 1), 2: ("w:2:a", 1)})}
    assert not_committed(found, [ParallelCommit(partition, 3, "", 1)]) is None
    assert not_committed(found, [ParallelCommit(partition, 2, "", 1)]) is not None
    assert not_committed(found, []) is not None
