"""Refuses whoever changes a log without being its writer. Switched on in tests; without, nothing of it is there.

See `Log` for who owns what. The switch is the environment variable HEADRACE_CHECK_OWNERS, read once.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.runtime import CHECK_OWNERS, current_writer, is_on_lane

if TYPE_CHECKING:
    from headrace.log.state import LogState
    from headrace.log.view import View

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
        check(log, before)
        try:
            return method(log, *args, **kwargs)
        finally:
            log.changing = outer
            if log.failure is None:
                check(log, log.view)
                _check_step(log, before, log.view)

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


def check(log: LogState, view: View) -> None:
    """What holds of every view, before a change and after it."""
    high_watermark = view.valid(log.watermark)
    stable = view.stable_at(high_watermark)
    if not view.start_offset <= stable <= high_watermark <= view.end_offset:
        raise AssertionError(
            f"{log!r}: start {view.start_offset}, stable {stable}, high watermark {high_watermark}, "
            f"end {view.end_offset} are out of order"
        )
    bases = view.bases
    if len(bases) != len(view.segments) or any(one >= other for one, other in pairwise(bases)):
        raise AssertionError(f"{log!r}: its segments begin at {bases}, which does not rise")
    if bases[-1] > view.end_offset:
        raise AssertionError(f"{log!r}: its last segment begins at {bases[-1]}, after its end")
    entries = view.epochs.entries
    for one, other in pairwise(entries):
        if one.epoch >= other.epoch or one.start_offset > other.start_offset:
            raise AssertionError(f"{log!r}: its leader epochs do not rise: {entries}")


def _check_step(log: LogState, before: View, after: View) -> None:
    """What holds from one view to the next."""
    if after.cuts == before.cuts:
        if after.end_offset < before.end_offset or after.start_offset < before.start_offset:
            raise AssertionError(f"{log!r}: it was {before.start_offset}..{before.end_offset}, and was not cut")
        # One that nothing was written in goes when the log's next leader does not know it.
        gone = [entry for entry in before.epochs.entries if entry.epoch > after.epochs.latest]
        if any(entry.start_offset < after.end_offset for entry in gone):
            raise AssertionError(f"{log!r}: its leader epoch went back from {before.epochs.latest}")
    if after.segments[-1].size != after.size:
        raise AssertionError(
            f"{log!r}: {after.segments[-1].size} bytes are noted, but readers are told of {after.size}"
        )
