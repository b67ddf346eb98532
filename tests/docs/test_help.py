"""`help(X)` of what users meet: what they can call, with what, and no more than that."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import headrace
from headrace import aio
from headrace.parallel import ParallelConsumer, run

CLASSES = [
    headrace.Admin,
    headrace.Consumer,
    headrace.Producer,
    headrace.RangeReader,
    aio.Admin,
    aio.Consumer,
    aio.Producer,
    ParallelConsumer,
]
_INTERNAL = ("Flow", "Context", "RunsFlows", "Callable[Concatenate")


def public_methods(one: type) -> dict[str, Any]:
    return {name: found for name, found in inspect.getmembers(one, callable) if not name.startswith("_")}


@pytest.mark.parametrize("one", CLASSES, ids=lambda one: f"{one.__module__}.{one.__qualname__}")
def test_every_public_method_is_for_users_and_says_what_it_does(one: type) -> None:
    for name, found in public_methods(one).items():
        assert inspect.getdoc(found), f"{one.__qualname__}.{name} has no documentation"
        signature = str(inspect.signature(found))
        assert not any(word in signature for word in _INTERNAL), f"{name}{signature}"
    mechanics = {"after_fork", "wait_for_delivery", "delivery_future"}
    assert not mechanics & public_methods(one).keys()


@pytest.mark.parametrize("one", [headrace.Admin, aio.Admin])
def test_operations_have_the_signature_of_a_method(one: type) -> None:
    parameters = list(inspect.signature(one.create_topics).parameters.values())  # type: ignore[attr-defined]  # both have it
    assert [(each.name, each.kind) for each in parameters] == [
        ("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        ("topics", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        ("validate_only", inspect.Parameter.KEYWORD_ONLY),
    ]
    assert str(parameters[1].annotation) == "Iterable[NewTopic]"


def test_run_has_the_options_of_the_parallel_consumer() -> None:
    of_run = inspect.signature(run).parameters
    of_class = inspect.signature(ParallelConsumer).parameters
    assert list(of_run.values()) == list(of_class.values())
    documented = inspect.getdoc(ParallelConsumer.__init__) or ""
    for name in of_run:
        assert f"    {name}: " in documented or f"    **{name}: " in documented, f"{name} is not explained"
