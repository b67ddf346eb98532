"""What others may lean on: names that can be imported first, and rooms that use the client's public names only."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import headrace
import headrace.admin
import headrace.aio
from headrace.client import errors as client_errors
from headrace.client.consumer import errors as consumer_errors

SOURCE = Path(headrace.__file__).parent
PUBLIC = (headrace, headrace.admin, headrace.aio)

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
    for module in PUBLIC:
        for name in module.__all__:
            assert name in dir(module)
            assert getattr(module, name) is not None
    assert {"HeadraceError", "KafkaError", "ConfigError", "Delivery", "RecordMetadata", "Record"} <= set(
        headrace.__all__
    )


_NAME = re.compile(r"[A-Z]\w+")
# Named in signatures, and not for users to write down: functions that they give, and what only tests and other rooms
# pass.
NOT_FOR_USERS = {
    "AdminKeywords": "names of settings",
    "ConsumerKeywords": "names of settings",
    "ProducerKeywords": "names of settings",
    "K": "any key",
    "V": "any value",
    "BlockingClient": "`RangeReader.over`, for whoever has one",
    "UnheardFailures": "users get `FailedDeliveries`, they make none",
    "ConsumerSettings": "the same",
    "Clock": "tests give another",
    "Runtime": "tests give another",
    "CommitCallback": "any function",
    "DeliveryCallback": "any function",
    "OnLoss": "any function",
    "ConfigValue": "any value of a setting",
    "Headers": "pairs",
    "ConsumerT": "a consumer",
    "ProducerT": "a producer",
    "Batch": "of `headrace.records`",
    "BatchHeader": "of `headrace.records`",
    "Columns": "of `headrace.records`",
    "Ranges": "a mapping",
}


def signatures(module: ModuleType) -> Iterator[tuple[str, inspect.Signature]]:
    """Of a module's functions, and of the classes' methods that users call."""
    for name in module.__all__:
        given = getattr(module, name)
        parts: dict[str, Any] = {name: given}
        if inspect.isclass(given):
            methods = {part: getattr(given, part) for part in dir(given) if not part.startswith("_")}
            parts |= {f"{name}.{part}": one for part, one in methods.items() if callable(one)}
        for part, one in parts.items():
            if callable(one) and not (inspect.isclass(one) and issubclass(one, tuple | BaseException)):
                try:
                    yield part, inspect.signature(one)
                except ValueError:
                    continue  # one of Python's own, which has none


def annotations(signature: inspect.Signature) -> Iterator[str]:
    for annotation in (signature.return_annotation, *(one.annotation for one in signature.parameters.values())):
        if isinstance(annotation, str):
            yield from _NAME.findall(annotation)


def test_whatever_a_signature_names_can_be_imported_from_where_users_import() -> None:
    given = {name for module in PUBLIC for name in module.__all__}
    typing_words = {
        "Any",
        "Awaitable",
        "Callable",
        "Collection",
        "Iterable",
        "Iterator",
        "AsyncIterator",
        "Mapping",
        "None",
    }
    typing_words |= {"AbstractSet", "Pattern", "Self", "Sequence", "Unpack"}
    missing = {
        (part, name)
        for module in PUBLIC
        for part, signature in signatures(module)
        for name in annotations(signature)
        if name not in given | typing_words | NOT_FOR_USERS.keys()
    }
    assert missing == set()


def test_every_error_of_the_clients_can_be_caught_by_a_name_of_headrace() -> None:
    for module in (client_errors, consumer_errors):
        for name, error in vars(module).items():
            if inspect.isclass(error) and issubclass(error, Exception) and not name.startswith("_"):
                assert getattr(headrace, name) is error


def test_every_error_that_the_page_on_errors_names_can_be_caught_by_a_name_of_headrace() -> None:
    page = (SOURCE.parent.parent / "docs" / "errors.md").read_text().partition("## Of every client")[0]
    named = set(re.findall(r"`(\w+Error)`", page)) - {"TypeError"}
    assert len(named) > 8
    assert named <= set(headrace.__all__)


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
