"""The rebalances of a group, told from its generations: why each came, how long it took, what moved, who flaps. Pure.

On any Kafka a cause is inferred from two generations and the commits between them, and says so; where a Headrace
coordinator wrote it down, it is the coordinator's. What was without an owner, and for how long, follows from the
commits (a member commits before it gives a partition up): at most so long.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from headrace.client.history.reading import Generation, GroupLog, Member
from headrace.topics import TopicPartition

FLAPPING_TIMES = 3
FLAPPING_WITHIN_MS = 60 * 60 * 1000
#: How much sooner than its time-out a member's last commit may be, and it still counts as silent.
_SILENT_SHARE = 0.9


class CauseKind(Enum):
    """Why a generation ended."""

    JOINED = "joined"
    LEFT = "left"
    SESSION_OVER = "session over"
    POLL_TOO_LATE = "poll too late"
    GONE = "left or lost"
    """Which of these cannot be told from the log."""
    RESTARTED = "restarted"
    SUBSCRIPTION = "subscription"
    PARTITIONS = "partitions"
    HANDED_OVER = "handed over"
    """The second step of a cooperative rebalance: what the first took away is given to others."""
    REJOINED = "rejoined"
    FIRST = "first seen"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason. `client` is who it is about."""

    kind: CauseKind
    text: str
    client: str = ""
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """A partition and who had it before and has it now; "" is nobody."""

    partition: TopicPartition
    before: str
    after: str


@dataclass(slots=True)
class Rebalance:
    """One generation and how it came."""

    generation: int
    at_ms: int
    causes: list[Cause]
    members: int
    members_before: int
    took_ms: int | None = None
    is_took_exact: bool = False
    moves: list[PartitionMove] = field(default_factory=list)
    idle_ms: dict[TopicPartition, int] = field(default_factory=dict)
    """For how long partitions that were given to another had no owner, at most."""
    skipped: int = 0
    """Generations before it that the log does not have any more, or never had."""


@dataclass(frozen=True, slots=True)
class Flapping:
    """A client that comes and goes."""

    client: str
    times: int
    within_ms: int
    kind: CauseKind
    advice: str


@dataclass(slots=True)
class GroupTimeline:
    """A group's rebalances, the oldest first."""

    group: str
    rebalances: list[Rebalance] = field(default_factory=list)
    flapping: list[Flapping] = field(default_factory=list)
    begins_ms: int | None = None
    is_cut: bool = False
    is_exact: bool = False
    """Whether the causes are the coordinator's own words."""


def timeline(log: GroupLog) -> GroupTimeline:
    """What the log says of a group's rebalances."""
    made = GroupTimeline(log.group, begins_ms=log.begins_ms, is_cut=log.is_cut)
    previous: Generation | None = None
    for at, generation in enumerate(log.generations):
        if previous is not None and _is_same(previous, generation):
            continue
        following = log.generations[at + 1].at_ms if at + 1 < len(log.generations) else None
        made.rebalances.append(_rebalance(log, previous, generation, following))
        previous = generation
    made.is_exact = any(cause.is_exact for one in made.rebalances for cause in one.causes)
    made.flapping = _flapping(made.rebalances)
    return made


def _is_same(before: Generation, now: Generation) -> bool:
    """Whether it is the same generation once more: a coordinator that loads it, or a static member with another id."""
    return before.number == now.number and _owners(before) == _owners(now) and len(before.members) == len(now.members)


def _owners(generation: Generation) -> dict[TopicPartition, str]:
    return {one: member.name for member in generation.members.values() for one in member.owns}


def _rebalance(log: GroupLog, before: Generation | None, now: Generation, following_ms: int | None) -> Rebalance:
    owners = _owners(now)
    if before is None:
        causes = _said(now) or [Cause(CauseKind.FIRST, "the oldest generation that the log still has")]
        return Rebalance(now.number, now.at_ms, causes, len(now.members), 0)
    had = _owners(before)
    made = Rebalance(now.number, now.at_ms, [], len(now.members), len(before.members))
    made.skipped = max(0, now.number - before.number - 1)
    made.moves = [
        PartitionMove(one, had.get(one, ""), owners.get(one, ""))
        for one in sorted({*had, *owners})
        if had.get(one, "") != owners.get(one, "")
    ]
    made.causes = _said(now) or _inferred(log, before, now)
    if now.began_ms is not None:
        made.took_ms, made.is_took_exact = max(0, now.at_ms - now.began_ms), True
    elif log.is_consumer_protocol:
        _reconciled(log, made, now, following_ms)
        return made
    for move in made.moves:
        if move.before and move.after:
            last = _last_commit(log, move.partition, before.at_ms, now.at_ms)
            # Who is still there gave it up when the rebalance began, and who is gone when it was last heard from.
            is_there = any(member.name == move.before for member in now.members.values())
            since = max(last or before.at_ms, now.began_ms or 0) if is_there else last or before.at_ms
            made.idle_ms[move.partition] = now.at_ms - since
    if made.took_ms is not None and "cooperative" not in now.protocol:
        # Everyone gives everything up, also what comes back.
        for one in had.keys() & owners.keys() - made.idle_ms.keys():
            made.idle_ms[one] = made.took_ms
    return made


def _last_commit(log: GroupLog, partition: TopicPartition, after_ms: int, before_ms: int) -> int | None:
    times = log.commits.get(partition, [])
    at = bisect_right(times, before_ms) - 1
    return times[at] if at >= 0 and times[at] >= after_ms else None


def _reconciled(log: GroupLog, made: Rebalance, now: Generation, following_ms: int | None) -> None:
    """How long members of the newer protocol took to go over to an assignment: they say so one by one."""
    has = {member_id: member.owns for member_id, member in now.members.items()}
    waiting = set(has)
    lost: dict[TopicPartition, int] = {}
    moved = {move.partition for move in made.moves}
    current: dict[str, frozenset[TopicPartition]] = {}
    for one in log.owned:
        gave_up = current.get(one.member_id, frozenset()) - one.owns
        current[one.member_id] = one.owns
        if one.at_ms < now.at_ms:
            continue
        if following_ms is not None and one.at_ms > following_ms:
            break
        for partition in gave_up & moved:
            lost[partition] = one.at_ms
        for partition in one.owns & lost.keys():
            made.idle_ms[partition] = one.at_ms - lost.pop(partition)
        if one.member_id in waiting and one.epoch >= now.number and one.owns == has[one.member_id]:
            waiting.discard(one.member_id)
            if not waiting:
                made.took_ms, made.is_took_exact = one.at_ms - now.at_ms, True


# --- why --------------------------------------------------------------------------------------------------------------

_WORDS: tuple[tuple[str, CauseKind], ...] = (
    (r"did not rejoin in time", CauseKind.POLL_TOO_LATE),
    (r"\bleft\b.*\bpoll\b", CauseKind.POLL_TOO_LATE),
    (r"was not heard from", CauseKind.SESSION_OVER),
    (r"no SyncGroup in time", CauseKind.SESSION_OVER),
    (r"never joined", CauseKind.SESSION_OVER),
    (r"\bleft\b", CauseKind.LEFT),
    (r"comes back", CauseKind.RESTARTED),
    (r"\bjoins\b", CauseKind.JOINED),
    (r"subscri", CauseKind.SUBSCRIPTION),
    (r"partition", CauseKind.PARTITIONS),
    (r"revoked|handed|cooperative", CauseKind.HANDED_OVER),
    (r"\brejoins\b", CauseKind.REJOINED),
)
# What a member's id ends with, whichever client made it.
_ID_END = re.compile(r"-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


def _said(now: Generation) -> list[Cause] | None:
    """The coordinator's own words."""
    if now.causes is None:
        return None
    return [Cause(_kind_of(text), text, _client_in(text), is_exact=True) for text in now.causes] or None


def _kind_of(text: str) -> CauseKind:
    return next((kind for words, kind in _WORDS if re.search(words, text)), CauseKind.OTHER)


def _client_in(text: str) -> str:
    found = re.search(r"(\S+?)" + _ID_END.pattern, text)
    return found[1] if found else ""


def _inferred(log: GroupLog, before: Generation, now: Generation) -> list[Cause]:
    """What two generations differ in, and so why the first of them ended."""
    causes: list[Cause] = []
    gone = [member for member_id, member in before.members.items() if member_id not in now.members]
    come = [member for member_id, member in now.members.items() if member_id not in before.members]
    for member in list(gone):
        back = next((one for one in come if _is_back(member, one)), None)
        how, text = _how_gone(log, member, before, now)
        if back is not None:
            come.remove(back)
            if how is CauseKind.POLL_TOO_LATE:
                causes.append(Cause(how, text, member.name))
            else:
                causes.append(Cause(CauseKind.RESTARTED, f"{member.name} came back as another member", member.name))
        else:
            causes.append(Cause(how, text, member.name))
    causes += [Cause(CauseKind.JOINED, f"{member.name} joined from {member.host}", member.name) for member in come]
    if causes:
        return causes
    changed = [
        member.name for member_id, member in now.members.items() if before.members[member_id].topics != member.topics
    ]
    if changed:
        return [Cause(CauseKind.SUBSCRIPTION, f"{name} subscribes to other topics", name) for name in changed]
    had, have = _owners(before), _owners(now)
    new = sorted(have.keys() - had.keys())
    if new:
        others = {one.topic for one in had}
        if any(one.topic in others and _is_beyond(one, had) for one in new):
            return [Cause(CauseKind.PARTITIONS, f"there are more partitions: {_some(new)}")]
        return [Cause(CauseKind.HANDED_OVER, f"{_some(new)}: given up in the generation before, now to others")]
    if had.keys() - have.keys():
        return [
            Cause(
                CauseKind.HANDED_OVER, f"{_some(sorted(had.keys() - have.keys()))}: taken away, to be given to others"
            )
        ]
    if now.number > before.number + 1:
        return [Cause(CauseKind.OTHER, "somebody came and went again before the group was stable")]
    return [Cause(CauseKind.REJOINED, "a member joined again, with the same subscription")]


def _is_back(gone: Member, come: Member) -> bool:
    if gone.instance_id or come.instance_id:
        return gone.instance_id == come.instance_id
    return (gone.client_id, gone.host) == (come.client_id, come.host)


def _is_beyond(one: TopicPartition, had: dict[TopicPartition, str]) -> bool:
    return one.partition > max(other.partition for other in had if other.topic == one.topic)


def _how_gone(log: GroupLog, member: Member, before: Generation, now: Generation) -> tuple[CauseKind, str]:
    """Whether a member left, was silent for a session, or did not poll: by its commits, as far as they say."""
    last = max(
        (one for p in member.owns if (one := _last_commit(log, p, before.at_ms, now.at_ms)) is not None), default=None
    )
    if last is None:
        # It may have had nothing to commit, or committed by hand.
        if not any(log.commits.get(one) for one in member.owns):
            return CauseKind.GONE, f"{member.name} left or was lost"
        last = before.at_ms
    silent_ms = now.at_ms - last
    session_ms, poll_ms = member.session_timeout_ms, member.rebalance_timeout_ms
    if poll_ms > 0 and silent_ms >= poll_ms * _SILENT_SHARE and poll_ms > session_ms:
        return (
            CauseKind.POLL_TOO_LATE,
            f"{member.name} did not poll in time: no commit for {_s(silent_ms)}, max.poll.interval.ms is {_s(poll_ms)}",
        )
    if session_ms > 0 and silent_ms >= session_ms * _SILENT_SHARE:
        return (
            CauseKind.SESSION_OVER,
            f"{member.name} was silent: no commit of it for {_s(silent_ms)}, session.timeout.ms is {_s(session_ms)}",
        )
    return CauseKind.LEFT, f"{member.name} left, {_s(silent_ms)} after its last commit"


def _s(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds < 10_000 else f"{round(milliseconds / 1000)} s"


def _some(partitions: Sequence[TopicPartition]) -> str:
    shown = ", ".join(map(str, partitions[:3]))
    return shown if len(partitions) <= 3 else f"{shown} and {len(partitions) - 3} more"


# --- flapping ---------------------------------------------------------------------------------------------------------

_ADVICE = {
    CauseKind.POLL_TOO_LATE: "its handler takes longer than max.poll.interval.ms: fewer records per poll "
    "(max.poll.records), more time, or handle them in parallel",
    CauseKind.SESSION_OVER: "it is not heard from in session.timeout.ms: its process is stopped, starved or cut off",
    CauseKind.RESTARTED: "it starts again and again: look why it ends; with group.instance.id that is no rebalance",
    CauseKind.LEFT: "it comes and goes: keep one consumer instead of one per piece of work",
    CauseKind.GONE: "it comes and goes: look at its own log for why",
    CauseKind.JOINED: "it joins again and again: look at its own log for why it was out",
}
_COMINGS = (CauseKind.JOINED, CauseKind.RESTARTED)
_GOINGS = (CauseKind.POLL_TOO_LATE, CauseKind.SESSION_OVER, CauseKind.LEFT, CauseKind.GONE)


def _flapping(rebalances: Sequence[Rebalance]) -> list[Flapping]:
    """Clients that went (or came back) again and again within an hour, with what it mostly was."""
    times: defaultdict[str, list[tuple[int, CauseKind]]] = defaultdict(list)
    comings: defaultdict[str, list[tuple[int, CauseKind]]] = defaultdict(list)
    for one in rebalances:
        for cause in one.causes:
            if cause.client and (cause.kind in _GOINGS or cause.kind is CauseKind.RESTARTED):
                times[cause.client].append((one.at_ms, cause.kind))
            elif cause.client and cause.kind in _COMINGS:
                comings[cause.client].append((one.at_ms, cause.kind))
    found = []
    for client in sorted({*times, *comings}):
        events = times.get(client) or comings[client]
        best: list[tuple[int, CauseKind]] = []
        for first, (at_ms, _) in enumerate(events):
            near = [event for event in events[first:] if event[0] - at_ms <= FLAPPING_WITHIN_MS]
            if len(near) > len(best):
                best = near
        if len(best) >= FLAPPING_TIMES:
            kind = Counter(kind for _, kind in best).most_common(1)[0][0]
            found.append(Flapping(client, len(best), best[-1][0] - best[0][0], kind, _ADVICE[kind]))
    return sorted(found, key=lambda one: -one.times)
