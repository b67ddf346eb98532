"""What the simulation of groups is made of: clients, requests, what was said and written; and when a group is sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.groups import GroupState
from headrace.groups.state import Group


@dataclass
class Client:
    """A consumer, alive or not. `life` counts its restarts: answers to an earlier life mean nothing to it."""

    name: str
    group_id: str
    instance_id: str | None
    version: int
    protocols: list[str]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str = ""
    generation: int = -1
    generation_epoch: int = -1  # of the coordinator that told it of its generation
    phase: str = "out"
    life: int = 0
    waiting: int | None = None  # the token that it waits for
    asked_ms: int = 0
    in_transaction: bool = False
    turn: int = 0  # only the latest plan for what it does next counts


@dataclass
class Sent:
    """A request as the coordinator saw it."""

    client: Client
    life: int
    method: str
    request: Any
    epoch: int  # a request and its answer travel on a connection, which ends with the coordinator at its other end
    expected: bool = True  # False: nobody waits for the answer (a repeated message)
    arrived: bool = False


@dataclass
class Facts:
    """What was answered in one epoch of one group: from a start of the coordinator to the next."""

    leaders: dict[int, str] = field(default_factory=dict)  # generation → who was asked for the assignment
    assigned: dict[int, str] = field(default_factory=dict)  # generation → mark of the assignment that was handed out
    generation: int = -1  # the latest that anyone was told


class Written(NamedTuple):
    """An offset in the log, and its place there."""

    offset: int
    place: int


@dataclass
class Marker:
    """The end of a transaction in one partition, on its way to the log."""

    partition: int
    producer_id: int
    committed: bool
    end: Callable[[], None]


def check_group(group: Group) -> None:
    assert group.joining == sum(member.join is not None for member in group.members.values())
    assert all(member_id == member.member_id for member_id, member in group.members.items())
    statics = {m.instance_id: m.member_id for m in group.members.values() if m.instance_id is not None}
    assert group.static_members == statics
    support: dict[str, int] = {}
    for member in group.members.values():
        for name, _ in member.protocols:
            support[name] = support.get(name, 0) + 1
    assert group._support == support
    assert not group.pending.keys() & group.members.keys()
    assert group.pending_sync <= group.members.keys()
    if group.members:
        assert group.leader in group.members
    waits_for_sync = [member for member in group.members.values() if member.sync is not None]
    match group.state:
        case GroupState.EMPTY:
            assert not group.members
        case GroupState.PREPARING_REBALANCE:
            assert group.join_deadline_ms is not None, "a rebalance without an end"
            assert not waits_for_sync
        case GroupState.COMPLETING_REBALANCE:
            leader = group.members[group.leader or ""]
            assert group.sync_deadline_ms is not None or group.storing is not None or leader.sync is None
            if leader.sync is not None:
                assert group.storing == group.generation, "the leader synced, but nothing is being written"
            else:
                assert group.sync_deadline_ms is not None or group.storing is not None, "nobody waits for the leader"
        case GroupState.STABLE:
            assert not waits_for_sync
