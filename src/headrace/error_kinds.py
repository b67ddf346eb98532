"""The roots of the tree of exceptions: what kind an error is. `errors` has the tree, and is what to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class HeadraceError(Exception):
    """The root of all errors that Headrace raises on purpose. Its text says what happened, to what, and what to do."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would make it anew from its text, which those that are made of something else do not take; and a pool
        # of processes that cannot read an error waits for its result for ever.
        return _unpickled, (type(self), self.args, self.__dict__)


def _unpickled(kind: type[HeadraceError], args: tuple[Any, ...], attributes: Mapping[str, Any]) -> HeadraceError:
    """An error as it was in another process, or a copy."""
    made = kind.__new__(kind, *args)
    made.__dict__.update(attributes)
    return made


class MissingExtraError(HeadraceError, ImportError):
    """A package is missing that comes with an extra of Headrace's; the text says which."""


class RetriableError(HeadraceError):
    """Mixed into errors that may be gone when the same thing is tried again."""


class TransactionError(HeadraceError):
    """The root of what transactions raise: `__cause__` is the error that started it, where there was one."""


class FatalTransactionError(TransactionError):
    """This producer can do no more transactions: close it, and make a new one (which ends what this one left open)."""
