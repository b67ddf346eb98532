"""`python -m tests.hostile [--seconds 5] [--only headrace|kafka] [ATTACK …]`: every attack, with an innocent client
beside it, on Headrace and on Apache Kafka (`make peers`).

Prints, for each, the innocent's longest and median wait for an answer, its errors, the most memory
that the broker's process had, how long after the attack a new client is served, and whether there is a traceback in the
log. The last line says whether Headrace kept its bounds.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from bench import peers

from headrace.testing import BrokerProcess

from . import innocent
from .attacks import ATTACKS, Attack, prepared

WAIT_S_MAX = 0.25
MEMORY_MAX = 1024 * 1024 * 1024
BEFORE_S = 1.0
MIB = 1024 * 1024


class Result(NamedTuple):
    attack: str
    times: int
    longest_s: float
    median_s: float
    errors: list[str]
    memory_bytes: int
    open_again_s: float
    is_alive: bool


def attacked(port: int, pid: int, attack: Attack, seconds: float) -> Result:
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    beside = context.Process(target=innocent.run, args=(port, other), daemon=True)
    beside.start()
    pipe.recv()
    process = psutil.Process(pid)
    memory = [process.memory_info().rss]
    over = threading.Event()

    def watch() -> None:
        with contextlib.suppress(psutil.Error):
            while not over.wait(0.02):
                memory.append(process.memory_info().rss)

    watching = threading.Thread(target=watch)
    watching.start()
    time.sleep(BEFORE_S)
    end = time.monotonic() + seconds
    times = 0
    with contextlib.suppress(OSError):
        times = attack(port, lambda: time.monotonic() < end)
    began = time.monotonic()
    is_alive = psutil.pid_exists(pid) and process.status() != psutil.STATUS_ZOMBIE
    open_again_s = float("inf")
    if is_alive:
        with contextlib.suppress(OSError, AssertionError), contextlib.closing(innocent.Innocent(port)) as client:
            client.turn()
            open_again_s = time.monotonic() - began
    waits, errors = innocent.outcome(pipe)
    over.set()
    watching.join()
    beside.join(10)
    return Result(
        attack.__name__,
        times,
        max(waits),
        statistics.median(waits),
        errors,
        max(memory),
        open_again_s,
        is_alive,
    )


@contextlib.contextmanager
def broker_of(kind: str, directory: Path) -> Iterator[tuple[Any, Path]]:
    if kind == "kafka":
        with peers.ApacheKafka(directory / "kafka") as kafka:
            yield kafka, directory / "kafka" / "server.log"
    else:
        with BrokerProcess(directory / "headrace" / "data") as broker:
            yield broker, broker.output_path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", choices=("headrace", "kafka"))
    parser.add_argument("attacks", nargs="*", choices=[[], *(attack.__name__ for attack in ATTACKS)])
    options = parser.parse_args()
    kinds = [options.only] if options.only else ["headrace", "kafka"]
    if "kafka" in kinds and peers.kafka_libs() is None:
        print(f"without Apache Kafka: {peers.why_no_kafka()}")
        kinds.remove("kafka")
    kept = True
    for kind in kinds:
        print(f"\n{kind}: attack, times, longest wait ms, median ms, errors, memory MB, open again ms", flush=True)
        for attack in ATTACKS:
            if options.attacks and attack.__name__ not in options.attacks:
                continue
            with tempfile.TemporaryDirectory() as directory, broker_of(kind, Path(directory)) as (broker, log):
                with prepared(broker.port):
                    found = attacked(broker.port, broker.pid, attack, options.seconds)
                traceback = "Traceback" in log.read_text(errors="replace")
            print(
                f"  {found.attack:22} {found.times:6} {found.longest_s * 1e3:9.0f} {found.median_s * 1e3:7.0f} "
                f"{len(found.errors):4} {found.memory_bytes / MIB:7.0f} {found.open_again_s * 1e3:8.0f}"
                f"{'' if found.is_alive else '  THE BROKER ENDED'}{'  a traceback in the log' if traceback else ''}",
                flush=True,
            )
            for error in found.errors[:3]:
                print(f"    {error}")
            if kind == "headrace":
                kept &= found.is_alive and not traceback and not found.errors
                kept &= found.longest_s <= WAIT_S_MAX and found.memory_bytes <= MEMORY_MAX
    print("\nHeadrace kept its bounds" if kept else "\nHeadrace did not keep its bounds")
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
