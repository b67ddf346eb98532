"""Members of a share group: they come, go and crash, while topics come, grow and are deleted.

The share coordinator, which begins the states of partitions, answers late, refuses, or its answer is lost. The rest is
as in the simulation of consumer groups (see there): writes that fail, coordinators that move, messages that are lost.
What must hold is checked by what members were told: they only get partitions whose state has begun and that they want,
all there are once it is quiet, and then nothing changes any more. A seed decides everything. By hand, many seeds:

    python -m tests.groups.share.simulation 10000
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.coordination.driver import played, run_seeds
from tests.groups.consumer.simulation import BEGIN_AGAIN, GROUP, ConsumerSimulation

from headrace.coordination import Caller
from headrace.errors import ErrorCode
from headrace.groups import GroupCoordinator
from headrace.groups.settings import DefaultSettings
from headrace.groups.share.group import ShareGroup
from headrace.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from headrace.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

TOPICS = ("t-a", "t-b", "t-new")
QUIET_HEARTBEATS_MS = 30_000
Place = tuple[bytes, int]


class Settings:
    """Those of the group."""

    def __init__(self, pick: random.Random) -> None:
        self._values = DefaultSettings().values("") | {"share.assignment.interval.ms": pick.choice((0, 1_000))}

    def values(self, group_id: str) -> Any:
        return self._values


@dataclass(eq=False)
class Reader:
    name: str
    wants: frozenset[str]
    member_id: str
    epoch: int = 0
    told: set[Place] = field(default_factory=set)
    is_alive: bool = True
    tells_all: bool = True
    is_classic: bool = False
    owned: frozenset[Any] = frozenset()  # partitions, of which only consumers have any
    instance_id: str | None = None
    waiting: int | None = None
    asked_ms: int = 0
    heard_ms: int = 0
    changed_ms: int = -1


class ShareSimulation(ConsumerSimulation):
    clients: list[Any]

    def __init__(self, seed: int) -> None:
        self.settings = Settings(random.Random(seed + 1))
        #: What the share coordinator has begun: in which epoch of the group.
        self.states: dict[Place, int] = {}
        self.made = 0
        super().__init__(seed)

    def new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(self.config, self.random, self.topics, self.settings)

    # --- clients

    def add_client(self) -> None:
        pick = self.random
        number = len(self.clients)
        wants = frozenset(pick.choice((("t-a",), ("t-a", "t-b"), ("t-b", "t-new"))))
        reader = Reader(f"c{number}", wants, f"m{number}", heard_ms=self.now_ms)
        self.clients.append(reader)
        self.after(pick.randint(0, 3_000), lambda: self.live(reader))  # type: ignore[arg-type]  # plays the same part

    def begin_again(self, client: Any) -> None:
        client.told.clear()
        client.epoch, client.tells_all, client.heard_ms = 0, True, self.now_ms

    def heartbeat_of(self, client: Any) -> Any:
        tells = client.tells_all or client.epoch == 0
        return ShareGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=client.member_id,
            member_epoch=client.epoch,
            subscribed_topic_names=sorted(client.wants) if tells else None,
        )

    def arrive(self, token: int, request: Any) -> None:
        if token not in self.sent:
            return
        client, what = self.sent[token]
        self.count(what)
        self.absorb(self.coordinator.share.heartbeat(Caller(token, client.name, "/sim", 1), request, self.now))

    def hear(self, token: int, response: Any) -> None:
        client, _ = self.sent.pop(token, (None, ""))
        if client is None or client.waiting != token or not client.is_alive:
            return
        client.waiting = None
        error = ErrorCode(response.error_code)
        if error in BEGIN_AGAIN:
            self.count(f"told {error.name}")
            self.begin_again(client)
        elif error != ErrorCode.NONE:
            client.tells_all = True  # type: ignore[unreachable]  # mypy takes it for the other kind of client
        else:
            self.hear_partitions(client, response)

    def hear_partitions(self, client: Any, response: ShareGroupHeartbeatResponse) -> None:
        client.heard_ms, client.tells_all = self.now_ms, client.changed_ms >= client.asked_ms
        assert response.member_epoch >= client.epoch, "an epoch came back"
        client.epoch = response.member_epoch
        if response.assignment is None:
            return
        told = {(one.topic_id, index) for one in response.assignment.topic_partitions for index in one.partitions}
        for topic_id, index in told - client.told:
            there = self.topics.topic_name(topic_id)
            assert there is None or (topic_id, index) in self.states, (
                f"{client.name} is given {there}-{index} too early"
            )
            self.count("taken")
        client.told = told

    # --- the share coordinator

    def absorb(self, outcome: Any) -> None:
        for asked in outcome.beginnings:
            self.count("beginnings")
            begin = partial(self.begin, asked, self.coordinator)
            self.after(self.random.choice((0, 5, 200, 3_000)), begin)
        super().absorb(outcome)

    def begin(self, asked: Any, coordinator: GroupCoordinator) -> None:
        answers = {}
        for place in asked.start_offsets:
            is_there = self.topics.topic_name(place[0]) is not None
            is_fenced = self.states.get(place, 0) > asked.state_epoch
            answers[place] = is_there and not is_fenced and not self.chance(0.1)
            if answers[place]:
                self.states[place] = asked.state_epoch
        if self.coordinator is coordinator and not self.chance(0.1):
            self.absorb(coordinator.share.states_begun(asked.group_id, answers, self.now))
        else:
            self.count("lost answers")

    # --- what happens

    def disturb(self) -> None:
        if self.is_quiet:
            return
        client = self.random.choice(self.clients)
        match self.random.randrange(8):
            case 0:
                self.move()
            case 1:
                self.add_client()
            case 2:
                client.is_alive = False
                self.count("crashes")
            case 3 if client.is_alive and client.epoch > 0:
                self.leave(client)
            case 4:
                client.wants = frozenset(self.random.choice((("t-a",), ("t-b",), ("t-a", "t-b"))))
                client.tells_all, client.changed_ms = True, self.now_ms
            case 5:
                self.change_topics()
            case 6:
                self.delete_topic()
            case _ if not any(one.is_alive for one in self.clients):
                self.add_client()
        self.after(self.random.randint(500, 6_000), self.disturb)

    def change_topics(self) -> None:
        name = self.random.choice(TOPICS)
        if name in self.topics.known:
            topic_id, count = self.topics.known[name]
            if count < 8:
                self.topics.known[name] = (topic_id, count + 1)
        else:
            self.made += 1
            self.topics.known[name] = (self.made.to_bytes(15, "big") + b"\2", 2)
        self.count("changed topics")
        self.absorb(self.coordinator.topics_changed(frozenset((name,)), self.now))

    def delete_topic(self) -> None:
        """A coordinator that is just being loaded does not hear of it."""
        name = self.random.choice(TOPICS)
        if name not in self.topics.known:
            return
        topic_id, _ = self.topics.known.pop(name)
        self.count("deleted topics")
        self.states = {place: epoch for place, epoch in self.states.items() if place[0] != topic_id}
        self.absorb(self.coordinator.share.topics_deleted({topic_id}, self.now))
        self.absorb(self.coordinator.topics_changed(frozenset((name,)), self.now))

    def leave(self, client: Any) -> None:
        client.is_alive = False
        request = ShareGroupHeartbeatRequest(group_id=GROUP, member_id=client.member_id, member_epoch=-1)
        self.tokens += 1
        self.count("leaves")
        self.absorb(self.coordinator.share.heartbeat(Caller(("leave", self.tokens), "c", "/s", 1), request, self.now))

    # --- what must hold

    def check(self) -> None:
        for group in self.coordinator.groups():
            if isinstance(group, ShareGroup):
                check_group(group)

    def check_end(self) -> None:
        assert not self.in_order
        group = next(iter(self.coordinator.groups()), None)
        alive = [client for client in self.clients if client.is_alive]
        if not isinstance(group, ShareGroup) or not alive:
            return
        given: Counter[Place] = Counter()
        for client in alive:
            wanted = {
                (topic_id, index)
                for name, (topic_id, count) in self.topics.known.items()
                for index in range(count)
                if name in client.wants
            }
            # Who wants nothing that is there may still be told of what is gone.
            there = {place for place in client.told if self.topics.topic_name(place[0]) is not None}
            assert there <= wanted, f"{client.name} has {there - wanted}, which it does not want"
            given.update(there)
        names = {name for client in alive for name in client.wants}
        every = {
            (topic_id, index)
            for name, (topic_id, count) in self.topics.known.items()
            for index in range(count)
            if name in names
        }
        assert set(given) == every, f"nobody has {every - set(given)}"
        before = self.described()
        self.is_over = False
        for client in alive:
            self.after(0, partial(self.live, client))
        self.run_until(self.now_ms + QUIET_HEARTBEATS_MS)
        self.is_over = True
        self.run_until(self.now_ms + 5_000)
        assert self.described() == before, "it changes though nothing else does"
        assert not group.book.unwritten
        self.restart()
        assert self.described() == before, "the log tells another group"

    def described(self) -> Any:
        self.tokens += 1
        token = self.tokens
        request = ShareGroupDescribeRequest(group_ids=[GROUP])
        self.absorb(self.coordinator.share.describe(Caller(token, "c", "/s", 1), request, self.now))
        group = self.answers[token].groups[0]
        return group.group_epoch, group.assignment_epoch, sorted(group.members, key=lambda one: one.member_id)


def check_group(group: ShareGroup) -> None:
    """What the group counts is what its members say."""
    assert group.topic_counts == dict(Counter(topic for one in group.members.values() for topic in one.topics))
    assert group.targets.keys() <= group.members.keys()
    assert group.epoch >= group.assignment_epoch
    for topics in (group.begun, group.beginning):
        assert all(states.partitions for states in topics.values())


def simulate(seed: int) -> ShareSimulation:
    return played(seed, lambda: ShareSimulation(seed).run())  # type: ignore[return-value]  # of that class, it is


if __name__ == "__main__":
    run_seeds(simulate)
