"""`python -m tests.checker.cluster --seconds 1800`: three brokers under load, restarted one by one, then under faults.

What clients saw and what the logs hold in the end is analysed as for one broker; see `analysis`. While brokers are
restarted in an orderly way, clients must not be told of any error at all. Exit code 1 when a promise is broken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.peers import kafka_libs, why_no_kafka

from .analysis import Anomaly
from .history import Kind, Operation, Outcome
from .run import TOPICS, Report, Run
from .servers import ThreeBrokers

CREW = [
    ("sender", "sender-1"),
    ("stream", "stream-2"),
    ("foreign-stream", "foreign-stream-3"),
    ("writer", "writer-4"),
    ("foreign-writer", "foreign-writer-5"),
    ("mixer", "mixer-6"),
    ("mover", "mover-7"),
    ("mover", "mover-8"),
    ("assigned-reader", "assigned-reader-9"),
    ("subscribed-reader", "subscribed-reader-10"),
    ("subscribed-reader", "subscribed-reader-11"),
    ("observer", "observer-12"),
]
ROLLING_ERROR = "error in a rolling restart"
BEYOND_KAFKA = (ROLLING_ERROR, "offset taken back")
"""What Apache Kafka does not promise: right after a move, a coordinator of its tells committed offsets of before."""
_WARM_UP_S, _QUIET_S = 10.0, 10.0


@dataclass(slots=True)
class Window:
    """A part of the run, by the clock of the histories."""

    began: float
    ended: float

    def pause(self, operations: Iterable[Operation]) -> float:
        """The longest time in which a client had nothing acknowledged."""
        acknowledged: dict[str, list[float]] = defaultdict(list)
        for operation in operations:
            if operation.outcome is Outcome.OK and self.began <= operation.ended <= self.ended:
                acknowledged[operation.process].append(operation.ended)
        return max(
            (
                after - before
                for times in acknowledged.values()
                for before, after in pairwise([self.began, *sorted(times), self.ended])
            ),
            default=float("inf"),
        )


class ClusterRun:
    """A run on three brokers: quiet, a restart of all, faults for that many seconds, peace and the audit."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        say: Callable[[str], None] = lambda _: None,
        *,
        with_zookeeper: bool = False,
        of_apache: bool = False,
    ) -> None:
        self._say = say
        self._servers = ThreeBrokers(directory, with_zookeeper=with_zookeeper, of_apache=of_apache)
        self._run = Run(directory, seed, say, servers=self._servers, crew=CREW)
        self._quiet = self._rolling = Window(0.0, 0.0)

    @property
    def faults(self) -> Counter[str]:
        return self._run.faults

    def go(self, seconds: float, enough: Callable[[list[Operation]], bool] = lambda _: True) -> Report:
        report = self._run.go(seconds, self._restart_all, enough)
        errors = [one for one in report.operations if one.kind is Kind.ERROR and self._is_rolling(one)]
        report.anomalies[:0] = [Anomaly(ROLLING_ERROR, f"{one.process} was told {one.error}") for one in errors]
        for name, kind in (
            ("sends", Kind.SEND),
            ("transactions", Kind.TRANSACTION),
            ("looks at offsets", Kind.OFFSETS),
        ):
            of_kind = [one for one in report.operations if one.kind is kind]
            report.remarks.append(
                f"rolling restart: longest pause of {name} {self._rolling.pause(of_kind):.2f} s "
                f"(before it {self._quiet.pause(of_kind):.2f} s)"
            )
        report.remarks.append(f"errors told to clients in the rolling restart: {len(errors)}")
        told = sum(one.kind is Kind.ERROR for one in report.operations) - len(errors)
        report.remarks.append(f"errors told to clients under faults: {told}")
        report.remarks.append(f"tracebacks in the brokers' logs: {self._servers.tracebacks()}")
        return report

    def _is_rolling(self, operation: Operation) -> bool:
        return self._rolling.began <= operation.began <= self._rolling.ended

    def _restart_all(self) -> None:
        """With everything at work and the groups at rest."""
        time.sleep(_WARM_UP_S)
        lacking = self._servers.heal(TOPICS)
        if lacking is not None:
            self._run.problems.append(Anomaly("not ready", lacking))
        self._say("quiet")
        began = time.monotonic()
        time.sleep(_QUIET_S)
        self._quiet = Window(began, time.monotonic())
        self._say("rolling restart")
        problems = self._servers.roll(TOPICS, self._say)
        self._rolling = Window(self._quiet.ended, time.monotonic())
        self._run.problems += [Anomaly("rolling restart", problem) for problem in problems]
        self._say("faults")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checker.cluster", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="under faults")
    parser.add_argument("--seed", type=int, default=None, help="of the faults; the clients' timing is their own")
    parser.add_argument("--zookeeper", action="store_true", help="an ensemble of three real ones, hurt too")
    parser.add_argument("--kafka", action="store_true", help="three nodes of Apache Kafka instead (`make peers`)")
    parser.add_argument("--keep", type=Path, default=None, help="a directory for histories and logs, kept afterwards")
    options = parser.parse_args()
    if options.kafka and kafka_libs() is None:
        parser.error(why_no_kafka())
    if options.kafka and options.zookeeper:
        parser.error("Apache Kafka 4 has no ZooKeeper: --kafka or --zookeeper")
    seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="checker-") as temporary:
        kind = "Apache Kafka" if options.kafka else "ZooKeeper" if options.zookeeper else "a directory"
        say(f"seed {seed}, {options.seconds:.0f} s under faults, {kind}")
        directory = options.keep or Path(temporary)
        run = ClusterRun(directory, seed, say, with_zookeeper=options.zookeeper, of_apache=options.kafka)
        report = run.go(options.seconds)
        print("\n".join(report.lines()))
    allowed = BEYOND_KAFKA if options.kafka else ()
    return 1 if any(one.name not in allowed for one in report.anomalies) else 0


if __name__ == "__main__":
    sys.exit(main())
