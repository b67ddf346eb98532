"""What a page is told while it is open: server-sent events, each the whole state of what it shows.

A page that is hidden or slow gets the newest state when it reads on, never a queue of old ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from headrace.errors import HeadraceError

EVERY_S = 2.0
STREAMS_MAX = 200
_KEEP_ALIVE_S = 15.0


class Streams:
    """Counts the open ones; beyond the bound a page asks by itself now and then."""

    def __init__(self) -> None:
        self._open = 0

    def respond(self, request: Request, look: Callable[[], Awaitable[Any]], every_s: float = EVERY_S) -> Response:
        """Tell what `look` gives, whenever it differs from before."""

        async def events() -> AsyncIterator[bytes]:
            before = ""
            quiet_s = 0.0
            while not await request.is_disconnected():
                try:
                    text, kind = json.dumps(await look()), "state"
                except (HeadraceError, TimeoutError, OSError) as error:
                    text, kind = json.dumps({"error": str(error) or type(error).__name__}), "problem"
                if text != before:
                    before, quiet_s = text, 0.0
                    yield event(kind, text)
                elif quiet_s >= _KEEP_ALIVE_S:
                    quiet_s = 0.0
                    yield b": still here\n\n"
                await asyncio.sleep(every_s)
                quiet_s += every_s

        return self.stream(events())

    def stream(self, events: AsyncIterator[bytes]) -> Response:
        if self._open >= STREAMS_MAX:
            return JSONResponse({"error": f"over {STREAMS_MAX} pages are open"}, 503)

        async def counted() -> AsyncIterator[bytes]:
            self._open += 1
            try:
                async for one in events:
                    yield one
            finally:
                self._open -= 1

        return StreamingResponse(
            counted(), media_type="text/event-stream", headers={"cache-control": "no-store", "x-accel-buffering": "no"}
        )


def event(kind: str, text: str) -> bytes:
    """One event; its text has no line breaks (JSON has none)."""
    return f"event: {kind}\ndata: {text}\n\n".encode()
