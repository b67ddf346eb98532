"""Mistakes to expect, put in on purpose: the model has to find each of them; run as

    python -m tests.broker.replication.mutations [SEEDS]

A mistake is either a name that `Node` looks at (`faults`), or another function in the place of one of the cores'.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

from tests.broker.replication.model import run
from tests.broker.replication.model_cluster import Violation

from headrace.broker.replication import follower
from headrace.broker.replication.leader import LeaderState, Proposal, Sent
from headrace.cluster import leadership


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


def _back_to_committed(state: LeaderState, proposal: Proposal, error: Any, now_ms: float) -> Sent:
    return _forget(state, proposal)


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


def _no_member_is_checked(image: Any, topic: Any, node_id: int, asked: Any) -> Any:
    image = mock.Mock(brokers={n: mock.Mock(is_active=True, epoch=e.epoch) for n, e in image.brokers.items()})
    return _alter_error(image, topic, node_id, asked)


_alter_error = leadership._alter_error


MUTATIONS: tuple[Mutation, ...] = (
    Mutation("append of an old epoch", 300),
    Mutation("a late answer is applied", 100, ((follower, "is_about", _always),)),
    Mutation("watermark of the committed ISR", 1500, ((LeaderState, "maximal_isr", property(_committed_isr)),)),
    Mutation("no broker epochs", 3000),
    Mutation("cut to the watermark", 300),
    Mutation("cut to the leader's end", 1500, ((follower, "cut_at", _cut_at_leaders_end),)),
    Mutation("divergence counts as progress", 1500),
    Mutation("duplicates do not wait", 300),
    Mutation("in sync at the watermark", 1500, ((LeaderState, "expansion", _expansion_at_watermark),)),
    Mutation("in sync anywhere", 100, ((LeaderState, "expansion", _expansion_anywhere),)),
    Mutation("a proposal without answer is dropped", 3000, ((LeaderState, "unanswered", _forget),)),
    Mutation("a proposal that was overtaken is dropped", 3000, ((LeaderState, "refused", _back_to_committed),)),
    Mutation("all is committed at first", 100),
    Mutation("the watermark falls", 100, ((LeaderState, "_advance", _falling_watermark),)),
    Mutation("topics by name", 300),
    Mutation("waiters outlive the epoch", 3000),
    Mutation("no fencing of fetches", 1500),
    Mutation("a fenced replica comes in", 3000, ((leadership, "_alter_error", _no_member_is_checked),)),
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
            except Violation as violation:
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
