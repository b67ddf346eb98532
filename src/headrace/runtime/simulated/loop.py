"""A deterministic asyncio event loop: virtual time, no threads, no sockets, an order that a seed decides."""

from __future__ import annotations

import asyncio
import heapq
import random
import threading
import weakref
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, NoReturn

from headrace.runtime.interface import Ts
from headrace.runtime.simulated.errors import SimulatedCrash, SimulationStuckError
from headrace.runtime.simulated.trace import Trace

_TIMERS_CANCELLED_MIN = 100
_TASKS_KEPT_MIN = 200


class _Handle(asyncio.Handle):
    """As asyncio's own, which asks the loop whether it is being debugged each time one is made."""

    __slots__ = ()

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], loop: Any, context: Context | None):
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class _TimerHandle(asyncio.TimerHandle):
    """As asyncio's own, in the same way."""

    __slots__ = ()

    def __init__(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], loop: Any, context: Context | None
    ):
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        #: Read by `cancel`; set by every loop.
        self._scheduled = True

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            # Nothing is kept alive by a timer that is still in the heap.
            self._callback = self._args = None  # type: ignore[assignment]  # as asyncio's own does
            if self._scheduled:
                self._loop._timer_handle_cancelled(self)


class _Task(asyncio.Task[Any]):
    """A task that knows whose it is: the host's life in which it was made."""

    __slots__ = ("is_abandoned", "life")

    life: Incarnation | None
    #: Ended with its host, whatever asyncio still takes it for.
    is_abandoned: bool


class Incarnation:
    """One life of a simulated host. What was started in it runs in a context that names it, and stops with it."""

    __slots__ = ("alive", "held", "host", "number")

    def __init__(self, host: str, number: int):
        self.host = host
        self.number = number
        self.alive = True
        #: What it would do, while it is paused.
        self.held: list[asyncio.Handle] | None = None


incarnation: ContextVar[Incarnation | None] = ContextVar("incarnation", default=None)


class SimulatedLoop(asyncio.BaseEventLoop):
    """Time stands still while there is something to do, then jumps to the next timer.

    What asyncio promises holds: `call_soon` is first in, first out. What it leaves open is drawn from the seed: the
    order of timers that are due at the same time and, with `shuffle`, the order in which ready tasks take their turn.
    Each turn of the loop costs `turn_s` of virtual time, so that code which spins on `sleep(0)` lets time pass.
    """

    def __init__(
        self,
        rng: random.Random,
        trace: Trace,
        *,
        shuffle: bool = True,
        turn_s: float = 1e-6,
        steps_max: int = 50_000_000,
        time_max_s: float = 30 * 86_400.0,
    ):
        super().__init__()
        self._rng = rng
        self.trace = trace
        self._shuffle = shuffle
        self._turn_s = turn_s
        self._steps_max = steps_max
        self._time_max_s = time_max_s
        self._now = 0.0
        self.steps = 0
        self._timers: list[tuple[float, float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._timers_cancelled = 0
        # Oldest first, with those that are garbage by now: they are left out when it has doubled.
        self._tasks: list[weakref.ref[_Task]] = []
        self._tasks_max = _TASKS_KEPT_MIN
        #: What reached the exception handler: exceptions that nobody waited for.
        self.unhandled: list[dict[str, Any]] = []
        self.set_task_factory(self._numbered_task)
        self.set_exception_handler(self._keep_unhandled)

    def __del__(self) -> None:
        """asyncio's loops warn when they were not closed, because of their sockets. This one has none."""

    def time(self) -> float:
        return self._now

    def random(self) -> float:
        """The next number of the stream that decides the order of things."""
        return self._rng.random()

    def tasks(self) -> list[_Task]:
        """Unfinished tasks, oldest first (asyncio.all_tasks has no order)."""
        return [task for task in self._kept_tasks() if not task.done() and not task.is_abandoned]

    def _kept_tasks(self) -> list[_Task]:
        """All tasks that are not garbage, oldest first."""
        return [task for ref in self._tasks if (task := ref()) is not None]

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._set_timer(when, callback, args, context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._set_timer(self._now + delay, callback, args, context)

    def _set_timer(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> asyncio.TimerHandle:
        if self._closed:  # type: ignore[attr-defined]  # BaseEventLoop's
            raise _closed_error()
        timer = _TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._rng.random() if self._shuffle else 0.0, self._timer_count, timer))
        return timer

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self._closed:  # type: ignore[attr-defined]  # BaseEventLoop's
            raise _closed_error()
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]  # BaseEventLoop's deque of handles
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self.is_running() and threading.get_ident() != self._thread_id:  # type: ignore[attr-defined]  # BaseEventLoop's
            raise RuntimeError("a thread called into the simulated loop: its timing is real, so the run cannot repeat")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> NoReturn:  # type: ignore[override]  # never returns
        raise RuntimeError(f"{func!r} was sent to a thread inside a simulation: use Runtime.offload")

    async def create_connection(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError("a real connection inside a simulation: use Runtime.network.connect")

    async def create_server(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError("a real server inside a simulation: use Runtime.network.listen")

    # The rest is what asyncio.BaseEventLoop asks of its subclasses.

    def _run_once(self) -> None:
        """Turn after turn until it is to stop: BaseEventLoop would call for each of them, which costs as much."""
        ready = self._ready  # type: ignore[attr-defined]  # BaseEventLoop's deque of handles
        trace = self.trace if self.trace.is_on else None
        while True:
            if not ready and not self._stopping:  # type: ignore[attr-defined]  # BaseEventLoop's
                self._jump()
            now = self._now = self._now + self._turn_s
            if trace is not None:
                trace.turn(now)
            timers = self._timers
            while timers and timers[0][0] <= now:
                timer = heapq.heappop(timers)[3]
                timer._scheduled = False  # type: ignore[attr-defined]  # see _TimerHandle
                if timer._cancelled:
                    self._timers_cancelled -= 1
                else:
                    ready.append(timer)
            if len(ready) == 1:
                self._take(ready.popleft(), trace)
            else:
                turn = list(ready)
                ready.clear()
                if self._shuffle:
                    self._shuffle_tasks(turn)
                for handle in turn:
                    self._take(handle, trace)
            if self._stopping:  # type: ignore[attr-defined]  # BaseEventLoop's
                return

    def _take(self, handle: Any, trace: Trace | None) -> None:
        """Take one step, unless nobody is there to take it."""
        if handle._cancelled:
            return
        context = handle._context
        life = context.get(incarnation)
        if life is not None:
            if not life.alive:
                return  # the host that would have done this is dead
            if life.held is not None:
                life.held.append(handle)
                return
        self.steps += 1
        if self.steps > self._steps_max:
            self._give_up()
        callback = handle._callback
        if trace is not None:
            trace.step(_name_of(callback))
        try:
            context.run(callback, *handle._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it raises goes to the handler, as in asyncio
            message = f"Exception in callback {_name_of(callback)}"
            self.call_exception_handler({"message": message, "exception": error, "handle": handle})

    def _give_up(self) -> NoReturn:
        raise SimulationStuckError(f"over {self._steps_max} steps, at {self._now:.6f} s\n{self.describe_tasks()}")

    def _jump(self) -> None:
        """Let time pass until the next timer."""
        timers = self._timers
        while timers and timers[0][3]._cancelled:
            heapq.heappop(timers)
            self._timers_cancelled -= 1
        if not timers:
            raise SimulationStuckError(f"nothing is scheduled, at {self._now:.6f} s\n{self.describe_tasks()}")
        when = timers[0][0]
        if when > self._now:
            self._now = when
        if self._now > self._time_max_s:
            raise SimulationStuckError(f"over {self._time_max_s} s of virtual time\n{self.describe_tasks()}")

    def _shuffle_tasks(self, turn: list[Any]) -> None:
        """Permute the steps of tasks among the places they have; plain callbacks keep theirs, as asyncio promises."""
        places = [
            place for place, handle in enumerate(turn) if type(getattr(handle._callback, "__self__", None)) is _Task
        ]
        if len(places) > 1:
            steps = [turn[place] for place in places]
            self._rng.shuffle(steps)
            for place, handle in zip(places, steps):
                turn[place] = handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._timers_cancelled += 1
        if self._timers_cancelled > _TIMERS_CANCELLED_MIN and self._timers_cancelled * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[3].cancelled()]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    def _process_events(self, event_list: object) -> None:
        raise AssertionError("a simulated loop has no selector, so it has no events")

    def _write_to_self(self) -> None:
        pass

    def _numbered_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> asyncio.Task[Any]:
        task = _Task(coro, loop=loop, **options)
        context = options.get("context")
        task.life = incarnation.get() if context is None else context.get(incarnation)
        task.is_abandoned = False
        self._tasks.append(weakref.ref(task))
        if len(self._tasks) > self._tasks_max:
            self._tasks = [ref for ref in self._tasks if ref() is not None]
            self._tasks_max = max(_TASKS_KEPT_MIN, 2 * len(self._tasks))
        return task

    def _keep_unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), SimulatedCrash):
            return  # how a host's own tasks end when the host does
        life: Incarnation | None = getattr(context.get("future"), "life", None)
        if life is not None and not life.alive:
            return  # whoever would have looked at it is gone
        self.trace.record("unhandled", str(context.get("message", "")), repr(type(context.get("exception"))))
        self.unhandled.append(context)

    def report_unretrieved(self) -> None:
        """Treat exceptions of finished tasks that nobody asked for as unhandled now.

        asyncio does so when the task is garbage, which may be never while the collector is off.
        """
        for task in self._kept_tasks():
            if task.done() and task._log_traceback:  # asyncio's mark of exactly that
                error = task.exception()
                life = task.life
                if life is not None and not life.alive:
                    continue  # it ended in the moment in which its host died, before anyone could look
                self._keep_unhandled(self, {"message": "Task exception was never retrieved", "exception": error})

    def resume(self, life: Incarnation) -> None:
        """Let a paused host do what it would have done meanwhile, in that order."""
        held, life.held = life.held, None
        self._ready.extend(held or ())  # type: ignore[attr-defined]  # BaseEventLoop's

    def abandon(self, life: Incarnation | None = None) -> None:
        """End the tasks of a dead host (or all) now, so that no garbage collector ends them at a time of its own.

        Their `finally` blocks run, but nothing they do reaches anyone: the host's disk and connections are dead.
        """
        for task in self.tasks():
            if life is not None and task.life is not life:
                continue
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # the way asyncio itself silences it
            task.life = None
            task.is_abandoned = True
            coroutine = task.get_coro()
            if coroutine is None or task is _current_task(self):
                continue
            try:
                coroutine.close()
            except (Exception, SimulatedCrash) as error:  # noqa: BLE001 - a dead host's clean-up fails as it likes
                self.trace.record("abandoned", type(error).__name__)

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        # One that waits for something is garbage only when its task was abandoned in the middle of it. asyncio would
        # have it closed by a new task, and that is refused: it still counts as running.
        if not agen.ag_running:
            super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]  # BaseEventLoop's

    def describe_tasks(self) -> str:
        """Every unfinished task and the line where it waits."""
        return "\n".join(f"  {task.get_name()}: {_where(task)}" for task in self.tasks()) or "  (no unfinished task)"


def _closed_error() -> RuntimeError:
    return RuntimeError("the simulated loop is closed")


def _current_task(loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any] | None:
    return asyncio.current_task(loop) if loop.is_running() else None


def _task_of(callback: object) -> asyncio.Task[Any] | None:
    owner = getattr(callback, "__self__", None)
    return owner if isinstance(owner, asyncio.Task) else None


def _name_of(callback: Any) -> str:
    """A name that is the same in every run: no addresses, no counters of the process."""
    task = _task_of(callback)
    if task is not None:
        return getattr(task.get_coro(), "__qualname__", "task")
    while True:
        try:
            name: str = callback.__qualname__
            return name
        except AttributeError:
            if not hasattr(callback, "func"):
                return type(callback).__qualname__
            callback = callback.func


def _where(task: asyncio.Task[Any]) -> str:
    """The chain of coroutines the task is in, innermost last."""
    names = []
    current: Any = task.get_coro()
    for _ in range(100):
        frame = getattr(current, "cr_frame", None) or getattr(current, "gi_frame", None)
        if frame is None:
            break
        names.append(f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})")
        current = getattr(current, "cr_await", None) or getattr(current, "gi_yieldfrom", None)
    return " > ".join(names) or "not started"
