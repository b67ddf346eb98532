"""`headrace simulate`: whole clusters under faults, seed by seed, until one breaks a promise or the time is over."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.app import Interrupted
from headrace.cli.output import CommandError, count, note, styled, usage
from headrace.testing.simulated import story
from headrace.testing.simulated.directed import DIRECTED
from headrace.testing.simulated.html import page
from headrace.testing.simulated.plans import Plan, plan_for, seed_of
from headrace.testing.simulated.runs import RunResult, play, shrink

_TIMELINE_LINES = 60
_STATES_SHOWN = 40
_SEEDS_SHOWN = 10
#: Where a message of the log has values.
_PLACES = re.compile(r"%[-#0 +]*[0-9]*(\.[0-9]+)?[a-z]")


@dataclass(slots=True)
class Played:
    """What is kept of a run: all of it would be too much to hold, and to send between processes."""

    seed: int
    failure: str | None
    steps: int
    virtual_s: float
    coverage: dict[str, int]
    counts: dict[str, int]


@dataclass(slots=True)
class Total:
    """All runs so far."""

    #: The first seed that was not played; of those behind it some may have been, where there are several processes.
    next_seed: int = 0
    began: float = field(default_factory=time.monotonic)
    runs: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    coverage: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    _ahead: set[int] = field(default_factory=set)

    def add(self, played: Played) -> None:
        self._ahead.add(played.seed)
        while self.next_seed in self._ahead:
            self._ahead.remove(self.next_seed)
            self.next_seed += 1
        self.runs += 1
        self.steps += played.steps
        self.virtual_s += played.virtual_s
        for known, new in ((self.coverage, played.coverage), (self.counts, played.counts)):
            for name, number in new.items():
                known[name] = known.get(name, 0) + number

    def line(self) -> str:
        took_s = max(time.monotonic() - self.began, 1e-9)
        seeds = f"{count(self.runs)} seed{'' if self.runs == 1 else 's'}"
        return (
            f"{seeds}, {self.runs / took_s:.2f} a second; {_duration(self.virtual_s)} of virtual "
            f"time; {len(self.coverage)} states seen"
        )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def play_seed(seed: int) -> Played:
    """One seed, for a process of its own."""
    verdict = play(plan_for(seed))
    return Played(
        seed, verdict.failure, verdict.steps, verdict.virtual_s, dict(verdict.timeline.coverage), verdict.counts
    )


def play_many(first: int, seeds: int, minutes: float | None, jobs: int) -> Iterator[Played]:
    """Seeds from the first on, as they are done."""
    deadline = None if minutes is None else time.monotonic() + minutes * 60
    numbers = iter(range(first, first + seeds))
    if jobs == 1:
        for seed in numbers:
            if deadline is not None and time.monotonic() > deadline:
                return
            yield play_seed(seed)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting: set[Future[Played]] = {pool.submit(play_seed, seed) for seed in islice(numbers, jobs * 2)}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
                if deadline is None or time.monotonic() < deadline:
                    waiting |= {pool.submit(play_seed, seed) for seed in islice(numbers, 1)}


def command(
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds [100].")] = None,
    first: Annotated[int, typer.Option("--first", help="The first of them.")] = 0,
    minutes: Annotated[float | None, typer.Option("--minutes", min=0.01, help="Stop after that long.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Only this one, told as a timeline.")] = None,
    plan: Annotated[Path | None, typer.Option("--plan", help="What a failure was kept as, instead of a seed.")] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write the run as a page to look at.")] = None,
    keep: Annotated[Path | None, typer.Option("--keep", help="Keep a failure's plan in this directory.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="How many processes.")] = 1,
    is_shrunk: Annotated[bool, typer.Option("--shrink/--no-shrink", help="Look for the smallest failure.")] = True,
    goes_on: Annotated[bool, typer.Option("--go-on", help="Name the seeds that fail, and do not stop there.")] = False,
    told: Annotated[int | None, typer.Option("--story", help="Write this seed's run as a page, seed-N.html.")] = None,
    are_listed: Annotated[bool, typer.Option("--plans", help="List the directed plans, and a seed of each.")] = False,
) -> None:
    """Run whole clusters in virtual time, under faults that a seed decides, and check every promise."""
    if are_listed:
        for directed in DIRECTED:
            print(f"{directed.name:<40} {directed.rule:<66} --seed {seed_of(directed)}")
        return
    if told is not None:
        seed, trace = told, trace or Path(f"seed-{told}.html")
    if seed is not None or plan is not None:
        if seeds is not None or minutes is not None or (seed is not None and plan is not None):
            raise usage("--seed or --plan is one run: leave out --seeds and --minutes, and name only one of the two")
        chosen = _kept(plan) if plan is not None else plan_for(seed or 0)
        _tell_one(play(chosen, is_traced=True), trace)
        return
    total = Total(first)
    failed: list[int] = []
    wanted = seeds or (100 if minutes is None else 1 << 62)
    try:
        with _interruptible():
            for played in play_many(first, wanted, minutes, jobs):
                total.add(played)
                _show(total, None if seeds is None else seeds)
                if played.failure is not None:
                    _end_progress()
                    if not goes_on:
                        raise _failed(played, total, trace, keep, is_shrunk)
                    failed.append(played.seed)
                    print(f"Seed {played.seed} failed: {played.failure}", flush=True)
                    if keep is not None:
                        _keep(keep, played.failure, plan_for(played.seed))
    except Interrupted:
        # Hours may have been played by then.
        _end_progress()
        print(f"Ended early, {count(len(failed))} failed of {total.line()}")
        print(
            f"All seeds from {first} to before {total.next_seed} were played: --first {total.next_seed} goes on there."
        )
        sys.stdout.flush()
        raise
    _end_progress()
    print(f"Nothing was broken: {total.line()}" if not failed else f"{len(failed)} failed of {total.line()}")
    _tell_totals(total)
    if failed:
        shown = ", ".join(map(str, failed[:_SEEDS_SHOWN])) + (", …" if len(failed) > _SEEDS_SHOWN else "")
        raise CommandError(f"{count(len(failed))} seed{'s' * (len(failed) > 1)} failed: {shown}")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C as the exception that event loops let through: any other is the result of the task that it comes in."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted from None
    finally:
        signal.signal(signal.SIGINT, previous)


def _kept(path: Path) -> Plan:
    try:
        return Plan.of(json.loads(path.read_text("utf-8"))["plan"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise usage(f"{path} is not what a failure was kept as: {error}") from None


def _show(total: Total, wanted: int | None) -> None:
    if sys.stderr.isatty():
        part = 0 if wanted is None else min(20, total.runs * 20 // wanted)
        bar = "" if wanted is None else f"[{'#' * part}{'.' * (20 - part)}] "
        sys.stderr.write(f"\r\x1b[K{bar}{total.line()}")
        sys.stderr.flush()


def _show_try(plan: Plan) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[Ktrying {len(plan.troubles)} faults, {', '.join(plan.workloads)}")
        sys.stderr.flush()


def _end_progress() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")


def _tell_totals(total: Total) -> None:
    for name, number in sorted(total.counts.items()):
        print(f"  {number:>10,}  {name}")
    states = sorted(total.coverage.items(), key=lambda state: (-state[1], state[0]))
    print(f"States seen ({len(states)}; the rarest last):")
    for name, number in states[:_STATES_SHOWN]:
        print(f"  {number:>10,}  {_PLACES.sub('…', name)[:100]}")
    if len(states) > _STATES_SHOWN:
        print(f"  {'':>10}  and {len(states) - _STATES_SHOWN} more")


def _tell_one(verdict: RunResult, trace: Path | None) -> None:
    print("\n".join(verdict.plan.lines()))
    print("\n".join(verdict.timeline.lines()))
    print(f"{verdict.steps:,} steps, {verdict.virtual_s:.1f} virtual seconds; digest {verdict.digest}")
    _write_page(verdict, trace)
    if verdict.failure is not None:
        raise CommandError(f"seed {verdict.plan.seed}: {verdict.failure}")


def _write_page(verdict: RunResult, trace: Path | None) -> None:
    if trace is not None:
        trace.write_text(page(verdict), "utf-8")
        note(f"the timeline is in {trace}")


def _failed(played: Played, total: Total, trace: Path | None, keep: Path | None, is_shrunk: bool) -> CommandError:
    """Tell a failure: the smallest plan that still has it, and what happened in it."""
    print(styled(f"Seed {played.seed} failed after {total.line()}", "1"))
    print(played.failure)
    chosen = plan_for(played.seed)
    if is_shrunk:
        note("looking for the smallest plan that still fails; Ctrl-C ends that with what was found so far")
        verdict = shrink(chosen, on_try=_show_try)
        _end_progress()
    else:
        verdict = play(chosen)
    print("\n".join(verdict.plan.lines()))
    print("\n".join(story.lines(verdict.timeline.entries, verdict.failure, most=_TIMELINE_LINES)))
    if keep is not None:
        _keep(keep, verdict.failure, verdict.plan)
    else:
        note(
            f"run it again with `headrace simulate --seed {played.seed}`, or see it with `--story {played.seed}`; "
            "--keep DIR keeps the smallest plan"
        )
    _write_page(verdict, trace)
    return CommandError(f"seed {played.seed}: {verdict.failure or played.failure}")


def _keep(directory: Path, failure: str | None, plan: Plan) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{plan.seed}.json"
    path.write_text(json.dumps({"failure": failure, "plan": plan.document()}, indent=1) + "\n", "utf-8")
    note(f"kept in {path}: run it again with `headrace simulate --plan {os.fspath(path)}`")
