"""A run of the checker: brokers and clients as processes, faults for some minutes, then peace, and the analysis."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from headrace import Admin, Consumer, NewTopic

from .analysis import Anomaly, Moved, analyse
from .clients import MOVERS_GROUP, PARTITIONS, SOURCE, TARGET
from .cycles import write_order_cycles
from .history import Kind, Operation, Place, read_history
from .renumbered import LOG_SUFFIX, batches_of, renumbered
from .servers import OneBroker, Servers

ROOT = Path(__file__).parents[2]
# Each with a number of its own, of which its values are made.
CREW = [
    ("sender", "sender-1"),
    ("writer", "writer-2"),
    ("writer", "writer-3"),
    ("foreign-writer", "foreign-writer-4"),
    ("assigned-reader", "assigned-reader-5"),
    ("subscribed-reader", "subscribed-reader-6"),
    ("subscribed-reader", "subscribed-reader-7"),
    ("mover", "mover-8"),
    ("mover", "mover-9"),
    ("mixer", "mixer-10"),
    ("mixer", "mixer-11"),
]
WRITERS = ("sender", "stream", "foreign-stream", "writer", "foreign-writer", "mixer")
TOPICS = (SOURCE, TARGET, "__consumer_offsets", "__transaction_state")
_PEACE_S = 90.0
_END_S = 60.0
_LONGER, _MORE_S = 6, 5.0


@dataclass
class Report:
    """What a run found."""

    anomalies: list[Anomaly]
    operations: list[Operation]
    faults: Counter[str]
    records: int
    seconds: float
    write_order_cycles: int
    remarks: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        counts = Counter((operation.kind, operation.outcome) for operation in self.operations)
        kinds = ", ".join(f"{n} {kind.value} {outcome.value}" for (kind, outcome), n in sorted(counts.items(), key=str))
        reads = sum(len(operation.reads) for operation in self.operations if operation.kind is not Kind.MOVE)
        mixed = sum(operation.kind is Kind.TRANSACTION and bool(operation.reads) for operation in self.operations)
        faults = ", ".join(f"{n} × {name}" for name, n in sorted(self.faults.items()))
        names = Counter(anomaly.name for anomaly in self.anomalies)
        lines = [
            f"{self.seconds:.0f} s under faults: {faults or 'none'}",
            f"operations: {kinds}",
            f"{self.records} records committed, {reads} read by polls and in {mixed} transactions",
            f"{self.write_order_cycles} cycles by the order of writes, which Kafka allows",
            *self.remarks,
            f"anomalies: {', '.join(f'{n} × {name}' for name, n in names.items()) or 'none'}",
        ]
        return lines + [f"  {anomaly}" for anomaly in self.anomalies[:50]]


class Client:
    """A client's process, which may be killed, paused, and started again under the same name."""

    def __init__(self, role: str, name: str, address: str, directory: Path, rng: random.Random) -> None:
        self.role, self.name, self._address, self._directory, self._rng = role, name, address, directory, rng
        self.incarnation = 0
        self.start()

    def start(self) -> None:
        self.incarnation += 1
        arguments = [self.role, self._address, str(self._directory), self.name, str(self.incarnation)]
        with (self._directory / f"{self.name}.out").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.checker.clients", *arguments, str(self._rng.randrange(1 << 30))],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()

    def finish(self) -> str | None:
        """Have it end by itself; why not, if it does not."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            code = self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return f"{self.name} did not end within {_END_S:.0f} s"
        return None if code == 0 else f"{self.name} ended with {code}: {self.output()[-1500:]}"

    def output(self) -> str:
        return (self._directory / f"{self.name}.out").read_text(errors="replace")


class Run:
    """See the module."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        say: Callable[[str], None] = lambda _: None,
        *,
        servers: Servers | None = None,
        crew: list[tuple[str, str]] = CREW,
    ) -> None:
        self.crew = crew
        self.servers = servers or OneBroker(directory)
        self.rng = random.Random(seed)
        self.directory = directory
        self.say = say
        self.faults: Counter[str] = Counter()
        self.clients: list[Client] = []
        self.problems: list[Anomaly] = []

    def go(
        self,
        seconds: float,
        before_faults: Callable[[], None] = lambda: None,
        enough: Callable[[list[Operation]], bool] = lambda _: True,
    ) -> Report:
        """`before_faults` is called when clients are at work, and given its own time.

        On a machine with much else to do little happens in a time: faults go on until `enough` of it did, up to
        `_LONGER` times as long.
        """
        histories = self.directory / "histories"
        histories.mkdir(parents=True)
        try:
            self.servers.start()
            with Admin({"bootstrap.servers": self.servers.address}) as admin:
                admin.create_topics([NewTopic(topic, PARTITIONS) for topic in (SOURCE, TARGET)]).all()
            self.clients = [Client(role, name, self.servers.address, histories, self.rng) for role, name in self.crew]
            before_faults()
            began = time.monotonic()
            self._faults(began + seconds)
            while not enough(read_history(histories.glob("*.jsonl"))) and time.monotonic() < began + _LONGER * seconds:
                self._faults(time.monotonic() + _MORE_S)
            under_faults = time.monotonic() - began
            self._make_peace()
            logs = self._read_everything()
            committed = self._committed()
        finally:
            for client in self.clients:
                if client.process.poll() is None:
                    os.kill(client.process.pid, signal.SIGCONT)
                    client.kill()
            self.servers.stop()
        operations = read_history(histories.glob("*.jsonl"))
        again = renumbered(
            logs,
            batches_of(self.servers.data, logs),
            histories.glob(f"*{LOG_SUFFIX}"),
        )
        anomalies = self.problems + analyse(operations, logs, Moved(SOURCE, committed), again)
        records = sum(len(log) for log in logs.values())
        cycles = write_order_cycles(operations, logs)
        report = Report(anomalies, operations, self.faults, records, under_faults, cycles)
        report.remarks.append(f"records that librdkafka wrote again by itself, under a new epoch: {len(again)}")
        return report

    # --- faults

    def _faults(self, until: float) -> None:
        hurt_servers: list[Callable[[], None]] = [partial(fault, self.rng, self._did) for fault in self.servers.faults]
        faults: list[Callable[[], None]] = [self._kill_client] * 4 + [self._pause_client] * 3 + hurt_servers
        while time.monotonic() < until:
            time.sleep(min(self.rng.uniform(0.5, 3.0), max(0.0, until - time.monotonic())))
            if time.monotonic() < until:
                self.rng.choice(faults)()
            for client in self.clients:
                if client.process.poll() is not None:
                    self._died(client)
            self.problems += [Anomaly("broker died", what) for what in self.servers.fallen()]

    def _died(self, client: Client) -> None:
        self.problems.append(
            Anomaly("client died", f"{client.name} ended with {client.process.returncode}: {client.output()[-1500:]}")
        )
        client.kill()
        client.start()

    def _kill_client(self) -> None:
        client = self.rng.choice(self.clients)
        self._did("client killed", client.name)
        client.kill()
        client.start()

    def _pause_client(self) -> None:
        """Long enough, at times, for its session and its transaction to end without it: a zombie wakes up."""
        client = self.rng.choice(self.clients)
        seconds = self.rng.choice([0.5, 2.0, 5.0, 9.0])
        self._did("client paused", f"{client.name} for {seconds} s")
        os.kill(client.process.pid, signal.SIGSTOP)
        if client.role in ("writer", "foreign-writer", "mixer", "mover") and self.rng.random() < 0.4:
            # Meanwhile another takes its place, under the same transactional id.
            zombie = client.process
            client.start()
            time.sleep(seconds)
            os.kill(zombie.pid, signal.SIGCONT)
            time.sleep(0.5)
            zombie.kill()
            zombie.wait()
            assert zombie.stdin is not None
            zombie.stdin.close()
            return
        time.sleep(seconds)
        os.kill(client.process.pid, signal.SIGCONT)

    def _did(self, fault: str, what: str) -> None:
        self.faults[fault] += 1
        self.say(f"{fault} {what}")

    # --- the end

    def _make_peace(self) -> None:
        """Writers end; movers work off what is left; then all end."""
        self.say("peace")
        lacking = self.servers.heal(TOPICS)
        if lacking is not None:
            self.problems.append(Anomaly("not healed", lacking))
        writers = [client for client in self.clients if client.role in WRITERS]
        self._finish(writers)
        if not self._all_moved():
            self.problems.append(
                Anomaly("stuck", f"{_PEACE_S:.0f} s of peace without progress: transactions are open, or input is left")
            )
        self._finish([client for client in self.clients if client not in writers])

    def _finish(self, clients: list[Client]) -> None:
        for client in clients:
            problem = client.finish()
            if problem is not None:
                self.problems.append(Anomaly("client died", problem))

    def _ends(self, isolation: str, topics: tuple[str, ...] = (SOURCE, TARGET)) -> dict[Place, int]:
        places = [(topic, partition) for topic in topics for partition in range(PARTITIONS)]
        config = {"bootstrap.servers": self.servers.address, "isolation.level": isolation}
        with Consumer(config) as consumer:
            return {(place.topic, place.partition): end for place, end in consumer.end_offsets(places).items()}

    def _settled(self) -> bool:
        return self._ends("read_committed") == self._ends("read_uncommitted")

    def _all_moved(self) -> bool:
        """Wait until no transaction is open and all input is processed; whether it came to that."""
        last: dict[Place, int] = {}
        committed: dict[Place, int] = {}
        deadline = time.monotonic() + _PEACE_S
        while time.monotonic() < deadline:
            before, committed = committed, self._committed()
            if committed != before:
                # There may be much left, and as long as it becomes less nothing is stuck.
                deadline = time.monotonic() + _PEACE_S
            if self._settled():
                # Nobody writes there any more.
                last = last or {place: log[-1][0] for place, log in self._read((SOURCE,)).items() if log}
                if all(committed.get(place, 0) > offset for place, offset in last.items()):
                    return True
            time.sleep(0.2)
        return False

    def _committed(self) -> dict[Place, int]:
        with Admin({"bootstrap.servers": self.servers.address}) as admin:
            found = admin.list_group_offsets([MOVERS_GROUP])[MOVERS_GROUP]
        return {(place.topic, place.partition): one.offset for place, one in found.items()}

    def _read_everything(self) -> dict[Place, list[tuple[int, int]]]:
        return self._read((SOURCE, TARGET))

    def _read(self, topics: tuple[str, ...]) -> dict[Place, list[tuple[int, int]]]:
        ends = self._ends("read_committed", topics)
        logs: dict[Place, list[tuple[int, int]]] = {place: [] for place in ends}
        config = {"bootstrap.servers": self.servers.address, "isolation.level": "read_committed"}
        deadline = time.monotonic() + _PEACE_S
        with Consumer(config) as consumer:
            consumer.assign(ends)
            consumer.seek_to_beginning()
            while any(consumer.position(place) < end for place, end in ends.items()):
                if time.monotonic() > deadline:
                    self.problems.append(Anomaly("stuck", f"the logs could not be read to their ends, {ends}"))
                    break
                for piece in consumer.poll_columns(0.5):
                    place = (piece.topic_partition.topic, piece.topic_partition.partition)
                    values = [-1 if value is None else int(value) for value in piece.columns.values.to_list()]
                    logs[place] += zip(map(int, piece.columns.offsets), values)
        return logs
