"""Causes, moves and flapping, told from generations as any Kafka keeps them."""

from __future__ import annotations

from dataclasses import replace

from headrace.client.history import CauseKind, GroupLog, timeline
from headrace.client.history.reading import Generation, Member, Owned
from headrace.topics import TopicPartition

SESSION_MS, POLL_MS = 45_000, 300_000
T = [TopicPartition("t", index) for index in range(6)]


def member(name: str, *partitions: int, number: int = 1, topics: tuple[str, ...] = ("t",)) -> Member:
    return Member(
        f"{name}-{number}", name, "host", None, topics, frozenset(T[p] for p in partitions), SESSION_MS, POLL_MS
    )


def generation(number: int, at_s: float, *members: Member) -> Generation:
    return Generation(number, int(at_s * 1000), {one.member_id: one for one in members}, "range")


def kinds(log: GroupLog) -> list[list[CauseKind]]:
    return [[cause.kind for cause in one.causes] for one in timeline(log).rebalances]


def test_a_member_that_committed_until_the_end_left_and_a_silent_one_was_lost() -> None:
    both = generation(1, 0, member("a", 0, 1, 2), member("b", 3, 4, 5))
    alone = generation(2, 100, member("a", 0, 1, 2, 3, 4, 5))
    left = GroupLog("g", generations=[both, alone], commits={T[3]: [98_000]})
    assert kinds(left)[1] == [CauseKind.LEFT]
    silent = GroupLog("g", generations=[both, alone], commits={T[3]: [54_000]})
    assert kinds(silent)[1] == [CauseKind.SESSION_OVER]
    assert "46 s" in timeline(silent).rebalances[1].causes[0].text
    assert timeline(silent).rebalances[1].idle_ms == {T[3]: 46_000, T[4]: 100_000, T[5]: 100_000}
    unknown = GroupLog("g", generations=[both, alone])
    assert kinds(unknown)[1] == [CauseKind.GONE], "who never commits cannot be told"


def test_a_member_that_did_not_poll_is_told_by_its_own_time_out() -> None:
    both = generation(1, 0, member("a", 0, 1, 2), member("b", 3, 4, 5))
    without = generation(2, 400, member("a", 0, 1, 2, 3, 4, 5))
    log = GroupLog("g", generations=[both, without], commits={T[3]: [95_000]})
    assert kinds(log)[1] == [CauseKind.POLL_TOO_LATE]


def test_who_comes_back_with_another_id_was_restarted() -> None:
    before = generation(1, 0, member("a", 0, 1, 2), member("b", 3, 4, 5))
    after = generation(2, 50, member("a", 0, 1, 2), member("b", 3, 4, 5, number=2))
    log = GroupLog("g", generations=[before, after], commits={T[3]: [49_000]})
    assert kinds(log)[1] == [CauseKind.RESTARTED]
    assert timeline(log).rebalances[1].moves == [], "the partitions are with the same client"


def test_subscriptions_partitions_and_second_steps_are_told_apart() -> None:
    first = generation(1, 0, member("a", 0, 1), member("b", 2))
    wider = generation(2, 10, member("a", 0, 1, topics=("t", "u")), member("b", 2))
    larger = generation(3, 20, member("a", 0, 1, topics=("t", "u")), member("b", 2, 3))
    taken = generation(4, 30, member("a", 0, topics=("t", "u")), member("b", 2, 3))
    given = generation(5, 31, member("a", 0, topics=("t", "u")), member("b", 1, 2, 3))
    same = generation(6, 40, member("a", 0, topics=("t", "u")), member("b", 1, 2, 3))
    assert kinds(GroupLog("g", generations=[first, wider, larger, taken, given, same])) == [
        [CauseKind.FIRST],
        [CauseKind.SUBSCRIPTION],
        [CauseKind.PARTITIONS],
        [CauseKind.HANDED_OVER],
        [CauseKind.HANDED_OVER],
        [CauseKind.REJOINED],
    ]


def test_a_generation_that_is_written_twice_is_told_once() -> None:
    one = generation(1, 0, member("a", 0))
    assert len(timeline(GroupLog("g", generations=[one, replace(one, at_ms=5)])).rebalances) == 1


def test_a_client_that_goes_again_and_again_flaps() -> None:
    generations = []
    commits: list[int] = []
    for round_ in range(5):
        at = round_ * 700
        generations.append(generation(2 * round_, at, member("a", 0, 1, 2), member("b", 3, 4, 5, number=round_)))
        commits.append(at * 1000 + 1000)
        generations.append(generation(2 * round_ + 1, at + 400, member("a", 0, 1, 2, 3, 4, 5)))
    made = timeline(GroupLog("g", generations=generations, commits={T[3]: commits}))
    (flapping,) = made.flapping
    assert (flapping.client, flapping.times, flapping.kind) == ("b", 5, CauseKind.POLL_TOO_LATE)
    assert "max.poll.interval.ms" in flapping.advice


def test_what_the_coordinator_says_counts_before_what_could_be_inferred() -> None:
    before = generation(1, 0, member("a", 0, 1, 2), member("b", 3, 4, 5))
    words = ("member b-1 was not heard from for 45000 ms",)
    after = replace(generation(2, 100, member("a", 0, 1, 2, 3, 4, 5)), causes=words, began_ms=99_000)
    made = timeline(GroupLog("g", generations=[before, after]))
    assert made.is_exact
    assert made.rebalances[1].took_ms == 1_000
    assert made.rebalances[1].causes[0].kind is CauseKind.SESSION_OVER


def test_members_of_the_newer_protocol_go_over_one_by_one() -> None:
    first = generation(1, 0, member("a", 0, 1, 2, 3, 4, 5))
    second = generation(2, 10, member("a", 0, 1, 2), member("b", 3, 4, 5))
    half, rest = frozenset(T[:3]), frozenset(T[3:])
    owned = [
        Owned(0, "a-1", 1, frozenset(T)),
        Owned(12_000, "a-1", 2, half),
        Owned(12_500, "b-1", 2, rest),
    ]
    log = GroupLog("g", True, [first, second], owned)
    made = timeline(log).rebalances[1]
    assert made.took_ms == 2_500
    assert set(made.idle_ms.values()) == {500}
    assert [cause.kind for cause in made.causes] == [CauseKind.JOINED]
