"""Refuses whoever changes a log without being its writer. Switched on in tests; without, nothing of it is there.

See `Log` for who owns what. The switch is the environment variable HEADRACE_CHECK_OWNERS, read once.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.log.invariants import step_fault, view_fault
from headrace.runtime import CHECK_OWNERS, current_writer, is_on_lane

if TYPE_CHECKING:
    from headrace.log.state import LogState

F = TypeVar("F", bound=Callable[..., Any])


class NotTheOwnerError(RuntimeError):
    """A mistake in the program: something was changed by a thread that does not own it."""


def by_writer(method: F) -> F:
    """For a method that changes a log: only one at a time, and of a log that is served only by its writer."""
    if not CHECK_OWNERS:
        return method

    @functools.wraps(method)
    def checked(log: LogState, *args: Any, **kwargs: Any) -> Any:
        me = threading.get_ident()
        if log.writer is not None and current_writer() is not log.writer:
            raise NotTheOwnerError(f"{log!r}: {method.__name__} was called, but not by its writer")
        if log.changing not in (0, me):
            raise NotTheOwnerError(f"{log!r}: {method.__name__} was called beside another change")
        outer, log.changing = log.changing, me
        before = log.view
        _check(log, view_fault(before, log.watermark))
        try:
            return method(log, *args, **kwargs)
        finally:
            log.changing = outer
            if log.failure is None:
                _check(log, view_fault(log.view, log.watermark))
                _check(log, step_fault(before, log.view))

    return checked  # type: ignore[return-value]  # the same signature


def by_loop(method: F) -> F:
    """For what the event loop owns: of a log that is served, no other thread may call it, nor the writer's work."""
    if not CHECK_OWNERS:
        return method

    @functools.wraps(method)
    def checked(log: LogState, *args: Any, **kwargs: Any) -> Any:
        writer = log.writer
        if writer is not None and (is_on_lane() or threading.get_ident() != writer.loop_thread):
            raise NotTheOwnerError(f"{log!r}: {method.__name__} was called, but not by the event loop")
        return method(log, *args, **kwargs)

    return checked  # type: ignore[return-value]  # the same signature


def _check(log: LogState, wrong: str | None) -> None:
    if wrong is not None:
        raise AssertionError(f"{log!r}: {wrong}")
