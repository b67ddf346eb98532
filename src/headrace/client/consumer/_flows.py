"""Things that take several requests, written top to bottom without I/O: a flow yields what it waits for.

A flow is a generator. It yields a `Call` (or `All` of several), a `Pause`, or `UserCode`; a driver lets it go on when
the call is done or the time has come, and runs the user's code where it belongs: on the caller's thread, or awaited on
the loop. So a rebalance is written once for both drivers, and may span as many polls as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from headrace.net.connection import Call

T = TypeVar("T")

_FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Pause:
    """Go on when the clock (monotonic, seconds) has reached this."""

    until: float


@dataclass(frozen=True, slots=True)
class All:
    """Go on when every one of these is done."""

    calls: Sequence[Call]


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

    def run(self) -> Any:
        return self.function(*self.arguments)

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
        return effect.until if isinstance(effect, (Pause, When)) else _FOREVER

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
        return all(call.done for call in effect.calls)
    if isinstance(effect, When):
        return now >= effect.until or effect.condition()
    return isinstance(effect, Pause) and now >= effect.until


def _answer(effect: Effect | None, now: float) -> Any:
    if isinstance(effect, When):
        return effect.condition()
    return effect
