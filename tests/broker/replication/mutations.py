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


MUTATIONS: tuple[Mutation, ...] = (
    Mutation("append of an old epoch", 1200),
    Mutation("a late answer is applied", 50, ((follower, "is_about", _always),)),
    Mutation("watermark of the committed ISR", 300, ((LeaderState, "maximal_isr", property(_committed_isr)),)),
    Mutation("no broker epochs", 1000),
    Mutation("cut to the watermark", 50),
    Mutation("cut to the leader's end", 1000, ((follower, "cut_at", _cut_at_leaders_end),)),
    Mutation("divergence counts as progress", 100),
    Mutation("duplicates do not wait", 50),
    Mutation("in sync at the watermark", 100, ((LeaderState, "expansion", _expansion_at_watermark),)),
    Mutation("in sync anywhere", 50, ((LeaderState, "expansion", _expansion_anywhere),)),
    Mutation("a proposal without answer is dropped", 2500, ((LeaderState, "unanswered", _forget),)),
    Mutation("all is committed at first", 50),
    Mutation("the watermark falls", 800, ((LeaderState, "_advance", _falling_watermark),)),
    Mutation("topics by name", 150),
    Mutation("waiters outlive the epoch", 100),
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
