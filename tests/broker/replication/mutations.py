"""Mistakes to expect, put in on purpose: the model has to find each of them; run as

    python -m tests.broker.replication.mutations [SEEDS]

A mistake is either a name that `Node` looks at (`faults`), or another function in the place of one of the cores'.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

from tests.broker.replication.model import run
from tests.broker.replication.model_node import ViolationError

from headrace.broker.replication import follower
from headrace.broker.replication.leader import LeaderState, Proposal, Sent
from headrace.cluster import brokers, leadership, partitions
from headrace.cluster.image import Image, PartitionImage, TopicImage
from headrace.cluster.partitions import Election, ElectionRules, RulesOf
from headrace.cluster.records import MetadataRecord, PartitionChangeRecord


class Mutation(NamedTuple):
    name: str
    #: It is found within so many seeds, counted from 0.
    seeds: int
    #: What to put in the place of what, beside the fault of that name.
    patches: tuple[tuple[Any, str, Any], ...] = ()


def _committed_isr(state: LeaderState) -> frozenset[int]:
    return frozenset(state.term.isr)


def _forget(state: LeaderState, proposal: Proposal) -> Sent:
    if proposal is state.pending:
        state.pending = None
        state._find_limiting()
    return Sent.DONE


def _always(*arguments: Any) -> bool:
    return True


def _cut_at_leaders_end(log: Any, epoch: int, end_offset: int) -> int:
    return min(end_offset, log.end_offset)


def _expansion_at_watermark(state: LeaderState, broker_id: int) -> Proposal | None:
    if state.pending is not None or state.is_overtaken or broker_id in state.term.isr:
        return None
    if state.progress[broker_id].end_offset < state.high_watermark:
        return None
    return state._propose([*state.term.isr, broker_id])


def _expansion_anywhere(state: LeaderState, broker_id: int) -> Proposal | None:
    if state.pending is not None or state.is_overtaken or broker_id in state.term.isr:
        return None
    return state._propose([*state.term.isr, broker_id])


def _falling_watermark(state: LeaderState, now_ms: float) -> bool:
    ends = [one.end_offset for one in state._limiting]
    state.high_watermark = max(0, min([state.end_offset, *ends]))
    return True


# --- of the controller ------------------------------------------------------------------------------------------------

_change, _find_eligible, _elect = partitions.change, partitions._find_eligible, partitions._elect
_restarted, _follow_minimum = brokers._restarted, leadership.follow_minimum


def _eligible_whatever_was_lost(partition: PartitionImage, target: Any, lost_data: Any) -> None:
    _find_eligible(partition, target, ())


def _elect_anyone_trusted(
    partition: PartitionImage, target: Any, can_lead: Any, rules: ElectionRules, election: Election
) -> Any:
    trusted = dataclasses.replace(target, isr=(*target.isr, *target.eligible))
    return _elect(partition, trusted, can_lead, rules, election)


def _eligible_for_good(*arguments: Any, **named: Any) -> PartitionChangeRecord | None:
    record = _change(*arguments, **named)
    if record is not None and not record.eligible_leader_replicas:
        record.eligible_leader_replicas = None
    return record


def _unmarked(*arguments: Any, **named: Any) -> PartitionChangeRecord | None:
    record = _change(*arguments, **named)
    if record is not None:
        record.leader_recovery_state = -1
    return record


def _without_the_epochs_moved(image: Image, before: RulesOf, after: RulesOf) -> list[MetadataRecord]:
    records = _follow_minimum(image, before, after)
    return [record for record in records if getattr(record, "eligible_leader_replicas", None) is not None]


def _nothing_follows(image: Image, before: RulesOf, after: RulesOf) -> list[MetadataRecord]:
    return []


def _stays_in_sync(
    topic: TopicImage,
    index: int,
    partition: PartitionImage,
    node_id: int,
    can_lead: Any,
    rules: ElectionRules,
    **named: Any,
) -> PartitionChangeRecord | None:
    return _change(topic.topic_id, index, partition, can_lead, rules)


def _last_stays_in_sync(
    topic: TopicImage,
    index: int,
    partition: PartitionImage,
    node_id: int,
    can_lead: Any,
    rules: ElectionRules,
    **named: Any,
) -> PartitionChangeRecord | None:
    if partition.isr == (node_id,):
        return _change(topic.topic_id, index, partition, can_lead, rules, lost_data=(node_id,))
    return _restarted(topic, index, partition, node_id, can_lead, rules, **named)


def _never(*arguments: Any) -> bool:
    return False


MUTATIONS: tuple[Mutation, ...] = (
    Mutation("append of an old epoch", 1200),
    Mutation("a late answer is applied", 50, ((follower, "is_about", _always),)),
    Mutation("watermark of the committed ISR", 100, ((LeaderState, "maximal_isr", property(_committed_isr)),)),
    Mutation("no broker epochs", 1500),
    Mutation("cut to the watermark", 50),
    Mutation("cut to the leader's end", 500, ((follower, "cut_at", _cut_at_leaders_end),)),
    Mutation("divergence counts as progress", 100),
    Mutation("duplicates do not wait", 50),
    Mutation("in sync at the watermark", 200, ((LeaderState, "expansion", _expansion_at_watermark),)),
    Mutation("in sync anywhere", 50, ((LeaderState, "expansion", _expansion_anywhere),)),
    Mutation("a proposal without answer is dropped", 1000, ((LeaderState, "unanswered", _forget),)),
    Mutation("all is committed at first", 50),
    Mutation("the watermark falls", 50, ((LeaderState, "_advance", _falling_watermark),)),
    Mutation("topics by name", 100),
    Mutation("waiters outlive the epoch", 100),
    Mutation("commits below the minimum", 50, ((LeaderState, "is_under_min_isr", property(_never)),)),
    Mutation("eligible in spite of a crash", 100, ((partitions, "_find_eligible", _eligible_whatever_was_lost),)),
    Mutation("eligible before in sync", 100, ((partitions, "_elect", _elect_anyone_trusted),)),
    Mutation(
        "eligible for good",
        100,
        ((brokers, "change", _eligible_for_good), (leadership, "change", _eligible_for_good)),
    ),
    Mutation("eligible by a former minimum", 100, ((leadership, "follow_minimum", _nothing_follows),)),
    Mutation("a raised minimum is overtaken", 300, ((leadership, "follow_minimum", _without_the_epochs_moved),)),
    Mutation("in sync through a restart", 50, ((brokers, "_restarted", _stays_in_sync),)),
    Mutation("the last one stays in sync", 50, ((brokers, "_restarted", _last_stays_in_sync),)),
    Mutation("unclean without a mark", 100, ((brokers, "change", _unmarked), (leadership, "change", _unmarked))),
)


@contextlib.contextmanager
def put_in(mutation: Mutation) -> Iterator[frozenset[str]]:
    """With the mistake in place; gives the faults to run the model with."""
    with contextlib.ExitStack() as stack:
        for target, name, replacement in mutation.patches:
            stack.enter_context(mock.patch.object(target, name, replacement))
        yield frozenset([mutation.name])


def found_after(mutation: Mutation, seeds: int) -> tuple[int, str] | None:
    """The first seed whose schedule breaks an invariant, and how; None when none of them does."""
    with put_in(mutation) as faults:
        for seed in range(seeds):
            try:
                run(seed, faults=faults)
            except ViolationError as violation:
                return seed, str(violation)
    return None


def main(arguments: list[str]) -> int:
    missed = 0
    for mutation in MUTATIONS:
        found = found_after(mutation, int(arguments[0]) if arguments else mutation.seeds)
        missed += found is None
        print(f"{mutation.name}: {'NOT FOUND' if found is None else f'{found[1][:110]}'}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
