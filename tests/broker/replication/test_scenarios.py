"""What went wrong in Kafka once, step by step: each of these lost records, or mixed them up, before it was mended."""

from __future__ import annotations

import pytest
from tests.broker.replication.model_cluster import Cluster
from tests.broker.replication.model_log import ModelLog, Record
from tests.broker.replication.model_node import CONTROLLER, LAG_MS, PARTITION, Fetch, Message, Node, ViolationError

from headrace.broker.replication.follower import Act, Answer, Position, out_of_range, position, step
from headrace.error_codes import ErrorCode


def calm(*, nodes: int = 3, min_isr: int = 1, faults: frozenset[str] = frozenset()) -> Cluster:
    """A cluster in which nothing is queued, and nothing happens by chance. The last node leads."""
    return Cluster(lambda low, high: high, nodes=nodes, min_isr=min_isr, faults=faults)


def by_role(cluster: Cluster) -> list[Node]:
    """The leader first, then the followers in the order of the replicas."""
    return [cluster.nodes[node_id] for node_id in cluster.partition.replicas]


def deliver_all(cluster: Cluster, *, but_to: int = -1) -> None:
    """Everything under way arrives, and what follows from it; what is for `but_to` is lost."""
    while cluster.messages:
        message = cluster.messages.pop(0)
        if message.target != but_to:
            cluster.deliver(message)
    cluster.check()


def copy_all(cluster: Cluster, *followers: Node, rounds: int = 3) -> None:
    for _ in range(rounds):
        for node in followers:
            node.fetch(cluster.topic_id)
        deliver_all(cluster)


def log_of(cluster: Cluster, node: Node) -> ModelLog:
    return node.logs[cluster.topic_id]


def is_acknowledged(cluster: Cluster, value: int) -> bool:
    return value in cluster.acknowledged.get(cluster.topic_id, {})


def _lose_leaders_one_after_the_other(faults: frozenset[str]) -> None:
    cluster = calm(faults=faults)
    first, second, third = by_role(cluster)
    topic_id = cluster.topic_id
    first.produce(topic_id, 1)
    first.produce(topic_id, 2)
    copy_all(cluster, second, third, rounds=1)
    for node in (second, third):
        node.fetch(topic_id)
        deliver_all(cluster, but_to=node.id)  # the answer that tells the new watermark is lost
    assert is_acknowledged(cluster, 2)
    assert log_of(cluster, third).high_watermark == 0
    first.crash(power_loss=False)
    cluster.fence(first.id)
    cluster.spread_metadata()  # the third follows the second now
    cluster.check()
    second.crash(power_loss=False)
    cluster.fence(second.id)
    cluster.spread_metadata()
    cluster.check()
    assert third.replicas[topic_id].leader is not None
    assert [record.value for record in log_of(cluster, third).records] == [1, 2]


def test_a_follower_keeps_what_is_above_its_watermark_kip_101() -> None:
    _lose_leaders_one_after_the_other(frozenset())
    with pytest.raises(ViolationError):
        _lose_leaders_one_after_the_other(frozenset(["cut to the watermark"]))


def test_logs_do_not_differ_after_a_power_loss_of_all_kip_101() -> None:
    cluster = calm(nodes=2)
    first, second = by_role(cluster)
    topic_id = cluster.topic_id
    first.produce(topic_id, 1)
    copy_all(cluster, second)
    log_of(cluster, second).sync()
    first.produce(topic_id, 2)
    log_of(cluster, first).sync()
    copy_all(cluster, second)
    assert is_acknowledged(cluster, 2)
    first.crash(power_loss=True)
    cluster.fence(first.id)
    cluster.spread_metadata()
    second.crash(power_loss=True)  # the second, now the only one in sync, has lost what the first has
    second.restart()
    cluster.unfence(second.id)
    # Every replica in sync lost its power: a record may be lost by that, and it is said, but no two logs may differ.
    assert cluster.partition.leader == second.id
    assert cluster.partition.recovering
    cluster.spread_metadata()
    second.produce(topic_id, 3)
    first.restart()
    cluster.unfence(first.id)
    cluster.spread_metadata()
    assert [record.value for record in log_of(cluster, first).records] == [1, 2]
    copy_all(cluster, first)
    assert not cluster.partition.recovering
    assert log_of(cluster, first).records == log_of(cluster, second).records
    assert [record.value for record in log_of(cluster, first).records] == [1, 3]


def test_fast_elections_are_told_apart_by_several_rounds_kip_279() -> None:
    leader, follower = ModelLog(), ModelLog()
    leader.append([Record(1, n) for n in range(3)] + [Record(2, n) for n in range(3, 9)])
    leader.begin_epoch(4)
    follower.append([Record(1, n) for n in range(5)] + [Record(3, 10 + n) for n in range(3)])
    asked = position(b"t", 0, 4, follower)
    # The leader does not know epoch 3. Its epoch 2 ended behind all that the follower has, which says nothing.
    first = step(asked, asked, Answer(diverging_epoch=2, diverging_end_offset=9), follower)
    assert (first.act, first.offset) == (Act.TRUNCATE, 5)
    follower.truncate_to(first.offset)
    asked = position(b"t", 0, 4, follower)
    assert asked.last_fetched_epoch == 1
    second = step(asked, asked, Answer(diverging_epoch=1, diverging_end_offset=3), follower)
    assert (second.act, second.offset) == (Act.TRUNCATE, 3)


def test_a_stale_leader_is_refused_and_commits_nothing_kip_320() -> None:
    cluster = calm()
    stale, second, third = by_role(cluster)
    topic_id = cluster.topic_id
    stale.produce(topic_id, 1)
    copy_all(cluster, second, third)
    stale.paused = True
    cluster.fence(stale.id)
    cluster.spread_metadata()
    second.produce(topic_id, 2)
    copy_all(cluster, third)
    assert is_acknowledged(cluster, 2)
    stale.paused = False  # it has not heard of its end
    stale.produce(topic_id, 3)
    cluster.check()
    # A follower of the new epoch comes to it, as one with old addresses does: it gets nothing, and counts for nothing.
    asked = position(topic_id, PARTITION, 1, log_of(cluster, third))
    stale.was_fetched_from(third.id, Fetch(asked, third.broker_epoch, third.life, 99))
    answer: Message = cluster.messages.pop()
    assert answer.body.answer.error is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert not is_acknowledged(cluster, 3)
    cluster.spread_metadata()
    copy_all(cluster, stale)
    assert [record.value for record in log_of(cluster, stale).records] == [1, 2]
    # And the other way round: a follower of the old epoch is fenced by the new leader.
    second.was_fetched_from(third.id, Fetch(Position(topic_id, 0, 0, 2, 0, 0), third.broker_epoch, 0, 100))
    assert cluster.messages.pop().body.answer.error is ErrorCode.FENCED_LEADER_EPOCH


def test_a_fenced_replica_is_not_put_back_in_a_loop_kip_841() -> None:
    cluster = calm()
    leader, second, third = by_role(cluster)
    topic_id = cluster.topic_id
    state = leader.replicas[topic_id].leader
    assert state is not None
    cluster.fence(third.id)
    cluster.spread_metadata(second.id)
    # The leader knows of the new in-sync replicas only by the refusal: it has asked for an old partition epoch.
    state.progress[third.id].end_offset = -1
    third.fetch(topic_id)
    deliver_all(cluster)
    cluster.spread_metadata()
    assert state.term.isr == (leader.id, second.id)
    third.fetch(topic_id)
    deliver_all(cluster)
    assert state.pending is None
    assert cluster.partition.isr == (leader.id, second.id)
    cluster.unfence(third.id)
    cluster.spread_metadata()
    third.fetch(topic_id)
    deliver_all(cluster)
    assert set(cluster.partition.isr) == {1, 2, 3}


def test_a_refusal_of_an_ineligible_replica_brings_back_the_committed_state_kip_841() -> None:
    cluster = calm()
    leader, second, third = by_role(cluster)
    topic_id = cluster.topic_id
    cluster.fence(third.id)
    cluster.spread_metadata()
    cluster.unfence(third.id)
    cluster.spread_metadata()
    state = leader.replicas[topic_id].leader
    assert state is not None
    third.fetch(topic_id)
    cluster.deliver(cluster.messages.pop(0))  # the leader asks for it to be taken in
    assert third.id in state.maximal_isr
    cluster.fence(third.id)
    deliver_all(cluster)
    assert state.pending is None
    assert third.id not in state.maximal_isr
    leader.produce(topic_id, 1)
    copy_all(cluster, second)
    cluster.spread_metadata()
    copy_all(cluster, second)
    assert is_acknowledged(cluster, 1)


def test_a_late_proposal_lets_nobody_in_whom_the_leader_does_not_wait_for_any_more() -> None:
    """It was sent twice: the second was refused while the follower was fenced, the first arrives when it is not."""
    cluster = calm()
    leader, follower, other = by_role(cluster)
    topic_id = cluster.topic_id
    for node in (follower, other):
        cluster.fence(node.id)
    cluster.spread_metadata()
    assert cluster.partition.isr == (leader.id,)
    cluster.unfence(follower.id)
    cluster.spread_metadata()
    follower.fetch(topic_id)
    cluster.deliver(cluster.messages.pop(0))
    first = next(message for message in cluster.messages if message.target == CONTROLLER)
    cluster.messages.clear()
    leader.alter_timed_out()
    cluster.fence(follower.id)
    deliver_all(cluster)
    cluster.spread_metadata()
    leader.produce(topic_id, 1)
    cluster.unfence(follower.id)
    cluster.deliver(first)
    deliver_all(cluster)
    cluster.spread_metadata()
    cluster.check()
    assert is_acknowledged(cluster, 1) == (follower.id not in cluster.partition.isr)


def test_a_replica_from_a_former_life_does_not_come_in_kip_903() -> None:
    cluster = calm()
    leader, second, third = by_role(cluster)
    topic_id = cluster.topic_id
    leader.produce(topic_id, 1)
    copy_all(cluster, second, third)
    cluster.fence(third.id)
    cluster.unfence(third.id)
    cluster.spread_metadata()
    third.fetch(topic_id)  # under way when it dies, with its disk
    third.crash(power_loss=True)
    third.logs.clear()
    third.restart()
    cluster.unfence(third.id)
    deliver_all(cluster)  # the leader has not heard of the new life, and asks for the old one to be taken in
    assert third.id not in cluster.partition.isr
    cluster.spread_metadata()
    state = leader.replicas[topic_id].leader
    assert state is not None
    assert state.pending is None
    copy_all(cluster, third)
    assert third.id in cluster.partition.isr
    assert not state.check_fetch(third.id, 2)  # and now the former life is refused


def test_below_the_minimum_nothing_is_committed_kip_966() -> None:
    cluster = calm(min_isr=2)
    leader, second, third = by_role(cluster)
    topic_id = cluster.topic_id
    leader.produce(topic_id, 1)
    copy_all(cluster, second, third)
    for node in (second, third):
        node.crash(power_loss=False)
        cluster.fence(node.id)
    leader.replicas[topic_id].log.append([Record(0, 2)])  # as with acks=1
    cluster.spread_metadata()
    state = leader.replicas[topic_id].leader
    assert state is not None
    state.appended(2, cluster.now_ms)
    assert state.term.isr == (leader.id,)
    assert state.high_watermark == 1
    assert state.is_under_min_isr


def _last_one_standing(*, is_clean: bool) -> tuple[Cluster, list[Node]]:
    """A record is acknowledged, both followers go, and the leader loses it; then all come back, the leader first."""
    cluster = calm(min_isr=2)
    leader, second, third = nodes = by_role(cluster)
    leader.produce(cluster.topic_id, 1)
    copy_all(cluster, second, third)
    assert is_acknowledged(cluster, 1)
    for node in (second, third):
        if is_clean:
            node.stop()
        else:
            node.crash(power_loss=False)
        cluster.fence(node.id)
    assert cluster.partition.isr == (leader.id,)
    assert cluster.partition.eligible == (third.id,)
    leader.crash(power_loss=True)
    for node in nodes:
        node.restart()
        cluster.unfence(node.id)
    cluster.spread_metadata()
    return cluster, nodes


def test_the_last_replica_standing_keeps_what_others_have_kip_966() -> None:
    cluster, (first, second, third) = _last_one_standing(is_clean=True)
    # The one that went while two were in sync may lack records. The one that went after it has them all.
    assert cluster.partition.leader == third.id
    assert not cluster.partition.recovering
    copy_all(cluster, first, second)
    for node in (first, second, third):
        assert [record.value for record in log_of(cluster, node).records] == [1]


def test_the_last_leader_is_trusted_when_nobody_is_and_it_is_said_kip_966() -> None:
    cluster, (first, second, third) = _last_one_standing(is_clean=False)
    assert cluster.unclean_elections == 1
    assert cluster.partition.leader == first.id
    assert cluster.partition.recovering
    copy_all(cluster, second, third)
    assert not cluster.partition.recovering
    for node in (first, second, third):
        assert log_of(cluster, node).records == []


def test_with_a_lower_minimum_who_is_not_needed_is_not_eligible() -> None:
    cluster = calm(min_isr=2)
    leader, second, third = by_role(cluster)
    for node in (second, third):
        cluster.fence(node.id)
    assert cluster.partition.eligible == (third.id,)
    cluster.set_min_isr(1)
    cluster.spread_metadata()
    leader.produce(cluster.topic_id, 1)
    cluster.check()
    assert is_acknowledged(cluster, 1)
    cluster.unfence(third.id)
    cluster.fence(leader.id)
    assert cluster.partition.leader == -1  # the third has not got it
    cluster.unfence(leader.id)
    assert cluster.partition.leader == leader.id


def test_with_a_lower_minimum_whoever_is_elected_goes_on_without_the_others() -> None:
    cluster = calm(min_isr=3)
    leader, second, third = by_role(cluster)
    for node in (leader, second, third):
        cluster.fence(node.id)
    assert cluster.partition.eligible == (1, 2, 3)
    cluster.set_min_isr(1)
    cluster.unfence(third.id)
    cluster.spread_metadata()
    third.produce(cluster.topic_id, 1)
    cluster.check()
    assert is_acknowledged(cluster, 1)
    cluster.unfence(second.id)
    cluster.fence(third.id)
    assert cluster.partition.leader == -1


def test_a_leader_lets_nobody_go_before_it_knows_of_a_higher_minimum() -> None:
    cluster = calm(min_isr=1)
    leader, second, third = by_role(cluster)
    topic_id = cluster.topic_id
    leader.produce(topic_id, 1)
    cluster.set_min_isr(2)
    cluster.now_ms += 5 * LAG_MS
    leader.tick()  # it wants to go on alone
    deliver_all(cluster)
    assert not is_acknowledged(cluster, 1)
    assert set(cluster.partition.isr) == {1, 2, 3}
    cluster.spread_metadata()
    leader.tick()
    deliver_all(cluster)
    cluster.spread_metadata()
    assert cluster.partition.isr == (leader.id,)
    assert cluster.partition.eligible == tuple(sorted((second.id, third.id)))
    assert not is_acknowledged(cluster, 1)


def test_a_shorter_leader_after_an_unclean_election_is_followed() -> None:
    log = ModelLog()
    log.append([Record(0, n) for n in range(5)])
    asked = position(b"t", 0, 2, log)
    assert out_of_range(asked, asked, 0, 3, log).act is Act.TRUNCATE
    assert out_of_range(asked, asked, 0, 3, log).offset == 3
    started = out_of_range(asked, asked, 9, 12, log)
    assert (started.act, started.offset) == (Act.START_AT, 9)
    moved = position(b"t", 0, 3, log)
    assert out_of_range(asked, moved, 9, 12, log).act is Act.NOTHING
