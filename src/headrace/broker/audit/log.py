"""The audit log: a line of JSON for each refusal and each administrative act (logger `headrace.audit`).

Whoever floods a broker with what is refused does not fill its disk: the same refusal is written once a minute, with how
often it happened meanwhile, and only so many lines a second; how many were left out is a line, too. All that clients
say of themselves is escaped and cut, so that nobody writes lines of his own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from headrace.broker.requests.access import AuditedRequest
    from headrace.broker.requests.rights import Operation, Resource
    from headrace.runtime import Clock

log = logging.getLogger("headrace.audit")

#: How many lines are written in one second.
LINES_PER_S_MAX: Final = 100
#: How often the same refusal is written, and how many are remembered for that.
AGAIN_S: Final = 60.0
REMEMBERED_MAX: Final = 10_000
#: How long a text of a client may be. Names of topics are shorter; of other names it is the beginning.
TEXT_MAX: Final = 512
NAMES_MAX: Final = 20

_Refusal = tuple[str, str, int, int, int, str]


def write_line(line: str) -> None:
    """Where lines go unless somebody says otherwise."""
    log.info("%s", line)


class AuditLog:
    """What `Access.audit` tells."""

    def __init__(self, clock: Clock, write: Callable[[str], None] = write_line) -> None:
        self._clock = clock
        self._write = write
        #: When each was written last, and how often it has happened since.
        self._refusals: dict[_Refusal, list[float]] = {}
        self._second = -1
        self._lines = 0
        self._left_out = 0

    def refused(self, context: AuditedRequest, operation: Operation, resource: Resource, name: str) -> None:
        """Something that a client asked for is not allowed to it."""
        now = self._clock.monotonic()
        key = (context.principal, context.client_host, context.api_key, operation, resource, name)
        known = self._refusals.get(key)
        if known is not None and now - known[0] < AGAIN_S:
            known[1] += 1
            return
        if not self._has_room(now):
            return
        if known is None and len(self._refusals) >= REMEMBERED_MAX:
            self._forget(now)
        self._refusals[key] = [now, 0]
        self._line(
            "refused",
            context,
            operation=operation.name.lower(),
            resource=resource.name.lower(),
            name=_cut(name),
            **({"repeated": int(known[1])} if known is not None and known[1] else {}),
        )

    def _forget(self, now: float) -> None:
        for key in [key for key, (said, _) in self._refusals.items() if now - said >= AGAIN_S]:
            del self._refusals[key]
        while len(self._refusals) >= REMEMBERED_MAX:
            del self._refusals[next(iter(self._refusals))]

    def changed(self, context: AuditedRequest, names: Sequence[str], *, is_done: bool) -> None:
        """An administrative act: done, or at least one part of it not."""
        if self._has_room(self._clock.monotonic()):
            shown = [_cut(name) for name in names[:NAMES_MAX]]
            more = len(names) - len(shown)
            self._line("changed", context, what=shown, done=is_done, **({"more": more} if more > 0 else {}))

    def login_refused(self, host: str, listener: str, why: str) -> None:
        """Somebody could not show who it is. What it said is not in there, but for the name of a mechanism."""
        if self._has_room(self._clock.monotonic()):
            self._emit({"event": "login_refused", "host": host, "listener": listener, "why": _cut(why)})

    def _has_room(self, now: float) -> bool:
        second = int(now)
        if second != self._second:
            self._second, self._lines = second, 0
            if self._left_out:
                left_out, self._left_out = self._left_out, 0
                self._emit({"event": "left_out", "lines": left_out})
        if self._lines >= LINES_PER_S_MAX:
            self._left_out += 1
            return False
        return True

    def _line(self, event: str, context: AuditedRequest, **more: Any) -> None:
        self._emit(
            {
                "event": event,
                "principal": _cut(context.principal),
                "host": context.client_host,
                "listener": context.listener,
                "client_id": None if context.client_id is None else _cut(context.client_id),
                "request": context.api_key.name.lower(),
                **more,
            }
        )

    def _emit(self, fields: dict[str, Any]) -> None:
        self._lines += 1
        at = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        self._write(json.dumps({"at": at.isoformat(timespec="milliseconds"), **fields}))


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"
