"""A node of the model cluster: what `Partition` and the fetchers do around the cores of `broker/replication`.

Role changes and appends pass through a queue (the writer of the log's directory), and what was queued is checked again
when its turn comes. `faults` names mistakes that are put in on purpose: see `mutations.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.broker.replication.model_log import ModelLog, Record

from headrace.broker.replication import follower as following
from headrace.broker.replication.acks import AckWaiters
from headrace.broker.replication.follower import Act, Answer, Position
from headrace.broker.replication.isr_changes import IsrChanges
from headrace.broker.replication.leader import LeaderState, Proposal, Term
from headrace.broker.replication.truncation import NotInLogError, divergence
from headrace.cluster.image import Image, PartitionImage
from headrace.cluster.records import MetadataRecord, ResourceType
from headrace.error_codes import ErrorCode
from headrace.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse

if TYPE_CHECKING:
    from tests.broker.replication.model_cluster import Cluster

PARTITION = 0
LAG_MS = 1000.0
MIN_ISR_CONFIG = "min.insync.replicas"
CONTROLLER = 0


class ViolationError(AssertionError):
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
    #: The newest leader epoch in which the log was seen to agree with the leader's.
    agreed_in: int = 0


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
        #: The epoch in which it was stopped cleanly, as its disk tells; -1 when it was not.
        self.stopped_in_epoch = -1
        self.min_isr = cluster.min_isr

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

    def stop(self) -> None:
        """In order: everything is on the disk, and the disk says so."""
        for log in self.logs.values():
            log.sync()
        self.crash(power_loss=False)
        self.stopped_in_epoch = self.broker_epoch

    def restart(self) -> None:
        self.alive = True
        self.broker_epoch = self.cluster.register(self.id, self.life, self.stopped_in_epoch)
        self.stopped_in_epoch = -1
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
        minimum = int(self.image.config(ResourceType.BROKER, "")[MIN_ISR_CONFIG])
        # What asks for more counts before what the same metadata says of in-sync replicas, what asks for less after it.
        self._need(max(self.min_isr, minimum))
        self._follow()
        self._need(minimum)
        after = {node_id: (broker.epoch, broker.is_active) for node_id, broker in self.image.brokers.items()}
        changed = [node_id for node_id, state in after.items() if before.get(node_id) != state]
        if changed:
            for replica in self.replicas.values():
                if replica.leader is None:
                    continue
                if replica.leader.brokers_changed(changed, self.cluster.now_ms):
                    self._moved(replica)
                self._settle(replica)

    def _need(self, min_isr: int) -> None:
        self.min_isr = min_isr
        for replica in self.replicas.values():
            leader = replica.leader
            if leader is not None and leader.min_isr != min_isr:
                leader.min_isr = min_isr
                if leader.tick(self.cluster.now_ms):
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
            min_isr=self.min_isr,
        )
        replica.seen_high_watermark = 0
        replica.agreed_in = term.leader_epoch
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
            self.cluster.was_acknowledged(replica, offset, value)
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
            self.cluster.was_acknowledged(replica, waiting.offset, waiting.value)

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
                found = divergence(log, epoch, asked.offset, asked.last_fetched_epoch, asked.start_offset)
            if found is None and not log.start_offset <= asked.offset <= log.end_offset:
                raise NotInLogError
        except NotInLogError:
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
            replica.agreed_in = asked.leader_epoch
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
                if replica.leader is not None and replica.leader.was_refused:
                    self._settle(replica)
        self.ask_controller()

    def _settle(self, replica: Replica) -> None:
        leader = replica.leader
        proposal = None if leader is None else leader.settlement()
        if leader is not None and proposal is not None:
            self.propose(replica, leader, proposal)

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
                self._settle(replica)


def term_of(state: PartitionImage) -> Term:
    return Term(state.leader, state.leader_epoch, state.partition_epoch, state.replicas, state.isr)
