"""What a parallel consumer may do with its share of a group, and what is noticed when it does something else."""

from __future__ import annotations

import pytest

from headrace.client.consumer.records import ConsumerGroupMetadata
from headrace.client.offsets import OffsetAndMetadata
from headrace.parallel.finished import encode_finished
from headrace.testing.simulated.history import BrokenError, Handled, History, ParallelCommit
from headrace.testing.simulated.holdings import HandlerCall, Holdings
from headrace.testing.simulated.variants import DRAIN_S, KEYED, STALL_S, VARIANTS
from headrace.topics import TopicPartition

_PARTITION = TopicPartition(KEYED, 0)
_WORKERS = 3


class _Clock:
    """A clock that is set."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class _Member:
    """A member that was given one partition, from offset 2 on, where 4 is finished."""

    def __init__(self, variant: str = "pool by key", *, is_told: bool = True) -> None:
        self.handled = Handled()
        self.clock = _Clock()
        self.holdings = Holdings("member", VARIANTS[variant], _WORKERS, self.handled, self.clock)  # type: ignore[arg-type]  # it asks for nothing else
        self.holdings.assigned([_PARTITION])
        if is_told:
            note, _ = encode_finished(2, [(4, 5)])
            self.holdings.told({_PARTITION: OffsetAndMetadata(2, note, None)})

    def begin(self, offset: int, key: str = "a", rounds: int = 0) -> HandlerCall:
        return self.holdings.begin(_PARTITION, offset, (f"w:{offset}:{key}", rounds))

    def commit(self, offset: int) -> None:
        self.holdings.commits(ParallelCommit(_PARTITION, offset, "", 1))

    def let_go(self, after_s: float = 0.0) -> None:
        began_s = self.holdings.leaving([_PARTITION])
        self.clock.now_s += after_s
        self.holdings.revoked([_PARTITION], began_s)

    @property
    def broken(self) -> str:
        return "; ".join(self.handled.broken)


def test_what_is_handled_in_order_and_committed_is_no_mistake() -> None:
    member = _Member()
    for offset in (2, 5):
        member.holdings.succeeded(member.begin(offset))
    # Another key, at the same time.
    one, two = member.begin(6), member.begin(7, "b")
    member.holdings.succeeded(one)
    member.holdings.succeeded(two)
    member.commit(8)
    member.let_go()
    assert not member.broken


@pytest.mark.parametrize("offset", [1, 4])
def test_a_record_that_was_finished_when_the_partition_came_is_not_begun(offset: int) -> None:
    member = _Member()
    member.begin(offset)
    assert "was finished when the partition came" in member.broken


def test_nothing_is_begun_before_it_is_known_what_is_committed() -> None:
    member = _Member(is_told=False)
    member.begin(0)
    assert "before it was known what is committed" in member.broken


def test_a_record_that_was_handled_is_not_begun_again_while_the_partition_stays() -> None:
    member = _Member()
    member.holdings.succeeded(member.begin(2))
    member.begin(2)
    assert "once more" in member.broken


def test_a_record_that_was_handled_may_be_begun_by_the_next_who_has_the_partition() -> None:
    member = _Member()
    member.holdings.succeeded(member.begin(2))
    member.holdings.lost([_PARTITION])
    member.holdings.assigned([_PARTITION])
    member.holdings.told({_PARTITION: None})
    member.begin(2)
    assert not member.broken


def test_tries_are_counted_and_waited_for() -> None:
    member = _Member("pool by key, retry topic")
    member.holdings.failed(member.begin(2))
    member.clock.now_s += 0.01
    member.holdings.failed(member.begin(2))
    assert not member.broken
    member.clock.now_s += 1.0
    member.begin(2)
    assert "after 2 tries" in member.broken


def test_a_try_before_it_is_due_is_noticed() -> None:
    member = _Member()
    member.holdings.failed(member.begin(2))
    member.clock.now_s += 0.009
    member.begin(2)
    assert "0.001 s before its next try was due" in member.broken


def test_a_handler_that_hangs_is_not_given_up_too_early() -> None:
    member = _Member("window by key")
    member.holdings.hangs(member.begin(2))
    member.clock.now_s += STALL_S
    member.holdings.hangs(member.begin(2))
    assert not member.broken
    member = _Member("window by key")
    member.holdings.hangs(member.begin(2))
    member.clock.now_s += STALL_S / 2
    member.begin(2)
    assert "before its next try was due" in member.broken


def test_two_of_a_key_at_a_time_are_noticed_and_so_are_too_many_of_others() -> None:
    member = _Member()
    member.begin(2)
    member.begin(3)
    assert "while 'w:2:a' at 2 was being handled" in member.broken
    member = _Member()
    for offset, key in enumerate("abcd", 5):
        member.begin(offset, key)
    assert "as one of 4 at a time, of at most 3" in member.broken


def test_a_partition_that_is_not_its_any_more_is_left_alone() -> None:
    member = _Member()
    member.holdings.leaving([_PARTITION])
    member.begin(2)
    assert "not its any more" in member.broken
    member = _Member()
    member.holdings.lost([_PARTITION])
    member.begin(2)
    assert "not its any more" in member.broken


def test_a_partition_is_drained_before_it_is_let_go_unless_that_takes_too_long() -> None:
    member = _Member()
    member.begin(2)
    member.let_go()
    assert "was let go while 2 of it was being handled" in member.broken
    member = _Member()
    member.begin(2)
    member.let_go(DRAIN_S)
    assert not member.broken


def test_what_is_finished_is_committed_before_its_partition_is_let_go() -> None:
    member = _Member()
    member.holdings.succeeded(member.begin(2))
    member.let_go()
    assert "was let go with a commit of 2, though 2 was finished" in member.broken
    for attribute in ("is_killed", "is_in_doubt"):
        member = _Member()
        setattr(member.holdings, attribute, True)
        member.holdings.succeeded(member.begin(2))
        member.let_go()
        assert not member.broken


def test_a_partition_has_one_owner_in_a_generation() -> None:
    history = History()
    one, two = (ConsumerGroupMetadata("g", 1, member) for member in ("one", "two"))
    history.owns(one, [_PARTITION])
    history.owns(one, [_PARTITION])
    history.owns(ConsumerGroupMetadata("g", 2, "two"), [_PARTITION])
    with pytest.raises(BrokenError, match="one and two have it in generation 1"):
        history.owns(two, [_PARTITION])


def test_a_static_member_that_comes_back_has_what_it_had() -> None:
    history = History()
    for member in ("one", "two"):
        history.owns(ConsumerGroupMetadata("g", 1, member, "instance"), [_PARTITION])


def test_a_record_is_sent_on_once_unless_that_fails() -> None:
    member = _Member()
    call = member.begin(2)
    member.holdings.failed(call)
    member.holdings.sends(call.piece)
    member.holdings.not_sent(call.piece)
    member.holdings.sends(call.piece)
    assert not member.broken
    member.holdings.sends(call.piece)
    assert "sent on from round 0 once more than it was begun (1 times)" in member.broken


def test_a_record_that_came_again_may_be_sent_on_again() -> None:
    member = _Member()
    member.holdings.sends(member.begin(2).piece)
    member.holdings.lost([_PARTITION])
    member.holdings.assigned([_PARTITION])
    member.holdings.told({_PARTITION: None})
    member.holdings.sends(member.begin(2).piece)
    assert not member.broken


def test_a_record_that_the_retry_topic_has_twice_is_sent_on_for_each() -> None:
    member = _Member()
    for offset in (2, 3):
        member.holdings.failed(call := member.holdings.begin(_PARTITION, offset, ("w:2:a", 1)))
        member.holdings.sends(call.piece)
    assert not member.broken


def test_nothing_is_sent_on_that_was_never_begun() -> None:
    member = _Member()
    member.holdings.sends(("w:2:a", 0))
    assert "once more than it was begun (0 times)" in member.broken
