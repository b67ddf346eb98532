"""Elections, in-sync and eligible replicas, reassignments: equal to Kafka's own decisions on every recorded case."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.cluster import leadership
from headrace.cluster.image import BrokerImage, Image, PartitionImage, TopicImage, changed
from headrace.cluster.partitions import Election, ElectionRules, change
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

VECTORS = Path(__file__).parent.parent / "reference" / "vectors"
TOPIC_ID = b"0" * 16


def cases(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(VECTORS / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def partition(told: dict[str, Any]) -> PartitionImage:
    return PartitionImage(
        tuple(told["replicas"]),
        tuple(told["isr"]),
        told["leader"],
        told["leaderEpoch"],
        told["partitionEpoch"],
        adding=tuple(told["adding"]),
        removing=tuple(told["removing"]),
        recovering=told["recovering"],
        eligible=tuple(told["elr"]),
        last_known=tuple(told["lastKnownElr"]),
    )


def seen(image: PartitionImage) -> dict[str, Any]:
    """All of it but the directories, of which the cases say nothing."""
    return {name: getattr(image, name) for name in PartitionImage.__slots__ if name != "directories"}


def test_every_change_is_that_of_kafka() -> None:
    count = others = 0
    for case in cases("partition-change"):
        before = partition(case["partition"])
        live = case["acceptableLeaders"]
        record = change(
            TOPIC_ID,
            0,
            before,
            lambda node_id, live=live: node_id in live,  # type: ignore[misc]  # binds this turn's list
            ElectionRules(case["minIsr"], case["elrEnabled"], case["useLastKnownLeader"]),
            election=Election[case["election"]],
            isr=case["targetIsr"],
            lost_data=case["uncleanShutdown"] or (),
        )
        assert (record is not None) == case["changed"], case
        if record is not None:
            kafkas = partition(case["result"])
            expected = without_the_wrongly_eligible(kafkas, case["minIsr"])
            others += expected is not kafkas
            assert seen(changed(before, record)) == seen(expected), case
        count += 1
    assert (count, others) == (2500, 36)


def without_the_wrongly_eligible(result: PartitionImage, min_isr: int) -> PartitionImage:
    """Where Kafka's decisions lose records, ours are others.

    It leaves replicas eligible that are replicas no longer, and those that the only one in sync can do without: should
    they lead, they lack what was committed without them.
    """
    is_enough = len(result.isr) >= min(min_isr, len(result.replicas))
    eligible = () if is_enough else tuple(n for n in result.eligible if n in result.replicas)
    if eligible == result.eligible:
        return result
    last_known = () if is_enough and result.leader >= 0 else result.last_known
    return dataclasses.replace(result, eligible=eligible, last_known=last_known)


def test_every_reassignment_is_that_of_kafka() -> None:
    """But for moves that are turned back: there Kafka has replicas that are to come and to go at once, for ever."""
    kinds = {"change": 0, "cancel": 0, "start": 0}
    never_ending = 0
    for case in cases("reassignment"):
        kinds[case["kind"]] += 1
        if case["kind"] == "change":
            before = partition(case["partition"])
            after = reassigned(before, case["target"], set(case["live"]))
            kafkas, wanted = partition(case["result"] or case["partition"]), set(case["target"])
            if not set(kafkas.removing) & {*kafkas.adding, *wanted}:
                assert seen(after) == seen(kafkas), case
                continue
            never_ending += 1
            assert set(after.adding) <= wanted, case
            assert not set(after.removing) & wanted, case
            assert wanted <= set(after.replicas), case
        elif case["kind"] == "cancel":
            before = partition(case["partition"])
            cancelled = reassigned(
                before, None, set(range(20)), ElectionRules(is_unclean_allowed=case["result"]["unclean"])
            )
            assert list(cancelled.replicas) == case["result"]["replicas"], case
            if not case["result"]["unclean"]:
                assert list(cancelled.isr) == case["result"]["isr"], case
    assert kinds == {"change": 400, "cancel": 400, "start": 400}
    assert never_ending == 44


def test_a_move_that_is_turned_back_by_naming_the_old_replicas_ends() -> None:
    before = PartitionImage((1, 2, 3), (1, 2, 3), 1, leader_epoch=0, partition_epoch=0)
    moving = reassigned(before, [1, 2, 4], {1, 2, 3})
    assert (moving.adding, moving.removing) == ((4,), (3,))
    back = reassigned(moving, [1, 2, 3], {1, 2, 3})
    assert (back.replicas, back.isr, back.is_reassigning) == ((1, 2, 3), (1, 2, 3), False)


def test_a_move_that_is_turned_back_waits_for_those_that_stay() -> None:
    """The one that came is in sync already, and others are not: it is not let go before they are."""
    moving = PartitionImage((1, 2, 4, 3), (1, 4), 1, 0, 0, adding=(4,), removing=(3,))
    back = reassigned(moving, [1, 2, 3], {1, 2, 3, 4})
    assert (back.replicas, back.isr, back.adding, back.removing) == ((1, 2, 3, 4), (1, 4), (), (4,))


def test_a_replica_that_was_moved_away_is_not_eligible_when_it_is_one_again() -> None:
    rules = ElectionRules(min_isr=2, has_eligible=True)
    before = PartitionImage((1, 2), (1,), 1, leader_epoch=3, partition_epoch=7, eligible=(2,))
    alone = reassigned(before, [1], {1, 2}, rules)
    assert (alone.replicas, alone.isr, alone.eligible) == ((1,), (1,), ())
    # Its log was deleted: it has nothing until it has copied everything again.
    again = reassigned(alone, [1, 2], {1, 2}, rules)
    assert (again.replicas, again.isr, again.eligible) == ((1, 2), (1,), ())


def reassigned(
    before: PartitionImage, target: list[int] | None, live: set[int], rules: ElectionRules | None = None
) -> PartitionImage:
    image = Image()
    topic = TopicImage("t", TOPIC_ID, [before])
    image.topics["t"] = image.topics_by_id[TOPIC_ID] = topic
    for node_id in range(20):
        image.brokers[node_id] = BrokerImage(node_id, "h", 1, (), None, 1, node_id not in live)
    asked = ReassignableTopic(name="t", partitions=[ReassignablePartition(partition_index=0, replicas=target)])
    request = AlterPartitionReassignmentsRequest(topics=[asked])
    decision = leadership.alter_reassignments(image, request, lambda topic: rules or ElectionRules())
    return changed(before, decision.records[0]) if decision.records else before  # type: ignore[arg-type]  # its only kind
