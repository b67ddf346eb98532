"""What others may lean on: names that can be imported first, and rooms that use the client's public names only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
import headrace.aio

SOURCE = Path(headrace.__file__).parent

ALONE = """
import importlib, sys
for name in sys.argv[1:]:
    for loaded in [one for one in sys.modules if one.partition(".")[0] == "headrace"]:
        del sys.modules[loaded]
    importlib.import_module(name)
"""


@pytest.mark.slow
def test_every_module_that_users_import_from_can_be_the_first() -> None:
    """Which of two modules that need each other comes first must not matter."""
    names = {*headrace._LAZY.values(), "headrace.aio", "headrace.client.transactions", "headrace.client.cluster"}
    names |= {"headrace.client.cluster.coordinator", "headrace.client.producer"}
    subprocess.run([sys.executable, "-c", ALONE, *sorted(names)], check=True)


def test_every_name_that_headrace_gives_is_there() -> None:
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
        assert name in dir(headrace)
    assert {"HeadraceError", "KafkaError", "ConfigError", "Delivery", "RecordMetadata", "Record"} <= set(
        headrace.__all__
    )


def imported_by(path: Path) -> set[str]:
    """The modules of ours that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {f"{node.module}.{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    return {name for name in found if name.startswith("headrace.")}


def test_spark_stands_on_the_clients_public_names() -> None:
    for path in sorted((SOURCE / "spark").rglob("*.py")):
        names = imported_by(path)
        private = {name for name in names if name.startswith("headrace.client") and "._" in name}
        beneath = {name for name in names if name.startswith(("headrace.protocol", "headrace.net"))}
        assert not private | beneath, f"{path.name} imports {sorted(private | beneath)}"


@pytest.mark.slow
def test_coordinators_are_asked_for_in_one_place() -> None:
    using = {
        path.relative_to(SOURCE).as_posix()
        for room in ("client", "spark", "parallel", "cli")
        for path in (SOURCE / room).rglob("*.py")
        if any(name.endswith(".FindCoordinatorRequest") for name in imported_by(path))
    }
    assert using == {"client/cluster/coordinator.py"}
