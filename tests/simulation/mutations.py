"""Faults of the past, put in on purpose: whole clusters under a seed have to find each of them; run as

    python -m tests.simulation.mutations [SEEDS] [NAME …]

Each says how many seeds are tried, with faults and clients biased to where it shows. A seed counts as having found it
only if it passes without the fault.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

from tests.simulation.courses import A_FORMER_COORDINATOR, A_PAUSED_COORDINATOR, QUEUED_AT_LEADERS
from tests.simulation.group_mutations import GROUP_MUTATIONS
from tests.simulation.mutation import Mutation
from tests.simulation.parallel_mutations import PARALLEL_MUTATIONS

from headrace.broker.coordinators.driver import CoordinatorDriver
from headrace.broker.coordinators.marker_queues import MarkerQueues
from headrace.broker.metadata import follower as metadata_follower
from headrace.broker.metadata.controller_service import ControllerService
from headrace.broker.metadata.fetcher import MetadataFetcher
from headrace.broker.metadata.membership import ClusterMembership
from headrace.broker.metadata.tail import MetadataTail
from headrace.broker.partitions import partition as partitions
from headrace.broker.partitions.partition import Partition
from headrace.broker.replication import copying, follower
from headrace.broker.replication.leader import LeaderState, Proposal
from headrace.client.cluster import view
from headrace.client.consumer import _positions
from headrace.cluster import brokers, leadership
from headrace.cluster.changes import apply as _apply
from headrace.cluster.partitions import change
from headrace.cluster.store import OutcomeUnknownError, SessionLostError, StoreUnavailableError
from headrace.cluster.store.node_formats import EPOCH, decode_log_node, log_path
from headrace.cluster.store.node_link import NodeLink
from headrace.cluster.store.node_log import NodeLog
from headrace.cluster.store.node_store import NodeStore
from headrace.cluster.store.session import CheckVersion, ConnectionBrokenError, Create, NodeError, NodeExistsError
from headrace.errors import ErrorCode, HeadraceError, NotLeaderOrFollowerError, StaleControllerEpochError
from headrace.log import Appended, Log
from headrace.log.appending import Outcome
from headrace.log.producer_state import LogProducers
from headrace.log.segment import Segment
from headrace.log.state import LogState, Offsets
from headrace.log.validation import Checked
from headrace.testing.simulated.runs import RunResult, play

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


def _unknown_epoch(state: LeaderState, node_id: int) -> int:
    return -1


_check_leader = Partition.check_leader


def _told_last(known: Any, told: Any) -> Any:
    return _newer(None, told)


_newer = view._newer


def _leads_at_all(self: Partition, current_leader_epoch: int = -1) -> None:
    _check_leader(self)


def _expansion_anywhere(state: LeaderState, broker_id: int) -> Proposal | None:
    if state.pending is not None or state.is_overtaken or broker_id in state.term.isr:
        return None
    return state._propose([*state.term.isr, broker_id])


def _change_role_at_once(self: Partition) -> None:
    """Without waiting for what the writer has yet to write."""
    self.state = None
    self._commits.forget()
    self._commits.end(NotLeaderOrFollowerError, "the leader epoch ended before this was committed")
    partitions._take_role(self.log, self.leadership.leader_epoch, self.leadership.leader_id == self._own_id)
    self._take_effect()


_in_log = Partition.in_log


def _acknowledge_at_once(
    self: Partition, batches: Sequence[Checked], outcomes: list[Outcome], acks: int, timeout_ms: int | None
) -> Any:
    return _in_log(self, batches, outcomes, 1, timeout_ms)


def _duplicates_do_not_wait(
    self: Partition, batches: Sequence[Checked], outcomes: list[Outcome], acks: int, timeout_ms: int | None
) -> Any:
    are_duplicates = all(isinstance(one, Appended) and one.duplicate for one in outcomes)
    return _in_log(self, batches, outcomes, 1 if are_duplicates else acks, timeout_ms)


def _falling_watermark(state: LeaderState, now_ms: float) -> bool:
    ends = [one.end_offset for one in state._limiting]
    state.high_watermark = max(0, min([state.end_offset, *ends]))
    return True


# --- the controller ---------------------------------------------------------------------------------------------------


def _stays_in_sync(
    topic: Any, index: int, partition: Any, node_id: int, can_lead: Any, rules: Any, **named: Any
) -> Any:
    return change(topic.topic_id, index, partition, can_lead, rules)


_alter = leadership._alter_error


def _alter_without_brokers(image: Any, topic: Any, node_id: int, asked: Any) -> ErrorCode:
    """Whoever is named comes in, whether it is fenced or not."""
    error = _alter(image, topic, node_id, asked)
    return ErrorCode.NONE if error is ErrorCode.INELIGIBLE_REPLICA else error


def _in_one_step(records: Iterable[Any]) -> Iterator[list[Any]]:
    yield list(records)


def _apply_by_name(image: Any, step: list[Any]) -> Any:
    changes = _apply(image, step)
    changes.deleted = [topic for topic in changes.deleted if topic.name not in image.topics]
    return changes


def _connected_for_ever(self: NodeStore) -> float:
    return float("-inf")


_change = NodeLink.change


async def _change_and_ignore(self: NodeLink, operations: Any) -> None:
    with contextlib.suppress(NodeError):
        await _change(self, operations)


async def _append_again(self: NodeLog, won: Any, number: int, data: bytes, nonce: bytes) -> None:
    """Without a look at what became of the first try."""
    operations = [CheckVersion(EPOCH, won.version), Create(log_path(number), data)]
    while True:
        try:
            await self._link.change(operations)
            return
        except ConnectionBrokenError:
            continue
        except NodeExistsError:
            number += 1
            operations = [CheckVersion(EPOCH, won.version), Create(log_path(number), data)]
        except NodeError as error:
            raise StaleControllerEpochError(str(error)) from error


async def _append_without_checks(self: NodeLog, won: Any, number: int, data: bytes, nonce: bytes) -> None:
    """Without a look at the epoch: a deposed controller goes on writing, behind what others wrote."""
    while True:
        path = log_path(number)
        try:
            await self._link.change([Create(path, data)])
            return
        except (ConnectionBrokenError, NodeExistsError) as error:
            reason = error
        except SessionLostError as error:
            raise StaleControllerEpochError(str(error)) from error
        # What became of it is looked at as ever: that is another mistake.
        try:
            await self._link.before_another_try()
            found = await self._link.read(operator.methodcaller("get", path))
        except (StoreUnavailableError, SessionLostError) as error:
            raise OutcomeUnknownError(str(reason)) from error
        if found is not None and decode_log_node(path, found.data).nonce == nonce:
            return
        number += found is not None


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


def _stable_up_to_the_watermark(self: LogState) -> Offsets:
    return Offsets(self.start_offset, self.high_watermark, self.high_watermark)


def _goes_on_leading(self: CoordinatorDriver[Any, Any], index: int, leader_epoch: int) -> None:
    """What was loaded once counts as loaded for ever."""
    if index in self._led:
        self._led[index].leader_epoch = leader_epoch
        return
    _lead(self, index, leader_epoch)


_lead = CoordinatorDriver.lead
_append = Partition.append


def _coordinators_do_not_wait(self: Partition, records: Any, **named: Any) -> Any:
    if self.key.topic.startswith("__"):
        named["acks"] = 1
    return _append(self, records, **named)


def _no_duplicates_known(self: LogProducers, header: Any) -> None:
    return None


async def _served_before_it_is_stored(self: ControllerService, records: Any) -> None:
    if records:
        self.tail.appended(self.tail.end_offset + len(records), records)
    await _append_to_store(self, records)


def _appended_once(self: MetadataTail, end_offset: int, records: Any) -> None:
    if end_offset > self.end_offset:
        _appended_to_tail(self, end_offset, records)


async def _first_record_is_skipped(self: MetadataFetcher, offset: int, known_epoch: int, **named: Any) -> Any:
    reading = await _fetch_metadata(self, offset, known_epoch, **named)
    if len(reading.records) > 2:
        del reading.records[0]
    return reading


async def _not_from_the_controller(self: MetadataFetcher, *arguments: Any, **named: Any) -> Any:
    raise HeadraceError("the controller does not tell")


def _tells_all(self: CoordinatorDriver[Any, Any], response: object) -> object:
    return response


_appended_to_tail = MetadataTail.appended
_append_to_store = ControllerService._append
_fetch_metadata = MetadataFetcher.fetch
#: So much of a failure is shown in the table.
_SHOWN = 140
_ALL_ENDS = ("kill", "isolate", "pause", "cut", "power")
_LINKS = ("kill", "isolate", "cut", "cut one way", "pause", "slow network", "reset")
_STORE = ("store breaks", "session lost", "isolate", "pause", "store away")
_W, _T = ("idempotent",), ("transactions",)

MUTATIONS: tuple[Mutation, ...] = (
    Mutation("cut to the watermark", "KIP-101", ((partitions, "_take_role", _take_role_and_cut),), kinds=_LINKS),
    Mutation(
        "cut to the leader's end",
        "KIP-279",
        ((follower, "cut_at", _cut_at_leaders_end),),
        scenario="elections there and back",
        clients=("crowd",),
    ),
    Mutation(
        "leader epochs are not looked at",
        "KIP-320",
        # Brokers look at them, and clients twice: at what they are told, and before they hold a position against it.
        (
            (Partition, "check_leader", _leads_at_all),
            (view, "_newer", _told_last),
            (_positions, "_OLDER_METADATA_MAX", 0),
        ),
        scenario="only a stale leader is left",
        clients=("crowd", "readers"),
        is_quick=True,
    ),
    Mutation(
        "watermark of the committed ISR",
        "KIP-497",
        ((LeaderState, "maximal_isr", property(_committed_isr)),),
        # Those that are about to come in are waited for as well.
        hidden_by=((LeaderState, "_is_about_to_join", _never),),
        scenario="let in behind the leader's back",
        is_quick=True,
    ),
    Mutation(
        "fenced replicas come in",
        "KIP-841",
        ((leadership, "_alter_error", _alter_without_brokers), (LeaderState, "_is_eligible", _always)),
        scenario="fenced, and fetching",
        is_quick=True,
    ),
    Mutation(
        "replicas come in with a former epoch",
        "KIP-903",
        ((LeaderState, "_epoch_to_tell", _unknown_epoch),),
        scenario="restarted while it is let in",
    ),
    Mutation(
        "commits below the minimum",
        "KIP-966",
        ((LeaderState, "is_under_min_isr", property(_never)),),
        scenario="the last replica standing",
        is_quick=True,
    ),
    Mutation(
        "an unknown outcome is believed",
        "an append of unknown outcome dropped",
        ((NodeLog, "_append_node", _append_and_believe),),
        kinds=("store breaks",),
        clients=("admin",),
    ),
    Mutation(
        "an unknown outcome is tried again",
        "an append of unknown outcome applied twice",
        ((NodeLog, "_append_node", _append_again),),
        kinds=("store breaks",),
        clients=("admin",),
        is_quick=True,
    ),
    Mutation(
        "errors of a change are not looked at",
        "a multi's result list ignored",
        ((NodeLink, "change", _change_and_ignore),),
        scenario="a controller that was away",
        is_quick=True,
    ),
    Mutation(
        "append of an old epoch",
        "a queued append after stepping down",
        ((Partition, "leads_in", _always),),
        # The change of role waits for what is queued.
        hidden_by=((Partition, "_change_role", _change_role_at_once),),
        course=QUEUED_AT_LEADERS,
        seeds=0,  # tests have the owners of logs checked, which hides it; the command does not, and finds it
    ),
    Mutation(
        "a late answer is applied",
        "a late fetch answer after truncation",
        ((follower, "is_about", _always), (partitions, "is_about", _always), (copying, "_check", _nothing)),
        scenario="elections there and back",
        seeds=0,  # what it wrote is cut off by the next fetch; the model of replication alone finds it
    ),
    Mutation(
        "in sync after losing power",
        "a restarted follower let in",
        ((brokers, "_restarted", _stays_in_sync),),
        kinds=("power", "kill"),
    ),
    Mutation(
        "an empty disk leads",
        "an empty disk elected",
        ((brokers, "_restarted", _stays_in_sync),),
        scenario="an empty disk of the last in sync",
    ),
    Mutation(
        "a coordinator goes on where it was",
        "a coordinator's A-B-A",
        ((CoordinatorDriver, "lead", _goes_on_leading), (CoordinatorDriver, "resign", _nothing)),
        scenario="a coordinator there and back",
        clients=(*_W, "offsets", "group"),
    ),
    Mutation(
        "a topic is its name",
        "delete and create in one batch",
        ((metadata_follower, "steps", _in_one_step), (metadata_follower, "apply", _apply_by_name)),
        scenario="made again while a broker is away",
    ),
    Mutation(
        "fenced at once",
        "mass expiry shrinks every ISR",
        ((NodeStore, "connected_since", property(_connected_for_ever)),),
        scenario="all sessions are over",
    ),
    Mutation(
        "acknowledged by the leader alone",
        "acks=all",
        ((Partition, "in_log", _acknowledge_at_once),),
        kinds=_ALL_ENDS,
    ),
    Mutation(
        "duplicates do not wait",
        "duplicates wait too",
        ((Partition, "in_log", _duplicates_do_not_wait),),
        scenario="again to a lagging leader",
        clients=_W,
    ),
    Mutation(
        "in sync anywhere",
        "in sync at the watermark",
        ((LeaderState, "expansion", _expansion_anywhere),),
        scenario="let in behind the leader's back",
    ),
    Mutation(
        "the watermark falls",
        "watermarks rise",
        ((LeaderState, "_advance", _falling_watermark),),
        kinds=_LINKS,
        seeds=0,  # hidden by something else; the model of replication alone finds it
    ),
    Mutation(
        "a deposed controller appends",
        "one append per epoch and number",
        ((NodeLog, "_append_node", _append_without_checks),),
        scenario="a controller that was away",
        clients=("admin",),
        seeds=0,  # whoever was deposed has lost its session; the store's own simulation finds it
    ),
    Mutation(
        "sequence numbers are not looked at",
        "nothing twice",
        ((LogProducers, "find_duplicate", _no_duplicates_known), (LogProducers, "_check_sequence", _nothing)),
        kinds=_LINKS,
    ),
    Mutation(
        "one batch of a producer is known after a restart",
        "nothing twice",
        ((LogProducers, "may_be_older", _never),),
        kinds=("stop", "cut", "isolate", "election"),
        clients=_W,
        seeds=0,  # found once, by seed 10000500 of all plans; the log's own tests find it
    ),
    Mutation(
        "a paused coordinator tells what it knew",
        "a committed offset is one register",
        ((CoordinatorDriver, "_told", _tells_all),),
        course=A_PAUSED_COORDINATOR,
        clients=(*_W, "offsets"),
    ),
    Mutation(
        "metadata comes from the store alone",
        "a committed offset is one register",
        ((MetadataFetcher, "fetch", _not_from_the_controller),),
        # Who hears of nobody is silent.
        hidden_by=((ClusterMembership, "is_in_touch", True),),
        course=A_FORMER_COORDINATOR,
        clients=(*_W, "offsets"),
    ),
    Mutation(
        "a coordinator that hears of nobody goes on",
        "a committed offset is one register",
        ((ClusterMembership, "is_in_touch", True),),
        course=A_FORMER_COORDINATOR,
        clients=(*_W, "offsets"),
    ),
    Mutation(
        "aborted records are not told",
        "aborted never read",
        ((Log, "aborted_transactions", _no_aborted),),
        kinds=("kill",),
        clients=(*_T, "readers"),
    ),
    Mutation(
        "the stable offset is the watermark",
        "aborted never read",
        (
            (LogState, "last_stable_offset", property(_watermark_of)),
            (LogState, "offsets", _stable_up_to_the_watermark),
        ),
        kinds=("kill",),
        clients=(*_T, "readers"),
    ),
    Mutation(
        "a marker to a moved leader is dropped",
        "one outcome",
        ((MarkerQueues, "_tell", _markers_count_as_written),),
        scenario="leaders move while a transaction ends",
        clients=_T,
    ),
    Mutation(
        "coordinators do not wait for copies",
        "a commit survives",
        ((Partition, "append", _coordinators_do_not_wait),),
        kinds=_ALL_ENDS,
        clients=(*_T, "offsets", "group"),
    ),
    Mutation(
        "metadata is sent before it is stored",
        "an image is a prefix",
        ((ControllerService, "_append", _served_before_it_is_stored), (MetadataTail, "appended", _appended_once)),
        kinds=_STORE,
        clients=("admin",),
        is_quick=True,
    ),
    Mutation(
        "a record that was fetched is skipped",
        "an image is a prefix",
        ((MetadataFetcher, "fetch", _first_record_is_skipped),),
        kinds=("kill",),
        is_quick=True,
    ),
    Mutation(
        "changes of configurations are not followed",
        "a topic is as it was configured",
        ((Partition, "reconfigure", lambda *arguments: None),),
        kinds=("kill",),
        configures=True,
    ),
    Mutation(
        "a segment begins with its latest time",
        "a look-up by time finds the first",
        ((Segment, "largest_timestamp_ms", Segment.first_timestamp),),
        kinds=("kill",),
        has_clocks=True,
    ),
    *PARALLEL_MUTATIONS,
    *GROUP_MUTATIONS,
)


@contextlib.contextmanager
def in_effect(*patches: tuple[Any, str, Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for place, name, instead in patches:
            assert hasattr(place, name), f"{place} has no {name}: the mutation is out of date"
            stack.enter_context(mock.patch.object(place, name, instead))
        yield


def find(mutation: Mutation, seeds: Sequence[int]) -> RunResult | None:
    """The first of these seeds that finds it: one that fails with it, and not without."""
    for seed in seeds:
        plan = mutation.plan(seed)
        with in_effect(*mutation.patches, *mutation.hidden_by):
            verdict = play(plan)
        if verdict.failure is None:
            continue
        with in_effect(*mutation.hidden_by):
            if play(plan).failure is None:
                return verdict
    return None


def main(arguments: list[str]) -> int:
    """Print the table of docs/reliability.md: after how many seeds each is found, and how it shows."""
    names = arguments[1:]
    chosen = [one for one in MUTATIONS if not names or any(name in one.name for name in names)]
    missed = 0
    print("| mistake | known as | found after | by |\n|---|---|---|---|")
    for mutation in chosen:
        seeds = int(arguments[0]) if arguments else mutation.seeds
        verdict = find(mutation, range(seeds))
        missed += verdict is None
        after, by = f"not in {seeds} seeds", ""
        if verdict is not None:
            after = "1 seed" if verdict.plan.seed == 0 else f"{verdict.plan.seed + 1} seeds"
            by = str(verdict.failure).splitlines()[0].removeprefix("BrokenError: ")
            by = by if len(by) <= _SHOWN else by[: _SHOWN - 2] + " …"
        print(f"| {mutation.name} | {mutation.known_as} | {after} | {by} |", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
