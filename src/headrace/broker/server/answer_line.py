"""Requests of one connection that are done, and whose answers wait in line for those before them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from headrace.broker.requests.dispatch import Pending, RequestContext
from headrace.broker.requests.pipeline import RequestPipeline

# How many requests of one connection may be done and wait for their answers.
IN_LINE_MAX = 128
_PRODUCE = b"\0\0"


class InLine:
    """A request that is done, or comes behind such a one: its answer is sent when those before it have been."""

    __slots__ = ("context", "done", "response")

    def __init__(self, context: RequestContext) -> None:
        self.context = context
        self.response: Any = None
        #: When the response was there.
        self.done: float | None = None


class Answering(Protocol):
    """The connection whose answers they are."""

    pipeline: RequestPipeline

    @property
    def now(self) -> Callable[[], float]: ...
    def keep(self, work: asyncio.Future[Any]) -> None: ...
    def has_room_for_answer(self) -> bool: ...
    def send(self, context: RequestContext, response: Any, done: float) -> float: ...
    def answered(self, place: InLine) -> None: ...
    def fail(self, error: BaseException) -> None: ...
    def abort(self, reason: str) -> None: ...


class AnswerLine(deque[InLine]):
    """A deque itself, as every request asks whether it is empty."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Answering) -> None:
        super().__init__()
        self._connection = connection

    def may_join(self, frame: memoryview) -> bool:
        """Whether a request may be handled though answers of earlier ones are still waited for."""
        return not self or (len(self) < IN_LINE_MAX and frame[:2] == _PRODUCE)

    def add(self, context: RequestContext, response: Any, done: float) -> None:
        """A response that was there at `done` has others before it."""
        place = InLine(context)
        place.response, place.done = response, done
        self.append(place)

    def hold(self, context: RequestContext) -> InLine:
        """A place for an answer that somebody else brings."""
        place = InLine(context)
        self.append(place)
        return place

    def wait(self, context: RequestContext, pending: Pending[Any]) -> None:
        """Send the answer when it is there, and its turn."""
        place = InLine(context)
        self.append(place)
        self._connection.keep(asyncio.get_running_loop().create_task(self._finish(place, pending)))

    async def _finish(self, place: InLine, pending: Pending[Any]) -> None:
        connection = self._connection
        try:
            place.response = await pending
        except asyncio.CancelledError:
            connection.abort("a request was given up")
            raise
        except Exception as error:  # noqa: BLE001 - a defect of ours must cost one connection, not the broker
            connection.pipeline.failed(place.context)
            connection.fail(error)
            return
        place.done = connection.now()
        connection.answered(place)

    def send_done(self) -> None:
        """Send the answers that are there and have nobody before them, as far as the client reads them."""
        connection = self._connection
        while self and self[0].done is not None and connection.has_room_for_answer():
            place = self.popleft()
            assert place.done is not None
            try:
                connection.send(place.context, place.response, place.done)
            except Exception as error:  # noqa: BLE001 - as above
                connection.fail(error)
                return
