"""A consumer per process: starts them, hears their metrics, replaces those that die, stops them all."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from headrace.errors import HeadraceError
from headrace.parallel.errors import ParallelError
from headrace.parallel.metrics import Snapshot, combine

log = logging.getLogger("headrace.parallel")

_TELL_EVERY_S = 0.5
_RESTARTS_MAX = 100
_GRACE_S = 15.0


class ConsumerProcesses:
    """The parent's side."""

    def __init__(self, plan: Any, on_end: Callable[[BaseException | None], None]) -> None:
        self._plan = plan
        self._on_end = on_end
        self._children: dict[Connection, Any] = {}
        self._numbers: dict[Connection, int] = {}
        self._latest: dict[Connection, Snapshot] = {}
        self._before: list[Snapshot] = []
        """The last words of processes that are gone."""
        self._stopping = self._is_killed = False
        self._restarts = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, name=f"headrace-{plan.group}-processes", daemon=True)

    def start(self) -> None:
        try:
            pickle.dumps(self._plan)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ParallelError(
                f"the handler or the configuration cannot be sent to other processes ({error}): define it at the top "
                "of a module, and give deserializers by name, as classes or as functions of a module"
            ) from error
        try:
            for number in range(self._plan.workers):
                self._start_one(number)
        except OSError:
            # Nobody would watch those that have begun.
            self.kill()
            raise
        self._thread.start()

    def _start_one(self, number: int) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve_member, args=(theirs, self._plan, number), daemon=True)
        try:
            process.start()
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._numbers[ours] = number
        self._children[ours] = process
        # Only now: who stops or kills sets the flag first and then looks at the children, so one of both notices.
        if self._is_killed:
            process.kill()
        elif self._stopping:
            _tell_to_stop(ours)

    def stop(self) -> None:
        self._stopping = True
        for connection in list(self._children):
            _tell_to_stop(connection)

    def kill(self) -> None:
        self._stopping = self._is_killed = True
        for process in list(self._children.values()):
            process.kill()

    def snapshots(self) -> list[Snapshot]:
        return [*self._before, *self._latest.values()]

    def _watch(self) -> None:
        while self._children:
            for connection in wait(list(self._children), timeout=1.0):
                assert isinstance(connection, Connection)
                try:
                    told = connection.recv()
                except (EOFError, OSError):
                    self._gone(connection)
                    continue
                if isinstance(told, Snapshot):
                    self._latest[connection] = told
                else:
                    self._error = self._error or pickle.loads(told)
        self._on_end(self._error)

    def _gone(self, connection: Connection) -> None:
        process, number = self._children.pop(connection), self._numbers.pop(connection)
        connection.close()
        process.join(_GRACE_S)
        last = self._latest.pop(connection, None)
        if last is not None:
            counters = combine([*self._before, last]).counters if self._before else last.counters
            self._before = [Snapshot(last.group, 0, 0, 0, 0, counters)]
        if self._error is not None and not self._stopping:
            self.stop()
        if self._stopping or process.exitcode == 0:
            return
        self._restarts += 1
        if self._restarts > _RESTARTS_MAX:
            self._error = ParallelError(f"worker processes died {self._restarts} times, last with {process.exitcode}")
            self.stop()
            return
        log.error("a consumer process ended with exit code %s; another takes its place", process.exitcode)
        try:
            self._start_one(number)
        except OSError as error:
            # The machine has no room for another. Were it left at that, nobody would hear of the others' ends either.
            self._error = ParallelError(f"no process can be started in the place of one that ended: {error}")
            self.stop()


def _tell_to_stop(connection: Connection) -> None:
    # A child that is gone has stopped.
    with contextlib.suppress(OSError, ValueError):
        connection.send("stop")


# --- in the process ---------------------------------------------------------------------------------------------------


def serve_member(connection: Connection, plan: Any, number: int) -> None:
    """One consumer of the group, in a process of its own, until the parent says so or is gone."""
    from dataclasses import replace

    from headrace.parallel.api import ParallelConsumer
    from headrace.parallel.handling import DESERIALIZERS
    from headrace.parallel.options import Consumers

    # Ctrl-C reaches the whole group of processes; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = plan.consumer_config(number) | {name: plan.config[name] for name in DESERIALIZERS if name in plan.config}
    consumer = ParallelConsumer.of(replace(plan, model=Consumers(), workers=1, config=config))
    signal.signal(signal.SIGTERM, lambda number, frame: consumer.stop())
    try:
        consumer.start()
        if _keep_parent_informed(connection, consumer, plan):
            consumer.wait(0.0)
    except Exception as error:  # noqa: BLE001 - told to the parent, which raises it where it is waited for
        with contextlib.suppress(OSError):
            connection.send(_dumped(error))


def _dumped(error: Exception) -> bytes:
    """An error that the parent can read: itself where it is one of ours, or else what it says."""
    if isinstance(error, HeadraceError):
        # What it carries may be the user's, and not fit through.
        with contextlib.suppress(Exception):
            data = pickle.dumps(error)
            pickle.loads(data)
            return data
    return pickle.dumps(ParallelError(f"{type(error).__name__}: {error}"))


def _keep_parent_informed(connection: Connection, consumer: Any, plan: Any) -> bool:
    """Until the consumer has ended, by itself or because it was told to; whether the parent is there to hear how.

    Nothing but the connection's own errors says that it is not: consuming may end in an `OSError` as well.
    """
    try:
        while not consumer.has_ended(0.0):
            if connection.poll(_TELL_EVERY_S):
                connection.recv()
                consumer.stop()
                consumer.has_ended(plan.times.drain_s + _GRACE_S)
                break
            connection.send(consumer.snapshot())
        connection.send(consumer.snapshot())
    except (EOFError, OSError):
        # Nobody would replace this one, so end in order.
        consumer.stop()
        consumer.has_ended(plan.times.drain_s + _GRACE_S)
        return False
    return True
