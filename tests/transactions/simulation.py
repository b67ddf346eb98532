"""A coordinator, partitions and producers on a network that delays, repeats, reorders and loses.

The coordinator's writes take time and sometimes fail, whole or in part, or seem to; it crashes, moves away and comes
back at any moment and is made anew from its records; the wall clock is set forward and back; producers stall past their
time, and are replaced while they still run. What must hold is checked on the way and at the end. A seed decides
everything. Many seeds, by hand:

    python -m tests.transactions.simulation 10000

Of the older protocol no message arrives after its sender gave it up: that such a message can hit a later transaction is
its known flaw, which only the newer protocol mends.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.coordination.driver import START_MS, played, run_seeds

from headrace.errors import ErrorCode
from headrace.topics import TopicPartition
from headrace.transactions import (
    ADD_VERSION,
    Caller,
    MarkerRequest,
    Outcome,
    StoredRecord,
    Timer,
    TimerKind,
    TransactionConfig,
    TransactionSnapshot,
    TransactionState,
    between_brokers,
    errors_of,
    produce_error,
)
from headrace.transactions.records import snapshot_record

from .driver import Driver, Topics
from .model import Partition
from .processes import OFFSETS, Call, Pause, Process, Produce, Steps

NAMES = ("one", "two")
PARTITIONS = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0), OFFSETS]
STATE_PARTITIONS = 2
BUSY_MS = 40_000
QUIET_MS = 120_000
RESEND_MS = 1_500
ANSWERED_MS = 20_000
WRITE_ERRORS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT)


@dataclass
class Write:
    """Records on their way to the log."""

    outcome: Outcome
    partition: int
    is_settled: bool = False


@dataclass
class Asked:
    """A request that reached the coordinator."""

    answer: Callable[[Any], None]
    number: int
    since_ms: int
    call: Call | None = None


@dataclass
class Facts:
    """What was promised, to be held against what happened."""

    granted: dict[tuple[str, int, int], int] = field(default_factory=dict)  # a producer's id and epoch → when
    last_init: dict[str, int] = field(default_factory=dict)  # transactional id → when someone last took it over
    last_grant: dict[str, Any] = field(default_factory=dict)  # who it was before, and who since
    told: dict[str, bool] = field(default_factory=dict)  # transaction → commit, as it was answered
    labels: dict[tuple[int, int], str] = field(default_factory=dict)  # id and epoch → the newer protocol's transaction


class Simulation(Driver):
    def __init__(self, seed: int) -> None:
        pick = random.Random(seed)
        config = TransactionConfig(
            state_topic_partitions=STATE_PARTITIONS,
            abort_interval_ms=pick.choice((500, 2_000, 10_000)),
            id_expiration_ms=pick.choice((15_000, 604_800_000)),
            expiry_interval_ms=10_000,
        )
        super().__init__(config, version=pick.choice((2, 2, 2, 0)), load=False, seed=seed)
        self.topics = Topics({"a": 2, "b": 1, "__consumer_offsets": 50})
        self.coordinator = self.new_coordinator()
        self.partitions = {name: Partition() for name in PARTITIONS}
        self.unsure: set[bytes] = set()  # keys whose last record is in the log, but was said not to be
        self.life = 0
        self.epochs = dict.fromkeys(range(STATE_PARTITIONS), 0)
        self.writes: dict[int, list[Write]] = {n: [] for n in range(STATE_PARTITIONS)}
        self.ready_ms: dict[int, int] = dict.fromkeys(range(STATE_PARTITIONS), 0)
        self.asked: dict[int, Asked] = {}
        self.opened: dict[str, tuple[int, int, int]] = {}  # when, in which life and epoch of the coordinator
        self.is_down = True
        self.facts = Facts()
        self.processes: list[Process] = []

    # --- events -------------------------------------------------------------------------------------------------------

    def delay_ms(self) -> int:
        return self.random.randint(1, 20) if self.random.random() < 0.9 else self.random.randint(20, 1_200)

    def run(self) -> Simulation:
        for name in NAMES:
            if self.random.random() < 0.7:
                self.near_the_end_of_epochs(name)
        self.start_coordinator()
        for number in range(self.random.randint(2, 4)):
            self.after(self.random.randint(0, 2_000), lambda number=number: self.start_process(number))  # type: ignore[misc]
        self.after(self.random.randint(1_000, 8_000), self.trouble)
        self.run_until(START_MS + BUSY_MS)
        self.is_quiet = True
        if self.is_down:
            self.start_coordinator()
        for process in self.processes:
            process.is_dead = True
        self.run_until(START_MS + BUSY_MS + QUIET_MS)
        self.check_end()
        return self

    # --- the coordinator's lives --------------------------------------------------------------------------------------

    def near_the_end_of_epochs(self, name: str) -> None:
        """As if the id had been in use for long."""
        producer_id = self.ids()
        assert producer_id is not None
        snapshot = TransactionSnapshot(producer_id, 32_767 - self.random.randint(1, 5), 10_000, self.now_ms)
        record = snapshot_record(self.coordinator.partition_of(name), name, snapshot, self.version)
        self.log.setdefault(record.partition, []).append(StoredRecord(record.key, record.value))

    def start_coordinator(self) -> None:
        self.is_down = False
        for partition in range(STATE_PARTITIONS):
            self.begin_load(partition)

    def begin_load(self, partition: int) -> None:
        life, epoch = self.life, self.epochs[partition]
        self.absorb(self.coordinator.begin_load(partition, epoch))

        def load() -> None:
            if (life, epoch) == (self.life, self.epochs[partition]) and not self.is_down:
                self.replay(partition)
                self.unsure -= {record.key for record in self.log.get(partition, ())}
                self.absorb(self.coordinator.loaded(partition, self.now))

        self.after(self.random.randint(0, 300), load)

    def trouble(self) -> None:
        if self.is_quiet:
            return
        if not self.is_down:
            if self.random.random() < 0.5:
                self.crash()
            else:
                self.move(self.random.randrange(STATE_PARTITIONS))
        if self.random.random() < 0.3:
            self.ids.left = self.random.randint(0, 2)
        if self.random.random() < 0.4:
            self.count("clock steps")
            self.clock_error_ms = self.random.choice((0, 3_600_000, -3_600_000, 5_000, -5_000))
        self.after(self.random.randint(1_000, 12_000), self.trouble)

    def crash(self) -> None:
        """Nothing is left but the log, to which some of what was on its way has come."""
        self.count("crashes")
        self.check_reload()
        for partition in range(STATE_PARTITIONS):
            self.settle_some(partition)
            self.epochs[partition] += 1
        self.life += 1
        self.timers.clear()
        self.asked.clear()
        self.is_down = True
        self.coordinator = self.new_coordinator()
        self.after(self.random.randint(1, 2_000), self.come_back)

    def come_back(self) -> None:
        if self.is_down:
            self.start_coordinator()

    def move(self, partition: int) -> None:
        """Another broker leads, and then this one again. What was on its way is heard of late."""
        self.count("moves")
        self.absorb(self.coordinator.unload(partition))
        life = self.life
        for write, was_written in self.settle_some(partition):
            self.after(self.random.randint(0, 3_000), lambda w=write, y=was_written: self.heard_late(life, w, y))  # type: ignore[misc]
        self.epochs[partition] += 1

        def back() -> None:
            if life == self.life and not self.is_down:
                self.begin_load(partition)

        self.after(self.random.randint(0, 1_000), back)

    def settle_some(self, partition: int) -> list[tuple[Write, bool]]:
        writes, self.writes[partition] = self.writes[partition], []
        written = self.random.randint(0, len(writes))
        for number, write in enumerate(writes):
            write.is_settled = True
            if number < written:
                self.put(write.outcome)
        return [(write, number < written) for number, write in enumerate(writes)]

    def heard_late(self, life: int, write: Write, was_written: bool) -> None:
        if life != self.life or self.is_down:
            return
        if was_written:
            self.absorb(self.coordinator.written(write.outcome, self.now))
        else:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            self.absorb(self.coordinator.failed(write.outcome, error, self.now))

    # --- outcomes -----------------------------------------------------------------------------------------------------

    def absorb(self, outcome: Outcome) -> None:
        if outcome.needs_producer_id:
            assert not outcome.replies or outcome.records, "an answer without the id it needs"
        super().absorb(outcome)

    def answer(self, token: Any, response: Any) -> None:
        asked = self.asked.pop(token, None)
        if asked is not None:
            self.note_promise(asked, response)
            asked.answer(response)

    def mark(self, request: MarkerRequest) -> None:
        for partition in request.partitions:
            self.send_marker(request, partition)
        if not request.partitions:
            self.after(0, lambda: self.marked(self.life, request, {}))

    def fire(self, timer: Timer) -> None:
        outcome = self.coordinator.on_timer(timer, self.now)
        if timer.kind is TimerKind.ABORT:
            self.check_time(timer.partition, outcome)
        if outcome.needs_producer_id:
            self.refill()
        self.absorb(outcome)

    def begin_write(self, outcome: Outcome) -> None:
        assert not outcome.markers, "markers before the record that decides them"
        (partition,) = {record.partition for record in outcome.records}
        write = Write(outcome, partition)
        self.writes[partition].append(write)
        self.ready_ms[partition] = max(self.ready_ms[partition], self.now_ms + self.delay_ms())

        def settle() -> None:
            if write.is_settled:
                return
            write.is_settled = True
            self.writes[partition].remove(write)
            if self.chance(0.05):
                self.count("failed writes")
                # From some effect on the records did not fit the batch before, and the next batch failed.
                first = self.random.randrange(len(outcome.effects))
                failed = range(first, len(outcome.effects))
                self.put(outcome, range(first))
                if self.chance(0.5):
                    self.put(outcome, failed)
                    self.unsure.update(
                        record.key for position in failed for record in outcome.effects[position].records
                    )
                error = self.random.choice(WRITE_ERRORS)
                self.absorb(self.coordinator.failed(outcome, dict.fromkeys(failed, error), self.now))
            else:
                self.put(outcome)
                before = self.coordinator.snapshots(partition)
                self.absorb(self.coordinator.written(outcome, self.now))
                self.note_opened(partition, before)

        self.after(self.ready_ms[partition] - self.now_ms, settle)

    def note_put(self, partition: int, record: StoredRecord) -> None:
        self.unsure.discard(record.key)
        if record.value is None:
            # Nobody knows who had this id: whoever asks next may have it.
            self.count("expired ids")
            self.facts.last_init.pop(record.key[4:].decode(), None)

    def refill(self) -> None:
        if self.ids.left == 0:
            self.count("waits for a producer id")
            self.ids.left = None

    # --- markers ------------------------------------------------------------------------------------------------------

    def send_marker(self, request: MarkerRequest, partition: TopicPartition) -> None:
        """To the partition's leader and back; of the newer protocol also late and more than once."""
        life, is_newer = self.life, request.transaction_version >= 2
        if self.chance(0.06):
            self.count("lost markers")
            if is_newer and self.chance(0.5):
                self.after(self.random.randint(1_000, 6_000), lambda: self.arrived(request, partition))
            errors = {partition: ErrorCode.REQUEST_TIMED_OUT}
            self.after(1_000, lambda: self.marked(life, request, errors))
            return
        if is_newer and self.chance(0.15):
            self.after(self.random.randint(1, 6_000), lambda: self.arrived(request, partition))

        def arrive() -> None:
            refused = self.chance(0.05)
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER if refused else self.arrived(request, partition)
            if error == ErrorCode.NONE and self.chance(0.05):
                error = ErrorCode.NETWORK_EXCEPTION  # the answer is lost
            self.after(self.delay_ms(), lambda: self.marked(life, request, {partition: error}))

        # Some take so long that the coordinator which sent them may be gone when they arrive.
        self.after(self.random.randint(500, 6_000) if self.chance(0.05) else self.delay_ms(), arrive)

    def arrived(self, request: MarkerRequest, partition: TopicPartition) -> ErrorCode:
        error = self.partitions[partition].mark(request)
        if error == ErrorCode.NONE:
            self.count("commit markers" if request.commit else "abort markers")
        else:
            self.count("late markers refused")
        return error

    def marked(self, life: int, request: MarkerRequest, errors: dict[TopicPartition, ErrorCode]) -> None:
        if life != self.life or self.is_down:
            return
        partition = self.coordinator.partition_of(request.transactional_id)
        if request.coordinator_epoch == self.epochs[partition]:
            # Nobody but this coordinator ends transactions, so nobody can have overtaken it.
            refused = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED} & {*errors.values()}
            assert not refused, f"{request} was refused: {errors}"
        self.absorb(self.coordinator.markers_written(request, errors, self.now))

    # --- requests to the coordinator ----------------------------------------------------------------------------------

    def request(
        self, method: str, request: Any, version: int, answer: Callable[[Any], None], call: Call | None = None
    ) -> None:
        """The request has arrived. `answer` is called at the coordinator when it answers, if it lives that long."""
        if self.is_down:
            return
        self.number += 1
        self.tokens += 1
        token, life = self.tokens, self.life
        caller = Caller(token, "client", "/127.0.0.1", version)
        outcome = getattr(self.coordinator, method)(caller, request, self.now)
        if outcome.needs_producer_id:
            self.refill()
            outcome = getattr(self.coordinator, method)(caller, request, self.now)
        self.asked[token] = Asked(answer, self.number, self.now_ms, call)
        self.absorb(outcome)

        def check() -> None:
            assert life != self.life or token not in self.asked, f"{method} was never answered: {request}"

        self.after(ANSWERED_MS, check)

    def note_promise(self, asked: Asked, response: Any) -> None:
        call = asked.call
        if call is None or not hasattr(response, "error_code") or response.error_code != ErrorCode.NONE:
            return
        self.number += 1
        name, facts = getattr(call.request, "transactional_id", ""), self.facts
        if call.method == "init_producer_id":
            known = (name, call.request.producer_id, call.request.producer_epoch)
            grant = (known[1:], (response.producer_id, response.producer_epoch))
            assert (
                known[1] == -1
                or facts.last_grant.get(name) == grant  # the same answer again
                or facts.granted[known] >= self.inits_before(name, asked.number)
            ), f"a producer that was replaced goes on: {call}"
            facts.last_init[name], facts.last_grant[name] = self.number, grant
            facts.granted[name, response.producer_id, response.producer_epoch] = self.number
            self.count("inits")
            if known[1] not in (-1, response.producer_id):
                self.count("rotations")
        elif call.method == "end_txn":
            self.count("commits" if call.request.committed else "aborts")
            who = (name, call.request.producer_id, call.request.producer_epoch)
            if call.request.committed:
                assert facts.granted[who] >= self.inits_before(name, asked.number), f"a fenced producer commits: {call}"
            before = facts.told.setdefault(call.label, call.request.committed)
            assert before == call.request.committed, f"{call.label} was both committed and aborted"
            if call.version >= 5:
                facts.granted.setdefault((name, response.producer_id, response.producer_epoch), self.number)
                if response.producer_id != call.request.producer_id:
                    self.count("rotations")

    def inits_before(self, name: str, number: int) -> int:
        """When the id was last taken over, if that was before the request of that number arrived."""
        last = self.facts.last_init.get(name, 0)
        return last if last < number else 0

    # --- producers ----------------------------------------------------------------------------------------------------

    def start_process(self, number: int) -> None:
        if self.is_quiet:
            return
        process = Process(
            name=f"{number}.{len(self.processes)}",
            transactional_id=self.random.choice(NAMES),
            # Only where the cluster has the newer protocol does a client speak it.
            is_newer=self.version >= 2 and self.random.random() < 0.6,
            timeout_ms=self.random.choice((3_000, 10_000, 20_000)),
            partitions=PARTITIONS,
            pick=random.Random(self.random.random()),
        )
        self.processes.append(process)
        self.resume(process, process.run(), None)
        # The next one starts whether or not this one is still there.
        self.after(self.random.randint(2_000, 25_000), lambda: self.start_process(number))

    def resume(self, process: Process, steps: Steps, answer: Any) -> None:
        if process.is_dead:
            return
        try:
            step = steps.send(answer)
        except StopIteration:
            process.is_dead = True
            return
        if isinstance(step, Pause):
            self.after(step.ms, lambda: self.resume(process, steps, None))
            return
        process.current = step
        if self.chance(0.04):
            self.count("stalls")
            self.after(self.random.randint(1_000, 30_000), lambda: self.try_call(process, steps, step))
        else:
            self.try_call(process, steps, step)

    def try_call(self, process: Process, steps: Steps, call: Call) -> None:
        """Send a call, and again until it is answered. Of the older protocol earlier copies are gone by then."""
        if call.is_answered or process.is_dead:
            return
        call.connection += 1
        connection = call.connection

        def answered(answer: Any) -> None:
            if not call.is_answered and not process.is_dead and (process.is_newer or call.connection == connection):
                call.is_answered = True
                self.resume(process, steps, answer)

        def reply(answer: Any) -> None:
            if not self.chance(0.05):
                self.after(self.delay_ms(), lambda: answered(answer))

        def arrive() -> None:
            if process.is_newer or (call.connection == connection and not call.is_answered):
                self.deliver(process, call, reply)

        if not self.chance(0.05):
            self.after(self.delay_ms(), arrive)
        if process.is_newer and self.chance(0.1):
            self.after(self.random.randint(1, 8_000), arrive)
        self.after(RESEND_MS, lambda: self.try_call(process, steps, call))

    def deliver(self, process: Process, call: Call, reply: Callable[[Any], None]) -> None:
        if isinstance(call.request, Produce):
            self.produce(process, call, call.request, reply)
        else:
            self.request(call.method, call.request, call.version, reply, call)

    def produce(self, process: Process, call: Call, batch: Produce, reply: Callable[[Any], None]) -> None:
        """At the partition's leader."""
        partition, name = self.partitions[batch.partition], batch.transactional_id
        guard = partition.ask_first(batch.producer_id, batch.epoch)

        def append(error: ErrorCode) -> None:
            if error == ErrorCode.NONE:
                error = partition.append(batch.producer_id, batch.epoch, batch.value, guard)
                if error == ErrorCode.NONE and process.is_newer:
                    label = self.facts.labels.setdefault((batch.producer_id, batch.epoch), call.label)
                    assert label == call.label, f"{label} and {call.label} have the same epoch {batch.epoch}"
            reply(produce_error(error, batch.version))

        if guard is None:
            append(ErrorCode.NONE)
        elif process.is_newer:
            request = between_brokers(name, batch.producer_id, batch.epoch, [batch.partition], verify_only=False)

            def added(answer: Any) -> None:
                error = errors_of(answer, name)[batch.partition]
                self.after(self.delay_ms(), lambda: append(error))

            if not self.chance(0.03):
                self.after(self.delay_ms(), lambda: self.request("add_partitions_to_txn", request, ADD_VERSION, added))
        elif not self.is_down:
            # In the older protocol nobody may come between the question and the append: they are one step.
            found = self.coordinator.verify(name, batch.producer_id, batch.epoch, [batch.partition])
            append(found[batch.partition])

    # --- what must hold -----------------------------------------------------------------------------------------------

    def check_time(self, partition: int, outcome: Outcome) -> None:
        """Who is aborted for its time has had it, and who is not has not: by the clock that cannot be set.

        Of what was read from the log only the wall clock can tell how long it is open.
        """
        aborted = {effect.records[0].key[4:].decode() for effect in outcome.effects}
        for name, snapshot in self.coordinator.snapshots(partition).items():
            opened_ms, life, epoch = self.opened.get(name, (0, -1, -1))
            if snapshot.state is TransactionState.ONGOING and (life, epoch) == (self.life, self.epochs[partition]):
                is_late = self.now_ms - opened_ms > snapshot.timeout_ms
                assert is_late or name not in aborted, f"{name} was aborted before its time"
                entry = self.coordinator._shards.find(name)
                assert entry is not None
                is_left = name not in aborted and not entry.is_busy and not outcome.needs_producer_id
                assert not (is_late and is_left), f"{name} is given more time than it has"
                self.count("times compared")

    def note_opened(self, partition: int, before: dict[str, TransactionSnapshot]) -> None:
        for name, snapshot in self.coordinator.snapshots(partition).items():
            was = before.get(name)
            was_open = was is not None and was.state is TransactionState.ONGOING
            if snapshot.state is TransactionState.ONGOING and not was_open:
                self.opened[name] = (self.now_ms, self.life, self.epochs[partition])

    def check_reload(self) -> None:
        """What a new coordinator reads from the log is what the present one knows, as far as that is settled."""
        if self.is_down:
            return
        fresh = self.new_coordinator()
        for partition in range(STATE_PARTITIONS):
            if self.coordinator.load_report(partition) is None or self.writes[partition]:
                continue
            fresh.begin_load(partition, 0)
            unsure = set()
            for record in self.log.get(partition, ()):
                fresh.load(partition, record)
                if record.key in self.unsure:
                    unsure.add(record.key[4:].decode())
            fresh.loaded(partition, self.now)
            present, reloaded = self.coordinator.snapshots(partition), fresh.snapshots(partition)
            for name in (present.keys() | reloaded.keys()) - unsure:
                known = present.get(name)
                if known is not None and self.version == 0:
                    known = replace(known, previous_producer_id=-1)  # the older records do not have it
                assert known == reloaded.get(name), f"{name}: {known} != {reloaded.get(name)}"
            self.count("reloads compared")

    def check_end(self) -> None:
        self.check_reload()
        assert not self.asked, f"never answered: {self.asked}"
        for partition in range(STATE_PARTITIONS):
            for name, snapshot in self.coordinator.snapshots(partition).items():
                is_over = snapshot.state is TransactionState.EMPTY or snapshot.state.is_complete
                assert is_over, f"{name} hangs: {snapshot}"
        outcomes: dict[str, dict[tuple[TopicPartition, str], bool]] = {}
        for name, partition in self.partitions.items():
            assert partition.last_stable_offset == partition.end_offset, f"a transaction hangs in {name}"
            self.collect(name, partition, outcomes)
        for label, found in outcomes.items():
            assert len(set(found.values())) == 1, f"{label} is torn: {found}"
            told = self.facts.told.get(label)
            assert told is None or told in found.values(), f"{label} ended otherwise than was said: {told}"
        for process in self.processes:
            for label, values in process.acknowledged.items():
                assert values <= outcomes[label].keys(), f"{label} has lost {values - outcomes[label].keys()}"

    def collect(
        self, name: TopicPartition, partition: Partition, outcomes: dict[str, dict[tuple[TopicPartition, str], bool]]
    ) -> None:
        """Which values of which transaction were committed: the next marker of the producer decides."""
        undecided: dict[int, list[str]] = {}
        epochs: dict[int, int] = {}
        for entry in partition.entries:
            assert entry.epoch >= epochs.get(entry.producer_id, -1), f"{name}: an epoch came back at {entry}"
            epochs[entry.producer_id] = entry.epoch
            if entry.value is not None:
                undecided.setdefault(entry.producer_id, []).append(entry.value)
                continue
            assert entry.commit is not None
            for value in undecided.pop(entry.producer_id, []):
                found = outcomes.setdefault(value.rpartition("/")[0], {})
                assert (name, value) not in found, f"{value} is twice in {name}"
                found[name, value] = entry.commit


def simulate(seed: int) -> Simulation:
    return played(seed, lambda: Simulation(seed).run())


if __name__ == "__main__":
    run_seeds(simulate)
