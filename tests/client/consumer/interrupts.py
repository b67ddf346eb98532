"""Exceptions that come from outside, as a signal's handler raises them: at a chosen one of all the places where the
interpreter would run the handler. Those are the beginning of every function, every jump back, and the return from every
call that is not of a Python function."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import headrace

# Not what is made on first use, which would make the places of one run others than those of the next. But faults that
# are put in on purpose.
_OURS = (
    *(f"{path}/{room}/" for path in headrace.__path__ for room in ("client", "net")),
    str(Path(__file__).parents[1] / "consumer_mutations.py"),
)
_JUMPS_BACK = {dis.opmap[name] for name in ("JUMP_BACKWARD",) if name in dis.opmap}
_CALLS = {code for name, code in dis.opmap.items() if name in ("CALL", "CALL_FUNCTION_EX", "CALL_KW")}


@functools.cache
def _looked_at(code: CodeType) -> tuple[bytes, Callable[[int], int]]:
    """The steps of a function, and by which handler each is guarded."""
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]  # there is no public way to it

    def handler(step: int) -> int:
        return next((entry.target for entry in entries if entry.start <= step < entry.end), -1)

    return code.co_code, functools.cache(handler)


class InterruptionError(Exception):
    """What a handler of the application's raises: any exception will do."""


class Interruption:
    """Raises at the `at`-th place of what runs inside (or of one function: `within`). `places` says how many there were
    until then."""

    def __init__(
        self, at: int, error: BaseException | None = None, *, within: Callable[..., Any] | None = None
    ) -> None:
        self.at, self.places, self.raised = at, 0, False
        self._within: CodeType | None = None if within is None else within.__code__
        self._error = error or InterruptionError(f"at place {at}")
        self._last: dict[FrameType, int] = {}
        """Where each function is: the last step that was taken, -1 after a call of another function of ours."""

    def __enter__(self) -> Interruption:
        self._before = sys.gettrace()
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.settrace(self._before)
        self._last.clear()

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_back is not None and frame.f_back in self._last:
            # A Python function was called: nothing happens between its return and the next step.
            self._last[frame.f_back] = -1
        if self.raised or not frame.f_code.co_filename.startswith(_OURS):
            return None
        if self._within is not None and frame.f_code is not self._within:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._place()
        return self._on_step

    def _on_step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode" and not self.raised:
            code, now = frame.f_code, frame.f_lasti
            before = self._last.get(frame, -1)
            self._last[frame] = now
            codes, handlers = _looked_at(code)
            # The call and what follows it are one to the interpreter: it raises in the call, so both must be guarded by
            # the same handler for this to be the same.
            if codes[now] in _JUMPS_BACK or (
                before >= 0 and codes[before] in _CALLS and handlers(before) == handlers(now)
            ):
                self._place()
        elif event == "return":
            self._last.pop(frame, None)
        return self._on_step

    def _place(self) -> None:
        self.places += 1
        if self.places == self.at:
            self.raised = True
            raise self._error
