"""Faults of the past, put in on purpose: whole clusters under a seed have to find each of them; run as

    python -m tests.simulation.mutations [SEEDS] [NAME]

Each says how many seeds are tried, with faults and clients biased to where it shows. A seed counts as having found it
only if it passes without the fault.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

from headrace.broker import partition as partitions
from headrace.broker.marker_queues import MarkerQueues
from headrace.broker.partition import Partition
from headrace.broker.replication import copying, follower
from headrace.broker.replication.leader import LeaderState, Proposal
from headrace.cluster import brokers
from headrace.cluster.partitions import change
from headrace.cluster.store.node_formats import log_path
from headrace.cluster.store.node_log import NodeLog
from headrace.cluster.store.session import ConnectionBrokenError, Create, NodeError, NodeExistsError
from headrace.errors import ErrorCode
from headrace.log import Appended, Log
from headrace.log.producer_state import LogProducers
from headrace.log.state import LogState
from headrace.testing.simulated.plans import plan_for
from headrace.testing.simulated.runs import Verdict, play


class Mutation(NamedTuple):
    name: str
    #: What it was in Kafka, or where the design expects it.
    known_as: str
    #: So many seeds are tried, counted from 0.
    seeds: int
    #: Which faults, and which clients, the seeds have.
    only: tuple[str, ...]
    always: tuple[str, ...]
    patches: tuple[tuple[Any, str, Any], ...]


# --- replication ------------------------------------------------------------------------------------------------------


def _committed_isr(state: LeaderState) -> frozenset[int]:
    return frozenset(state.term.isr)


def _take_role_and_cut(log: Log, leader_epoch: int, leads: bool) -> None:
    if leads:
        log.begin_epoch(leader_epoch)
    elif log.high_watermark < log.end_offset:
        log.truncate_to(log.high_watermark)


def _cut_at_leaders_end(log: Any, epoch: int, end_offset: int) -> int:
    return int(min(end_offset, log.end_offset))


def _always(*arguments: Any) -> bool:
    return True


def _never(*arguments: Any) -> bool:
    return False


def _nothing(*arguments: Any, **named: Any) -> None:
    return None


def _expansion_anywhere(state: LeaderState, broker_id: int) -> Proposal | None:
    if state.pending is not None or state.is_overtaken or broker_id in state.term.isr:
        return None
    return state._propose([*state.term.isr, broker_id])


_replicate = Partition._replicate


def _acknowledge_at_once(
    self: Partition, state: LeaderState, appended: Appended, nbytes: int, acks: int, timeout_ms: int | None
) -> Any:
    return _replicate(self, state, appended, nbytes, 1, timeout_ms)


def _duplicates_do_not_wait(
    self: Partition, state: LeaderState, appended: Appended, nbytes: int, acks: int, timeout_ms: int | None
) -> Any:
    return _replicate(self, state, appended, nbytes, 1 if appended.duplicate else acks, timeout_ms)


def _append_whoever_leads(self: Partition, log: Log, records: Any, epoch: int, *rest: Any) -> Appended:
    return log.append(records, epoch, *rest)


def _falling_watermark(state: LeaderState, now_ms: float) -> bool:
    ends = [one.end_offset for one in state._limiting]
    state.high_watermark = max(0, min([state.end_offset, *ends]))
    return True


# --- the controller ---------------------------------------------------------------------------------------------------


def _stays_in_sync(
    topic: Any, index: int, partition: Any, node_id: int, can_lead: Any, rules: Any, **named: Any
) -> Any:
    return change(topic.topic_id, index, partition, can_lead, rules)


async def _append_without_checks(self: NodeLog, won: Any, number: int, data: bytes, nonce: bytes) -> None:
    """Without a look at the epoch: a deposed controller goes on writing."""
    while True:
        try:
            await self._link.change([Create(log_path(number), data)])
            return
        except NodeExistsError:
            number += 1
        except ConnectionBrokenError:
            continue


async def _append_and_believe(self: NodeLog, won: Any, number: int, data: bytes, nonce: bytes) -> None:
    """What was not answered counts as written, whatever became of it."""
    with contextlib.suppress(ConnectionBrokenError, NodeError):
        await self._link.change([Create(log_path(number), data)])


# --- coordinators and transactions ------------------------------------------------------------------------------------


def _markers_count_as_written(self: MarkerQueues, item: Any, partitions: Any, error: Any = None) -> None:
    if partitions:
        item.waiting.difference_update(partitions)
        self._tell_coordinator(item.request, dict.fromkeys(partitions, ErrorCode.NONE))


def _no_aborted(self: Log, *arguments: Any, **named: Any) -> list[Any]:
    return []


def _watermark_of(self: LogState) -> int:
    return self.high_watermark


_append = Partition.append


def _coordinators_do_not_wait(self: Partition, records: Any, **named: Any) -> Any:
    if self.key.topic.startswith("__"):
        named["acks"] = 1
    return _append(self, records, **named)


def _no_duplicates_known(self: LogProducers, header: Any) -> None:
    return None


_ALL_ENDS = ("kill", "isolate", "pause", "cut", "power")
_LINKS = ("kill", "isolate", "cut", "cut one way", "pause", "slow network", "reset")
_STORE = ("store breaks", "session lost", "isolate", "pause", "store away")
_W, _T, _R = ("idempotent",), ("transactions",), ("idempotent", "readers")

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "acknowledged by the leader alone",
        "acks",
        40,
        _ALL_ENDS,
        _W,
        ((Partition, "_replicate", _acknowledge_at_once),),
    ),
    Mutation(
        "duplicates do not wait",
        "duplicates wait too",
        40,
        _LINKS,
        _W,
        ((Partition, "_replicate", _duplicates_do_not_wait),),
    ),
    Mutation(
        "watermark of the committed ISR",
        "KIP-497",
        40,
        _LINKS,
        _W,
        ((LeaderState, "maximal_isr", property(_committed_isr)),),
    ),
    Mutation("cut to the watermark", "KIP-101", 40, _LINKS, _W, ((partitions, "_take_role", _take_role_and_cut),)),
    Mutation("cut to the leader's end", "KIP-279", 40, _LINKS, _W, ((follower, "cut_at", _cut_at_leaders_end),)),
    Mutation(
        "a late answer is applied",
        "KIP-320",
        40,
        _LINKS,
        _W,
        ((follower, "is_about", _always), (partitions, "is_about", _always), (copying, "_check", _nothing)),
    ),
    Mutation("in sync anywhere", "KIP-841", 40, _ALL_ENDS, _W, ((LeaderState, "expansion", _expansion_anywhere),)),
    Mutation(
        "in sync after losing power", "KIP-903", 40, ("power", "kill"), _W, ((brokers, "_restarted", _stays_in_sync),)
    ),
    Mutation(
        "commits below the minimum",
        "KIP-966",
        40,
        ("power", "isolate", "pause"),
        _W,
        ((LeaderState, "is_under_min_isr", property(_never)),),
    ),
    Mutation(
        "the watermark falls", "watermarks rise", 40, _LINKS, _W, ((LeaderState, "_advance", _falling_watermark),)
    ),
    Mutation(
        "append of an old epoch",
        "a queued append after stepping down",
        40,
        ("slow disk", "isolate", "cut", "pause"),
        _W,
        ((Partition, "_append_in_turn", _append_whoever_leads),),
    ),
    Mutation(
        "a deposed controller appends",
        "one append per epoch and number",
        40,
        _STORE,
        _W,
        ((NodeLog, "_append_node", _append_without_checks),),
    ),
    Mutation(
        "an unknown outcome is believed",
        "an append dropped",
        40,
        _STORE,
        _W,
        ((NodeLog, "_append_node", _append_and_believe),),
    ),
    Mutation(
        "sequence numbers are not looked at",
        "nothing twice",
        40,
        _LINKS,
        _W,
        ((LogProducers, "find_duplicate", _no_duplicates_known), (LogProducers, "_check_sequence", _nothing)),
    ),
    Mutation(
        "aborted records are not told",
        "aborted never read",
        40,
        ("kill",),
        (*_T, "readers"),
        ((Log, "aborted_transactions", _no_aborted),),
    ),
    Mutation(
        "the stable offset is the watermark",
        "aborted never read",
        40,
        ("kill",),
        (*_T, "readers"),
        ((LogState, "last_stable_offset", property(_watermark_of)),),
    ),
    Mutation(
        "a marker to a moved leader is dropped",
        "one outcome",
        40,
        _LINKS,
        _T,
        ((MarkerQueues, "_tell", _markers_count_as_written),),
    ),
    Mutation(
        "coordinators do not wait for copies",
        "a commit survives",
        40,
        _ALL_ENDS,
        (*_T, "offsets", "group"),
        ((Partition, "append", _coordinators_do_not_wait),),
    ),
)


@contextlib.contextmanager
def in_effect(mutation: Mutation) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for place, name, instead in mutation.patches:
            assert hasattr(place, name), f"{place} has no {name}: the mutation is out of date"
            stack.enter_context(mock.patch.object(place, name, instead))
        yield


def find(mutation: Mutation, seeds: Sequence[int]) -> Verdict | None:
    """The first of these seeds that finds it: one that fails with it, and not without."""
    for seed in seeds:
        plan = plan_for(seed, only=mutation.only, always=mutation.always)
        with in_effect(mutation):
            verdict = play(plan)
        if verdict.failure is not None and play(plan).failure is None:
            return verdict
    return None


def main(arguments: list[str]) -> int:
    chosen = [one for one in MUTATIONS if len(arguments) < 2 or arguments[1] in one.name]
    missed = 0
    for mutation in chosen:
        seeds = int(arguments[0]) if arguments else mutation.seeds
        verdict = find(mutation, range(seeds))
        told = f"not found in {seeds} seeds" if verdict is None else f"seed {verdict.plan.seed}: {verdict.failure}"
        print(f"{mutation.name} ({mutation.known_as}): {told.splitlines()[0][:200]}", flush=True)
        missed += verdict is None
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
