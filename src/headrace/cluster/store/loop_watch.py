"""Whether an event loop still runs, as a thread beside it sees it: a session lives only as long as its loop does.

What keeps a session alive may be a thread of its own, as kazoo's is. Where the loop hangs (a call of the system that
does not return, a computation without an end), such a session would go on for ever: the broker would serve nobody, and
nobody would take its place.
"""

from __future__ import annotations

from typing import Final

#: The part of a session's time-out after which a loop that did not run counts as hung. A process that is stopped whole
#: is not heard of for as long, and up to a third of the time-out longer. It is more than the part that a session can be
#: relied on without hearing of it (`SessionBase.sure_until`).
_HUNG_AFTER: Final = 2 / 3
_LOOKS: Final = 8


class LoopWatch:
    """The loop calls `beat`, the thread `look`, each of them every `every_s` of a session's time-out.

    Looks are counted instead of time: while the whole process is stopped, or its machine suspended, there are none, and
    the servers notice that by themselves.
    """

    def __init__(self) -> None:
        self._beats = 0
        self._seen = 0
        self._missed = 0

    @staticmethod
    def hung_after_s(timeout_s: float) -> float:
        return timeout_s * _HUNG_AFTER

    @staticmethod
    def every_s(timeout_s: float) -> float:
        return timeout_s * _HUNG_AFTER / _LOOKS

    def beat(self) -> None:
        """The loop runs."""
        self._beats += 1

    def look(self) -> bool:
        """Whether the loop hangs: it has not run between this look and the eight before it."""
        beats = self._beats
        self._missed = self._missed + 1 if beats == self._seen else 0
        self._seen = beats
        return self._missed >= _LOOKS
