"""One definition, two drivers: what both consumers and both Admins have is the same, and says so truly."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Generator
from typing import Any

import pytest

import headrace
import headrace.aio
from headrace.client.flows import All, Flow, Pause, Task, UserCode, drive
from headrace.net.connection import Call

PAIRS = [(headrace.Consumer, headrace.aio.Consumer), (headrace.Admin, headrace.aio.Admin)]


def public(of: type) -> dict[str, Any]:
    return {name: found for name, found in inspect.getmembers(of, callable) if not name.startswith("_")}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_both_drivers_have_the_same_methods_with_the_same_parameters_and_words(pair: tuple[type, type]) -> None:
    blocking, on_loop = map(public, pair)
    assert blocking.keys() == on_loop.keys()
    for name, found in on_loop.items():
        ours, theirs = inspect.signature(blocking[name]), inspect.signature(found)
        assert list(ours.parameters) == list(theirs.parameters), name
        for parameter in ours.parameters.values():
            assert parameter.default == theirs.parameters[parameter.name].default, name
        # What each needs of its own words is how it is made.
        assert inspect.getdoc(found), name
        if name != "within":
            assert inspect.getdoc(blocking[name]) == inspect.getdoc(found), name


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_what_help_says_of_a_method_is_true(pair: tuple[type, type]) -> None:
    for of in pair:
        for name, found in public(of).items():
            signature = inspect.signature(found)
            assert next(iter(signature.parameters)) == "self", name
            assert "Flow[" not in str(signature), name
            assert not inspect.isgeneratorfunction(found), name
            assert "return" in typing.get_type_hints(found), name
            assert found.__name__ == name
    waits = {name for name, found in public(headrace.aio.Consumer).items() if inspect.iscoroutinefunction(found)}
    assert {"poll", "commit_sync", "position", "close", "unsubscribe"} <= waits
    assert not waits & {"subscribe", "assign", "seek", "pause", "commit_async", "wakeup"}
    signature = inspect.signature(headrace.Consumer.position)
    assert list(signature.parameters) == ["self", "partition", "timeout"]
    assert signature.return_annotation == "int"


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


class NoLimit:
    def check(self, now: float) -> float:
        return 1000.0


def run(flow: Flow[Any], clock: Clock, limit: Any = None) -> Any:
    def run_code(task: Task[Any], code: UserCode) -> None:
        task.resume(code.function(*code.arguments))

    return drive(flow, clock.monotonic, limit or NoLimit(), clock.wait, run_code)


def test_a_flow_waits_and_runs_code_and_gives_its_result() -> None:
    clock = Clock()

    def flow() -> Flow[list[Any]]:
        yield Pause(5.0)
        return [clock.now, (yield UserCode(lambda: "told"))]

    assert run(flow(), clock) == [5.0, "told"]


def test_calls_are_waited_for_until_a_time_only() -> None:
    clock = Clock()
    call = Call(object(), None, 0.0, 0.0)

    def flow() -> Flow[bool]:
        yield All([call], 3.0)
        return call.done

    assert run(flow(), clock) is False
    assert clock.now == 3.0


def test_a_flow_that_is_given_up_is_closed() -> None:
    clock = Clock()
    closed: list[float] = []

    class TwoSeconds:
        def check(self, now: float) -> float:
            if now >= 2.0:
                raise TimeoutError
            return 2.0 - now

    def flow() -> Generator[Any, Any, None]:
        try:
            yield Pause(100.0)
        finally:
            closed.append(clock.now)

    with pytest.raises(TimeoutError):
        run(flow(), clock, TwoSeconds())
    assert closed == [2.0]
