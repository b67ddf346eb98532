"""Why a request is refused. Raised while nothing has been changed yet."""

from __future__ import annotations

from headrace.errors import ErrorCode


class RefusedError(Exception):
    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
