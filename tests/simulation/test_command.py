"""`headrace simulate`, without clusters."""

from __future__ import annotations

import asyncio
import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.app import Interrupted
from headrace.cli.output import CommandError
from headrace.testing.simulated import command
from headrace.testing.simulated.command import Played, play_many
from headrace.testing.simulated.directed import DIRECTED
from headrace.testing.simulated.plans import Plan, plan_for
from headrace.testing.simulated.runs import RunResult
from headrace.testing.simulated.timeline import Timeline


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_every_seed_is_played_once(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(seed: int) -> Played:
        return Played(seed, None, 1, 1.0, {}, {})

    def pool(workers: int, **options: Any) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(workers)

    monkeypatch.setattr(command, "play_seed", play)
    monkeypatch.setattr(command, "ProcessPoolExecutor", pool)
    assert sorted(played.seed for played in play_many(5, 20, None, jobs)) == list(range(5, 25))


def test_a_run_may_go_on_after_failures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def play(seed: int) -> Played:
        failure = "BrokenError: it" if seed in (3, 5) else None
        return Played(seed, failure, 1, 100.0, {"log: broker %d is %.1f s late": 1}, {})

    monkeypatch.setattr(command, "play_seed", play)
    with pytest.raises(CommandError, match="2 seeds failed: 3, 5"):
        command.command(seeds=8, goes_on=True, keep=tmp_path)
    told = capsys.readouterr().out
    assert "Seed 3 failed: BrokenError: it" in told
    assert "2 failed of 8 seeds" in told
    assert "13 min of virtual time" in told
    assert "8  log: broker … is … s late" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3.json", "5.json"]
    assert Plan.of(json.loads((tmp_path / "5.json").read_text("utf-8"))["plan"]) == plan_for(5)


def test_directed_plans_are_listed_and_each_hundred_seeds_have_them(capsys: pytest.CaptureFixture[str]) -> None:
    command.command(are_listed=True)
    told = capsys.readouterr().out.splitlines()
    assert len(told) == len(DIRECTED)
    for line, directed in zip(told, DIRECTED):
        assert line.startswith(directed.name)
        plan = plan_for(int(line.rsplit(" ", 1)[1]))
        assert plan.directed == directed.name
        assert plan.lines()[0].startswith(f"seed {plan.seed}: {directed.name}: ")
        assert set(directed.clients) <= set(plan.workloads)
    for first in (0, 100, 1_000):
        assert len({plan_for(seed).directed for seed in range(first, first + 100)} - {""}) >= 33


def test_a_run_is_written_as_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "play", lambda plan, is_traced: RunResult(plan, None, "", 1, 1.0, Timeline(lambda: 0)))
    command.command(told=3)
    assert "Nothing was broken" in (tmp_path / "seed-3.html").read_text("utf-8")


def test_what_was_played_before_ctrl_c_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def interrupt() -> None:
        task = asyncio.ensure_future(asyncio.sleep(0))
        task.add_done_callback(lambda _: signal.raise_signal(signal.SIGINT))
        await asyncio.Event().wait()

    def play(seed: int) -> Played:
        if seed == 4:
            asyncio.run(interrupt())
        return Played(seed, "BrokenError: it" if seed == 2 else None, 1, 1.0, {}, {})

    monkeypatch.setattr(command, "play_seed", play)
    with pytest.raises(Interrupted):
        command.command(seeds=8, goes_on=True)
    told = capsys.readouterr().out
    assert "Ended early, 1 failed of 4 seeds" in told
    assert "--first 4 goes on" in told


def test_what_was_played_by_several_processes_is_told_without_gaps() -> None:
    total = command.Total(10)
    for seed in (10, 12, 13):
        total.add(Played(seed, None, 1, 1.0, {}, {}))
    assert total.next_seed == 11
    total.add(Played(11, None, 1, 1.0, {}, {}))
    assert total.next_seed == 14
