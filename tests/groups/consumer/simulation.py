"""Members of both protocols in one group: they come, go, crash and change their minds, while partitions move.

Writes take time and may fail, whole or in part; the coordinator is moved and comes back from its log; messages are
lost; targets and expressions are computed while everything else goes on; topics come and grow. What must hold whatever
happens is checked after every step, by what members were told and not by what the coordinator thinks: no partition has
two owners. A seed decides everything. By hand, many seeds:

    python -m tests.groups.consumer.simulation 10000
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.coordination.driver import played, run_seeds
from tests.groups.driver import Driver

from headrace.assignors.base import Assignment, Subscription
from headrace.assignors.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.coordination import Caller
from headrace.errors import ErrorCode
from headrace.groups import GroupConfig
from headrace.groups.classic.state import ClassicGroup
from headrace.groups.consumer.config import ConsumerGroupConfig
from headrace.groups.consumer.group import ConsumerGroup
from headrace.groups.epochs import targets
from headrace.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from headrace.topics import TopicPartition

GROUP = "group"
BUSY_MS = 120_000
QUIET_MS = 300_000
GIVE_UP_MS = 2_500  # after so long without an answer a request is sent again
ALONE_MS = 9_000  # and after so long a member takes itself for put out
WRITE_ERRORS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT)
BEGIN_AGAIN = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.GROUP_ID_NOT_FOUND,
)


@dataclass(eq=False)
class Client:
    """A consumer. `owned` is what it reads: it takes what it is told, and lets go before it says that it has."""

    name: str
    is_classic: bool
    instance_id: str | None
    wants: frozenset[str]
    regex: str = ""
    member_id: str = ""
    epoch: int = 0
    owned: set[TopicPartition] = field(default_factory=set)
    told: set[TopicPartition] = field(default_factory=set)
    is_alive: bool = True
    tells_all: bool = True
    phase: str = "join"  # of a classic one: join, sync, stable
    assignments: list[SyncGroupRequestAssignment] = field(default_factory=list)
    waiting: int | None = None
    asked_ms: int = 0
    heard_ms: int = 0
    changed_ms: int = -1
    committing: int = 0


class ConsumerSimulation(Driver):
    def __init__(self, seed: int) -> None:
        pick = random.Random(seed)
        assignors = pick.choice((("uniform", "range"), ("range",)))
        config = GroupConfig(
            initial_rebalance_delay_ms=0,
            offsets_topic_partitions=1,
            consumer=ConsumerGroupConfig(assignors=assignors),
        )
        self.job_ms = pick.choice((0, 0, 300, 4_000))
        self.inline_max = pick.choice((0, 2_000))
        super().__init__(config, seed=seed)
        self.clients: list[Client] = []
        self.in_order: list[Any] = []
        self.write_ready_ms = 0
        self.epoch_of_log = 0
        self.is_over = False
        self.sent: dict[int, tuple[Client, str]] = {}
        for name in ("t-a", "t-b"):
            self.topics.create(name, pick.randint(1, 5))
        self.mix = pick.choice((0.0, 0.0, 0.4, 1.0))
        for _ in range(pick.randint(1, 5)):
            self.add_client()

    # --- clients

    def add_client(self) -> None:
        pick = self.random
        number = len(self.clients)
        is_classic = pick.random() < self.mix
        wants = frozenset(pick.choice((("t-a",), ("t-a", "t-b"), ("t-a", "t-b"), ("t-b", "t-new"))))
        client = Client(f"c{number}", is_classic, f"i{number}" if pick.random() < 0.3 else None, wants)
        if not is_classic and pick.random() < 0.25:
            client.wants, client.regex = frozenset(), "t-.*"
        client.member_id = "" if is_classic else f"m{number}"
        client.heard_ms = self.now_ms
        self.clients.append(client)
        self.after(pick.randint(0, 3_000), lambda: self.live(client))

    def live(self, client: Client) -> None:
        """One turn of a consumer: it asks, unless it waits for an answer."""
        if not client.is_alive or self.is_over:
            return
        if self.now_ms - client.heard_ms > ALONE_MS:
            self.begin_again(client)
        if client.waiting is not None and self.now_ms - client.asked_ms > GIVE_UP_MS:
            self.sent.pop(client.waiting, None)  # its connection is closed: what has not arrived never will
            client.waiting, client.tells_all = None, True
        if client.waiting is None:
            if client.epoch and client.owned and self.random.random() < 0.2:
                self.commit(client)
            if client.is_classic:
                self.ask_classic(client)
            else:
                self.send_later(client, "consumer", self.heartbeat_of(client))
        self.after(self.random.randint(200, 900), lambda: self.live(client))

    def begin_again(self, client: Client) -> None:
        client.owned.clear()
        client.epoch, client.tells_all, client.phase, client.heard_ms = 0, True, "join", self.now_ms

    def heartbeat_of(self, client: Client) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=client.member_id, member_epoch=client.epoch, instance_id=client.instance_id
        )
        if client.tells_all or client.epoch == 0:
            request.rebalance_timeout_ms = 30_000
            request.subscribed_topic_names = sorted(client.wants)
            request.subscribed_topic_regex = client.regex
        if client.epoch == 0:
            request.topic_partitions = []
        elif client.tells_all or self.random.random() < 0.7:
            owned: dict[bytes, list[int]] = {}
            for topic, index in client.owned:
                topic_id = self.topics.topic_id(topic)
                assert topic_id is not None
                owned.setdefault(topic_id, []).append(index)
            request.topic_partitions = [
                HeartbeatTopicPartitions(topic_id=topic_id, partitions=found) for topic_id, found in owned.items()
            ]
        return request

    def ask_classic(self, client: Client) -> None:
        if client.phase == "join":
            client.owned.clear()  # an eager member gives up everything before it joins
            metadata = encode_subscription(Subscription(topics=sorted(client.wants)), 1)
            request = JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=15_000,
                rebalance_timeout_ms=12_000,
                member_id=client.member_id,
                group_instance_id=client.instance_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
            )
            self.send_later(client, "join", request)
        elif client.phase == "sync":
            sync = SyncGroupRequest(
                group_id=GROUP,
                generation_id=client.epoch,
                member_id=client.member_id,
                group_instance_id=client.instance_id,
                assignments=client.assignments,
            )
            self.send_later(client, "sync", sync)
        else:
            beat = HeartbeatRequest(
                group_id=GROUP,
                generation_id=client.epoch,
                member_id=client.member_id,
                group_instance_id=client.instance_id,
            )
            self.send_later(client, "heartbeat", beat)

    def commit(self, client: Client) -> None:
        """Commit what it has; whether that is accepted is checked where it arrives."""
        topic, index = self.random.choice(sorted(client.owned))
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=client.epoch,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic, partitions=[OffsetCommitRequestPartition(partition_index=index, committed_offset=1)]
                )
            ],
        )
        place = TopicPartition(topic, index)
        # A commit that the network holds up is not waited for any more; by then the member may be in a later epoch.
        is_waited_for = self.is_quiet or self.random.random() < 0.8
        client.committing += is_waited_for

        def arrive() -> None:
            client.committing -= is_waited_for
            self.tokens += 1
            outcome = self.coordinator.offset_commit(Caller(("commit", self.tokens), "c", "/s", 9), request, self.now)
            if outcome.effects:
                self.count("commits")
                others = [one.name for one in self.clients if one is not client and place in one.owned]
                if is_waited_for or client.epoch > request.generation_id_or_member_epoch:
                    assert not others, f"{client.name} committed {place}, which {others} has by now"
            self.absorb(outcome)

        self.after(self.random.choice((0, 5, 2_000) if is_waited_for else (4_000, 9_000)), arrive)

    # --- network

    def send_later(self, client: Client, what: str, request: Any) -> None:
        self.tokens += 1
        token = client.waiting = self.tokens
        client.asked_ms = self.now_ms
        self.sent[token] = (client, what)
        if not self.chance(0.03):
            self.after(self.random.choice((0, 1, 20, 200)), lambda: self.arrive(token, request))

    def arrive(self, token: int, request: Any) -> None:
        if token not in self.sent:
            return
        client, what = self.sent[token]
        method = self.coordinator.consumer.heartbeat
        if what != "consumer":
            method = getattr(self.coordinator, {"join": "join_group", "sync": "sync_group"}.get(what, what))
        self.count(what)
        self.absorb(method(Caller(token, client.name, "/sim", {"join": 9, "sync": 5}.get(what, 1)), request, self.now))

    def answer(self, token: Any, response: Any) -> None:
        super().answer(token, response)
        if token in self.sent and not self.chance(0.03):
            self.after(self.random.choice((0, 1, 20)), lambda: self.hear(token, response))

    def hear(self, token: int, response: Any) -> None:
        client, what = self.sent.pop(token, (None, ""))
        if client is None or client.waiting != token or not client.is_alive:
            return
        client.waiting = None
        error = ErrorCode(response.error_code)
        if error in BEGIN_AGAIN:
            self.count(f"told {error.name}")
            self.begin_again(client)
            if client.is_classic:
                client.member_id = ""
            return
        if what == "consumer":
            self.hear_heartbeat(client, error, response)
        elif what == "join":
            self.hear_join(client, error, response)
        elif what == "sync" and error == ErrorCode.NONE:
            client.phase, client.heard_ms = "stable", self.now_ms
            for place in decode_assignment(response.assignment).partitions if response.assignment else ():
                self.take(client, TopicPartition(*place))
        elif error == ErrorCode.NONE:
            client.heard_ms = self.now_ms
        elif error == ErrorCode.REBALANCE_IN_PROGRESS:
            client.phase, client.heard_ms = "join", self.now_ms
        if client.is_classic and client.changed_ms >= client.asked_ms:
            client.phase = "join"

    def hear_heartbeat(self, client: Client, error: ErrorCode, response: ConsumerGroupHeartbeatResponse) -> None:
        if error != ErrorCode.NONE:
            client.tells_all = True
            return
        client.heard_ms, client.tells_all = self.now_ms, client.changed_ms >= client.asked_ms
        assert response.member_epoch >= client.epoch, "an epoch came back"
        client.epoch = response.member_epoch
        if response.assignment is None:
            return
        told = {
            TopicPartition(self.topics.topic_name(part.topic_id) or "", index)
            for part in response.assignment.topic_partitions
            for index in part.partitions
        }
        for place in told - client.owned:
            self.take(client, place)
        client.told = told
        gone = client.owned - told

        def let_go() -> None:
            if client.committing:  # it waits for its commits first: whoever is in the group's epoch may commit anything
                self.after(100, let_go)
            elif gone - client.told:  # it may have been given back meanwhile
                client.owned -= gone - client.told
                self.count("revoked")

        # Who is told to give up something takes its time, and says that it still has it until then.
        self.after(self.random.choice((0, 0, 100, 1_500)), let_go)

    def hear_join(self, client: Client, error: ErrorCode, response: JoinGroupResponse) -> None:
        if error == ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = response.member_id
        elif error == ErrorCode.NONE:
            client.member_id, client.epoch = response.member_id, response.generation_id
            client.phase, client.heard_ms, client.assignments = "sync", self.now_ms, []
            if response.leader == response.member_id:
                self.lead(client, response)

    def lead(self, client: Client, response: JoinGroupResponse) -> None:
        given: dict[str, list[TopicPartition]] = {member.member_id: [] for member in response.members}
        wants = {one.member_id: decode_subscription(one.metadata).topics for one in response.members}
        for name, (_, count) in self.topics.known.items():
            subscribers = sorted(member_id for member_id, topics in wants.items() if name in topics)
            for index in range(count if subscribers else 0):
                given[subscribers[index % len(subscribers)]].append(TopicPartition(name, index))
        client.assignments = [
            SyncGroupRequestAssignment(member_id=who, assignment=encode_assignment(Assignment(parts), 1))
            for who, parts in given.items()
        ]

    def take(self, client: Client, place: TopicPartition) -> None:
        others = [one.name for one in self.clients if one is not client and one.is_alive and place in one.owned]
        assert not others, f"{client.name} is given {place}, which {others} still has"
        client.owned.add(place)
        self.count("taken")

    # --- writes, and the coordinator's lives

    def begin_write(self, outcome: Any) -> None:
        self.in_order.append(outcome)
        self.write_ready_ms = max(self.write_ready_ms, self.now_ms + self.random.choice((0, 0, 1, 30, 400)))
        self.after(self.write_ready_ms - self.now_ms, lambda: self.end_write(outcome))

    def end_write(self, outcome: Any) -> None:
        if not any(one is outcome for one in self.in_order):
            return
        self.in_order = [one for one in self.in_order if one is not outcome]
        errors = {}
        if self.chance(0.06):
            error = self.random.choice(WRITE_ERRORS)
            errors = {n: error for n in range(len(outcome.effects)) if self.random.random() < 0.7}
        is_there_all_the_same = errors and self.random.random() < 0.3
        self.put(outcome, [n for n in range(len(outcome.effects)) if n not in errors or is_there_all_the_same])
        if errors:
            self.count("failed writes")
            self.absorb(self.coordinator.failed(outcome, errors, self.now))
        else:
            self.absorb(self.coordinator.written(outcome, self.now))

    def begin_job(self, job: Any) -> None:
        self.count("jobs")
        coordinator, result = self.coordinator, self.result_of(job)

        def done() -> None:
            if self.coordinator is coordinator:
                self.end_job(job, result)

        self.after(self.random.randint(0, self.job_ms), done)

    def move(self) -> None:
        """Another broker leads the group, from what is in the log; what was under way has failed, or has not."""
        self.count("moves")
        landed = self.random.randint(0, len(self.in_order))
        for outcome in self.in_order[:landed]:
            self.put(outcome)
        under_way, self.in_order = self.in_order, []
        self.epoch_of_log += 1
        self.absorb(self.coordinator.unload(0))
        for outcome in under_way:
            errors = dict.fromkeys(range(len(outcome.effects)), ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.absorb(self.coordinator.failed(outcome, errors, self.now))
        waiting = [token for token in self.sent if token in self.answers]
        assert all(token in self.answers or token in self.sent for token in waiting)
        self.timers = {}
        self.coordinator = self.new_coordinator()
        self.absorb(self.coordinator.begin_load(0, self.epoch_of_log))
        self.after(self.random.choice((0, 300, 3_000)), self.come_back)

    def come_back(self) -> None:
        if not self.coordinator.is_loaded(0):
            self.replay(0)
            self.absorb(self.coordinator.loaded(0, self.now))

    # --- what happens

    def run(self) -> ConsumerSimulation:
        before, targets.INLINE_SIZE_MAX = targets.INLINE_SIZE_MAX, self.inline_max
        try:
            self.after(2_000, self.disturb)
            self.run_until(self.now_ms + BUSY_MS)
            self.is_quiet = True
            self.run_until(self.now_ms + QUIET_MS)
            self.is_over = True
            self.run_until(self.now_ms + 5_000)
            self.check_end()
        finally:
            targets.INLINE_SIZE_MAX = before
        return self

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
                client.owned.clear()
                self.count("crashes")
            case 3 if client.is_alive and not client.is_classic and client.epoch > 0:
                self.leave(client)
            case 4:
                client.wants = frozenset(self.random.choice((("t-a",), ("t-b",), ("t-a", "t-b"))))
                client.regex = "" if client.is_classic else self.random.choice(("", "", "t-(a|new)"))
                client.tells_all, client.changed_ms = True, self.now_ms
                if client.is_classic:
                    client.phase = "join"
            case 5:
                self.change_topics()
            case _ if not any(one.is_alive for one in self.clients):
                self.add_client()
        self.after(self.random.randint(500, 6_000), self.disturb)

    def leave(self, client: Client) -> None:
        client.is_alive = False
        client.owned.clear()
        is_back = client.instance_id is not None and self.random.random() < 0.7
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=client.member_id,
            member_epoch=-2 if is_back else -1,
            instance_id=client.instance_id,
        )
        self.tokens += 1
        self.count("leaves")
        self.absorb(
            self.coordinator.consumer.heartbeat(Caller(("leave", self.tokens), "c", "/s", 1), request, self.now)
        )
        if is_back:
            again = Client(client.name, False, client.instance_id, client.wants, client.regex, f"{client.member_id}x")
            again.heard_ms = self.now_ms
            self.clients.append(again)
            self.after(self.random.randint(0, 9_000), lambda: self.live(again))

    def change_topics(self) -> None:
        name = self.random.choice(("t-a", "t-b", "t-new"))
        if name in self.topics.known:
            topic_id, count = self.topics.known[name]
            if count < 8:
                self.topics.known[name] = (topic_id, count + 1)
        else:
            self.topics.create(name, 2)
        self.count("changed topics")
        for client in self.clients:
            if client.is_classic:  # its leader watches the topics
                client.phase, client.changed_ms = "join", self.now_ms
        self.absorb(self.coordinator.topics_changed(frozenset((name,)), self.now))

    # --- what must hold

    def check(self) -> None:
        for group in self.coordinator.groups():
            if isinstance(group, ConsumerGroup):
                check_group(group)

    def check_end(self) -> None:
        assert not self.in_order
        group = next(iter(self.coordinator.groups()), None)
        alive = [client for client in self.clients if client.is_alive]
        if group is None or not alive:
            return
        wanted = {
            TopicPartition(name, index)
            for name, (_, count) in self.topics.known.items()
            for index in range(count)
            if any(name in client.wants or (client.regex and name in self.matched(client)) for client in alive)
        }
        owned = Counter(place for client in alive for place in client.owned)
        assert set(owned) == wanted, f"missing {wanted - set(owned)}, too many {set(owned) - wanted}"
        assert group.state_name == "Stable", group.state_name
        if isinstance(group, ClassicGroup):
            return
        before = self.described()
        assert not group.book.unwritten
        self.restart()
        assert self.described() == before, "the log tells another group"

    def matched(self, client: Client) -> set[str]:
        return {name for name in self.topics.known if client.regex == "t-.*" or name in ("t-a", "t-new")}

    def described(self) -> Any:
        response = self.ask("described", ConsumerGroupDescribeRequest(group_ids=[GROUP]), 1).groups[0]
        return response.group_epoch, response.assignment_epoch, sorted(response.members, key=lambda one: one.member_id)

    def send(self, method: str, request: Any, version: int, client_id: str | None = "client") -> int:
        if method != "described":
            return super().send(method, request, version, client_id)
        self.tokens += 1
        caller = Caller(self.tokens, client_id, "/s", version)
        self.absorb(self.coordinator.consumer.describe(caller, request, self.now))
        return self.tokens


def check_group(group: ConsumerGroup) -> None:
    """What the group counts is what its members say."""
    members = group.members.values()
    topics = Counter(topic for one in members for topic in one.topics)
    for one in members:
        if one.regex:
            topics.update(group.topics_of_regex(one.regex))
    assert group.topic_counts == dict(topics)
    assert group.regex_counts == dict(Counter(one.regex for one in members if one.regex))
    assert group.assignor_counts == dict(Counter(one.assignor for one in members if one.assignor))
    classic = [one.classic for one in members if one.classic is not None]
    assert group.classic_count == len(classic)
    assert group.protocol_counts == dict(Counter(name for one in classic for name, _ in one.protocols))
    assert group.static_members == {one.instance_id: one.member_id for one in members if one.instance_id}
    held = {
        (topic, index): one.member_id
        for one in members
        for parts in (one.assigned, one.revoking)
        for topic, indexes in parts.items()
        for index in indexes
    }
    assert held == {(topic, index): who for topic, found in group.holders.items() for index, who in found.items()}
    assert group.targets.keys() <= group.members.keys()
    assert group.epoch >= group.assignment_epoch


def simulate(seed: int) -> ConsumerSimulation:
    return played(seed, lambda: ConsumerSimulation(seed).run())


if __name__ == "__main__":
    run_seeds(simulate)
