"""Disk work that is interrupted by the event loop, and the loop by disk work, at points that a seed chooses.

Without it a simulated thread's work takes effect in one go, between two steps of the loop. Here each piece of work has
a real thread, but only one thread of the simulation ever runs: at a point it may hand over, and then waits until it is
chosen again. So every run of a seed takes the same course.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Protocol

from headrace.runtime.simulated.errors import SimulatedCrash, SimulationStuckError

_STEPS_TO_END_MAX = 100_000


class HeldLock(Protocol):
    def locked(self) -> bool: ...


@dataclass(slots=True, frozen=True)
class Interleaving:
    """How often to hand over: after about `points` points. Points are the operations of a disk and, in the files that
    `traced` names by their ends, every line, or every instruction with `instructions`."""

    points: int = 20
    traced: tuple[str, ...] = ()
    instructions: bool = False
    pace: float = 0.1
    sync_pace: float = 1.0
    """How much time passes until work that handed over goes on, and while a device syncs: as a share of what a piece of
    work takes."""


class Strand:
    """One piece of work, on a thread of its own that runs only while somebody waits in `step`."""

    def __init__(self, thread: _Thread, fn: Callable[..., Any], args: tuple[Any, ...]):
        self._thread = thread
        self.work = (fn, args)
        self.done = False
        self.waits_for_device = False
        self.result: Any = None
        self.error: BaseException | None = None

    def step(self) -> None:
        """Let it run to its next point, or to its end."""
        self._thread.interleaver.run(self, self._thread)


class _Thread:
    """Reused for one strand after the other: a new one for each would cost more than most of them do."""

    def __init__(self, interleaver: Interleaver):
        self.interleaver = interleaver
        self.strand: Strand | None = None
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._thread = threading.Thread(target=self._main, name="strand", daemon=True)
        self._thread.start()

    def run(self) -> None:
        self._go.release()
        self._back.acquire()

    def pause(self) -> None:
        self._back.release()
        self._go.acquire()

    def join(self) -> None:
        self._go.release()
        self._thread.join()

    def _main(self) -> None:
        self._go.acquire()
        while (strand := self.strand) is not None:
            fn, args = strand.work
            sys.settrace(self.interleaver.tracer)
            try:
                strand.result = fn(*args)
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits for it
                strand.error = error
            sys.settrace(None)
            strand.done = True
            self.strand = None
            self.interleaver.ended(strand, self)
            self.pause()


class Interleaver:
    """The threads of one simulation, and who of them runs. `locks` are those that its work may hold."""

    def __init__(self, rng: random.Random, how: Interleaving):
        self._rng = rng
        self._how = how
        self._codes: dict[CodeType, bool] = {}
        self._left = 1
        self._running: _Thread | None = None
        self._paused: list[tuple[Strand, _Thread]] = []
        self._idle: list[_Thread] = []
        self._ending = False
        self.locks: Callable[[], Iterable[HeldLock]] = tuple
        self.tracer: Callable[[FrameType, str, Any], Any] | None = self._trace_call if how.traced else None
        self.handed_over = 0

    def pace_of(self, strand: Strand) -> float:
        return self._how.sync_pace if strand.waits_for_device else self._how.pace

    def start(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Strand:
        """A strand that has not begun yet."""
        thread = self._idle.pop() if self._idle else _Thread(self)
        strand = thread.strand = Strand(thread, fn, args)
        self._paused.append((strand, thread))
        return strand

    def run(self, strand: Strand, thread: _Thread) -> None:
        """Let a paused strand run until it hands over or ends; called from the loop's thread."""
        self._paused.remove((strand, thread))
        self._running = thread
        thread.run()
        self._running = None
        if not strand.done:
            self._paused.append((strand, thread))

    def ended(self, strand: Strand, thread: _Thread) -> None:
        self._idle.append(thread)

    def point(self) -> None:
        """Here the thread that runs may hand over to another."""
        if self._ending and self._running is not None:
            raise SimulatedCrash("the simulation is over")
        self._left -= 1
        if self._left > 0:
            return
        if any(map(_is_held, self.locks())):
            return  # whoever wants it would wait for ever: the next point will do
        self._left = self._rng.randint(1, 2 * self._how.points)
        if self._running is not None:
            self._hand_over(self._running)
        elif self._paused and not self._ending:
            self.handed_over += 1
            strand, _ = self._rng.choice(self._paused)
            if not strand.waits_for_device:
                strand.step()

    def wait(self) -> None:
        """Here the thread that runs waits for a device: others go on, unless it is the loop, or holds a lock."""
        thread = self._running
        if thread is not None and thread.strand is not None and not any(map(_is_held, self.locks())):
            thread.strand.waits_for_device = True
            self._hand_over(thread)
            thread.strand.waits_for_device = False

    def _hand_over(self, thread: _Thread) -> None:
        self.handed_over += 1
        thread.pause()
        if self._ending:
            raise SimulatedCrash("the simulation is over")

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """While the loop runs: its own work has points, too."""
        before = sys.gettrace()
        if self.tracer is not None:
            sys.settrace(self.tracer)
        try:
            yield
        finally:
            sys.settrace(before)

    def close(self) -> None:
        """End every strand where it is."""
        self._ending = True
        for _ in range(_STEPS_TO_END_MAX):
            if not self._paused:
                break
            self._left = 0
            self._paused[0][0].step()
        else:
            raise SimulationStuckError("disk work does not end")
        for thread in self._idle:
            thread.join()
        self._idle.clear()

    def _trace_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        traced = self._codes.get(code)
        if traced is None:
            traced = self._codes[code] = _is_in(code.co_filename, self._how.traced)
        if not traced:
            return None
        if self._how.instructions:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._trace_step

    def _trace_step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event in ("line", "opcode"):
            self._left -= 1
            if self._left <= 0:
                self.point()
        return self._trace_step


def _is_in(file_name: str, ends: Collection[str]) -> bool:
    return any(file_name.endswith(end) for end in ends)


def _is_held(lock: Any) -> bool:
    """Whether a lock is taken. A thread that has one is never paused, so it is the one that asks who has an RLock."""
    return bool(lock.locked() if hasattr(lock, "locked") else lock._is_owned())
