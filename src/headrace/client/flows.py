"""Things that take several requests, written top to bottom without I/O: a flow yields what it waits for.

A flow is a generator. It yields a `Call` (or `All` of several), a `Pause`, or `UserCode`; a driver lets it go on when
the call is done or the time has come, and runs the user's code where it belongs: on the caller's thread, or awaited on
the loop. So a rebalance is written once for both drivers, and may span as many polls as it likes.

`drive` and `drive_async` take a flow from its beginning to its end. An operation is a function that begins a flow;
`method` and `async_method` make it a method of a class that runs flows, with its own signature and documentation: that
is how both Admins, and both consumers, have what they have.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

from headrace.client.arguments import argument_reader
from headrace.net.connection import Call

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
X = TypeVar("X")
X_co = TypeVar("X_co", covariant=True)

_FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Pause:
    """Go on when the clock (monotonic, seconds) has reached this."""

    until: float


@dataclass(frozen=True, slots=True)
class All:
    """Go on when every one of these is done, or at `until`."""

    calls: Sequence[Call]
    until: float = _FOREVER


@dataclass(frozen=True, slots=True)
class When:
    """Go on when a condition holds, or at `until`; looked at after every event. Gives whether it held."""

    condition: Callable[[], bool]
    until: float


@dataclass(frozen=True, slots=True)
class UserCode:
    """Call this; what it gives (awaited if it can be) is sent back, what it raises is thrown into the flow."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))


class _Moving:
    """What a flow waits for while it moves. Found by a driver, it says that the move was interrupted."""


_MOVING = _Moving()

Effect: TypeAlias = Call | All | Pause | When | UserCode | _Moving
Flow: TypeAlias = Generator[Effect, Any, T]


class Task(Generic[T]):
    """A flow under way. `advance` moves it; then it is `done`, with a `result` or an `error`.

    A flow that a signal's handler interrupted (it may raise anywhere) cannot go on: how far it came is not known. It is
    done then, without a result; whoever wants its work done looks at what is still to do, and begins another.
    """

    __slots__ = ("_effect", "_flow", "done", "error", "result")

    def __init__(self, flow: Flow[T]) -> None:
        self._flow = flow
        self._effect: Effect | None = None
        self.done = False
        self.result: T | None = None
        self.error: BaseException | None = None

    def advance(self, now: float) -> UserCode | None:
        """Go on as far as possible. What is given back is for the driver to run, once, and to report with `resume`."""
        while not self.done:
            effect = self._effect
            if isinstance(effect, UserCode):
                # Should the driver be interrupted between its run and the report, it is not run again.
                self._effect = _MOVING
                return effect
            if effect is _MOVING:
                self.cancel()
                return None
            if effect is not None and not _is_over(effect, now):
                return None
            self._step(_answer(effect, now), None)
        return None

    def resume(self, value: Any = None, error: BaseException | None = None) -> None:
        """The user's code has run."""
        if not self.done:
            self._step(value, error)

    def _step(self, value: Any, thrown: BaseException | None) -> None:
        self._effect = _MOVING
        try:
            effect = self._flow.send(value) if thrown is None else self._flow.throw(thrown)
        except StopIteration as stop:
            self.result = stop.value
            self.done, self._effect = True, None
        except Exception as error:  # noqa: BLE001 - kept and raised to whoever asked for the flow
            self.error = error
            self.done, self._effect = True, None
        else:
            self._effect = effect

    def is_ready(self, now: float) -> bool:
        """Whether `advance` would move it."""
        return not self.done and (self._effect is None or _is_over(self._effect, now))

    def due(self) -> float:
        """When this has to be looked at again, if nothing arrives before."""
        effect = self._effect
        return effect.until if isinstance(effect, (Pause, When, All)) else _FOREVER

    def cancel(self) -> None:
        """Give up: its calls go on, but nobody waits for them."""
        if not self.done:
            self.done = True
            self._effect = None
            self._flow.close()


def _is_over(effect: Effect, now: float) -> bool:
    if isinstance(effect, Call):
        return effect.done
    if isinstance(effect, All):
        return now >= effect.until or all(call.done for call in effect.calls)
    if isinstance(effect, When):
        return now >= effect.until or effect.condition()
    return isinstance(effect, Pause) and now >= effect.until


def _answer(effect: Effect | None, now: float) -> Any:
    if isinstance(effect, When):
        return effect.condition()
    return effect


# --- from beginning to end --------------------------------------------------------------------------------------------


class Limit(Protocol):
    """What bounds a flow. Looked at when the flow has to wait, and not before: the flow itself may set it first."""

    def check(self, now: float) -> float:
        """Seconds that are left; raises when the flow is not to go on."""
        ...


def _steps(task: Task[T], clock: Callable[[], float], limit: Limit) -> Generator[UserCode | float, None, None]:
    """What a driver has to do until the flow ends: run the user's code, or wait for so many seconds, or for news."""
    try:
        while True:
            now = clock()
            code = task.advance(now)
            if code is not None:
                yield code
                continue
            if task.done:
                break
            yield max(0.0, min(limit.check(now), task.due() - now))
    finally:
        task.cancel()


def _result(task: Task[T]) -> T:
    if task.error is not None:
        raise task.error
    return task.result  # type: ignore[return-value]  # done without an error: T, which may itself be None


def drive(
    flow: Flow[T],
    clock: Callable[[], float],
    limit: Limit,
    wait: Callable[[float], object],
    run_code: Callable[[Task[Any], UserCode], None],
) -> T:
    """Run a flow to its end on this thread. `wait` moves bytes for so long at most, `run_code` runs the user's code."""
    task = Task(flow)
    with closing(_steps(task, clock, limit)) as steps:
        for step in steps:
            if isinstance(step, UserCode):
                run_code(task, step)
            else:
                wait(step)
    return _result(task)


async def drive_async(
    flow: Flow[T],
    clock: Callable[[], float],
    limit: Limit,
    wait: Callable[[float], Awaitable[object]],
    run_code: Callable[[Task[Any], UserCode], Awaitable[None]],
) -> T:
    """`drive`, on the loop."""
    task = Task(flow)
    with closing(_steps(task, clock, limit)) as steps:
        for step in steps:
            if isinstance(step, UserCode):
                await run_code(task, step)
            else:
                await wait(step)
    return _result(task)


# --- operations -------------------------------------------------------------------------------------------------------


class RunsFlows(Protocol[X_co]):
    """Gives an operation what it looks at, and runs the flow that it begins."""

    def _run_flow(self, operation: Callable[[X_co], Flow[R]], /) -> R: ...


class RunsFlowsAsync(Protocol[X_co]):
    """`RunsFlows`, on the loop."""

    def _run_flow(self, operation: Callable[[X_co], Flow[R]], /) -> Coroutine[Any, Any, R]: ...


def method(operation: Callable[Concatenate[X, P], Flow[R]]) -> Callable[Concatenate[RunsFlows[X], P], R]:
    """An operation as a method that blocks."""
    read = argument_reader(operation)

    def run(self: RunsFlows[X], /, *args: P.args, **kwargs: P.kwargs) -> R:
        positional, named = read(args, kwargs)
        return self._run_flow(lambda context: operation(context, *positional, **named))

    return _named_as(operation, run)


def async_method(
    operation: Callable[Concatenate[X, P], Flow[R]],
) -> Callable[Concatenate[RunsFlowsAsync[X], P], Coroutine[Any, Any, R]]:
    """An operation as a method that is awaited."""
    read = argument_reader(operation)

    async def run(self: RunsFlowsAsync[X], /, *args: P.args, **kwargs: P.kwargs) -> R:
        positional, named = read(args, kwargs)
        return await self._run_flow(lambda context: operation(context, *positional, **named))

    return _named_as(operation, run)


F = TypeVar("F", bound=Callable[..., Any])


def _named_as(operation: Callable[..., Any], made: F) -> F:
    """With the operation's name, documentation and signature; but that of a method, which gives what the flow does."""
    functools.update_wrapper(made, operation)
    signature = inspect.signature(operation)
    first, *others = signature.parameters.values()
    gives = str(signature.return_annotation).removeprefix("Flow[").removesuffix("]")
    made.__annotations__ = {**operation.__annotations__, "return": gives}
    made.__annotations__.pop(first.name, None)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    made.__signature__ = signature.replace(parameters=[itself, *others], return_annotation=gives)  # type: ignore[attr-defined]  # what `inspect` looks for
    return made
