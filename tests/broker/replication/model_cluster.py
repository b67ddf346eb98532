"""A cluster without codec, disk and sockets: the real decisions of controller, leaders and followers, joined by
messages that are lost, late and out of order.

`Node` is what `Partition` and the fetchers do around the cores of `broker/replication`: role changes and appends pass
through a queue (the writer of the log's directory), and what was queued is checked again when its turn comes. `faults`
names mistakes that are put in on purpose: see `mutations.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.broker.replication.model_log import ModelLog, Record

from headrace.broker.replication import follower as following
from headrace.broker.replication.acks import AckWaiters
from headrace.broker.replication.follower import Act, Answer, Position
from headrace.broker.replication.isr_changes import IsrChanges
from headrace.broker.replication.leader import LeaderState, Proposal, Term
from headrace.broker.replication.truncation import NotInLog, divergence
from headrace.cluster import brokers, leadership
from headrace.cluster.brokers import Registration
from headrace.cluster.decision import Decision
from headrace.cluster.image import Image, Listener, PartitionImage
from headrace.cluster.records import MetadataRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from headrace.error_codes import ErrorCode
from headrace.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

TOPIC = "t"
PARTITION = 0
LAG_MS = 1000.0
CONTROLLER = 0


class Violation(AssertionError):
    """One of the invariants does not hold."""


@dataclass(slots=True)
class Message:
    source: int
    target: int
    body: Any
    #: The life of the target that it is for: a connection does not outlive a process.
    target_life: int = -1


@dataclass(frozen=True, slots=True)
class Fetch:
    position: Position
    broker_epoch: int
    life: int
    number: int


@dataclass(frozen=True, slots=True)
class Fetched:
    asked: Fetch
    answer: Answer
    records: tuple[Record, ...] = ()
    start: int = -1
    end: int = -1


@dataclass(frozen=True, slots=True)
class Altered:
    request: AlterPartitionRequest
    response: AlterPartitionResponse


class Waiting:
    """A produce request with acks=all."""

    __slots__ = ("is_done", "offset", "value")

    def __init__(self, value: int, offset: int) -> None:
        self.value = value
        self.offset = offset
        self.is_done = False

    def done(self) -> bool:
        return self.is_done


@dataclass(slots=True)
class Replica:
    """One partition on one node: its log, what the metadata wants of it, and the role that is in effect."""

    topic_id: bytes
    log: ModelLog
    wanted: Term
    #: None while the role change waits for its turn; then a leader, or a follower of that epoch.
    leader: LeaderState | None = None
    follows: Term | None = None
    acks: AckWaiters[Waiting] = field(default_factory=AckWaiters)
    outstanding: Fetch | None = None
    seen_high_watermark: int = 0


class Node:
    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.cluster = cluster
        self.id = node_id
        self.life = 0
        self.alive = False
        self.paused = False
        self.broker_epoch = -1
        self.image = Image()
        self.applied = 0
        self.registered_at = 0
        self.logs: dict[bytes, ModelLog] = {}
        self.replicas: dict[bytes, Replica] = {}
        self.queue: list[Callable[[], None]] = []
        self.isr = IsrChanges()
        self.sent_alter: AlterPartitionRequest | None = None
        self.fetch_number = 0
        #: Its log has lost what it had, and the controller does not know yet.
        self.has_lost = False

    @property
    def runs(self) -> bool:
        return self.alive and not self.paused

    @property
    def is_ready(self) -> bool:
        """Whether it knows of its own registration: before that it serves nothing."""
        return self.alive and self.applied >= self.registered_at

    def epoch_of(self, node_id: int) -> int | None:
        broker = self.image.brokers.get(node_id)
        return broker.epoch if broker is not None and broker.is_active else None

    # --- life

    def crash(self, *, power_loss: bool) -> None:
        self.alive = self.paused = False
        self.life += 1
        for replica in self.replicas.values():
            self._tell_all(replica)
        self.replicas.clear()
        self.queue.clear()
        self.isr = IsrChanges()
        self.sent_alter = None
        if power_loss:
            for log in self.logs.values():
                before = log.end_offset
                log.lose_unsynced()
                self.has_lost |= log.end_offset < before
        for log in self.logs.values():
            # The checkpoint of the watermark is older than the watermark.
            log.high_watermark = max(log.start_offset, log.high_watermark - self.cluster.chance(0, 3))

    def restart(self) -> None:
        self.alive = True
        self.broker_epoch = self.cluster.register(self.id, self.life)
        self.registered_at = len(self.cluster.decisions)
        self.has_lost = False

    # --- metadata

    def apply(self, decision: list[MetadataRecord]) -> None:
        """Fold one decision, then follow it."""
        before = {node_id: (broker.epoch, broker.is_active) for node_id, broker in self.image.brokers.items()}
        for record in decision:
            self.image.apply(record)
        self.applied += 1
        if not self.is_ready:
            return
        self._follow()
        after = {node_id: (broker.epoch, broker.is_active) for node_id, broker in self.image.brokers.items()}
        changed = [node_id for node_id, state in after.items() if before.get(node_id) != state]
        if changed:
            for replica in self.replicas.values():
                if replica.leader is not None and replica.leader.brokers_changed(changed, self.cluster.now_ms):
                    self._moved(replica)

    def _follow(self) -> None:
        for topic_id in list(self.logs):
            if topic_id not in self.image.topics_by_id and "topics by name" not in self.cluster.faults:
                replica = self.replicas.pop(topic_id, None)
                if replica is not None:
                    self._tell_all(replica)
                del self.logs[topic_id]
        for topic_id, topic in self.image.topics_by_id.items():
            state = topic.partitions[PARTITION]
            if self.id in state.replicas:
                self._lead_or_follow(topic_id, term_of(state))

    def _lead_or_follow(self, topic_id: bytes, term: Term) -> None:
        replica = self.replicas.get(topic_id)
        if replica is None:
            log = self.logs.get(topic_id)
            if log is None and "topics by name" in self.cluster.faults and self.logs:
                log = self.logs.pop(next(iter(self.logs)))
                self.replicas.clear()
            if log is None:
                log = ModelLog()
            self.logs[topic_id] = log
            replica = self.replicas[topic_id] = Replica(topic_id, log, term)
        elif term.leader_epoch == replica.wanted.leader_epoch:
            replica.wanted = term
            if replica.leader is not None and replica.leader.changed(term, self.cluster.now_ms):
                self._moved(replica)
            return
        elif term.leader_epoch < replica.wanted.leader_epoch:
            return
        replica.wanted = term
        replica.leader = replica.follows = None
        if "waiters outlive the epoch" not in self.cluster.faults:
            self._tell_all(replica)
        self.enqueue(lambda: self._take_role(replica, term))

    def _take_role(self, replica: Replica, term: Term) -> None:
        """In the writer's turn: what was appended in another epoch is in the log now, or never will be."""
        if replica.wanted.leader_epoch != term.leader_epoch or self.replicas.get(replica.topic_id) is not replica:
            return
        term, log = replica.wanted, replica.log
        replica.outstanding = None
        if term.leader_id != self.id:
            if "cut to the watermark" in self.cluster.faults:
                log.truncate_to(log.high_watermark)
            replica.follows = term
            return
        log.begin_epoch(term.leader_epoch)
        high_watermark = log.end_offset if "all is committed at first" in self.cluster.faults else log.high_watermark
        replica.leader = self.cluster.leader_state(
            self.id,
            term,
            self.epoch_of,
            end_offset=log.end_offset,
            high_watermark=high_watermark,
            now_ms=self.cluster.now_ms,
            lag_time_max_ms=LAG_MS,
            min_isr=self.cluster.min_isr,
        )
        replica.seen_high_watermark = 0
        self._moved(replica)

    # --- the writer of the logs

    def enqueue(self, work: Callable[[], None]) -> None:
        if self.queue or self.cluster.chance(0, 3) == 0:
            self.queue.append(work)
        else:
            work()

    def write_next(self) -> None:
        self.queue.pop(0)()

    # --- producing

    def produce(self, topic_id: bytes, value: int) -> None:
        replica = self.replicas.get(topic_id)
        if replica is None or replica.leader is None:
            return
        if len(replica.leader.term.isr) < replica.leader.needed:
            return  # NOT_ENOUGH_REPLICAS
        epoch = replica.wanted.leader_epoch
        self.enqueue(lambda: self._append(replica, epoch, value))

    def _append(self, replica: Replica, epoch: int, value: int) -> None:
        leader, log = replica.leader, replica.log
        if leader is None or leader.term.leader_epoch != epoch or self.replicas.get(replica.topic_id) is not replica:
            if "append of an old epoch" in self.cluster.faults:
                log.append([Record(epoch, value)])
            return  # NOT_LEADER_OR_FOLLOWER
        offset = log.place_of(value)
        if offset is None:
            offset = log.end_offset
            log.append([Record(epoch, value)])
            self.cluster.was_written(replica.topic_id, offset, log.records[offset])
            leader.appended(log.end_offset, self.cluster.now_ms)
        elif "duplicates do not wait" in self.cluster.faults:
            self.cluster.was_acknowledged(replica.topic_id, offset, value)
            return
        replica.acks.add(offset + 1, Waiting(value, offset))
        self._moved(replica)

    def _moved(self, replica: Replica) -> None:
        """The watermark may have moved."""
        leader = replica.leader
        if leader is None:
            return
        log = replica.log
        log.high_watermark = max(log.high_watermark, leader.high_watermark)
        self.cluster.check_replica(self, replica)
        self._tell_committed(replica, leader.high_watermark)

    def _tell_committed(self, replica: Replica, high_watermark: int) -> None:
        for waiting in replica.acks.committed(high_watermark):
            waiting.is_done = True
            self.cluster.was_acknowledged(replica.topic_id, waiting.offset, waiting.value)

    def _tell_all(self, replica: Replica) -> None:
        for waiting in replica.acks.drain():
            waiting.is_done = True  # NOT_LEADER_OR_FOLLOWER: the client asks again elsewhere

    def delete_records(self, topic_id: bytes, offset: int) -> None:
        replica = self.replicas.get(topic_id)
        if replica is not None and replica.leader is not None and offset <= replica.leader.high_watermark:
            self.cluster.deleted[topic_id] = max(self.cluster.deleted.get(topic_id, 0), offset)
            replica.log.delete_before(offset)

    # --- following

    def fetch(self, topic_id: bytes) -> None:
        """Ask the leader; also when an answer is outstanding, as after a time-out."""
        replica = self.replicas.get(topic_id)
        if replica is None or replica.follows is None or replica.follows.leader_id < 0:
            return
        self.fetch_number += 1
        fetch = Fetch(self._position(replica), self.broker_epoch, self.life, self.fetch_number)
        replica.outstanding = fetch
        self.cluster.send(self.id, replica.follows.leader_id, fetch)

    def _position(self, replica: Replica) -> Position:
        assert replica.follows is not None
        return following.position(replica.topic_id, PARTITION, replica.follows.leader_epoch, replica.log)

    def was_fetched_from(self, source: int, fetch: Fetch) -> None:
        """A follower asks: answered with what is in the log, committed or not."""
        replica = self.replicas.get(fetch.position.topic_id)
        leader = None if replica is None else replica.leader
        if replica is None or leader is None:
            self.cluster.send(self.id, source, Fetched(fetch, Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)))
            return
        asked, log, epoch = fetch.position, replica.log, leader.term.leader_epoch
        if asked.leader_epoch != epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH if asked.leader_epoch < epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
            self.cluster.send(self.id, source, Fetched(fetch, Answer(error)))
            return
        if not leader.check_fetch(source, fetch.broker_epoch):
            self.cluster.send(self.id, source, Fetched(fetch, Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)))
            return
        marks = {"high_watermark": leader.high_watermark, "log_start_offset": log.start_offset}
        try:
            found = None
            if asked.last_fetched_epoch >= 0:
                found = divergence(log, epoch, asked.offset, asked.last_fetched_epoch)
            if found is None and not log.start_offset <= asked.offset <= log.end_offset:
                raise NotInLog
        except NotInLog:
            answer = Answer(ErrorCode.OFFSET_OUT_OF_RANGE)
            self.cluster.send(self.id, source, Fetched(fetch, answer, start=log.start_offset, end=log.end_offset))
            return
        if found is not None:
            if "divergence counts as progress" in self.cluster.faults:
                self._progressed(replica, leader, source, fetch)
            answer = Answer(diverging_epoch=found.epoch, diverging_end_offset=found.end_offset, **marks)
            self.cluster.send(self.id, source, Fetched(fetch, answer))
            return
        self._progressed(replica, leader, source, fetch)
        records = tuple(log.records[asked.offset : asked.offset + self.cluster.chance(1, 4)])
        marks["high_watermark"] = leader.high_watermark
        if records:
            marks["last_epoch"] = records[-1].epoch
        self.cluster.send(self.id, source, Fetched(fetch, Answer(**marks), records))

    def _progressed(self, replica: Replica, leader: LeaderState, source: int, fetch: Fetch) -> None:
        asked, now_ms = fetch.position, self.cluster.now_ms
        leader.fetched(source, fetch.broker_epoch, asked.offset, asked.start_offset, replica.log.end_offset, now_ms)
        self._moved(replica)
        proposal = leader.expansion(source)
        if proposal is not None:
            self.propose(replica, leader, proposal)

    def was_answered(self, fetched: Fetched) -> None:
        if fetched.asked.life != self.life:
            return
        replica = self.replicas.get(fetched.asked.position.topic_id)
        if replica is None or replica.follows is None:
            return
        if replica.outstanding is fetched.asked:
            replica.outstanding = None
        self.enqueue(lambda: self._take_in(replica, fetched))

    def _take_in(self, replica: Replica, fetched: Fetched) -> None:
        if replica.follows is None or self.replicas.get(replica.topic_id) is not replica:
            return
        log, answer, asked = replica.log, fetched.answer, fetched.asked.position
        now = self._position(replica)
        step = following.step(asked, now, answer, log)
        if step.act is Act.FIND_RANGE:
            step = following.out_of_range(asked, now, fetched.start, fetched.end, log)
        if step.act is Act.APPEND:
            log.append(list(fetched.records))
            log.high_watermark = max(log.high_watermark, following.watermark(answer, log.end_offset))
            log.delete_before(min(answer.log_start_offset, log.high_watermark))
            if "waiters outlive the epoch" in self.cluster.faults:
                self._tell_committed(replica, log.high_watermark)
        elif step.act is Act.TRUNCATE:
            self.cluster.is_cut(self, replica, step.offset)
            log.truncate_to(step.offset)
        elif step.act is Act.START_AT:
            log.start_at(step.offset)

    # --- in-sync replicas

    def propose(self, replica: Replica, leader: LeaderState, proposal: Proposal) -> None:
        if "no broker epochs" in self.cluster.faults:
            epochs = tuple(-1 for _ in proposal.isr)
            proposal = leader.pending = Proposal(proposal.leader_epoch, proposal.partition_epoch, proposal.isr, epochs)
        self.isr.propose((replica.topic_id, PARTITION), leader, proposal)
        self.ask_controller()

    def ask_controller(self) -> None:
        request = self.isr.next_request(self.id, self.broker_epoch)
        if request is not None:
            self.sent_alter = request
            self.cluster.send(self.id, CONTROLLER, request)

    def alter_timed_out(self) -> None:
        self.sent_alter = None
        self.isr.unanswered()
        self.ask_controller()

    def was_altered(self, altered: Altered) -> None:
        if altered.request is not self.sent_alter:
            return  # its connection was closed when it was late
        self.sent_alter = None
        for topic_id, _ in self.isr.answered(altered.response, self.cluster.now_ms):
            replica = self.replicas.get(topic_id)
            if replica is not None:
                self._moved(replica)
        self.ask_controller()

    def tick(self) -> None:
        """Time has passed."""
        for replica in self.replicas.values():
            leader = replica.leader
            if leader is not None:
                if leader.tick(self.cluster.now_ms):
                    self._moved(replica)
                proposal = leader.shrinkage(self.cluster.now_ms)
                if proposal is not None:
                    self.propose(replica, leader, proposal)


def term_of(state: PartitionImage) -> Term:
    return Term(state.leader, state.leader_epoch, state.partition_epoch, state.replicas, state.isr)


class Cluster:
    """Nodes 1, 2, 3, one controller that is always right, and a network. `check` holds the invariants."""

    def __init__(
        self,
        chance: Callable[[int, int], int],
        *,
        nodes: int = 3,
        min_isr: int = 2,
        faults: frozenset[str] = frozenset(),
        leader_state: type[LeaderState] = LeaderState,
    ) -> None:
        """`chance(low, high)` is a random number, both ends included."""
        self.chance = chance
        self.min_isr = min_isr
        self.faults = faults
        self.leader_state = leader_state
        self.now_ms = 0.0
        self.image = Image()
        self.decisions: list[list[MetadataRecord]] = []
        self.messages: list[Message] = []
        self.committed: dict[bytes, list[Record]] = {}
        self.written: dict[tuple[bytes, int, int], int] = {}
        self.acknowledged: dict[bytes, dict[int, int]] = {}
        self.to_check: list[tuple[bytes, int, int]] = []
        self.deleted: dict[bytes, int] = {}
        self.leaders: dict[tuple[bytes, int], int] = {}
        self.in_sync_since: dict[tuple[bytes, int], int] = {}
        self.topics_made = 0
        self.nodes = {node_id: Node(self, node_id) for node_id in range(1, nodes + 1)}
        for node in self.nodes.values():
            node.restart()
        for node_id in self.nodes:
            self.unfence(node_id)
        self.create_topic()
        self.spread_metadata()

    # --- controller

    def decide(self, decision: Decision[Any]) -> Any:
        if decision.records:
            before = {topic_id: topic.partitions[0] for topic_id, topic in self.image.topics_by_id.items()}
            for record in decision.records:
                self.image.apply(record)
                self.image.offset += 1
            self.decisions.append(decision.records)
            self._check_decision(before)
        return decision.response

    def register(self, node_id: int, life: int) -> int:
        incarnation = node_id.to_bytes(8, "big") + life.to_bytes(8, "big")
        broker = Registration(node_id, incarnation, [Listener("PLAINTEXT", "host", 9000 + node_id, 0)])
        epoch: int = self.decide(brokers.register(self.image, broker, fenced=True))
        return epoch

    def fence(self, node_id: int) -> None:
        if node_id in self.image.brokers:
            self.decide(brokers.fence(self.image, node_id))

    def unfence(self, node_id: int) -> None:
        self.decide(brokers.unfence(self.image, node_id))

    def elect_preferred(self) -> None:
        wanted = [TopicPartitions(topic=TOPIC, partitions=[PARTITION])]
        if TOPIC in self.image.topics:
            request = ElectLeadersRequest(election_type=0, topic_partitions=wanted)
            self.decide(leadership.elect_leaders(self.image, request))

    def create_topic(self) -> bytes:
        self.topics_made += 1
        topic_id = self.topics_made.to_bytes(16, "big")
        replicas = sorted(self.nodes)
        first = self.chance(0, len(replicas) - 1)
        replicas = replicas[first:] + replicas[:first]
        active = [node_id for node_id in replicas if self.image.is_active(node_id)]
        if not active:
            return b""
        record = PartitionRecord(
            partition_id=0,
            topic_id=topic_id,
            replicas=replicas,
            isr=active,
            leader=active[0],
            leader_epoch=0,
            partition_epoch=0,
        )
        self.decide(Decision(None, [TopicRecord(name=TOPIC, topic_id=topic_id), record]))
        return topic_id

    def delete_topic(self) -> None:
        topic = self.image.topics.get(TOPIC)
        if topic is not None:
            self.decide(Decision(None, [RemoveTopicRecord(topic_id=topic.topic_id)]))

    @property
    def topic_id(self) -> bytes:
        topic = self.image.topics.get(TOPIC)
        return b"" if topic is None else topic.topic_id

    @property
    def partition(self) -> PartitionImage:
        return self.image.topics[TOPIC].partitions[PARTITION]

    # --- metadata and network

    def spread_metadata(self, *node_ids: int) -> None:
        """Let nodes (all that run) learn everything."""
        for node_id in node_ids or tuple(self.nodes):
            node = self.nodes[node_id]
            while node.runs and node.applied < len(self.decisions):
                node.apply(self.decisions[node.applied])

    def send(self, source: int, target: int, body: Any) -> None:
        life = self.nodes[target].life if target in self.nodes else -1
        self.messages.append(Message(source, target, body, life))

    def deliver(self, message: Message) -> None:
        body, target = message.body, self.nodes.get(message.target)
        if target is None:
            response = self.decide(leadership.alter_partition(self.image, body))
            self.send(CONTROLLER, message.source, Altered(body, response))
        elif not target.is_ready or target.life != message.target_life:
            return
        elif isinstance(body, Fetch):
            target.was_fetched_from(message.source, body)
        elif isinstance(body, Fetched):
            target.was_answered(body)
        else:
            target.was_altered(body)

    # --- what is promised

    def was_written(self, topic_id: bytes, offset: int, record: Record) -> None:
        known = self.written.setdefault((topic_id, offset, record.epoch), record.value)
        if known != record.value:
            raise Violation(f"6: offset {offset} of epoch {record.epoch} is {known} and {record.value}")

    def was_acknowledged(self, topic_id: bytes, offset: int, value: int) -> None:
        known = self.acknowledged.setdefault(topic_id, {})
        if known.setdefault(value, offset) != offset and known[value] >= self.deleted.get(topic_id, 0):
            raise Violation(f"7: {value} was acknowledged at {known[value]} and at {offset}")
        self.to_check.append((topic_id, offset, value))

    def is_cut(self, node: Node, replica: Replica, offset: int) -> None:
        common = replica.log.common_prefix(self._committed(replica.topic_id))
        if offset < common:
            raise Violation(f"8: node {node.id} cuts its log to {offset}, and has {common} of what is committed")

    def _committed(self, topic_id: bytes) -> list[Record]:
        return self.committed.setdefault(topic_id, [])

    def _check_decision(self, before: dict[bytes, PartitionImage]) -> None:
        for topic_id, topic in self.image.topics_by_id.items():
            state, earlier = topic.partitions[PARTITION], before.get(topic_id)
            if not state.isr:
                raise Violation("11: nobody is in sync")
            if state.leader >= 0 and state.leader not in state.isr:
                raise Violation(f"3: the leader {state.leader} is not in sync {state.isr}")
            if earlier is not None and state.partition_epoch - earlier.partition_epoch not in (0, 1):
                raise Violation(f"10: partition epoch {earlier.partition_epoch} → {state.partition_epoch}")
            for node_id in state.isr:
                epoch = self.image.brokers[node_id].epoch
                if earlier is None or node_id not in earlier.isr:
                    self.in_sync_since[topic_id, node_id] = epoch
                    self._check_came_in(topic_id, node_id)
                elif len(state.isr) == 1:
                    # The last one stays in sync through a restart: nobody has more than it has.
                    self.in_sync_since[topic_id, node_id] = epoch
                elif self.in_sync_since[topic_id, node_id] != epoch:
                    raise Violation(f"10: {node_id} is in sync since another life")

    def _check_came_in(self, topic_id: bytes, node_id: int) -> None:
        log, committed = self.nodes[node_id].logs.get(topic_id), self._committed(topic_id)
        if self.nodes[node_id].has_lost:
            return  # it is dead: a fetch of its former life came late, and nobody knows of its end yet
        if committed and (log is None or log.common_prefix(committed) < len(committed)):
            raise Violation(f"4: {node_id} becomes in sync without everything that is committed: {log}, {committed}")

    def check(self) -> None:
        """The invariants that are about states, after every step."""
        for node in self.nodes.values():
            for replica in node.replicas.values():
                self.check_replica(node, replica)
        for topic_id, offset, value in self.to_check:
            committed = self._committed(topic_id)
            if offset >= len(committed) or committed[offset].value != value:
                raise Violation(f"7: {value} is acknowledged at {offset}, but {committed} is committed")
        self.to_check.clear()
        for topic_id, topic in self.image.topics_by_id.items():
            committed = self._committed(topic_id)
            if not committed:
                continue
            for node_id in topic.partitions[PARTITION].isr:
                node = self.nodes[node_id]
                log = node.logs.get(topic_id)
                if node.has_lost:
                    continue
                if log is None or len(log.records) < len(committed) or not _holds(log, committed):
                    raise Violation(f"4: {node_id} is in sync and has {log} where {committed} is committed")
                if log.start_offset > self.deleted.get(topic_id, 0):
                    raise Violation(f"7: {node_id} has deleted up to {log.start_offset}, which nobody asked for")

    def check_replica(self, node: Node, replica: Replica) -> None:
        topic_id, log, leader = replica.topic_id, replica.log, replica.leader
        committed = self._committed(topic_id)
        if leader is None:
            if replica.follows is not None:
                end = min(log.high_watermark, len(committed))
                if log.records[log.start_offset : end] != committed[log.start_offset : end]:
                    raise Violation(f"8: follower {node.id} shows {log} where {committed} is committed")
                if log.high_watermark > len(committed):
                    raise Violation(f"8: follower {node.id} shows more than was ever committed: {log}, {committed}")
            return
        epoch = leader.term.leader_epoch
        if self.leaders.setdefault((topic_id, epoch), node.id) != node.id:
            raise Violation(f"3: {node.id} and {self.leaders[topic_id, epoch]} lead in epoch {epoch}")
        high_watermark = leader.high_watermark
        if high_watermark < replica.seen_high_watermark:
            raise Violation(f"9: the watermark of {node.id} fell to {high_watermark} in epoch {epoch}")
        if high_watermark > len(log.records):
            raise Violation(f"9: the watermark of {node.id} is behind its log's end: {high_watermark}, {log}")
        replica.seen_high_watermark = high_watermark
        shown = min(high_watermark, len(committed))
        if log.records[log.start_offset : shown] != committed[log.start_offset : shown]:
            raise Violation(f"8: leader {node.id} of epoch {epoch} shows {log} where {committed} is committed")
        if high_watermark > len(committed):
            self._commit(topic_id, log.records[len(committed) : high_watermark])

    def _commit(self, topic_id: bytes, records: list[Record]) -> None:
        committed = self._committed(topic_id)
        # Of what was deleted nobody remembers the sequences for certain, nor does Kafka.
        values = {record.value for record in committed[self.deleted.get(topic_id, 0) :]}
        for record in records:
            if record.value in values:
                raise Violation(f"7: {record.value} is committed twice")
            values.add(record.value)
            committed.append(record)


def _holds(log: ModelLog, committed: list[Record]) -> bool:
    start = log.start_offset
    return log.records[start : len(committed)] == committed[start:]
