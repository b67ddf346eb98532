"""How fast are the assignors? At the sizes of Kafka's own scale tests, beside Kafka's Java in the same run.

    python -m bench.assignors [scenario ...] [--runs 3] [--assignor sticky]

Every run assigns twice: from nothing, then again after members claimed what they had (in some scenarios some forgot or
left). Times are medians after one warm-up. The ratio is Java's wall time over ours: above 1 we are faster. Without
Java or Kafka's jars (`make peers`) only our times are printed. With them the results are compared too, list by list,
through a checksum. The last lines say where Java was faster or the results were not the same; if there are any, the
exit status is 1. Java's side of the scenarios with a million partitions takes minutes.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers import kafka_libs, why_no_kafka
from headrace.assignors import AssignableTopics, Assignment, Assignor, GroupAssignment, Subscription, resolve
from headrace.assignors.consumer_protocol import encode_assignment
from headrace.topics import java_string_hash

ASSIGNORS = ("sticky", "cooperative-sticky", "range", "roundrobin")
GENERATION = 1


@dataclass(slots=True)
class Scenario:
    """Topics, distinct lists of topics, and members: (name, which list, what it does before the second assignment)."""

    topics: list[tuple[str, int]]
    shapes: list[list[int]]
    members: list[tuple[str, int, str]]

    def write(self, path: Path) -> None:
        lines = [f"topic {name} {count}" for name, count in self.topics]
        lines += ["shape " + " ".join(map(str, shape)) for shape in self.shapes]
        lines += [f"member {name} {shape} {then}" for name, shape, then in self.members]
        path.write_text("\n".join(lines) + "\n")


def _uniform(topics: int, partitions: int, members: int) -> Scenario:
    return Scenario(
        [(f"t{i}", partitions) for i in range(topics)],
        [list(range(topics))],
        [(f"consumer{i}", 0, "claim" if i else "forget") for i in range(members)],
    )


def _nonequal(topics: int, partitions: int, members: int) -> Scenario:
    scenario = _uniform(topics, partitions, members)
    scenario.shapes.append([0])
    scenario.members[-1] = (scenario.members[-1][0], 1, "claim")
    return scenario


def _split(topics: int, partitions: int, members: int) -> Scenario:
    half = topics // 2
    return Scenario(
        [(f"t{i}", partitions) for i in range(topics)],
        [list(range(half)), list(range(half, topics))],
        [(f"consumer{i}", int(i % 4 != 0), "claim" if i else "forget") for i in range(members)],
    )


def _leaving() -> Scenario:
    rng = random.Random(11)
    topics = [(f"t{i}", rng.randint(1, 10)) for i in range(40)]
    leavers = set(rng.sample(range(200), 50))
    shapes = [sorted(rng.sample(range(40), rng.randint(1, 20))) for _ in range(200)]
    members = [(f"consumer{i}", i, "leave" if i in leavers else "claim") for i in range(200)]
    return Scenario(topics, shapes, members)


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "uniform-1M": lambda: _uniform(500, 2000, 2000),
    "nonequal-1M": lambda: _nonequal(500, 2000, 2000),
    "split-20k": lambda: _split(100, 200, 500),
    "leaving": _leaving,
    "uniform-10k": lambda: _uniform(50, 200, 100),
    "split-10k": lambda: _split(50, 200, 100),
}


@dataclass(slots=True)
class Run:
    first_s: float
    second_s: float
    cpu_s: float
    wire_s: float
    checksums: tuple[int, int]
    wire_bytes: int

    @property
    def total_s(self) -> float:
        return self.first_s + self.second_s


def _claim(name: str, subscription: Subscription, own: Assignment) -> Subscription:
    if name != "sticky":
        return Subscription(subscription.topics, owned_partitions=own.partitions, generation_id=GENERATION)
    member = resolve(name)
    member.on_assignment(own, GENERATION)
    data = member.subscription_user_data(subscription.topics)
    return Subscription(subscription.topics, user_data=data, generation_id=GENERATION)


def _timed(
    assignor: Assignor, cluster: AssignableTopics, group: dict[str, Subscription]
) -> tuple[GroupAssignment, float, float]:
    gc.collect()
    cpu, wall = time.thread_time(), time.perf_counter()
    result = assignor.assign(cluster, group)
    wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
    assert isinstance(result, dict)
    return result, wall, cpu


def run_ours(scenario: Scenario, name: str, plain_lists: bool) -> Run:
    cluster = AssignableTopics(dict(scenario.topics))
    shapes = [[scenario.topics[topic][0] for topic in shape] for shape in scenario.shapes]
    assignor = resolve(name)
    group = {member: Subscription(shapes[shape]) for member, shape, _ in scenario.members}
    assigned, first_s, first_cpu_s = _timed(assignor, cluster, group)
    first_sum = checksum(scenario, assigned)
    again: dict[str, Subscription] = {}
    for member, shape, then in scenario.members:
        if then == "forget":
            again[member] = Subscription(shapes[shape])
        elif then == "claim":
            own = assigned[member]
            if plain_lists:
                own = Assignment(list(own.partitions))
            again[member] = _claim(name, group[member], own)
    del assigned
    assigned, second_s, second_cpu_s = _timed(assignor, cluster, again)
    wire = time.perf_counter()
    wire_bytes = sum(len(encode_assignment(own)) for own in assigned.values())
    wire = time.perf_counter() - wire
    sums = (first_sum, checksum(scenario, assigned))
    return Run(first_s, second_s, first_cpu_s + second_cpu_s, wire, sums, wire_bytes)


def checksum(scenario: Scenario, assigned: GroupAssignment) -> int:
    """The same number as the Java program's, if every member has the same partitions in the same order."""
    index = {name: position for position, (name, _) in enumerate(scenario.topics)}
    mask = (1 << 64) - 1
    total = 0
    for member in sorted(assigned):
        total = (total * 31 + java_string_hash(member)) & mask
        for topic, partition in assigned[member].partitions:
            total = (total * 31 + index[topic] * 1_000_003 + partition) & mask
    return total - (1 << 64) if total >> 63 else total


def run_java(libs: Path, scenario: Scenario, name: str, runs: int) -> list[Run]:
    source = Path(__file__).parent / "java" / "AssignorBench.java"
    # The assignors log their whole result at level info, which would cost more than the assignment.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.txt"
        scenario.write(path)
        config = Path(folder) / "log4j2.properties"
        config.write_text("rootLogger.level = OFF\n")
        command = ["java", "-Xmx6g", f"-Dlog4j2.configurationFile={config}", "-cp", f"{libs}/*"]
        command += [str(source), str(path), name, str(runs)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    if done.returncode != 0:
        raise SystemExit(f"the Java side failed for {name}:\n{done.stderr}")
    found = []
    for line in done.stdout.splitlines():
        if line.startswith("run "):
            first, second, cpu, wire, first_sum, second_sum, size = line.split()[1:]
            sums = (int(first_sum), int(second_sum))
            found.append(Run(float(first), float(second), float(cpu), float(wire), sums, int(size)))
    return found


def _median(runs: Sequence[Run], value: Callable[[Run], float]) -> float:
    # The first run warms up caches (and Java's compiler).
    return statistics.median(map(value, runs[1:] or runs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("scenario", nargs="*", choices=[*SCENARIOS, []], help="default: all")
    parser.add_argument("--assignor", action="append", choices=ASSIGNORS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--plain-lists", action="store_true", help="members claim plain lists of TopicPartition")
    options = parser.parse_args()
    java = kafka_libs()
    if java is None:
        print(f"no ratio: {why_no_kafka()}")
    print(f"{'scenario':12} {'assignor':19} {'first':>8} {'second':>8} {'total s':>8} {'wire s':>7}", end="")
    print(f" | {'Java s':>8} {'cpu s':>7} {'wire s':>7} | ratio: wall   cpu  wall+wire  same result" if java else "")
    missed = []
    for title in options.scenario or SCENARIOS:
        scenario = SCENARIOS[title]()
        for name in options.assignor or ASSIGNORS:
            ours = [run_ours(scenario, name, options.plain_lists) for _ in range(options.runs + 1)]
            total, wire = _median(ours, lambda run: run.total_s), _median(ours, lambda run: run.wire_s)
            first, second = _median(ours, lambda run: run.first_s), _median(ours, lambda run: run.second_s)
            print(f"{title:12} {name:19} {first:8.4f} {second:8.4f} {total:8.4f} {wire:7.3f}", end="", flush=True)
            if java is None:
                print()
                continue
            theirs = run_java(java, scenario, name, options.runs + 1)
            total_j, wire_j = _median(theirs, lambda run: run.total_s), _median(theirs, lambda run: run.wire_s)
            cpu_j = _median(theirs, lambda run: run.cpu_s)
            ratio_cpu = cpu_j / _median(ours, lambda run: run.cpu_s)
            same = ours[-1].checksums == theirs[-1].checksums and ours[-1].wire_bytes == theirs[-1].wire_bytes
            if total_j < total:
                missed.append(f"{title}, {name}: Java took {total_j:.4f} s, Headrace {total:.4f} s")
            if not same:
                missed.append(f"{title}, {name}: another result than Java's")
            print(f" | {total_j:8.4f} {cpu_j:7.3f} {wire_j:7.3f} |", end="")
            print(f" {total_j / total:11.2f} {ratio_cpu:5.2f} {(total_j + wire_j) / (total + wire):10.2f}  {same}")
    for line in missed:
        print(line)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
