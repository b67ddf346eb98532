"""Every way a handler can end leaves its record accounted for, and its worker at work."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest
from tests.parallel import handlers
from tests.parallel.making import PARTITION, record
from tests.waiting import eventually

from headrace.parallel.core import ParallelCore
from headrace.parallel.errors import (
    BatchFailedError,
    HandlerStalledError,
    ParallelError,
    Reject,
    RetryLater,
    WorkerDiedError,
)
from headrace.parallel.handling import Handling
from headrace.parallel.member import Member
from headrace.parallel.options import CoreSettings, Limits, Model, Order, Pool, Retry, Window
from headrace.parallel.processes import Processes
from headrace.parallel.retries import DUE_MS, ERROR, ERROR_TYPE, diverted_headers, header
from headrace.parallel.workers import Coroutines, HandlerWorkers, Threads
from headrace.runtime.real import RealClock

COUNT = 40


class UnprintableError(Exception):
    """An error that cannot even be shown."""

    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


@contextmanager
def at_work(
    make: Callable[[Member, Handling], HandlerWorkers],
    handler: Callable[..., Any],
    *,
    order: Order = Order.NONE,
    model: Model | None = None,
    batch: int | None = None,
    config: dict[str, Any] | None = None,
    retry: Retry | None = None,
    count: int = COUNT,
) -> Iterator[Member]:
    """A member with workers and records, and no broker: what is diverted stays in the outbox."""
    retry = retry or Retry(local=0, dead_letters="orders.dead")
    core = ParallelCore(CoreSettings.of(model or Pool(), order, retry, Limits(), batch, 2))
    member = Member(core, RealClock(), "billing", None, 2)
    member.is_transactional = True
    workers = make(member, Handling(handler, batch is not None, order is not Order.NONE, config or {}))
    core.assign(PARTITION, 0)
    core.add(PARTITION, [record(n, b"k%d" % n) for n in range(count)], member.clock.monotonic(), 0)
    workers.start()
    with member.lock:
        member.announce()
    try:
        yield member
    finally:
        member.close()
        workers.stop(10.0)


def through(member: Member) -> bool:
    """Whether every record was handled, or failed."""
    assert member.failure is None, member.failure
    with member.lock:
        member.core.tick(member.clock.monotonic())
        member.announce()
        return has_none_left(member)


def has_none_left(member: Member) -> bool:
    done = member.core.counters.handled + len(member.core.failures.outbox)
    return done == member.core.counters.polled and not member.core.running


def errors(member: Member) -> dict[int, BaseException | None]:
    return {one.entry.offset: one.entry.error for one in member.core.failures.outbox}


async def cancelled_inside() -> None:
    inner = asyncio.ensure_future(asyncio.sleep(10))
    inner.cancel()
    await inner


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(10)


async def cancels_itself_and_returns() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def exits() -> None:
    sys.exit(3)


async def interrupts() -> None:
    raise KeyboardInterrupt


async def leaves_a_task_that_exits() -> None:
    async def exit_later() -> None:
        sys.exit(3)

    handlers_left.append(asyncio.ensure_future(exit_later()))


async def closes_its_generator() -> None:
    raise GeneratorExit


async def gives_a_coroutine() -> Any:
    return asyncio.sleep(0)


async def stops_the_loop() -> None:
    asyncio.get_running_loop().stop()


handlers_left: list[Any] = []
WAYS = [
    (cancelled_inside, True),
    (cancels_itself, True),
    (cancels_itself_and_returns, False),
    (exits, True),
    (interrupts, True),
    (closes_its_generator, True),
    (gives_a_coroutine, True),
    (leaves_a_task_that_exits, False),
    (stops_the_loop, False),
]


@pytest.mark.parametrize("order", [Order.NONE, Order.KEY])
@pytest.mark.parametrize(("way", "is_failure"), WAYS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_coroutine_may_end_in_any_way(way: Callable[[], Any], is_failure: bool, order: Order) -> None:
    bad = (3, 7, 20, 21)

    async def handle(record: Any) -> Any:
        await asyncio.sleep(0)
        return await way() if record.offset in bad else None

    with at_work(lambda member, handling: Coroutines(member, handling, 2), handle, order=order) as member:
        eventually(lambda: through(member), "all records")
        assert set(errors(member)) == (set(bad) if is_failure else set())
        assert member.core.counters.handled == COUNT - (len(bad) if is_failure else 0)


@pytest.mark.parametrize("way", [cancelled_inside, closes_its_generator, gives_a_coroutine])
def test_a_batch_of_a_coroutine_may_end_in_any_way(way: Callable[[], Any]) -> None:
    async def handle(records: list[Any]) -> Any:
        return await way() if any(one.offset == 4 for one in records) else None

    with at_work(
        lambda member, handling: Coroutines(member, handling, 2),
        handle,
        batch=5,
        retry=Retry(0, (0, 0), None, 1, (1, 1), "d"),
    ) as member:
        eventually(lambda: through(member), "all records")
        assert set(errors(member)) == {4}


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), UnprintableError()], ids=lambda e: type(e).__name__
)
def test_a_function_may_end_in_any_way(error: BaseException) -> None:
    def handle(record: Any) -> None:
        if record.offset in (3, 7, 20):
            raise error

    with at_work(lambda member, handling: Threads(member, handling, 2, 1), handle) as member:
        eventually(lambda: through(member), "all records")
        assert set(errors(member)) == {3, 7, 20}
        headers = diverted_headers(member.core.failures.outbox[0], "billing", 0)
        assert header(headers, ERROR) is not None


async def handle_later(records: Any) -> None:
    raise AssertionError("it is never awaited")


def handle_one_by_one(records: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize("later", [handle_later, handle_one_by_one])
@pytest.mark.parametrize("batch", [None, 5])
def test_what_a_handler_gives_back_unrun_is_a_failure(later: Callable[..., Any], batch: int | None) -> None:
    """As a decorator does that was not written for such functions."""
    with at_work(
        lambda member, handling: Threads(member, handling, 2, 1), lambda given: later(given), batch=batch
    ) as member:
        eventually(lambda: through(member), "all records")
        assert len(errors(member)) == COUNT
        assert f"{later.__name__} did not run" in str(errors(member)[0])


@pytest.mark.parametrize("delay_s", [float("inf"), 1e20, float("nan"), "soon"])
def test_a_record_cannot_wait_beyond_all_times(delay_s: Any) -> None:
    def handle(record: Any) -> None:
        if record.offset == 7:
            raise RetryLater(delay_s)

    retry = Retry(local=0, topic="orders.retry", dead_letters="orders.dead")
    with at_work(lambda member, handling: Threads(member, handling, 2, 1), handle, retry=retry) as member:
        eventually(lambda: through(member), "all records")
        assert "RetryLater takes seconds, up to" in str(errors(member)[7])
        headers = diverted_headers(member.core.failures.outbox[0], "billing", 1_000)
        assert header(headers, DUE_MS) == "11000"


class Exiting:
    """A deserializer that ends the program."""

    def deserialize(self, topic: str, data: bytes) -> NoReturn:
        sys.exit(4)


@pytest.mark.parametrize("batch", [None, 5])
def test_a_deserializer_may_end_in_any_way(batch: int | None) -> None:
    with at_work(
        lambda member, handling: Threads(member, handling, 2, 1),
        lambda record: None,
        batch=batch,
        config={"value.deserializer": Exiting()},
        retry=Retry(0, (0, 0), None, 1, (1, 1), "d"),
    ) as member:
        eventually(lambda: through(member), "all records")
        assert len(errors(member)) == COUNT


@pytest.mark.parametrize("failed", [5, [object()], ["x", 99], [UnprintableError()], None])
def test_a_batch_that_names_what_is_not_there_has_failed_as_a_whole(failed: Any) -> None:
    assert BatchFailedError(failed).indexes([record(0), record(1)]) == {0, 1}


@pytest.mark.slow
def test_after_a_crash_the_rest_of_a_slot_goes_on_in_a_new_process_and_is_not_blamed() -> None:
    """The new process takes longer to begin than a record may take."""
    with at_work(
        lambda member, handling: Processes(member, handling, 1),
        handlers.crash_on_first,
        model=Window(slot=10, slots=4, stall_s=0.4),
        count=10,
    ) as member:
        eventually(lambda: through(member), "all records")
        found = errors(member)
        assert set(found) == {0}
        assert isinstance(found[0], WorkerDiedError)
        assert member.core.counters.stalls == 0


@pytest.mark.slow
def test_processes_that_cannot_begin_blame_no_record() -> None:
    with at_work(lambda member, handling: Processes(member, handling, 1), handlers.NotHere(), count=3) as member:
        error = eventually(lambda: member.failure, "that it is said")
        assert isinstance(error, ParallelError)
        assert "exit code 7" in str(error)
        assert not member.core.failures.outbox


@pytest.mark.slow
def test_an_exception_that_cannot_be_sent_still_says_what_the_handler_asked_for() -> None:
    with at_work(lambda member, handling: Processes(member, handling, 1), handlers.reject_choosily, count=2) as member:
        eventually(lambda: through(member), "all records")
        assert all(isinstance(error, Reject) for error in errors(member).values())
        assert len(errors(member)) == 2


@pytest.mark.slow
def test_an_exception_that_cannot_be_sent_keeps_its_name() -> None:
    with at_work(lambda member, handling: Processes(member, handling, 1), handlers.fail_oddly, count=2) as member:
        eventually(lambda: through(member), "all records")
        headers = diverted_headers(member.core.failures.outbox[0], "billing", 0)
        assert (header(headers, ERROR_TYPE), header(headers, ERROR)) == ("OddError", "one is odd, other")


@pytest.mark.slow
def test_a_process_is_killed_only_for_what_it_hangs_in(tmp_path: Any) -> None:
    """A chunk that was given up just when its worker was through with it: the next one must not pay for it."""
    with at_work(
        lambda member, handling: Processes(member, handling, 1), handlers.Writer(str(tmp_path / "out")), count=3
    ) as member:
        eventually(lambda: through(member), "all records")
        chunks: list[Any] = []
        take = member.core.take

        def watched(now: float) -> Any:
            chunk = take(now)
            if chunk is not None:
                chunks.append(chunk)
            return chunk

        member.core.take = watched  # type: ignore[method-assign]  # to get hold of the chunks
        processes: Any = None
        for first in (10, 20):
            with member.lock:
                member.core.add(PARTITION, [record(n) for n in range(first, first + 5)], member.clock.monotonic(), 0)
                member.announce()
            eventually(lambda: through(member), "all records")
            processes = chunks[0].worker
            processes.kill(chunks[0])
        assert not errors(member)
        assert Counter(offset for _, offset, _, _ in handlers.lines(str(tmp_path / "out"))).total() == 13


def test_a_coroutine_that_hangs_is_given_up_and_another_takes_its_place() -> None:
    async def handle(record: Any) -> None:
        if record.offset == 2:
            await asyncio.sleep(3_600)

    made: list[Coroutines] = []

    def make(member: Member, handling: Handling) -> Coroutines:
        made.append(Coroutines(member, handling, 1))
        return made[0]

    with at_work(make, handle, model=Pool(stall_s=0.5)) as member:
        given_up: list[Any] = []

        def tick() -> bool:
            # Whoever asks for those that hang is told of each once.
            with member.lock:
                found = member.core.tick(member.clock.monotonic())
                member.announce()
            for chunk in found:
                given_up.append(chunk)
                made[0].replace(chunk)
            with member.lock:
                return has_none_left(member)

        eventually(tick, "all records")
        assert isinstance(errors(member)[2], HandlerStalledError)
        assert len(given_up) == 1
        assert member.failure is None
