"""A whole cluster in one process, under a seed: hosts with disk, clock and network, which a test starts and kills."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headrace.runtime.interface import Runtime
from headrace.runtime.simulated.clock import SimulatedClock
from headrace.runtime.simulated.disk import SimulatedDisk
from headrace.runtime.simulated.errors import HostDiedError, SimulationFailedError, SimulationStuckError
from headrace.runtime.simulated.interleaving import Interleaver, Interleaving
from headrace.runtime.simulated.loop import Incarnation, SimulatedLoop, incarnation
from headrace.runtime.simulated.network import Fabric, NetworkModel, SimulatedNetwork
from headrace.runtime.simulated.storage import CrashModel, Storage
from headrace.runtime.simulated.trace import Trace
from headrace.runtime.simulated.workers import SimulatedWorkers, WorkModel

T = TypeVar("T")

#: Exists, durably, on every simulated disk.
DATA_DIRECTORY = "/data"
_SHUTDOWN_ROUNDS_MAX = 100


class Host:
    """One simulated machine. Its disk and clock error outlive its processes; everything else is new after a restart."""

    def __init__(self, simulation: Simulation, name: str):
        self.name = name
        self._simulation = simulation
        self._storage = Storage(simulation.random_for(f"disk of {name}"), capacity_bytes=1 << 40)
        self.clock = SimulatedClock(simulation.loop)
        self.disk = SimulatedDisk(self._storage, simulation.trace, self.clock.now_ms)
        self.disk.makedirs(DATA_DIRECTORY)
        self.disk.sync_dir("/")
        self._lives = 0
        self._work = simulation.work or WorkModel()
        self._running: dict[asyncio.Task[Any], asyncio.Future[Any]] = {}
        self._suspended_at: float | None = None
        self._boot()

    def _boot(self) -> None:
        simulation = self._simulation
        self._lives += 1
        self.life = Incarnation(self.name, self._lives)
        self.context = copy_context()
        self.context.run(incarnation.set, self.life)
        simulation.network.add_host(self.name)
        self.disk.on_crash = self.kill
        if simulation.interleaver is not None:
            self.disk.on_operation = simulation.interleaver.point
            self.disk.on_sync = simulation.interleaver.wait
        rng = simulation.random_for(f"{self.name}, life {self._lives}")
        self._workers = SimulatedWorkers(
            simulation.loop,
            simulation.random_for(f"threads of {self.name}, life {self._lives}"),
            8,
            self._work,
            simulation.interleaver,
        )
        self.runtime = Runtime(
            clock=self.clock,
            rng=rng,
            disk=self.disk,
            network=SimulatedNetwork(simulation.network, self.name),
            workers=self._workers,
        )

    @property
    def alive(self) -> bool:
        return self.life.alive

    @property
    def is_busy(self) -> bool:
        """Whether something that was started here is not done."""
        return bool(self._running)

    def start(self, work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Future[T]:
        """Run `work` as this host's. The future raises `HostDiedError` if the host is killed before it is done."""
        if not self.alive:
            work.close()
            raise HostDiedError(f"host {self.name!r} is dead: restart it first")
        loop = self._simulation.loop
        future: asyncio.Future[T] = loop.create_future()
        task = loop.create_task(work, name=name, context=self.context.copy())
        self._running[task] = future
        task.add_done_callback(self._done)
        return future

    def kill(self, *, power_loss: bool = True, model: CrashModel = CrashModel.HARSH) -> None:
        """Stop everything the host does, between two steps. With `power_loss` what was not synced may be lost and
        peers hear nothing; without, only the process dies: its kernel keeps the data and resets its connections.
        """
        if not self.life.alive:
            return
        simulation = self._simulation
        simulation.trace.record("kill", self.name, "power" if power_loss else "process")
        self.life.alive = False
        self._suspended_at = None
        simulation.network.remove_host(self.name, silent=power_loss)
        self.disk = self.disk.crash(model) if power_loss else self.disk.kill()
        simulation.loop.abandon(self.life)
        running, self._running = self._running, {}
        for future in running.values():
            if not future.done():
                future.set_exception(HostDiedError(f"host {self.name!r} was killed"))
                future.exception()  # a test that does not wait for a killed host is no mistake

    def pause(self) -> None:
        """Do nothing until `resume`, as a process that is stopped, or a machine that swaps: others see it hang."""
        if self.life.alive and self.life.held is None:
            self._simulation.trace.record("pause", self.name)
            self.life.held = []

    def suspend(self) -> None:
        """As `pause`, of the whole machine, whose monotonic clock stands still with it."""
        if self.life.alive and self.life.held is None:
            self.pause()
            self._suspended_at = self._simulation.loop.time()

    def resume(self, *, is_counted: bool = True) -> None:
        """Go on as if nothing had happened; time has passed all the same. A machine that was suspended knows for how
        long, unless that is not counted either, as in a virtual machine that its host had paused."""
        if self.life.alive and self.life.held is not None:
            since, self._suspended_at = self._suspended_at, None
            if since is not None:
                self.clock.stood_still(self._simulation.loop.time() - since, is_counted=is_counted)
            self._simulation.trace.record("resume", self.name)
            self._simulation.loop.resume(self.life)

    def use_disk(self, work: WorkModel, *, of: str | None = None) -> None:
        """Let disk work take as long as that model says from now on, also after a restart.

        `of` names those threads that it is to be of, until a restart: the others find their disk as well as before.
        """
        if of is None:
            self._work = work
        self._workers.use(work, of)

    def restart(self) -> Runtime:
        """A new life on the same disk (killing the old one, if it lives, as a process)."""
        self.kill(power_loss=False)
        self._simulation.trace.record("restart", self.name)
        self._boot()
        return self.runtime

    def _done(self, task: asyncio.Task[Any]) -> None:
        future = self._running.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if future is None or future.done():
            return
        if task.cancelled():
            future.cancel()
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())


class Simulation:
    """The world of one seed. `loop` has to run whatever waits; plain disk work needs no loop."""

    def __init__(
        self,
        seed: int,
        *,
        shuffle: bool = True,
        network: NetworkModel | None = None,
        work: WorkModel | None = None,
        interleaving: Interleaving | None = None,
        steps_max: int = 50_000_000,
        time_max_s: float = 30 * 86_400.0,
        is_traced: bool = True,
    ):
        self.seed = seed
        self.trace = Trace(is_on=is_traced)
        self.work = work
        self.rng = self.random_for("test")
        self.interleaver = None
        if interleaving is not None:
            self.interleaver = Interleaver(self.random_for("interleaving"), interleaving)
        self.loop = SimulatedLoop(
            self.random_for("loop"), self.trace, shuffle=shuffle, steps_max=steps_max, time_max_s=time_max_s
        )
        self.network = Fabric(self.loop, self.random_for("network"), network)
        self._hosts: dict[str, Host] = {}

    @property
    def hosts(self) -> list[str]:
        """The names of all hosts, in the order in which they came."""
        return list(self._hosts)

    def random_for(self, purpose: str) -> random.Random:
        """A stream of its own for each purpose: one draw more in one place does not change all the others."""
        return random.Random(f"{self.seed}/{purpose}")

    def host(self, name: str = "localhost") -> Host:
        if name not in self._hosts:
            self._hosts[name] = Host(self, name)
        return self._hosts[name]

    def run(self, main: Awaitable[T]) -> T:
        """Run until `main` is done, then cancel what is left. May be called again, unless it is interleaved."""
        collecting = gc.isenabled()
        # Finalizers must not run at a moment that depends on what the process did before.
        gc.disable()
        try:
            try:
                with contextlib.nullcontext() if self.interleaver is None else self.interleaver.tracing():
                    value = self.loop.run_until_complete(main)
            except SimulationStuckError:
                raise
            except BaseException:
                try:
                    self._cancel_rest()
                except SimulationStuckError:
                    # What went wrong first says more than that others do not end after it.
                    self.loop.abandon()
                raise
            self._cancel_rest()
            return value
        except SimulationStuckError:
            self.loop.abandon()  # what cannot go on cannot be cancelled either
            raise
        finally:
            if self.interleaver is not None:
                self.interleaver.close()
            if collecting:
                gc.enable()

    def digest(self) -> str:
        """Says which course it took. Without a trace, what the streams of random numbers would give next: each delay,
        and the order of all that could have another, came out of them."""
        if self.trace.is_on:
            return self.trace.digest()
        state = repr((self.loop.steps, self.loop.time(), self.loop.random(), self.network.rng.random()))
        return hashlib.blake2b(state.encode(), digest_size=16).hexdigest()

    def check(self) -> None:
        """Raise the first exception that nobody waited for, if there was one."""
        errors = [context.get("exception") for context in self.loop.unhandled]
        messages = [str(context.get("message")) for context in self.loop.unhandled]
        if messages:
            first = next((error for error in errors if error is not None), None)
            text = f"seed {self.seed}: {len(messages)} unhandled: {messages[0]}: {first!r}"
            raise SimulationFailedError(text) from first

    def _cancel_rest(self) -> None:
        for _ in range(_SHUTDOWN_ROUNDS_MAX):
            left = self.loop.tasks()
            if not left:
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
                self.loop.report_unretrieved()
                return
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(left, timeout=60.0))
        raise SimulationStuckError(f"tasks do not end when they are cancelled\n{self.loop.describe_tasks()}")


@dataclass(slots=True, frozen=True)
class SimulationResult(Generic[T]):
    value: T
    trace_hash: str
    events: int
    steps: int
    virtual_s: float
    latest: tuple[str, ...]


def run_simulation(
    main: Callable[[Simulation], Coroutine[Any, Any, T]], seed: int, **options: Any
) -> SimulationResult[T]:
    """Run `main` in a world of its own. The same seed gives the same `trace_hash`, always."""
    simulation = Simulation(seed, **options)
    try:
        value = simulation.run(main(simulation))
        simulation.check()
        return SimulationResult(
            value,
            simulation.trace.digest(),
            simulation.trace.count,
            simulation.loop.steps,
            simulation.loop.time(),
            tuple(simulation.trace.latest),
        )
    finally:
        simulation.loop.close()


def run_twice(main: Callable[[Simulation], Coroutine[Any, Any, T]], seed: int, **options: Any) -> SimulationResult[T]:
    """Run a seed two times and insist that both took the same course."""
    first, second = run_simulation(main, seed, **options), run_simulation(main, seed, **options)
    if first.trace_hash != second.trace_hash:
        pairs = zip(first.latest, second.latest)
        parted = next((f"{one!r} and {other!r}" for one, other in pairs if one != other), "before the kept events")
        raise SimulationFailedError(f"seed {seed} is not deterministic; the two runs part at {parted}")
    return first


def simulated_host(seed: int) -> Host:
    """One lone host, for tests that need a disk that crashes or fails but no event loop."""
    return Simulation(seed).host()


def simulated_runtime(seed: int) -> Runtime:
    """The runtime of one lone host. What is asynchronous in it works on its own loop only: see `run_simulation`."""
    return simulated_host(seed).runtime
