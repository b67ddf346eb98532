"""The proof of exactly once: everything that can fail does, and an independent reader counts.

    python -m tests.spark.prove [--on headrace|kafka|HOST:PORT] [--master local|standalone] [--restarts N]
                                [--part steps|tasks|drivers|brokers|control|rotation …]

`steps`: a driver without Spark, but with the sink's own code, is killed at every step, ten times as often. `tasks`:
tasks fail at every step, by an error and by the end of their process; on the standalone cluster also with their
executor, and workers are killed. `drivers`: the driver is killed (SIGKILL) at every step, and started again, N times.
`brokers`: on three brokers of its own, those are killed that lead the output, coordinate its transactions or its group,
or are the controller, in the middle of batches, N/10 times; the driver is not started again. `control`: the same with
the at-least-once sink, which has to show duplicates: so the proof can fail. `rotation`: a producer id's epochs are used
up. Rows are in another order every time they are computed. After every kill the output (confluent-kafka,
read_committed) must hold nothing twice, and exactly what the group's offsets say. Exits with 1 when anything is lost or
doubled.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.peers import ApacheKafka, kafka_libs, why_no_kafka
from tests.spark import light_job
from tests.spark.auditing import audit, read_topic
from tests.spark.exactly_once_job import AT_LEAST_ONCE, ONCE, Plan
from tests.spark.faults import EXECUTOR_FAULTS, POINTS, TASK_FAULTS, WRITTEN
from tests.spark.standalone import EXECUTOR, Standalone
from tests.spark.topics import make_topic, numbers
from tests.three import three_brokers
from tests.waiting import eventually

from headrace.client.admin import Admin
from headrace.client.producer.blocking import Producer
from headrace.spark.options import GROUP_PREFIX
from headrace.testing import BrokerProcess
from headrace.topics import TopicPartition

SOURCE_PARTITIONS, SINK_PARTITIONS = 2, 3
RUN_TIMEOUT_S = 900.0
PARTS = ("steps", "tasks", "drivers", "brokers", "control", "rotation")
TOO_SLOW, TOO_SLOW_MAX = b"Python worker failed to connect back", 5
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Most runs end after seconds: better compiled code would come too late."""


@dataclass
class Count:
    """What a part of the proof found."""

    rows: int = 0
    runs: int = 0
    kills: int = 0
    faults: int = 0
    lost: int = 0
    doubled: int = 0
    mismatches: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        return not (self.lost or self.doubled or self.mismatches)

    def __str__(self) -> str:
        text = (
            f"in {self.rows:,} · lost {self.lost} · doubled {self.doubled} · runs {self.runs} · "
            f"drivers killed {self.kills} · task faults {self.faults} · offsets apart from output {self.mismatches}"
        )
        return "\n    ".join([text, *self.notes])


class Stage:
    """One query of the proof: its topics, its checkpoint, and what should come out."""

    def __init__(self, servers: str, name: str, directory: Path, rows: int, **plan: object) -> None:
        self.servers = servers
        self.source = make_topic(servers, f"{name}-in", SOURCE_PARTITIONS)
        self.sink = make_topic(servers, f"{name}-out", SINK_PARTITIONS)
        values = numbers(rows)
        self.expected = Counter(values)
        with Producer({"bootstrap.servers": servers}) as producer:
            for number, value in enumerate(values):
                producer.send(self.source, value, key=value[-2:], partition=number % SOURCE_PARTITIONS)
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / f"{name}.log"
        # A machine that is busy with other things may take its time to start a Python worker.
        patient = {"spark.python.authenticate.socketTimeout": "600s"}
        made = Plan(servers, self.source, self.sink, str(directory / f"{name}-checkpoint"), group=f"{name}-group")
        self.plan = replace(made, **{**plan, "spark": {**patient, **plan.get("spark", {})}})  # type: ignore[arg-type]  # the fields of Plan, by name
        self.count = Count(rows=rows)

    def start(self, **changes: object) -> subprocess.Popen[bytes]:
        plan = replace(self.plan, **changes)  # type: ignore[arg-type]
        environment = {"SPARK_SUBMIT_OPTS": QUICK_JVM, **os.environ}
        self.count.runs += 1
        with self.log.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.spark.exactly_once_job", plan.to_json()],
                stdout=out,
                stderr=out,
                env=environment,
            )

    def finish(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for its end; whether it was killed, as it was to be."""
        try:
            code = process.wait(RUN_TIMEOUT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if code not in (0, -signal.SIGKILL):
            raise AssertionError(f"the driver ended with {code}:\n{self.log.read_text(errors='replace')[-4000:]}")
        self.count.kills += code != 0
        return code != 0

    def run(self, **changes: object) -> bool:
        """One life of the driver; whether it was killed."""
        for _ in range(TOO_SLOW_MAX):
            at = self.log.stat().st_size if self.log.exists() else 0
            process = self.start(**changes)
            process.wait(RUN_TIMEOUT_S)
            if process.returncode == 1 and TOO_SLOW in self.log.read_bytes()[at:]:
                # Spark gives a Python worker ten seconds to start, whatever else the machine does: one more restart.
                continue
            break
        return self.finish(process)

    def batches_done(self) -> int:
        return self.log.read_text(errors="replace").count(" done\n") if self.log.exists() else 0

    # --- looking at it ------------------------------------------------------------------------------------------------

    def values(self) -> list[bytes]:
        self._settle()
        return [value for _, _, value in read_topic(self.servers, self.sink) if value is not None]

    def _settle(self) -> None:
        """Wait until no transaction is decided without every partition knowing it."""
        with Admin({"bootstrap.servers": self.servers}) as admin:
            eventually(
                lambda: (
                    not any(
                        one.transactional_id.startswith(GROUP_PREFIX)
                        for one in admin.list_transactions(states=["PrepareCommit", "PrepareAbort"])
                    )
                ),
                "that every partition knows what was decided",
            )

    def check(self) -> None:
        """In the middle: nothing twice, and the group's offsets say what the output says."""
        values = self.values()
        _, doubled = audit(self.expected, values)
        self.count.doubled += doubled
        if (behind := self.committed()) != len(values):
            self.count.mismatches += 1
            self.count.notes.append(f"the group says {behind}, and {len(values)} rows are there")

    def committed(self) -> int:
        partitions = [TopicPartition(self.source, index) for index in range(SOURCE_PARTITIONS)]
        with Admin({"bootstrap.servers": self.servers}) as admin:
            found = admin.list_partition_offsets(self.plan.group, partitions)
        return sum(one.offset for one in found.values() if one is not None and one.offset > 0)

    def conclude(self) -> Count:
        self.count.lost, doubled = audit(self.expected, self.values())
        self.count.doubled = max(self.count.doubled, doubled)
        if self.plan.mode == ONCE and self.committed() != self.count.rows:
            self.count.mismatches += 1
        self.count.faults = len(list(self.plan.marks.glob("*")))
        return self.count


# --- the parts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where the proof is run."""

    servers: str
    directory: Path
    cluster: Standalone | None = None

    @property
    def plan(self) -> dict[str, object]:
        if self.cluster is None:
            return {}
        options = {"spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", **EXECUTOR}
        return {"master": self.cluster.master, "spark": options}


def prove_tasks(
    place: Place, name: str = "tasks", faults: tuple[str, ...] | None = None, worker_kills: int = 2
) -> Count:
    """One driver, whose tasks fail once a batch, in every way."""
    chosen = list(faults or (TASK_FAULTS if place.cluster is None else TASK_FAULTS + EXECUTOR_FAULTS))
    rows = 200 * (len(chosen) + (0 if place.cluster is None else 3 * worker_kills))
    stage = Stage(place.servers, name, place.directory, rows, **place.plan)
    process = stage.start(faults=chosen)
    if place.cluster is not None:
        # While batches go on: wherever they are, a worker is gone and comes back.
        for number in range(worker_kills):
            wanted = (number + 1) * rows // 200 // (worker_kills + 1)
            eventually(
                lambda wanted=wanted: process.poll() is not None or stage.batches_done() >= wanted,
                f"{wanted} batches",
                RUN_TIMEOUT_S,
            )
            if process.poll() is None:
                place.cluster.replace_worker()
                stage.count.notes.append(f"killed a worker after {stage.batches_done()} batches")
    assert not stage.finish(process)
    return stage.conclude()


def prove_drivers(
    place: Place,
    restarts: int,
    name: str = "drivers",
    points: tuple[str, ...] = POINTS,
    say: Callable[[str], None] = lambda text: None,
) -> Count:
    """The driver dies at one point after the other, and is started again each time."""
    stage = Stage(place.servers, name, place.directory, 200 * (restarts + 4), **place.plan)
    for number in range(restarts):
        point = points[number % len(points)]
        killed = stage.run(point=point)
        stage.check()
        say(f"{number + 1}/{restarts} {point}: {'killed' if killed else 'ended'} · committed {stage.committed():,}")
        if not killed:
            stage.count.notes.append(f"not reached: {point}")
    assert not stage.run(per_batch=10_000)
    return stage.conclude()


def prove_steps(place: Place, restarts: int, name: str = "steps") -> Count:
    """The same without Spark: the driver's steps, killed at one point after the other."""
    # A process that has imported everything, of which each driver is a copy.
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["tests.spark.light_job"])
    rows = 20 * (restarts + 2)
    stage = Stage(place.servers, name, place.directory, rows, per_batch=20)
    for number in range(restarts + 1):
        point = POINTS[number % len(POINTS)] if number < restarts else ""
        process = made.Process(target=light_job.run, args=(replace(stage.plan, point=point).to_json(), rows))
        process.start()
        process.join(RUN_TIMEOUT_S)
        stage.count.runs += 1
        stage.count.kills += process.exitcode == -signal.SIGKILL
        wanted = -signal.SIGKILL if point else 0
        if process.exitcode != wanted:
            process.kill()
            raise AssertionError(f"the driver that was to die {point or 'nowhere'} ended with {process.exitcode}")
        if number % 10 == 0 or number < len(POINTS):
            stage.check()
    return stage.conclude()


def prove_brokers(
    directory: Path, kills: int, name: str = "brokers", say: Callable[[str], None] = lambda text: None
) -> Count:
    """One driver that nobody starts again, while one broker after the other is killed and comes back."""
    with three_brokers(directory / name) as cluster:
        stage = Stage(cluster.address, name, directory, 200 * (2 * kills + 4))
        roles: dict[str, Callable[[], int]] = {
            "leads the output": lambda: cluster.leader(stage.sink),
            "coordinates the transactions": lambda: cluster.leader("__transaction_state"),
            "coordinates the group": lambda: cluster.leader("__consumer_offsets"),
            "is the controller": cluster.controller,
        }
        process = stage.start()
        try:
            for number in range(kills):
                wanted = 2 * number + 1
                eventually(
                    lambda wanted=wanted: process.poll() is not None or stage.batches_done() >= wanted,
                    f"{wanted} batches",
                    RUN_TIMEOUT_S,
                )
                assert process.poll() is None, "the driver was done before all brokers were killed"
                role = list(roles)[number % len(roles)]
                node = roles[role]()
                cluster.kill(node)
                say(f"{number + 1}/{kills} killed broker {node}, which {role}, after {stage.batches_done()} batches")
                cluster.start(node)
                cluster.await_whole()
            assert not stage.finish(process)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        stage.count.notes.append(f"brokers killed {kills}")
        return stage.conclude()


def prove_control(place: Place, restarts: int = 3, name: str = "control") -> Count:
    """The at-least-once sink, with its driver killed before Spark has noted a batch."""
    stage = Stage(place.servers, name, place.directory, 200 * (restarts + 2), mode=AT_LEAST_ONCE, **place.plan)
    for _ in range(restarts):
        assert stage.run(point=WRITTEN)
    assert not stage.run()
    return stage.conclude()


def prove_rotation(servers: str) -> str:
    """Use up a producer id's epochs, as nine hours of one batch a second do: the next one goes on."""
    from headrace.spark.cluster import Cluster
    from headrace.spark.connections import make_client
    from headrace.spark.markers import Marker
    from headrace.spark.transaction import PROGRESS_TOPIC, SinkTransaction

    kafka = {"bootstrap.servers": servers}
    client, cluster = make_client(kafka), Cluster(kafka)
    sink = make_topic(servers, "rotation-out", 1)
    try:
        transaction = SinkTransaction(
            client, cluster, kafka, "rotation", progress_topic=PROGRESS_TOPIC, timeout_ms=60_000
        )
        identity = first = transaction.fence()
        transaction.last_marker()
        fences = 0
        while identity.producer_id == first.producer_id and fences < 40_000:
            # Every thousandth with a transaction around it, and the last ones all: those that meet the end.
            if fences % 1000 == 0 or identity.epoch > 32_700:
                transaction.enlist(identity, [TopicPartition(sink, 0)])
                transaction.mark(identity, Marker(fences, 0, 1))
                transaction.commit(identity)
                batch = fences
            fences += 1
            identity = transaction.fence()
            if identity.epoch > 32_700 or fences % 1000 == 1:
                found = transaction.last_marker()
                assert found is not None, identity
                assert found.batch == batch, identity
        assert identity.producer_id != first.producer_id, f"{fences} fences, and still {identity}"
        found = transaction.last_marker()
        assert found is not None
        assert found.batch == batch
        return f"{fences:,} epochs, then producer {identity.producer_id} instead of {first.producer_id}; no marker lost"
    finally:
        client.close()
        cluster.close()


# --- the command ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def brokers(on: str, directory: Path) -> Iterator[str]:
    if on == "headrace":
        with BrokerProcess(directory / "broker") as broker:
            yield broker.address
    elif on == "kafka":
        if kafka_libs() is None:
            raise SystemExit(why_no_kafka())
        with ApacheKafka(directory / "kafka") as kafka:
            with Admin({"bootstrap.servers": kafka.address}) as admin:
                admin.describe_cluster()
            yield kafka.address
    else:
        yield on


def archive_classes(servers: str, directory: Path) -> str:
    """Have a driver's classes archived: most of what a start costs is loading them."""
    archive = directory / "classes.jsa"
    stage = Stage(servers, "warm-up", directory, 200)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK_JVM} -XX:ArchiveClassesAtExit={archive}"
    stage.run()
    deadline = time.monotonic() + 120
    while not archive.exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    size = -1
    while archive.exists() and archive.stat().st_size != size:
        size = archive.stat().st_size
        time.sleep(2)
    return f"{QUICK_JVM} -XX:SharedArchiveFile={archive}" if archive.exists() else QUICK_JVM


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="headrace")
    parser.add_argument("--master", choices=("local", "standalone"), default="local")
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--part", action="append", choices=PARTS)
    given = parser.parse_args()
    parts = given.part or list(PARTS)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prove-", ignore_cleanup_errors=True)))
        servers = stack.enter_context(brokers(given.on, directory))
        cluster = stack.enter_context(Standalone(directory / "spark")) if given.master == "standalone" else None
        place = Place(servers, directory, cluster)
        if "drivers" in parts and "SPARK_SUBMIT_OPTS" not in os.environ:
            os.environ["SPARK_SUBMIT_OPTS"] = archive_classes(servers, directory)
        return 0 if run_parts(parts, place, given.restarts, f"{given.on}, {given.master}") else 1


def run_parts(parts: list[str], place: Place, restarts: int, where: str) -> bool:
    fine = True

    def report(part: str, text: object, is_fine: bool, started: float) -> None:
        nonlocal fine
        fine = fine and is_fine
        took = time.monotonic() - started
        print(f"{'ok  ' if is_fine else 'FAIL'} {part} ({where}, {took:.0f} s): {text}", flush=True)

    for part in parts:
        started = time.monotonic()
        if part == "steps":
            count = prove_steps(place, 10 * restarts)
            report(part, count, count.is_exact, started)
        elif part == "tasks":
            count = prove_tasks(place)
            report(part, count, count.is_exact, started)
        elif part == "drivers":
            count = prove_drivers(place, restarts, say=lambda text: print(f"  {text}", flush=True))
            report(part, count, count.is_exact, started)
        elif part == "brokers":
            count = prove_brokers(place.directory, restarts // 10, say=lambda text: print(f"  {text}", flush=True))
            report(part, count, count.is_exact, started)
        elif part == "control":
            count = prove_control(place)
            report("at least once", count, count.lost == 0 and count.doubled > 0, started)
        else:
            report(part, prove_rotation(place.servers), True, started)
    return fine


if __name__ == "__main__":
    sys.exit(main())
