"""What happened in a run, for people: when, where, what. Kept apart from the trace, which is for machines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.runtime.simulated.loop import incarnation

_ENTRIES_MAX = 40_000
STORE, CLUSTER = "store", "cluster"
#: Log messages that ask for it are about defects of ours.
_DEFECT = "please report it"


@dataclass(slots=True, frozen=True)
class TimelineEntry:
    """One line. `kind` says what it is about: fault, leader, isr, controller, belief, log, client, failure."""

    at_s: float
    lane: str
    kind: str
    text: str

    def line(self) -> str:
        return f"{self.at_s:10.3f} s  {self.lane:<12} {self.text}"


@dataclass(slots=True, frozen=True)
class Span:
    """Something that lasted: a fault."""

    start_s: float
    end_s: float
    lane: str
    text: str


class Timeline:
    """The story of one run, in the order in which it happened."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.entries: list[TimelineEntry] = []
        self.spans: list[Span] = []
        #: How far each partition was known to be committed, from when on.
        self.watermarks: dict[str, list[tuple[float, int]]] = {}
        #: What brokers and clients said of themselves that never should happen.
        self.defects: list[str] = []
        #: What was seen, and how often: which states a run has been in.
        self.coverage: dict[str, int] = {}

    def add(self, lane: str, kind: str, text: str) -> None:
        # How it ended is always told.
        if len(self.entries) < _ENTRIES_MAX or kind == "failure":
            self.entries.append(TimelineEntry(self._now(), lane, kind, text))

    def committed(self, partition: str, offset: int) -> None:
        """A partition's watermark has risen."""
        self.watermarks.setdefault(partition, []).append((self._now(), offset))

    def saw(self, state: str) -> None:
        self.coverage[state] = self.coverage.get(state, 0) + 1

    @contextmanager
    def span(self, lane: str, text: str) -> Iterator[None]:
        began = self._now()
        self.add(lane, "fault", text)
        self.saw(f"fault: {text.split(':')[0]}")
        try:
            yield
        finally:
            self.spans.append(Span(began, self._now(), lane, text))

    def lines(self, *, last: int | None = None, clients: bool = False) -> list[str]:
        """All that happened, or the last of it; what clients did only where that is asked for."""
        shown = [entry for entry in self.entries if clients or entry.kind not in ("client", "belief")]
        return [entry.line() for entry in (shown if last is None else shown[-last:])]


class _LogLines(logging.Handler):
    """Puts what brokers and clients log into the timeline, on the lane of the machine that said it."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__(logging.WARNING)
        self._timeline = timeline

    def emit(self, record: logging.LogRecord) -> None:
        life = incarnation.get()
        lane = CLUSTER if life is None else life.host
        self._timeline.add(lane, "log", record.getMessage())
        self._timeline.saw(f"log: {record.msg}")
        # What a killed host leaves behind is closed, and may complain of that: nobody is there to hear it in reality.
        if _DEFECT in record.getMessage() and life is not None and life.alive:
            why = "" if record.exc_info is None else f": {record.exc_info[1]!r}"
            self._timeline.defects.append(f"{lane}: {record.getMessage()}{why}")


@contextmanager
def logs_in(timeline: Timeline, *, propagates: bool = False) -> Iterator[None]:
    """While this lasts, the log of this process is the timeline's; unless it `propagates`, nobody else's."""
    logger = logging.getLogger("headrace")
    handler = _LogLines(timeline)
    level, propagated = logger.level, logger.propagate
    logger.addHandler(handler)
    if not propagates:
        logger.setLevel(logging.WARNING)
        logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagated
