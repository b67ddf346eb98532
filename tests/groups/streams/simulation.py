"""Members of a streams group: they come, go and crash, several in one process, while tasks move.

The rest is as in the simulation of consumer groups (see there): writes that fail, coordinators that move, messages that
are lost, topics that grow. What must hold is checked by what members were told: no task runs twice, no process has a
task twice, in whatever roles. A seed decides everything. By hand, many seeds:

    python -m tests.groups.streams.simulation 10000
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.coordination.driver import played, run_seeds
from tests.groups.consumer.simulation import BEGIN_AGAIN, GROUP, ConsumerSimulation

from headrace.coordination import Caller
from headrace.errors import ErrorCode
from headrace.groups import GroupCoordinator
from headrace.groups.settings import DefaultSettings
from headrace.groups.streams.group import StreamsGroup
from headrace.groups.streams.topology import TopologyStatus
from headrace.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from headrace.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)

Tasks = set[tuple[str, int]]
COUNTED = "app-counts-changelog"
AGAIN = "app-again-repartition"


class Settings:
    """Those of the group, which may change."""

    def __init__(self, pick: random.Random) -> None:
        self.standby = pick.choice((0, 0, 1, 2))
        self._delay_ms = pick.choice((0, 0, 3_000))
        self._interval_ms = pick.choice((0, 1_000))
        self._defaults = DefaultSettings().values("")

    def values(self, group_id: str) -> Any:
        return {
            **self._defaults,
            "streams.num.standby.replicas": self.standby,
            "streams.initial.rebalance.delay.ms": self._delay_ms,
            "streams.assignment.interval.ms": self._interval_ms,
        }


@dataclass(eq=False)
class App:
    """A thread of an application: it runs what it is told, and stops tasks before it says that it has."""

    name: str
    process_id: str
    member_id: str
    epoch: int = 0
    active: Tasks = field(default_factory=set)
    standby: Tasks = field(default_factory=set)
    told_active: Tasks = field(default_factory=set)
    told_standby: Tasks = field(default_factory=set)
    is_alive: bool = True
    tells_all: bool = True
    is_classic: bool = False
    owned: frozenset[Any] = frozenset()  # partitions, of which only consumers have any
    instance_id: str | None = None
    waiting: int | None = None
    asked_ms: int = 0
    heard_ms: int = 0


def topology() -> Topology:
    first = Subtopology(subtopology_id="0", source_topics=["t-a"], repartition_sink_topics=[AGAIN])
    second = Subtopology(
        subtopology_id="1",
        repartition_source_topics=[TopicInfo(name=AGAIN, partitions=0)],
        state_changelog_topics=[TopicInfo(name=COUNTED, partitions=0)],
    )
    return Topology(epoch=0, subtopologies=[first, second])


class StreamsSimulation(ConsumerSimulation):
    clients: list[Any]

    def __init__(self, seed: int) -> None:
        self.settings = Settings(random.Random(seed + 1))
        super().__init__(seed)

    def new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(self.config, self.random, self.topics, self.settings)

    # --- clients

    def add_client(self) -> None:
        pick = self.random
        number = len(self.clients)
        app = App(f"c{number}", pick.choice(("p0", "p1", "p2")), f"m{number}", heard_ms=self.now_ms)
        self.clients.append(app)
        self.after(pick.randint(0, 3_000), lambda: self.live(app))  # type: ignore[arg-type]  # plays the same part

    def commit(self, client: Any) -> None:
        """Applications commit in transactions, which the simulation of classic groups has."""

    def begin_again(self, client: Any) -> None:
        client.active.clear()
        client.standby.clear()
        client.epoch, client.tells_all, client.heard_ms = 0, True, self.now_ms

    @property
    def _owned(self) -> Any:
        return None

    def heartbeat_of(self, client: Any) -> Any:
        request = StreamsGroupHeartbeatRequest(
            group_id=GROUP, member_id=client.member_id, member_epoch=client.epoch, endpoint_information_epoch=0
        )
        if client.epoch == 0:
            request.topology, request.process_id = topology(), client.process_id
            request.rebalance_timeout_ms = 30_000
            request.active_tasks = request.standby_tasks = request.warmup_tasks = []
        elif client.tells_all or self.random.random() < 0.7:
            request.active_tasks, request.standby_tasks = _ids(client.active), _ids(client.standby)
            request.warmup_tasks = []
        return request

    def arrive(self, token: int, request: Any) -> None:
        if token not in self.sent:
            return
        client, what = self.sent[token]
        self.count(what)
        caller = Caller(token, client.name, "/sim", 0)
        self.absorb(self.coordinator.streams.heartbeat(caller, request, self.now))

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
            self.hear_tasks(client, response)

    def hear_tasks(self, client: Any, response: StreamsGroupHeartbeatResponse) -> None:
        client.heard_ms, client.tells_all = self.now_ms, False
        assert response.member_epoch >= client.epoch, "an epoch came back"
        client.epoch = response.member_epoch
        if any(one.status_code == TopologyStatus.MISSING_INTERNAL_TOPICS for one in response.status or ()):
            self.after(self.random.choice((0, 500)), self.make_topics)
        if response.active_tasks is None:
            return
        active, standby = _tasks(response.active_tasks), _tasks(response.standby_tasks)
        for task in active - client.active:
            self.run_task(client, task)
        for task in standby - client.standby:
            self.copy_task(client, task)
        client.told_active, client.told_standby = active, standby
        gone_active, gone_standby = client.active - active, client.standby - standby

        def let_go() -> None:
            # They may have been given back meanwhile.
            client.active -= gone_active - client.told_active
            client.standby -= gone_standby - client.told_standby
            self.count("revoked")

        if gone_active or gone_standby:
            self.after(self.random.choice((0, 0, 100, 1_500)), let_go)

    def run_task(self, client: Any, task: tuple[str, int]) -> None:
        others = [one.name for one in self.clients if one is not client and one.is_alive and task in one.active]
        assert not others, f"{client.name} is to run {task}, which {others} still runs"
        self.check_process(client, task)
        client.active.add(task)
        self.count("taken")

    def copy_task(self, client: Any, task: tuple[str, int]) -> None:
        self.check_process(client, task)
        client.standby.add(task)
        self.count("copied")

    def check_process(self, client: Any, task: tuple[str, int]) -> None:
        for one in self.clients:
            if one.is_alive and one.process_id == client.process_id:
                has = task in one.active or task in one.standby
                assert not has, f"{client.name} gets {task}, which {one.name} of its process still has"

    def make_topics(self) -> None:
        made = self.coordinator.streams.topics_to_create(GROUP)
        for topic in made:
            if topic.name not in self.topics.known:
                self.topics.create(topic.name, topic.num_partitions)
        if made:
            self.absorb(self.coordinator.topics_changed(frozenset(topic.name for topic in made), self.now))

    # --- what happens

    def disturb(self) -> None:
        if self.is_quiet:
            return
        client = self.random.choice(self.clients)
        match self.random.randrange(8):
            case 0:
                self.move()
            case 1 | 2:
                self.add_client()
            case 3:
                client.is_alive = False
                self.count("crashes")
            case 4 if client.is_alive and client.epoch > 0:
                self.leave(client)
            case 5:
                self.settings.standby = self.random.choice((0, 1, 2))
            case _ if not any(one.is_alive for one in self.clients):
                self.add_client()
        self.after(self.random.randint(500, 6_000), self.disturb)

    def leave(self, client: Any) -> None:
        client.is_alive = False
        request = StreamsGroupHeartbeatRequest(
            group_id=GROUP, member_id=client.member_id, member_epoch=-1, endpoint_information_epoch=0
        )
        self.tokens += 1
        self.count("leaves")
        self.absorb(self.coordinator.streams.heartbeat(Caller(("leave", self.tokens), "c", "/s", 0), request, self.now))

    # --- what must hold

    def check(self) -> None:
        for group in self.coordinator.groups():
            if isinstance(group, StreamsGroup):
                check_group(group)

    def check_end(self) -> None:
        assert not self.in_order
        group = next(iter(self.coordinator.groups()), None)
        alive = [client for client in self.clients if client.is_alive]
        if not isinstance(group, StreamsGroup) or not alive:
            return
        number = self.topics.known["t-a"][1]
        wanted = {(subtopology, task) for subtopology in ("0", "1") for task in range(number)}
        running = Counter(task for client in alive for task in client.active)
        assert dict(running) == dict.fromkeys(wanted, 1), f"running {running}"
        copies = Counter(task for client in alive for task in client.standby)
        processes = len({client.process_id for client in alive})
        each = min(self.settings.standby, processes - 1)
        assert dict(copies) == ({("1", task): each for task in range(number)} if each else {}), f"copies {copies}"
        assert group.state_name == "Stable", group.state_name
        before = self.described()
        assert not group.book.unwritten
        self.restart()
        assert self.described() == before, "the log tells another group"

    def described(self) -> Any:
        self.tokens += 1
        token = self.tokens
        request = StreamsGroupDescribeRequest(group_ids=[GROUP])
        self.absorb(self.coordinator.streams.describe(Caller(token, "c", "/s", 0), request, self.now))
        group = self.answers[token].groups[0]
        members = sorted(group.members, key=lambda one: one.member_id)
        subtopologies = [one.subtopology_id for one in group.topology.subtopologies]
        return group.group_epoch, group.assignment_epoch, members, subtopologies


def _ids(tasks: Tasks) -> list[TaskIds]:
    found: dict[str, list[int]] = {}
    for subtopology, number in sorted(tasks):
        found.setdefault(subtopology, []).append(number)
    return [TaskIds(subtopology_id=one, partitions=numbers) for one, numbers in found.items()]


def _tasks(told: list[TaskIds] | None) -> Tasks:
    return {(one.subtopology_id, number) for one in told or () for number in one.partitions}


def check_group(group: StreamsGroup) -> None:
    """What the group remembers of who holds what is what its members say."""
    active: dict[tuple[str, int], set[str]] = {}
    passive: dict[tuple[str, int], set[str]] = {}
    for one in group.members.values():
        for tasks in (one.assigned, one.revoking):
            for name, numbers in tasks.active.items():
                for number in numbers:
                    active.setdefault((name, number), set()).add(one.member_id)
            for roles in (tasks.standby, tasks.warmup):
                for name, found in roles.items():
                    for number in found:
                        passive.setdefault((name, number), set()).add(one.member_id)
    assert group.active_holders == active
    assert group.passive_holders == passive
    assert all(len(holders) == 1 for holders in active.values()), "a task has two holders"
    assert group.targets.keys() <= group.members.keys()
    assert group.epoch >= group.assignment_epoch


def simulate(seed: int) -> StreamsSimulation:
    return played(seed, lambda: StreamsSimulation(seed).run())  # type: ignore[return-value]  # of that class, it is


if __name__ == "__main__":
    run_seeds(simulate)
