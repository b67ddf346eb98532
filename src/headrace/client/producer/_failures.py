"""Deliveries that failed, and that nobody has asked about: what `close()` raises, or else is logged.

A failure is heard of when its callback is called, when its delivery is asked how it went, or when the program looks at
what `flush()` gave back. What fails in a transaction is for the end of that to say.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from headrace.client.errors import UndeliveredError
from headrace.errors import HeadraceError
from headrace.runtime.rarely import Rarely
from headrace.words import plural

log = logging.getLogger("headrace.client.producer")


class InterceptedCallback:
    """A delivery's callback that tells the interceptors, too. The user may have given none."""

    __slots__ = ("_tell", "callback")

    def __init__(self, tell: Callable[[Any, Any], None], callback: Callable[[Any, Any], Any] | None) -> None:
        self._tell = tell
        self.callback = callback

    def __call__(self, error: Any, metadata: Any) -> Any:
        self._tell(error, metadata)
        return None if self.callback is None else self.callback(error, metadata)


def is_silent(callback: Any) -> bool:
    """Whether nothing of the user's is called with the outcome of a delivery."""
    return callback is None or (type(callback) is InterceptedCallback and callback.callback is None)


def count_silent(callbacks: Iterable[Any]) -> int:
    return sum(map(is_silent, callbacks))


class UnheardFailures:
    """Those of one producer. Several threads may use it."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._first: HeadraceError | None = None
        self._since_flush = 0
        self._first_since_flush: HeadraceError | None = None
        self._rarely = Rarely(monotonic)
        #: UnheardFailures of an earlier one were all heard of.
        self._era = 0

    def add(self, count: int, error: HeadraceError, where: str) -> Unheard:
        """So many deliveries failed, and nobody was called."""
        with self._lock:
            self._first = self._first or error
            self._first_since_flush = self._first_since_flush or error
            self._count += count
            self._since_flush += count
            return Unheard(self, count, error, where, self._era)

    def heard(self, unheard: Unheard, count: int) -> None:
        """Somebody asked about so many of them."""
        with self._lock:
            unheard.count -= count
            if unheard.era != self._era:
                return
            self._count -= count
            self._since_flush = min(self._since_flush, self._count)
            if self._count == 0:
                self._first = self._first_since_flush = None

    def lost(self, unheard: Unheard) -> None:
        """Nobody can ask any more."""
        if unheard.era == self._era and (times := self._rarely.happened()):
            more = f" (and of {plural(times - 1, 'batch')} before)" if times > 1 else ""
            log.error(
                "%s for %s could not be delivered, and nobody asked: %s%s",
                plural(unheard.count, "record"),
                unheard.where,
                unheard.error,
                more,
            )

    def flushed(self) -> FailedDeliveries:
        """Those since the last flush."""
        with self._lock:
            made = FailedDeliveries(self, self._since_flush, self._first_since_flush)
            self._since_flush, self._first_since_flush = 0, None
        return made

    def hear_all(self) -> UndeliveredError | None:
        """All of them are heard of now: the error that says so, if there are any."""
        with self._lock:
            count, first = self._count, self._first
            self._count = self._since_flush = 0
            self._first = self._first_since_flush = None
            self._era += 1
        return None if first is None or not count else UndeliveredError(count, first)


def tell_unheard(failures: UnheardFailures) -> None:
    """At the end: raise for what nobody has heard of; or log it, where another error is on its way."""
    error = failures.hear_all()
    if error is None:
        return
    if sys.exc_info()[0] is None:
        raise error from error.first
    log.error("%s", error)


class Unheard:
    """Failed deliveries of one batch, as long as one of them can be asked. Logged when the last one cannot be."""

    __slots__ = ("_failures", "count", "era", "error", "where")

    def __init__(self, failures: UnheardFailures, count: int, error: HeadraceError, where: str, era: int) -> None:
        self._failures = failures
        self.count = count
        self.error = error
        self.where = where
        self.era = era

    def heard(self, count: int) -> None:
        self._failures.heard(self, count)

    def __del__(self) -> None:
        if self.count > 0:
            self._failures.lost(self)


class FailedDeliveries:
    """What failed since the last flush, of what nobody has heard yet. True when there is something.

    Whoever looks has heard of it: `close()` does not raise for these any more.
    """

    __slots__ = ("_count", "_failures", "_first")

    def __init__(self, failures: UnheardFailures, count: int, first: HeadraceError | None) -> None:
        self._failures = failures
        self._count = count
        self._first = first

    @property
    def count(self) -> int:
        """How many records."""
        if self._count:
            self._failures.hear_all()
        return self._count

    @property
    def first(self) -> HeadraceError | None:
        """Why the first of them failed."""
        return self._first if self.count else None

    def __bool__(self) -> bool:
        return self.count > 0

    def __repr__(self) -> str:
        return f"<FailedDeliveries: {plural(self._count, 'record')}{f', {self._first}' if self._first else ''}>"
