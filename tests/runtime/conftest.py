"""Worlds for the contract tests: the same test runs on the real runtime and on the simulated one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime import Runtime, real_runtime
from headrace.runtime.simulated import DATA_DIRECTORY, Simulation


@dataclass(slots=True)
class World:
    name: str
    runtime: Runtime
    root: str
    run: Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["real", "simulated"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "real":
        runtime = real_runtime(io_threads=2, seed=1)
        with asyncio.Runner() as runner:
            yield World("real", runtime, str(tmp_path), runner.run)
            runner.run(runtime.close())
    else:
        simulation = Simulation(1)
        host = simulation.host()
        yield World("simulated", host.runtime, DATA_DIRECTORY, simulation.run)
        simulation.check()
        simulation.loop.close()
