"""Mistakes of groups and of what parallel consumers do with their share of one, put in on purpose: see `mutations`.

No record is lost by most of them, nor begun before its turn: records are repeated, or partitions shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tests.simulation.mutation import Mutation, parallel_mistake

from headrace.assignors import sticky
from headrace.assignors.base import GroupAssignment
from headrace.assignors.ranges import RangeAssignor
from headrace.assignors.roundrobin import RoundRobinAssignor
from headrace.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from headrace.broker.partitions.partition import Partition
from headrace.client.consumer import _group_leader
from headrace.client.consumer._group_leader import GroupLeader
from headrace.client.consumer._subscription import Subscriptions
from headrace.client.consumer.aio import Consumer
from headrace.client.consumer.records import ConsumerRecords
from headrace.errors import ErrorCode
from headrace.groups.classic.state import ClassicGroup
from headrace.groups.offsets import OffsetChanges
from headrace.parallel import engine, failures, letters, member, tracker
from headrace.parallel.core import ParallelCore
from headrace.parallel.engine import Engine
from headrace.parallel.letters import Message
from headrace.parallel.member import Member
from headrace.parallel.options import Retry
from headrace.parallel.retries import DUE_MS, ORIGIN_OFFSET, ORIGIN_PARTITION, ORIGIN_TOPIC, Outgoing, Verdict
from headrace.parallel.tracker import PartitionTracker
from headrace.parallel.work import Entry, Run
from headrace.parallel.workers import Coroutines
from headrace.testing.simulated.variants import DEAD_LETTERS, PARALLEL_GROUP
from headrace.testing.simulated.workloads import GROUP
from headrace.topics import TopicPartition

# --- commits and what was finished before -----------------------------------------------------------------------------


def _nothing(*arguments: Any, **named: Any) -> None:
    return None


def _never(*arguments: Any) -> bool:
    return False


def _no_note(base: int, intervals: Sequence[Any]) -> tuple[str, bool]:
    return "", True


def _drained_at_once(
    self: Member, partitions: Iterable[TopicPartition], seconds: float, keep_on: Callable[[], None]
) -> bool:
    keep_on()
    return True


def _some_twice(self: ParallelCore, run: Run, now: float) -> None:
    """Some of what was handled well is put in line again, once."""
    first, is_well = run.entries[0], run.failures is None and run.done == len(run.entries)
    is_ours = run.tracker.alive and not run.tracker.draining
    if not is_well or not is_ours or first.tries or first.offset % 7:
        _settle(self, run, now)
        return
    first.tries = 1
    run.settled = True
    run.tracker.in_flight -= len(run.entries)
    self._queue.put_back(run, run.entries)


_settle = ParallelCore._settle


# --- tries ------------------------------------------------------------------------------------------------------------


def _one_try_more(retry: Retry, entry: Entry, error: BaseException) -> Verdict:
    entry.tries -= 1
    try:
        return _judge(retry, entry, error)
    finally:
        entry.tries += 1


_judge = failures.judge


def _no_wait(self: Retry, tries: int) -> float:
    return 0.0


def _two_workers_more(self: Coroutines) -> None:
    for _ in range(self._count + 2):
        self._start_one()


# --- letters ----------------------------------------------------------------------------------------------------------


def _without_key(outgoing: Outgoing, group: str, now_ms: int) -> list[Message]:
    return [(topic, value, None, headers) for topic, value, _, headers in _messages_of(outgoing, group, now_ms)]


def _changed(found: list[Message], changes: dict[str, object]) -> list[Message]:
    return [
        (topic, value, key, [(name, str(changes.get(name, "")).encode() or text) for name, text in headers])
        for topic, value, key, headers in found
    ]


def _from_where_it_was_last(outgoing: Outgoing, group: str, now_ms: int) -> list[Message]:
    record = outgoing.entry.record
    place = {ORIGIN_TOPIC: record.topic, ORIGIN_PARTITION: record.partition, ORIGIN_OFFSET: record.offset}
    return _changed(_messages_of(outgoing, group, now_ms), place)


def _due_when_it_is_sent(outgoing: Outgoing, group: str, now_ms: int) -> list[Message]:
    return _changed(_messages_of(outgoing, group, now_ms), {DUE_MS: now_ms})


_messages_of = letters.messages_of


def _sent(instead: Callable[..., list[Message]]) -> tuple[tuple[Any, str, Any], ...]:
    return (member, "messages_of", instead), (engine, "messages_of", instead)


def _dead_letters_do_not_wait(self: Partition, batches: Any, outcomes: Any, acks: int, timeout_ms: int | None) -> Any:
    return _in_log(self, batches, outcomes, 1 if self.key.topic == DEAD_LETTERS else acks, timeout_ms)


_in_log = Partition.in_log


# --- groups -----------------------------------------------------------------------------------------------------------


def _each_twice(outgoing: Outgoing, group: str, now_ms: int) -> list[Message]:
    return _messages_of(outgoing, group, now_ms) * 2


def _is_plain_member(consumer: Consumer) -> bool:
    return consumer._setup.settings.group_id == GROUP


async def _last_one_again(self: Consumer, timeout: float = 1.0, max_records: int | None = None) -> ConsumerRecords:
    """The position falls back by one record now and then."""
    records = await _poll(self, timeout, max_records)
    if _is_plain_member(self) and len(records) > 1 and records[-1].offset % 3 == 0:
        self.seek(TopicPartition(records[-1].topic, records[-1].partition), records[-1].offset)
    return records


async def _last_one_later(self: Consumer, timeout: float = 1.0, max_records: int | None = None) -> ConsumerRecords:
    """The last record is held back until the next poll, whoever has its partition by then."""
    records = [*self.__dict__.pop("_held_back", []), *await _poll(self, timeout, max_records)]
    if _is_plain_member(self) and len(records) > 1:
        self.__dict__["_held_back"] = [records.pop()]
    return ConsumerRecords.of(records)


_poll = Consumer.poll


def _one_is_left_out(self: Subscriptions, partitions: Iterable[TopicPartition]) -> None:
    """Whoever assigns partitions by hand is never given anything of the second."""
    _assign_by_hand(self, partitions)
    for state in self.states():
        state.paused = state.partition.partition == 1


_assign_by_hand = Subscriptions.assign_by_hand


def _some_are_forgotten(self: OffsetChanges, shard: Any, group: Any, commit: Any, *others: Any) -> None:
    """Some commits are stored, and not told by the coordinator that stored them."""
    if group.group_id in (GROUP, PARALLEL_GROUP) and commit.offset.offset % 4 == 0:
        group.offsets.end_write(commit.partition)
    else:
        _committed(self, shard, group, commit, *others)


_committed = OffsetChanges._committed


def _moved_at_once(numbers: Sequence[Sequence[int]], moving: Any) -> list[Sequence[int]]:
    return list(numbers)


def _with_one_twice(assignor: Any) -> tuple[Any, str, Any]:
    """The second member is given one of the first member's partitions as well."""
    assign = assignor.assign

    def assign_twice(self: Any, cluster: Any, subscriptions: Any) -> GroupAssignment:
        found: GroupAssignment = assign(self, cluster, subscriptions)
        members = sorted(found)
        if len(members) > 1 and found[members[0]].partitions:
            both = [*found[members[1]].partitions, *found[members[0]].partitions[:1]]
            found[members[1]] = replace(found[members[1]], partitions=both)
        return found

    return assignor, "assign", assign_twice


_ASSIGNORS = (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)


def _whoever_it_is(*arguments: Any, **named: Any) -> ErrorCode:
    error = _may_commit(*arguments, **named)
    strangers = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
    return ErrorCode.NONE if error in strangers else error


_may_commit = ClassicGroup.may_commit
_KEY, _RETRIES, _ONCE = "pool by key", "pool by key, retry topic", "pool by key, transactional"
_ONLY_UNFINISHED = "only what is unfinished is repeated"
_AS_IT_WAS = "a letter is as its record was"
_ONE_OWNER = "a partition has one owner"
_ONCE_EACH = "nothing is given or sent twice"
_COMMITTED = "a commit survives"


def _plain(name: str, promise: str, *patches: tuple[Any, str, Any]) -> Mutation:
    """One that is looked for with a plain group."""
    return Mutation(name, promise, patches, kinds=("kill",), clients=("idempotent", "group"))


GROUP_MUTATIONS: tuple[Mutation, ...] = (
    parallel_mistake(
        "nothing is committed",
        _ONLY_UNFINISHED,
        _KEY,
        (Engine, "_commit_soon", _nothing),
        (Engine, "_commit_now", _nothing),
    ),
    parallel_mistake("nothing is committed at the end", _ONLY_UNFINISHED, _KEY, (Engine, "_commit_now", _nothing)),
    parallel_mistake(
        "notes are not written", _ONLY_UNFINISHED, _KEY, (tracker, "encode_finished", _no_note), is_quick=True
    ),
    parallel_mistake(
        "notes are not looked at", _ONLY_UNFINISHED, _KEY, (PartitionTracker, "is_restored", _never), is_quick=True
    ),
    parallel_mistake("a partition goes undrained", _ONLY_UNFINISHED, _KEY, (Member, "drain", _drained_at_once)),
    parallel_mistake(
        "what is handled is handled again", _ONLY_UNFINISHED, _KEY, (ParallelCore, "_settle", _some_twice)
    ),
    parallel_mistake("one try more", "so many tries", _RETRIES, (failures, "judge", _one_try_more)),
    parallel_mistake("tries do not wait", "so many tries", _KEY, (Retry, "local_wait_s", _no_wait)),
    parallel_mistake("more workers than asked for", "workers", _KEY, (Coroutines, "_begin", _two_workers_more)),
    parallel_mistake("letters have no key", _AS_IT_WAS, _RETRIES, *_sent(_without_key)),
    parallel_mistake("letters come from the retry topic", _AS_IT_WAS, _RETRIES, *_sent(_from_where_it_was_last)),
    parallel_mistake("retries are due at once", _AS_IT_WAS, _RETRIES, *_sent(_due_when_it_is_sent)),
    parallel_mistake("letters are sent twice", _ONCE_EACH, _RETRIES, *_sent(_each_twice), is_quick=True),
    parallel_mistake(
        "what stays is never committed",
        _ONLY_UNFINISHED,
        _KEY,
        (Engine, "_commit_soon", _nothing),
    ),
    parallel_mistake(
        "some commits are forgotten (parallel)", _COMMITTED, _KEY, (OffsetChanges, "_committed", _some_are_forgotten)
    ),
    _plain("some commits are forgotten", _COMMITTED, (OffsetChanges, "_committed", _some_are_forgotten)),
    _plain("a record is given again", _ONCE_EACH, (Consumer, "poll", _last_one_again)),
    _plain("a record of a former partition is given", _ONE_OWNER, (Consumer, "poll", _last_one_later)),
    _plain(
        "a partition is left out", "readers are given all", (Subscriptions, "assign_by_hand", _one_is_left_out)
    )._replace(clients=("idempotent", "readers")),
    _plain(
        "partitions that are added are not seen", "readers are given all", (GroupLeader, "has_changed", _never)
    )._replace(grows=True),
    _plain(
        "a static leader takes all for assigned", "readers are given all", (_group_leader, "_assigned", _nothing)
    )._replace(grows=True, is_static=True),
    _plain("a replaced static member may commit", _ONE_OWNER, (ClassicGroup, "may_commit", _whoever_it_is))._replace(
        is_static=True
    ),
    parallel_mistake(
        "dead letters do not wait for copies",
        "no letter lost",
        _KEY,
        (Partition, "in_log", _dead_letters_do_not_wait),
        kinds=("kill", "isolate", "pause", "cut", "power"),
    ),
    parallel_mistake(
        "what was lost is gone on with", _ONE_OWNER, _KEY, (Engine, "on_partitions_lost", _nothing), hangs=True
    ),
    parallel_mistake(
        "whoever was in a group may commit",
        "a letter is there once",
        _ONCE,
        (ClassicGroup, "may_commit", _whoever_it_is),
        kinds=("client cut", "isolate", "pause", "kill"),
        hangs=True,
    ),
    parallel_mistake(
        "partitions move at once", _ONE_OWNER, _KEY, (sticky, "_without_moving", _moved_at_once), hangs=True
    )._replace(clients=("parallel", "group")),
    parallel_mistake(
        "a partition is given to two", _ONE_OWNER, _KEY, *(_with_one_twice(assignor) for assignor in _ASSIGNORS)
    )._replace(clients=("idempotent", "group"), is_quick=True),
)
