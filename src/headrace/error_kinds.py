"""The roots of the tree of exceptions: what kind an error is. `errors` has the tree, and is what to import."""

from __future__ import annotations


class HeadraceError(Exception):
    """The root of all errors that Headrace raises on purpose. Its text says what happened, to what, and what to do."""


class RetriableError(HeadraceError):
    """Mixed into errors that may be gone when the same thing is tried again."""


class TransactionError(HeadraceError):
    """The root of what transactions raise: `__cause__` is the error that started it, where there was one."""


class FatalTransactionError(TransactionError):
    """This producer can do no more transactions: close it, and make a new one (which ends what this one left open)."""
