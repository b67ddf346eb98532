"""Functions that users give: refuses those of which a call runs nothing, and finds what a call left unrun."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any

from headrace.errors import HeadraceError

_LATER = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


class NotRunError(HeadraceError, TypeError):
    """A user's function gave back a coroutine or a generator, so what it was called for was not done."""


def is_async(function: object) -> bool:
    """Whether a call gives a coroutine: an `async def`, or an object with such a `__call__`."""
    function = _called(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def is_generator(function: object) -> bool:
    """Whether a call gives a generator, asynchronous or not: its body has a `yield`."""
    function = _called(function)
    flags = _flags(function) | _flags(type(function).__call__)
    # What `types.coroutine` made of a generator is awaited as a coroutine is.
    return flags & _GENERATORS != 0 and flags & inspect.CO_ITERABLE_COROUTINE == 0


def check_plain(function: object, what: str) -> None:
    """Refuse, where it is given, a function of which a call runs nothing; and what is no function. None is fine."""
    try:
        # By far the most end here: this is asked for every record that has a callback.
        if not function.__code__.co_flags & _LATER:  # type: ignore[attr-defined]  # what most functions have
            return
    except AttributeError:
        if function is None:
            return
    if not callable(function):
        raise TypeError(f"{what} takes a function to call, not {function!r}")
    if (kind := _kind(function)) is not None:
        raise TypeError(
            f"{what} takes a plain function, and {name_of(function)} is {kind}: calling it would run nothing. Do the "
            "work in a plain function, or begin a task in one"
        )


def check_has_run(result: object, what: str) -> None:
    """Refuse what a user's function gave back if nothing of it has run yet: a coroutine, a generator.

    It is closed, so that Python does not warn of it as well. All else that a function gives is its own affair.
    """
    if isinstance(result, Coroutine):
        kind = "a coroutine, which was not awaited"
        result.close()
    elif isinstance(result, Generator):
        kind = "a generator, which nobody goes through"
        result.close()
    elif isinstance(result, AsyncGenerator):
        # It has not begun, so there is nothing to close.
        kind = "an asynchronous generator, which nobody goes through"
    else:
        return
    name = getattr(result, "__qualname__", type(result).__name__)
    raise NotRunError(
        f"{what} gave back {kind}: {name} did not run. Give the function itself where it may be an `async def`, or one "
        "that does the work before it returns"
    )


def name_of(function: object) -> str:
    """A function's name for a person."""
    function = _called(function)
    return getattr(function, "__qualname__", None) or repr(function)


def _called(function: object) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _flags(function: object) -> int:
    return getattr(getattr(function, "__code__", None), "co_flags", 0)


def _kind(function: object) -> str | None:
    if is_generator(function):
        return "a generator function (it has a `yield`)"
    return "an `async def`" if is_async(function) else None
