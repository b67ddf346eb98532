"""Members that join, leave, die, stall and come back, over a network that delays, repeats, reorders and loses.

The coordinator's writes take time and sometimes fail, whole or in part, since they may need several batches. Markers
that end transactions are written among them. The wall clock is set forward and back. The coordinator is started anew
from its own records at any moment, and its partitions are led elsewhere for a while: what was under way has failed
then, whether it is in the log or not. What must hold whatever happens is checked after every step. A seed decides
everything. By hand, many seeds:

    python -m tests.groups.simulation 10000
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from tests.coordination.driver import played, run_seeds

from headrace.errors import ErrorCode
from headrace.groups import Caller, GroupConfig, GroupState, Outcome, StoredRecord, Timer, TimerKind
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.heartbeat import HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupResponse
from headrace.protocol.messages.offset_commit import OffsetCommitResponse
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitResponse

from .driver import Driver
from .simulated import Books, Client, Facts, Marker, Sent, Write, check_group

GROUPS = ("alpha", "beta")
TOPIC = "topic"
PARTITIONS = 4
HOUR_MS = 3_600_000
BUSY_MS = 90_000
QUIET_MS = 1_200_000
GROUP_PARTITIONS = 2
WRITE_ERRORS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT)


class Simulation(Driver):
    def __init__(self, seed: int) -> None:
        pick = random.Random(seed)
        config = GroupConfig(
            initial_rebalance_delay_ms=pick.choice((0, 0, 500, 3_000)),
            offsets_topic_partitions=GROUP_PARTITIONS,
            max_size=pick.choice((3, 100)),
            new_member_join_timeout_ms=60_000,
            offsets_retention_minutes=60,
        )
        self.epochs = dict.fromkeys(range(GROUP_PARTITIONS), 0)
        super().__init__(config, seed=seed)
        self.topics.create(TOPIC, PARTITIONS)
        self.sent: dict[int, Sent] = {}
        self.facts: dict[tuple[int, str], Facts] = {}
        self.lost: set[int] = set()  # requests that died with a coordinator
        self.books = Books()
        self.effects_per_batch = self.random.choice((1, 1, 2, 100))
        self.offset = 0
        self.write_ready_ms = 0
        self.in_order: list[Write | Marker] = []
        self.checks = 0
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

    def run(self) -> Simulation:
        for client in self.clients:
            self.plan(client, self.random.randint(0, 3_000))
        self.after(self.random.randint(1_000, 20_000), self.disturb)
        self.run_until(self.now_ms + BUSY_MS)
        self.is_quiet = True
        self.run_until(self.now_ms + QUIET_MS)
        self.end_transactions()
        self.clock_error_ms = 0
        self.run_until(self.now_ms + 10_000)
        self.check_end()
        return self

    # --- writes

    def begin_write(self, outcome: Outcome) -> None:
        self.queue(Write(outcome))

    def queue(self, write: Write | Marker) -> None:
        """Writes end in the order in which they began."""
        self.in_order.append(write)
        self.write_ready_ms = max(self.write_ready_ms, self.now_ms + self.random.choice((0, 0, 1, 5, 50, 700)))
        delay_ms = self.write_ready_ms - self.now_ms
        self.after(delay_ms, lambda: self.end_write(write))
        if delay_ms and self.chance(0.02):
            # Of all moments the worst: while something is being written.
            what = self.random.choice((self.crash, self.move_some))
            self.after(self.random.randrange(delay_ms), lambda: None if self.is_quiet else what())

    def end_write(self, write: Write | Marker) -> None:
        if not any(one is write for one in self.in_order):
            return  # it was over when its partition was led elsewhere, or its coordinator died
        self.in_order.remove(write)
        if isinstance(write, Marker):
            self.end_marker(write)
            return
        effects = write.outcome.effects
        errors = dict(write.given_up)
        for first in range(0, len(effects), self.effects_per_batch):
            if self.chance(0.03):
                self.count("failed writes")
                error = self.random.choice(WRITE_ERRORS)
                failed = range(first, min(first + self.effects_per_batch, len(effects)))
                errors = dict.fromkeys(failed, error) | errors
        if 0 < len(errors) < len(effects):
            self.count("writes that failed in part")
        self.put(write.outcome, [position for position in range(len(effects)) if position not in errors])
        if errors:
            self.absorb(self.coordinator.failed(write.outcome, errors, self.now))
        else:
            self.absorb(self.coordinator.written(write.outcome, self.now))

    def note_put(self, partition: int, record: StoredRecord) -> None:
        deleted = self.books.note(record)
        if deleted is not None:
            # Of the group that comes next under this name nothing was said yet.
            self.facts.pop((self.epoch_of(deleted), deleted), None)

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
        if end is None:
            # The partition is not served: the transaction coordinator asks again.
            self.after(300, lambda: self.send_marker(partition, producer_id, committed))
        else:
            self.queue(Marker(partition, producer_id, committed, end))

    def end_marker(self, marker: Marker) -> None:
        if self.chance(0.1):
            self.count("markers written again")
            self.send_marker(marker.partition, marker.producer_id, marker.committed)
            return
        marker.end()
        self.put_marker(marker)

    def put_marker(self, marker: Marker) -> None:
        stored = StoredRecord(b"", None, marker.producer_id, marker.committed)
        self.log.setdefault(marker.partition, []).append(stored)
        self.books.end(marker, lambda group_id: self.coordinator.partition_of(group_id) == marker.partition)

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
                self.crash()
            case 1:
                self.move_some()
            case _:
                client = self.random.choice(self.clients)
                self.reborn(client)
        self.after(self.random.randint(500, 10_000), self.disturb)

    def reborn(self, client: Client) -> None:
        """Killed, and started again without its id. If it is static, its old self is fenced."""
        client.life += 1
        client.member_id, client.generation, client.phase, client.waiting = "", -1, "out", None
        self.plan(client, self.random.choice((0, 100, 9_000)))

    # --- the coordinator's lives

    def epoch_of(self, group_id: str) -> int:
        """The leader epoch of the group's partition: what was said in another one may have been forgotten."""
        return self.epochs[self.coordinator.partition_of(group_id)]

    def crash(self) -> None:
        """The broker dies and comes back; what it had not written is gone, and so are its connections."""
        self.count("restarts")
        self.check_offsets()
        self.lost |= self.unanswered(range(GROUP_PARTITIONS))
        markers = [write for write in self.in_order if isinstance(write, Marker)]
        self.land_some(range(GROUP_PARTITIONS))
        self.in_order.clear()
        for partition in range(GROUP_PARTITIONS):
            self.epochs[partition] += 1
        self.restart()
        assert self.known_offsets() == self.books.offsets(self.is_served), (
            "other offsets were found than are in the log"
        )
        self.send_again(markers)

    def move_some(self) -> None:
        self.move_away(self.random.sample(range(GROUP_PARTITIONS), self.random.randint(1, GROUP_PARTITIONS)))

    def move_away(self, partitions: list[int]) -> None:
        """Others lead these partitions, and then this broker again: those who wait are told."""
        if not all(map(self.coordinator.is_loaded, partitions)):
            return
        self.count("moves")
        self.check_offsets()
        markers = [write for write in self.in_order if isinstance(write, Marker) and write.partition in partitions]
        self.land_some(partitions)
        for partition in partitions:
            self.epochs[partition] += 1
            self.absorb(self.coordinator.unload(partition))
        for write in list(self.in_order):
            self.give_up(write, partitions)
        waiting = self.unanswered(partitions)
        assert not waiting, f"someone still waits for a coordinator that is gone: {waiting}"
        left = [timer for timer in self.timers if timer.partition in partitions]
        assert not left, f"timers left behind: {left}"
        epochs = dict(self.epochs)
        delay_ms = self.random.choice((0, 1, 700, 5_000))
        self.after(delay_ms, lambda: self.come_back(partitions, epochs))
        self.send_again(markers)

    def give_up(self, write: Write | Marker, partitions: list[int]) -> None:
        """What is under way in these partitions has failed; if that is all of it, now."""
        if isinstance(write, Marker):
            if write.partition in partitions:
                self.in_order.remove(write)
            return
        for position, effect in enumerate(write.outcome.effects):
            if effect.partition in partitions:
                write.given_up[position] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if len(write.given_up) == len(write.outcome.effects):
            self.in_order.remove(write)
            self.absorb(self.coordinator.failed(write.outcome, write.given_up, self.now))

    def come_back(self, partitions: list[int], epochs: dict[int, int]) -> None:
        """The log is read, which takes a while, unless it is led elsewhere again or the broker dies meanwhile."""
        for partition in partitions:
            if epochs[partition] == self.epochs[partition]:
                self.absorb(self.coordinator.begin_load(partition, self.epochs[partition]))
                delay_ms = self.random.choice((0, 1, 700))
                self.after(delay_ms, lambda p=partition: self.be_back(p, epochs[p]))  # type: ignore[misc]

    def be_back(self, partition: int, epoch: int) -> None:
        if epoch == self.epochs[partition]:
            self.replay(partition)
            self.absorb(self.coordinator.loaded(partition, self.now))
            assert self.known_offsets() == self.books.offsets(self.is_served), (
                "other offsets were found than are in the log"
            )

    def land_some(self, partitions: Iterable[int]) -> None:
        """Some of what was on its way there is in the log, perhaps a part of the last; the rest never will be."""
        on_its_way = [
            write for write in self.in_order if not isinstance(write, Marker) or write.partition in partitions
        ]
        for write in on_its_way[: self.random.randint(0, len(on_its_way))]:
            if isinstance(write, Marker):
                self.put_marker(write)
                continue
            here = [
                position
                for position, effect in enumerate(write.outcome.effects)
                if effect.partition in partitions and position not in write.given_up
            ]
            if here:
                self.put(write.outcome, here[: self.random.randint(1, len(here))])
                self.count("writes of which nobody heard")

    def send_again(self, markers: list[Marker]) -> None:
        """By the transaction coordinator, which heard of none of them."""
        for marker in markers:
            self.send_marker(marker.partition, marker.producer_id, marker.committed)

    def is_served(self, group_id: str) -> bool:
        return self.coordinator.is_loaded(self.coordinator.partition_of(group_id))

    def check_offsets(self) -> None:
        told = self.books.offsets(self.is_served)
        assert self.known_offsets() == told, "known offsets are not those in the log"

    def known_offsets(self) -> dict[Any, int]:
        """Committed, and pending in transactions, as the coordinator knows them."""
        found: dict[Any, int] = {}
        for group_id, group in self.coordinator._shards.groups.items():
            for producer_id, table in {-1: group.offsets.committed, **group.offsets.pending}.items():
                for partitions in table.values():
                    found |= {(group_id, producer_id, index): one.offset for index, one in partitions.items()}
        return found

    def unanswered(self, partitions: Iterable[int]) -> set[int]:
        return {
            token
            for token, sent in self.sent.items()
            if sent.arrived
            and token not in self.answers
            and token not in self.lost
            and self.coordinator.partition_of(sent.client.group_id) in partitions
        }

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
        self.sent[self.tokens] = Sent(client, client.life, method, request, self.epoch_of(client.group_id))
        token = self.tokens
        self.after(self.travel_ms(), lambda: self.arrive(token, version))
        # A generation that the log never heard of is numbered again by the next coordinator, in Kafka as here. What a
        # leader said in the first one and is repeated in the second would pass: so nothing of the first is repeated.
        repeats = self.random.random() < 0.04
        if repeats and (method == "join_group" or client.generation_epoch == self.epoch_of(client.group_id)):
            self.tokens += 1
            self.sent[self.tokens] = Sent(
                client, client.life, method, request, self.epoch_of(client.group_id), expected=False
            )
            again = self.tokens
            self.after(self.travel_ms(), lambda: self.arrive(again, version))

    def travel_ms(self) -> int:
        return self.random.choice((0, 1, 1, 2, 20)) if self.random.random() < 0.95 else self.random.randint(100, 20_000)

    def arrive(self, token: int, version: int) -> None:
        sent = self.sent[token]
        if sent.epoch != self.epoch_of(sent.client.group_id):
            self.lost.add(token)
            return
        sent.arrived = True
        caller = Caller(token, sent.client.name, "/sim", version)
        self.count(sent.method)
        outcome = getattr(self.coordinator, sent.method)(caller, sent.request, self.now)
        if sent.method in ("offset_commit", "txn_offset_commit") and outcome.records:
            facts = self.facts.setdefault((self.epoch_of(sent.client.group_id), sent.client.group_id), Facts())
            in_transaction = sent.method == "txn_offset_commit"
            # When it arrives, not when it is sent: it may come late, after the end of the transaction before.
            sent.client.in_transaction |= in_transaction
            asked = sent.request
            generation = asked.generation_id if in_transaction else asked.generation_id_or_member_epoch
            assert generation >= facts.generation, "a commit of an older generation was accepted"
            self.count("commits accepted")
        self.absorb(outcome)

    def answer(self, token: Any, response: Any) -> None:
        super().answer(token, response)
        if token not in self.sent:
            return  # an administrator's
        sent = self.sent[token]
        self.check_answer(sent, response)
        if sent.expected and self.random.random() < 0.98:
            self.after(self.travel_ms(), lambda: self.hear(token, sent, response))

    # --- the clients

    def hear(self, token: int, sent: Sent, response: Any) -> None:
        client = sent.client
        if client.waiting != token or client.life != sent.life or sent.epoch != self.epoch_of(client.group_id):
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
            client.generation_epoch = self.epoch_of(client.group_id)
            assignments = []
            if response.leader == response.member_id and not response.skip_assignment:
                mark = f"{self.random.getrandbits(32):x}"
                for member in response.members:
                    owner = member.group_instance_id or member.member_id
                    text = f"{response.generation_id}/{owner}/{mark}"
                    assignments.append(SyncGroupRequestAssignment(member_id=member.member_id, assignment=text.encode()))
            request = client.sync_request(assignments)
            if self.random.random() < 0.93:
                self.deliver(client, "sync_group", request, 3 if client.version < 9 else 5)
            else:
                self.after(self.random.randint(1_000, 15_000), lambda: self.sync_late(client, request))
        else:
            self.forget_if(client, response.error_code)

    def sync_late(self, client: Client, request: SyncGroupRequest) -> None:
        if client.waiting is None and client.phase == "joined":
            self.deliver(client, "sync_group", request, 3 if client.version < 9 else 5)

    def plan(self, client: Client, delay_ms: int) -> None:
        client.turn += 1
        turn = client.turn
        self.after(delay_ms, lambda: self.live(client) if turn == client.turn else None)

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
            self.deliver(
                client, "join_group", client.join_request(self.random.choice((b"1", b"1", b"1", b"2"))), client.version
            )
        elif client.phase == "stable":
            self.work(client)
        if client.phase != "stalled":
            self.plan(client, self.random.randint(500, 3_500))

    def work(self, client: Client) -> None:
        choice = self.random.random()
        if choice < 0.03:
            client.phase = "stalled"
            self.after(self.random.randint(1_000, 20_000), lambda: self.reborn(client))
        elif choice < 0.06:
            self.deliver(client, "leave_group", client.leave_request(), 3)
        elif choice < 0.10:
            client.phase = "out"  # its subscription changed, or it leads and saw new partitions
        elif choice < 0.25:
            producer_id = 100 + self.clients.index(client)
            request = client.transactional_commit_request(producer_id, TOPIC, self.some_offsets())
            self.deliver(client, "txn_offset_commit", request, 3)
        elif choice < 0.50:
            self.deliver(client, "offset_commit", client.commit_request(TOPIC, self.some_offsets()), 8)
        else:
            self.deliver(client, "heartbeat", client.heartbeat_request(), 4)

    def some_offsets(self) -> dict[int, int]:
        self.offset += 1
        return dict.fromkeys(self.random.sample(range(PARTITIONS), self.random.randint(1, PARTITIONS)), self.offset)

    # --- what must hold

    def check_answer(self, sent: Sent, response: Any) -> None:
        facts = self.facts.setdefault((self.epoch_of(sent.client.group_id), sent.client.group_id), Facts())
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
        served = [partition for partition in range(GROUP_PARTITIONS) if self.coordinator.is_loaded(partition)]
        expiring = sorted(timer.partition for timer in self.timers if timer.kind is TimerKind.EXPIRY)
        assert expiring == served, "one timer per partition looks for what is too old"
        self.checks += 1
        if self.checks % 8 == 0:
            # Also of a group that is being deleted: until that is written it may fail.
            committed = {
                name: written.offset for name, written in self.books.committed.items() if self.is_served(name[0])
            }
            assert self.fetch_all() == committed, "fetched offsets are not those that were written"

    def check_end(self) -> None:
        unanswered = [sent for token, sent in self.sent.items() if token not in self.answers.keys() | self.lost]
        assert not unanswered, f"never answered: {unanswered}"
        assert not self.in_order
        assert all(map(self.coordinator.is_loaded, range(GROUP_PARTITIONS)))
        for group in self.coordinator._shards.groups.values():
            assert group.state is GroupState.EMPTY, f"all are gone, but {group.group_id} is {group.state}"
            assert not group.members
            assert not group.pending
        assert {timer.kind for timer in self.timers} == {TimerKind.EXPIRY}
        self.run_until(self.now_ms + self.config.offsets_retention_ms + HOUR_MS + 2 * 600_000)
        assert not self.coordinator._shards.groups, "groups outlive the retention of their offsets"


def simulate(seed: int) -> Simulation:
    return played(seed, lambda: Simulation(seed).run())


if __name__ == "__main__":
    run_seeds(simulate)
