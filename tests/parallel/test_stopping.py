"""stop() while something is being started: it is not lost, and nothing is left running."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import DEADLINE_S

import headrace.parallel.consumer_processes as processes_module
from headrace.client.errors import ClientClosedError
from headrace.errors import HeadraceError
from headrace.parallel import Consumers, ParallelConsumer
from headrace.parallel.consumer_processes import ConsumerProcesses, serve_member
from headrace.parallel.errors import ParallelError
from headrace.parallel.metrics import Snapshot


def ignore(record: Any) -> None: ...


class StoppedEngine:
    """Runs until it is stopped."""

    def __init__(self) -> None:
        self.is_stopped = threading.Event()

    def run(self) -> None:
        assert self.is_stopped.wait(DEADLINE_S)

    def stop(self) -> None:
        self.is_stopped.set()

    kill = stop


def consumer_that_starts_with(starting: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> ParallelConsumer:
    monkeypatch.setattr("headrace.parallel.api._make_producer", lambda plan: starting())
    consumer = ParallelConsumer(ignore, topics=["t"], group="g", bootstrap_servers="nowhere:1")
    monkeypatch.setattr(consumer, "_make_engine", lambda number: StoppedEngine())
    return consumer


def test_a_stop_while_it_starts_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = consumer_that_starts_with(lambda: consumer.stop(), monkeypatch)
    consumer.start()
    assert consumer.wait(DEADLINE_S / 2)


def test_a_task_that_is_cancelled_while_it_starts_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, released = threading.Event(), threading.Event()

    def starting() -> None:
        begun.set()
        assert released.wait(DEADLINE_S)

    async def main() -> None:
        consumer = consumer_that_starts_with(starting, monkeypatch)
        running = asyncio.ensure_future(consumer.run_async())
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        running.cancel()
        await asyncio.sleep(0)
        released.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert consumer.has_ended(0)

    asyncio.run(main())


class Children:
    """What `multiprocessing` gives, without processes: each child is told what it is told."""

    def __init__(self, while_starting: Callable[[int], None]) -> None:
        self.while_starting = while_starting
        self.ends: list[Any] = []
        self.killed: list[int] = []

    Pipe = staticmethod(multiprocessing.Pipe)

    def Process(self, *, args: tuple[Any, ...], **_: Any) -> Any:
        number = len(self.ends)
        # A copy of its end: the parent closes its own, as it does when a process has another.
        self.ends.append(Connection(os.dup(args[0].fileno())))
        return SimpleNamespace(
            start=lambda: self.while_starting(number),
            kill=lambda: self.killed.append(number),
            join=lambda timeout=None: None,
            exitcode=-9,
        )


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> tuple[ConsumerProcesses, Children]:
    plan = SimpleNamespace(group="g", workers=1)
    made = ConsumerProcesses(plan, lambda error: None)
    children = Children(lambda number: None)
    monkeypatch.setattr(processes_module.multiprocessing, "get_context", lambda way: children)
    made._start_one(0)
    return made, children


def told(end: Any) -> list[Any]:
    return [end.recv()] if end.poll(0) else []


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_process_that_takes_anothers_place_while_all_end_ends_too(
    processes: tuple[ConsumerProcesses, Children], how: str
) -> None:
    made, children = processes
    children.while_starting = lambda number: getattr(made, how)()
    (first,) = list(made._children)
    made._gone(first)
    assert len(children.ends) == 2
    if how == "stop":
        assert told(children.ends[1]) == ["stop"]
    else:
        assert 1 in children.killed


def no_room(number: int) -> None:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def test_without_room_for_another_process_all_end_and_say_why(
    processes: tuple[ConsumerProcesses, Children],
) -> None:
    made, children = processes
    ended: list[Any] = []
    made._on_end = ended.append
    made._start_one(1)
    children.while_starting = no_room
    children.ends.pop(0).close()
    # The first is gone, so the second is told to stop, and goes too.
    watching = threading.Thread(target=made._watch, daemon=True)
    watching.start()
    assert children.ends[0].recv() == "stop"
    children.ends[0].close()
    watching.join(DEADLINE_S)
    assert isinstance(ended[0], ParallelError)
    assert "Resource temporarily unavailable" in str(ended[0])


def test_processes_of_which_one_cannot_be_started_are_not_left_alone(
    processes: tuple[ConsumerProcesses, Children],
) -> None:
    made, children = processes
    children.while_starting = no_room
    with pytest.raises(BlockingIOError):
        made.start()
    assert children.killed == [0]


@pytest.mark.parametrize("where", ["api._make_producer", "handling.Handling.prepare"])
@pytest.mark.parametrize("kind", [ClientClosedError, FileNotFoundError, TimeoutError])
def test_a_process_that_cannot_start_its_consumer_says_why(
    monkeypatch: pytest.MonkeyPatch, where: str, kind: type[Exception]
) -> None:
    """Also where it is an error of the system, as of a deserializer that misses a file: not one of the connection."""

    def starting(_: Any) -> None:
        raise kind("there is no topic orders.dead")

    monkeypatch.setattr(f"headrace.parallel.{where}", starting)
    monkeypatch.setattr(processes_module.signal, "signal", lambda number, handler: None)
    plan = ParallelConsumer(
        ignore, topics=["t"], group="g", model=Consumers(processes=True), bootstrap_servers="nowhere:1"
    ).plan
    ours, theirs = multiprocessing.Pipe()
    serve_member(theirs, plan, 0)
    theirs.close()
    while not isinstance(last := ours.recv(), bytes):
        assert isinstance(last, Snapshot)
    error = pickle.loads(last)
    assert isinstance(error, HeadraceError)
    assert "there is no topic orders.dead" in str(error)
