"""`python -m tests.hostile [--seconds 5] [--only headrace|kafka] [--table FILE] [ATTACK …]`: every attack, with an
innocent client beside it, on Headrace and on Apache Kafka (`make peers`).

Prints, for each, the innocent's longest and median wait for an answer, its errors, the most memory that the broker's
process had, how long after the attack a new client is served, and whether there is a traceback in the log; of Headrace
also how much CPU its event loop had while the innocent waited for one answer, at most, which says the same on a machine
that others use, and which steps of the loop used the CPU for longest. `--table` puts both side by side into a file,
between its markers. The last line says whether Headrace kept its bounds.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import os
import re
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from bench import peers

from headrace.testing import BrokerProcess

from . import holds, innocent
from .attacks import ATTACKS, Attack, prepared

WAIT_S_MAX = 0.25
MEMORY_MAX = 1024 * 1024 * 1024
WARM_S = 3.0
MIB = 1024 * 1024
KINDS = {"headrace": "Headrace", "kafka": f"Apache Kafka {peers.KAFKA_VERSION}"}
BEGIN, END = "<!-- table of attacks: begin -->", "<!-- table of attacks: end -->"


class Result(NamedTuple):
    times: int
    longest_s: float
    median_s: float
    errors: list[str]
    memory_bytes: int
    open_again_s: float
    is_alive: bool
    has_traceback: bool = False
    #: The most CPU seconds that the event loop had while the innocent waited for one answer.
    loop_s: float = 0.0
    #: CPU seconds of single steps of the event loop, and what they were, the longest first.
    holds: tuple[tuple[float, str], ...] = ()

    @property
    def kept(self) -> bool:
        return (
            self.is_alive
            and not self.has_traceback
            and not self.errors
            and self.longest_s <= WAIT_S_MAX
            and self.memory_bytes <= MEMORY_MAX
            and math.isfinite(self.open_again_s)
        )


def attacked(port: int, pid: int, attack: Attack, seconds: float, *, is_one_loop: bool = False) -> Result:
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    beside = context.Process(target=innocent.run, args=(port, other, pid if is_one_loop else None), daemon=True)
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
    time.sleep(WARM_S)
    innocent.begin(pipe)
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
    waits, errors, loops = innocent.outcome(pipe)
    over.set()
    watching.join()
    beside.join(10)
    found = Result(times, max(waits), statistics.median(waits), errors, max(memory), open_again_s, is_alive)
    return found._replace(loop_s=max(loops))


@contextlib.contextmanager
def broker_of(kind: str, directory: Path) -> Iterator[tuple[Any, Path]]:
    if kind == "kafka":
        with peers.ApacheKafka(directory / "kafka") as kafka:
            yield kafka, directory / "kafka" / "server.log"
    else:
        os.environ[holds.FILE_VARIABLE] = str(directory / "holds")
        with BrokerProcess(directory / "headrace" / "data", module=holds.__name__) as broker:
            yield broker, broker.output_path


def one(kind: str, attack: Attack, seconds: float) -> Result:
    with tempfile.TemporaryDirectory() as directory, broker_of(kind, Path(directory)) as (broker, log):
        with prepared(broker.port):
            began = time.monotonic()
            found = attacked(broker.port, broker.pid, attack, seconds, is_one_loop=kind == "headrace")
        held = holds.read_holds(Path(directory) / "holds", began) if kind == "headrace" else ()
        return found._replace(has_traceback="Traceback" in log.read_text(errors="replace"), holds=held)


def shown(attack: Attack, kind: str, found: Result) -> None:
    print(
        f"  {attack.__name__:22} {kind:9} {found.times:6} {found.longest_s * 1e3:9.0f} {found.median_s * 1e3:7.0f} "
        f"{len(found.errors):4} {found.memory_bytes / MIB:7.0f} {found.open_again_s * 1e3:8.0f} "
        f"{f'{found.loop_s * 1e3:6.0f}' if kind == 'headrace' else '':6}"
        f"{'' if found.is_alive else '  THE BROKER ENDED'}{'  a traceback in the log' if found.has_traceback else ''}",
        flush=True,
    )
    for error in found.errors[:3]:
        print(f"    {error}")
    seen: Counter[str] = Counter()
    for used_s, what in found.holds:
        seen[what] += 1
        if seen[what] == 1:
            print(f"    the loop was held for {used_s * 1e3:.0f} ms of CPU by {what}")


def _cells(found: Result | None) -> list[str]:
    if found is None:
        return ["–"] * 3
    if not found.is_alive:
        return [f"{found.longest_s * 1e3:,.0f}", f"{found.memory_bytes / MIB:,.0f}", "ended"]
    again = f"{found.open_again_s * 1e3:,.0f}" if math.isfinite(found.open_again_s) else "no"
    errors = f" ({len(found.errors)} errors)" if found.errors else ""
    return [f"{found.longest_s * 1e3:,.0f}{errors}", f"{found.memory_bytes / MIB:,.0f}", again]


def table(results: dict[Attack, dict[str, Result]], seconds: float, loads: list[float]) -> str:
    """What was found, in Markdown."""
    said = f"Each for {seconds:g} s, on {os.cpu_count()} cores"
    if max(loads) > (os.cpu_count() or 1):
        said += f" that others used too (load {min(loads):.0f} to {max(loads):.0f})"
    lines = [
        f'{said}. Waits are for one answer; "open again" is how long after',
        "the attack's end a new client had written and read. For each: Headrace, then Apache Kafka "
        f"{peers.KAFKA_VERSION}.",
        "",
        "| attack | longest wait, ms | | most memory, MB | | open again, ms | |",
        "|---|---|---|---|---|---|---|",
    ]
    for attack, by_kind in results.items():
        what = (attack.__doc__ or "").split("\n")[0].rstrip(".")
        ours, theirs = (_cells(by_kind.get(kind)) for kind in KINDS)
        cells = [cell for pair in zip(ours, theirs, strict=True) for cell in pair]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def put(path: Path, text: str) -> None:
    """Between the markers of a file."""
    before = path.read_text()
    found = re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{text}\n{END}", before, flags=re.DOTALL)
    assert BEGIN in before, f"{path} has no {BEGIN}"
    path.write_text(found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", choices=tuple(KINDS))
    parser.add_argument("--table", type=Path)
    parser.add_argument("attacks", nargs="*", choices=[[], *(attack.__name__ for attack in ATTACKS)])
    options = parser.parse_args()
    kinds = [options.only] if options.only else list(KINDS)
    if "kafka" in kinds and peers.kafka_libs() is None:
        print(f"without Apache Kafka: {peers.why_no_kafka()}")
        kinds.remove("kafka")
    results: dict[Attack, dict[str, Result]] = {}
    loads = []
    print("attack, broker, times, longest wait ms, median ms, errors, memory MB, open again ms,", flush=True)
    print("most CPU ms that the event loop had while the innocent waited", flush=True)
    for attack in ATTACKS:
        if options.attacks and attack.__name__ not in options.attacks:
            continue
        for kind in kinds:
            found = results.setdefault(attack, {})[kind] = one(kind, attack, options.seconds)
            loads.append(os.getloadavg()[0])
            shown(attack, kind, found)
        if options.table is not None:
            put(options.table, table(results, options.seconds, loads))
    kept = all(by_kind["headrace"].kept for by_kind in results.values() if "headrace" in by_kind)
    print("Headrace kept its bounds" if kept else "Headrace did not keep its bounds")
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
