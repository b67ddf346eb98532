"""The import contracts name every module that they are about; import-linter itself knows no pattern for `_*`."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent


@functools.cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("headrace")


def test_every_private_module_of_the_client_is_closed_to_what_is_built_on_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (public_names,) = (one for one in contracts if one["name"] == "what is built on the client uses its public names")
    private = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in (ROOT / "src/headrace/client").rglob("_*.py")
        if path.stem != "__init__"
    }
    assert set(public_names["forbidden_modules"]) == private


def test_no_circle_of_modules_in_the_broker_is_larger_than_three() -> None:
    """Also where a module is imported for its types alone: who reads one of a circle has to read all of it."""
    modules = graph().find_descendants("headrace.broker")
    circles = {
        frozenset({module} | (graph().find_upstream_modules(module) & graph().find_downstream_modules(module)))
        for module in modules
    }
    assert modules
    assert [sorted(circle) for circle in circles if len(circle) > 3] == []


def test_no_other_module_takes_the_whole_broker() -> None:
    importers = graph().find_modules_that_directly_import("headrace.broker.broker")
    assert {one for one in importers if one.startswith("headrace.broker.")} == set()
