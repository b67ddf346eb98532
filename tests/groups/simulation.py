"""Members that join, leave, die, stall and come back, over a network that delays, repeats, reorders and loses.

The coordinator's writes take time and sometimes fail, whole or in part, since they may need several batches. Markers
that end transactions are written among them. The wall clock is set forward and back, and the coordinator is started
anew from its own records at any moment. What must hold whatever happens is checked after every step. A seed decides
everything. By hand, many seeds:

    cd tests && python -m groups.simulation 10000
"""

from __future__ import annotations

import heapq
import random
import sys
from collections.abc import Callable, Iterable
from typing import Any

from headrace.errors import ErrorCode
from headrace.groups import Caller, GroupConfig, GroupState, Outcome, Timer, TimerKind
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from headrace.protocol.stored.consumer_offsets import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_record,
)
from headrace.protocol.stored.coordinator import Unknown

from .driver import Driver
from .simulated import Client, Facts, Marker, Sent, Written, check_group

GROUPS = ("alpha", "beta")
TOPIC = "topic"
PARTITIONS = 4
HOUR_MS = 3_600_000
BUSY_MS = 90_000
QUIET_MS = 1_200_000
WRITE_ERRORS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT)


class Simulation(Driver):
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        delay_ms = self.random.choice((0, 0, 500, 3_000))
        config = GroupConfig(
            initial_rebalance_delay_ms=delay_ms,
            offsets_topic_partitions=2,
            max_size=self.random.choice((3, 100)),
            new_member_join_timeout_ms=60_000,
            offsets_retention_ms=3_600_000,
        )
        super().__init__(config, seed=seed)
        self.hold = True
        self.topics.create(TOPIC, PARTITIONS)
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.event_count = 0
        self.sent: dict[int, Sent] = {}
        self.epoch = 0
        self.facts: dict[tuple[int, str], Facts] = {}
        self.lost: set[int] = set()  # requests that died with a coordinator
        self.committed: dict[tuple[str, int], Written] = {}  # what the log says: group, partition → offset
        self.pending: dict[int, dict[tuple[str, int], Written]] = {}  # the same of open transactions, by producer
        self.writes = 0
        self.effects_per_batch = self.random.choice((1, 1, 2, 100))
        self.offset = 0
        self.write_ready_ms = 0
        self.in_order: list[Outcome | Marker] = []
        self.checks = 0
        self.is_quiet = False
        self.counts: dict[str, int] = {}
        self.clients = [self.new_client(n) for n in range(self.random.randint(2, 6))]

    def new_client(self, number: int) -> Client:
        pick = self.random
        protocols = pick.choice((["range"], ["range", "sticky"], ["sticky", "range"]))
        version = pick.choice((3, 5, 9, 9))
        return Client(
            f"client-{number}",
            pick.choice(GROUPS[:1] * 3 + GROUPS[1:]),
            f"instance-{number}" if version >= 5 and pick.random() < 0.35 else None,
            version,
            protocols,
            pick.choice((6_000, 8_000)),
            pick.choice((2_000, 5_000, 10_000)),
        )

    # --- events

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        self.event_count += 1
        heapq.heappush(self.events, (self.now_ms + delay_ms, self.event_count, action))

    def run(self) -> None:
        for client in self.clients:
            self.plan(client, self.random.randint(0, 3_000))
        self.at(self.random.randint(1_000, 20_000), self.disturb)
        self.play_until(self.now_ms + BUSY_MS)
        self.is_quiet = True
        self.play_until(self.now_ms + QUIET_MS)
        self.end_transactions()
        self.clock_error_ms = 0
        self.play_until(self.now_ms + 10_000)
        self.check_end()

    def play_until(self, until_ms: int) -> None:
        for _ in range(50_000):
            next_timer_ms = min(self.timers.values(), default=until_ms + 1)
            next_event_ms = self.events[0][0] if self.events else until_ms + 1
            if min(next_timer_ms, next_event_ms) > until_ms:
                break
            if next_timer_ms <= next_event_ms:
                self.now_ms = max(self.now_ms, next_timer_ms)
                self.run_until(self.now_ms)
            else:
                at_ms, _, action = heapq.heappop(self.events)
                self.now_ms = max(self.now_ms, at_ms)
                action()
            self.check()
        else:
            raise AssertionError("events without end")
        self.now_ms = until_ms

    def absorb(self, outcome: Outcome) -> None:
        for token, response in outcome.replies if not outcome.records else ():
            self.on_answer(token, response)
        held = len(self.held)
        super().absorb(outcome)
        if len(self.held) > held:
            self.queue(self.held.pop())

    def queue(self, write: Outcome | Marker) -> None:
        """Writes end in the order in which they began."""
        self.in_order.append(write)
        self.write_ready_ms = max(self.write_ready_ms, self.now_ms + self.random.choice((0, 0, 1, 5, 50, 700)))
        self.at(self.write_ready_ms - self.now_ms, lambda epoch=self.epoch: self.end_write(epoch))  # type: ignore[misc]

    def end_write(self, epoch: int) -> None:
        if epoch != self.epoch:
            return  # it went down with its coordinator
        write = self.in_order.pop(0)
        if isinstance(write, Marker):
            self.end_marker(write)
            return
        errors = {}
        for first in range(0, len(write.effects), self.effects_per_batch):
            if self.random.random() < 0.03 and not self.is_quiet:
                self.count("failed writes")
                error = self.random.choice(WRITE_ERRORS)
                errors |= dict.fromkeys(range(first, first + self.effects_per_batch), error)
        errors = {position: error for position, error in errors.items() if position < len(write.effects)}
        if 0 < len(errors) < len(write.effects):
            self.count("writes that failed in part")
        self.put(write, [position for position in range(len(write.effects)) if position not in errors])
        if errors:
            self.absorb(self.coordinator.failed(write, errors, self.now))
        else:
            self.absorb(self.coordinator.written(write, self.now))

    def put(self, write: Outcome, positions: Iterable[int]) -> None:
        producer_id = -1 if write.producer is None else write.producer.producer_id
        for position in positions:
            for record in write.effects[position].records:
                self.log.setdefault(record.partition, []).append((record.key, record.value, producer_id))
                self.keep_books(record.key, record.value, producer_id)

    def keep_books(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        """What the log says, worked out record by record."""
        record = decode_record(key, value)
        assert not isinstance(record, Unknown)
        if isinstance(record.key, GroupMetadataKey):
            if value is None:
                # Of the group that comes next under this name nothing was said yet.
                self.facts.pop((self.epoch, record.key.group), None)
            return
        assert isinstance(record.key, OffsetCommitKey)
        name = (record.key.group, record.key.partition)
        self.writes += 1
        if record.value is None:
            self.committed.pop(name, None)
            for table in self.pending.values():
                table.pop(name, None)
            return
        assert isinstance(record.value, OffsetCommitValue)
        table = self.committed if producer_id < 0 else self.pending.setdefault(producer_id, {})
        table[name] = Written(record.value.offset, self.writes)

    def end_transactions(self) -> None:
        """Markers are on their way to every partition, behind whatever is before them there."""
        busy = {client.name for client in self.clients if client.in_transaction}
        for number, client in enumerate(self.clients):
            if client.name in busy and (self.is_quiet or self.random.random() < 0.5):
                client.in_transaction = False
                committed = self.random.random() < 0.6
                self.count("transactions committed" if committed else "transactions aborted")
                for partition in range(2):
                    self.send_marker(partition, 100 + number, committed)

    def send_marker(self, partition: int, producer_id: int, committed: bool) -> None:
        end = self.coordinator.ending_transaction(partition, producer_id, committed)
        assert end is not None, "the partition is served"
        self.queue(Marker(partition, producer_id, committed, end))

    def end_marker(self, marker: Marker) -> None:
        if self.random.random() < 0.1 and not self.is_quiet:
            self.count("markers written again")
            self.send_marker(marker.partition, marker.producer_id, marker.committed)
            return
        marker.end()
        self.put_marker(marker)

    def put_marker(self, marker: Marker) -> None:
        log = self.log.setdefault(marker.partition, [])
        self.markers.append((marker.partition, len(log), marker.producer_id, marker.committed))
        for name, written in list(self.pending.get(marker.producer_id, {}).items()):
            if self.coordinator.partition_of(name[0]) == marker.partition:
                del self.pending[marker.producer_id][name]
                if marker.committed and written.place > self.committed.get(name, Written(0, -1)).place:
                    self.committed[name] = written

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def disturb(self) -> None:
        """Now and then something happens that nobody asked for."""
        if self.is_quiet:
            return
        match self.random.randrange(9):
            case 4 | 5:
                self.end_transactions()
            case 6:
                self.count("clock steps")
                self.clock_error_ms = self.random.choice((0, -HOUR_MS, HOUR_MS, 2_000, -2_000))
            case 7:
                self.count("deletions of offsets")
                topic_id = self.topics.known[TOPIC][0]
                self.absorb(self.coordinator.topics_deleted({TOPIC: topic_id}, self.now))
            case 8:
                self.count("deletions of groups")
                self.tokens += 1
                request = DeleteGroupsRequest(groups_names=list(GROUPS))
                caller = Caller(("admin", self.tokens), api_version=2)
                self.absorb(self.coordinator.delete_groups(caller, request, self.now))
            case 0:
                self.restart()
            case 1:
                self.move_away()
            case _:
                client = self.random.choice(self.clients)
                self.reborn(client)
        self.at(self.random.randint(500, 10_000), self.disturb)

    def reborn(self, client: Client) -> None:
        """Killed, and started again without its id. If it is static, its old self is fenced."""
        client.life += 1
        client.member_id, client.generation, client.phase, client.waiting = "", -1, "out", None
        self.plan(client, self.random.choice((0, 100, 9_000)))

    def restart(self) -> None:
        """The broker dies and comes back; what it had not written is gone, and so are its connections."""
        self.count("restarts")
        assert self.known_offsets() == self.books(), "known offsets are not those in the log"
        self.lost |= self.unanswered()
        self.start_anew()

    def move_away(self) -> None:
        """The partitions move to another broker and at once come back: those who wait are told."""
        self.count("moves")
        assert self.known_offsets() == self.books(), "known offsets are not those in the log"
        outcomes = [self.coordinator.unload(partition) for partition in range(2)]
        for outcome in outcomes:
            self.absorb(outcome)
        held = {reply.token for write in self.in_order if isinstance(write, Outcome) for reply in write.replies}
        waiting = self.unanswered()
        assert waiting <= held, "someone still waits for a coordinator that is gone"
        assert not self.timers, f"timers left behind: {self.timers}"
        self.lost |= waiting
        self.start_anew()

    def start_anew(self) -> None:
        """Some of what was on its way is in the log, perhaps a part of the last; the rest never will be.

        Markers are sent again by the transaction coordinator, which heard of none of them.
        """
        markers = [write for write in self.in_order if isinstance(write, Marker)]
        for write in self.in_order[: self.random.randint(0, len(self.in_order))]:
            if isinstance(write, Marker):
                self.put_marker(write)
            else:
                self.put(write, range(self.random.randint(1, len(write.effects))))
                self.count("writes of which nobody heard")
        self.in_order.clear()
        self.epoch += 1
        self.reload()
        assert self.known_offsets() == self.books(), "other offsets were found than are in the log"
        for marker in markers:
            self.send_marker(marker.partition, marker.producer_id, marker.committed)

    def books(self) -> dict[Any, int]:
        return {
            (group_id, producer_id, index): written.offset
            for producer_id, table in {-1: self.committed, **self.pending}.items()
            for (group_id, index), written in table.items()
        }

    def known_offsets(self) -> dict[Any, int]:
        """Committed, and pending in transactions, as the coordinator knows them."""
        found: dict[Any, int] = {}
        for group_id, group in self.coordinator._shards.groups.items():
            for producer_id, table in {-1: group.offsets.committed, **group.offsets.pending}.items():
                for partitions in table.values():
                    found |= {(group_id, producer_id, index): one.offset for index, one in partitions.items()}
        return found

    def unanswered(self) -> set[int]:
        return {t for t, sent in self.sent.items() if sent.arrived and t not in self.answers} - self.lost

    def fetch_all(self) -> dict[tuple[str, int], int]:
        found = {}
        for group_id in GROUPS:
            caller = Caller("look", api_version=5)
            request = OffsetFetchRequest(group_id=group_id, topics=None)
            response = self.coordinator.offset_fetch(caller, request, self.now).replies[0].response
            for topic in response.topics:
                for partition in topic.partitions:
                    found[group_id, partition.partition_index] = partition.committed_offset
        return found

    # --- the network

    def deliver(self, client: Client, method: str, request: Any, version: int) -> None:
        """Send a request of a client, through whatever the network does to it."""
        client.asked_ms = self.now_ms
        self.tokens += 1
        client.waiting = self.tokens
        self.sent[self.tokens] = Sent(client, client.life, method, request, self.epoch)
        token = self.tokens
        self.at(self.travel_ms(), lambda: self.arrive(token, version))
        # A generation that the log never heard of is numbered again by the next coordinator, in Kafka as here. What a
        # leader said in the first one and is repeated in the second would pass: so nothing of the first is repeated.
        repeats = self.random.random() < 0.04
        if repeats and (method == "join_group" or client.generation_epoch == self.epoch):
            self.tokens += 1
            self.sent[self.tokens] = Sent(client, client.life, method, request, self.epoch, expected=False)
            again = self.tokens
            self.at(self.travel_ms(), lambda: self.arrive(again, version))

    def travel_ms(self) -> int:
        return self.random.choice((0, 1, 1, 2, 20)) if self.random.random() < 0.95 else self.random.randint(100, 20_000)

    def arrive(self, token: int, version: int) -> None:
        sent = self.sent[token]
        if sent.epoch != self.epoch:
            self.lost.add(token)
            return
        sent.arrived = True
        caller = Caller(token, sent.client.name, "/sim", version)
        self.count(sent.method)
        outcome = getattr(self.coordinator, sent.method)(caller, sent.request, self.now)
        if sent.method in ("offset_commit", "txn_offset_commit") and outcome.records:
            facts = self.facts.setdefault((self.epoch, sent.client.group_id), Facts())
            in_transaction = sent.method == "txn_offset_commit"
            # When it arrives, not when it is sent: it may come late, after the end of the transaction before.
            sent.client.in_transaction |= in_transaction
            asked = sent.request
            generation = asked.generation_id if in_transaction else asked.generation_id_or_member_epoch
            assert generation >= facts.generation, "a commit of an older generation was accepted"
            self.count("commits accepted")
        self.absorb(outcome)

    def on_answer(self, token: Any, response: Any) -> None:
        if token not in self.sent:
            return  # an administrator's
        sent = self.sent[token]
        self.check_answer(sent, response)
        if sent.expected and self.random.random() < 0.98:
            self.at(self.travel_ms(), lambda: self.hear(token, sent, response))

    # --- the clients

    def hear(self, token: int, sent: Sent, response: Any) -> None:
        client = sent.client
        if client.waiting != token or client.life != sent.life or sent.epoch != self.epoch:
            return  # it gave up waiting, or the answer was lost on its way
        client.waiting = None
        match response:
            case JoinGroupResponse():
                self.hear_join(client, response)
            case SyncGroupResponse():
                client.phase = "stable" if response.error_code == ErrorCode.NONE else "out"
                self.forget_if(client, response.error_code)
            case HeartbeatResponse() if response.error_code != ErrorCode.NONE:
                client.phase = "out"
                self.forget_if(client, response.error_code)
            case OffsetCommitResponse():
                error = response.topics[0].partitions[0].error_code
                if error in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                    client.phase = "out"
                    self.forget_if(client, error)
            case TxnOffsetCommitResponse():
                pass
            case LeaveGroupResponse():
                client.member_id, client.generation, client.phase = "", -1, "out"
        self.plan(client, self.random.choice((0, 10, 500)))

    def forget_if(self, client: Client, error: int) -> None:
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id, client.generation = "", -1

    def hear_join(self, client: Client, response: JoinGroupResponse) -> None:
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = response.member_id
        elif response.error_code == ErrorCode.NONE:
            client.member_id, client.generation, client.phase = response.member_id, response.generation_id, "joined"
            client.generation_epoch = self.epoch
            assignments = []
            if response.leader == response.member_id and not response.skip_assignment:
                mark = f"{self.random.getrandbits(32):x}"
                for member in response.members:
                    owner = member.group_instance_id or member.member_id
                    text = f"{response.generation_id}/{owner}/{mark}"
                    assignments.append(SyncGroupRequestAssignment(member_id=member.member_id, assignment=text.encode()))
            request = SyncGroupRequest(
                group_id=client.group_id,
                generation_id=client.generation,
                member_id=client.member_id,
                group_instance_id=client.instance_id,
                assignments=assignments,
            )
            if self.random.random() < 0.93:
                self.deliver(client, "sync_group", request, 3 if client.version < 9 else 5)
            else:
                self.at(self.random.randint(1_000, 15_000), lambda: self.sync_late(client, request))
        else:
            self.forget_if(client, response.error_code)

    def sync_late(self, client: Client, request: SyncGroupRequest) -> None:
        if client.waiting is None and client.phase == "joined":
            self.deliver(client, "sync_group", request, 3 if client.version < 9 else 5)

    def plan(self, client: Client, delay_ms: int) -> None:
        client.turn += 1
        turn = client.turn
        self.at(delay_ms, lambda: self.live(client) if turn == client.turn else None)

    def live(self, client: Client) -> None:
        """What a client does next."""
        if self.is_quiet:
            return
        if client.waiting is not None:
            if self.now_ms - client.asked_ms <= 12_000:
                self.plan(client, 3_000)
                return
            client.waiting = None  # it gives up, and asks again
            client.phase = "out"
        if client.phase == "out":
            self.deliver(client, "join_group", self.join_request(client), client.version)
        elif client.phase == "stable":
            self.work(client)
        if client.phase != "stalled":
            self.plan(client, self.random.randint(500, 3_500))

    def join_request(self, client: Client) -> JoinGroupRequest:
        metadata = self.random.choice((b"1", b"1", b"1", b"2"))
        return JoinGroupRequest(
            group_id=client.group_id,
            session_timeout_ms=client.session_timeout_ms,
            rebalance_timeout_ms=client.rebalance_timeout_ms,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in client.protocols],
        )

    def work(self, client: Client) -> None:
        choice = self.random.random()
        if choice < 0.03:
            client.phase = "stalled"
            self.at(self.random.randint(1_000, 20_000), lambda: self.reborn(client))
        elif choice < 0.06:
            who = MemberIdentity(member_id=client.member_id, group_instance_id=client.instance_id)
            self.deliver(client, "leave_group", LeaveGroupRequest(group_id=client.group_id, members=[who]), 3)
        elif choice < 0.10:
            client.phase = "out"  # its subscription changed, or it leads and saw new partitions
        elif choice < 0.25:
            self.commit_in_transaction(client)
        elif choice < 0.50:
            self.offset += 1
            partitions = [
                OffsetCommitRequestPartition(partition_index=n, committed_offset=self.offset, committed_metadata="")
                for n in self.some_partitions()
            ]
            request = OffsetCommitRequest(
                group_id=client.group_id,
                generation_id_or_member_epoch=client.generation,
                member_id=client.member_id,
                group_instance_id=client.instance_id,
                topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)],
            )
            self.deliver(client, "offset_commit", request, 8)
        else:
            request = HeartbeatRequest(
                group_id=client.group_id,
                generation_id=client.generation,
                member_id=client.member_id,
                group_instance_id=client.instance_id,
            )
            self.deliver(client, "heartbeat", request, 4)

    def some_partitions(self) -> list[int]:
        return self.random.sample(range(PARTITIONS), self.random.randint(1, PARTITIONS))

    def commit_in_transaction(self, client: Client) -> None:
        self.offset += 1
        partitions = [
            TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=self.offset, committed_metadata="")
            for n in self.some_partitions()
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=client.name,
            group_id=client.group_id,
            producer_id=100 + self.clients.index(client),
            generation_id=client.generation,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
            topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=partitions)],
        )
        self.deliver(client, "txn_offset_commit", request, 3)

    # --- what must hold

    def check_answer(self, sent: Sent, response: Any) -> None:
        facts = self.facts.setdefault((self.epoch, sent.client.group_id), Facts())
        match response:
            case JoinGroupResponse() if response.error_code == ErrorCode.NONE:
                self.count("joined")
                generation = response.generation_id
                assert generation >= facts.generation, "a generation came back"
                facts.generation = generation
                if response.members and not response.skip_assignment:
                    assert response.leader == response.member_id
                    leader = facts.leaders.setdefault(generation, response.leader)
                    assert leader == response.leader, f"generation {generation} has two leaders"
            case SyncGroupResponse() if response.error_code == ErrorCode.NONE:
                self.count("synced")
                told_generation, owner, mark = response.assignment.decode().split("/")
                generation = sent.request.generation_id
                assert int(told_generation) == generation, "an assignment of another generation"
                assert owner == (sent.client.instance_id or sent.request.member_id), "someone else's assignment"
                assert facts.assigned.setdefault(generation, mark) == mark, "two assignments in one generation"
                assert generation == max(facts.generation, generation), "an old generation was synced"

    def check(self) -> None:
        wanted: dict[Timer, int | None] = {}
        for group_id, group in self.coordinator._shards.groups.items():
            check_group(group)
            name = (group.partition, group_id)
            if group.join_deadline_ms is not None:
                wanted[Timer(TimerKind.JOIN, *name)] = group.join_deadline_ms
            if group.sync_deadline_ms is not None:
                wanted[Timer(TimerKind.SYNC, *name)] = group.sync_deadline_ms
            sessions = {m.member_id: m.session for m in group.members.values()} | group.pending
            for member_id, session in sessions.items():
                if session.armed_ms is not None:
                    wanted[Timer(TimerKind.SESSION, *name, member_id)] = session.armed_ms
        timers = {timer: at for timer, at in self.timers.items() if timer.kind is not TimerKind.EXPIRY}
        assert timers == wanted, "timers that are set and timers that are meant differ"
        assert len(self.timers) - len(timers) == 2, "one timer per partition looks for what is too old"
        self.checks += 1
        if self.checks % 8 == 0:
            # Of a group that is being deleted nothing is told any more.
            dead = {name for name, group in self.coordinator._shards.groups.items() if group.state is GroupState.DEAD}
            committed = {name: written.offset for name, written in self.committed.items() if name[0] not in dead}
            assert self.fetch_all() == committed, "fetched offsets are not those that were written"

    def check_end(self) -> None:
        unanswered = [sent for token, sent in self.sent.items() if token not in self.answers.keys() | self.lost]
        assert not unanswered, f"never answered: {unanswered}"
        assert not self.held
        assert not self.in_order
        for group in self.coordinator._shards.groups.values():
            assert group.state is GroupState.EMPTY, f"all are gone, but {group.group_id} is {group.state}"
            assert not group.members
            assert not group.pending
        assert {timer.kind for timer in self.timers} == {TimerKind.EXPIRY}
        self.hold = False
        self.run_until(self.now_ms + self.config.offsets_retention_ms + HOUR_MS + 2 * 600_000)
        assert not self.coordinator._shards.groups, "groups outlive the retention of their offsets"


def simulate(seed: int) -> Simulation:
    simulation = Simulation(seed)
    try:
        simulation.run()
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    return simulation


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    totals: dict[str, int] = {}
    for seed in range(first, first + count):
        for what, n in simulate(seed).counts.items():
            totals[what] = totals.get(what, 0) + n
    print(f"{count} seeds from {first}: nothing found")
    print(", ".join(f"{n} {what}" for what, n in sorted(totals.items())))


if __name__ == "__main__":
    main()
