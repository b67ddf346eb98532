"""Appends that are in the log and wait to be committed, and what they end with when that does not come in time."""

from __future__ import annotations

import asyncio

from headrace.errors import KafkaError, NotEnoughReplicasAfterAppendError, RequestTimedOutError
from headrace.log import Appended


class UncommittedError(KafkaError):
    """Mixed into errors of what is in the log, and may be committed later: `appended` says where."""

    appended: Appended


class TooLateError(UncommittedError, RequestTimedOutError):
    """The in-sync replicas did not confirm a batch in time."""


class TooFewError(UncommittedError, NotEnoughReplicasAfterAppendError):
    """A batch is in the log of fewer in-sync replicas than its topic wants."""


class WaitingAppend:
    """An append that waits to be committed."""

    __slots__ = ("appended", "future", "timer")

    def __init__(self, appended: Appended) -> None:
        self.appended = appended
        self.future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None

    def done(self) -> bool:
        return self.future.done()

    def end(self, error: KafkaError | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if isinstance(error, UncommittedError):
            error.appended = self.appended
        if not self.future.done():
            if error is None:
                self.future.set_result(self.appended)
            else:
                self.future.set_exception(error)
