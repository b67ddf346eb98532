"""Where a driver can be killed and a task can fail: every step of a batch that is written exactly once.

A driver dies at a request of its own (before it is sent, when it is sent and not answered, when it is answered), at a
step of a task, when the batch is written and Spark has not noted it, and at the beginning of the next one. A task fails
by an error, by the end of its process, or with its whole executor.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

REQUESTS = ("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "Produce", "EndTxn")
MOMENTS = ("before", "sent", "answered")
TASK_STEPS = ("begun", "rows", "before send", "sent", "acknowledged", "result")
"""In a task that writes; `route` is one of the tasks that hand rows to them."""

WRITTEN, NEXT = "batch written", "next batch"
POINTS = (
    *(f"{moment} {request}" for request in REQUESTS for moment in MOMENTS),
    *(f"task {step}" for step in TASK_STEPS),
    WRITTEN,
    NEXT,
)
TASK_FAULTS = tuple(f"{step}: {kind}" for step in ("route", *TASK_STEPS) for kind in ("raise", "exit"))
EXECUTOR_FAULTS = tuple(f"{step}: executor" for step in ("route", *TASK_STEPS))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# --- in the driver ----------------------------------------------------------------------------------------------------


def arm_requests(point: str) -> None:
    """Have this process die at that moment of the first request of that kind."""
    from headrace.client.cluster.drivers import BlockingClient
    from headrace.net.connection import Connection

    moment, _, wanted = point.partition(" ")
    plain_submit, plain_sent = BlockingClient.submit, Connection.sent

    def is_wanted(request: Any) -> bool:
        return type(request).__name__ == f"{wanted}Request"

    def submit(self: Any, node_id: Any, request: Any, on_done: Any = None, **options: Any) -> Any:
        if not is_wanted(request):
            return plain_submit(self, node_id, request, on_done, **options)
        if moment == "before":
            die()
        done = on_done if moment != "answered" else lambda *_: die()
        return plain_submit(self, node_id, request, done, **options)

    def sent(self: Any, *arguments: Any) -> Any:
        result = plain_sent(self, *arguments)
        if moment == "sent" and not self.outgoing and any(is_wanted(call.request) for call in self.in_flight):
            die()
        return result

    setattr(BlockingClient, "submit", submit)  # noqa: B010 - a test double, which mypy must not take for a method
    setattr(Connection, "sent", sent)  # noqa: B010


def arm_tasks(fault_of: Callable[[], tuple[str, str] | None], directory: str) -> None:
    """Have the tasks of each job fail once, at a step and in a way that `fault_of` says when the job begins."""
    from headrace.spark import writing

    plain_task, plain_router = writing._task, writing._router
    driver = os.getpid()

    def task(job: Any) -> Any:
        fault = fault_of()
        write = plain_task(job)
        return write if fault is None or fault[0] == "route" else failing_task(write, *fault, directory, driver)

    def router(job: Any) -> Any:
        fault = fault_of()
        route = plain_router(job)
        return failing_route(route, fault[1], directory, driver) if fault and fault[0] == "route" else route

    setattr(writing, "_task", task)  # noqa: B010
    setattr(writing, "_router", router)  # noqa: B010


# --- in the tasks: functions within functions travel by value, since workers cannot import the tests ------------------


def _failing_once() -> Callable[[str, str, str, int], None]:
    def fail(step: str, kind: str, directory: str, driver: int) -> None:
        import os
        import signal
        import time

        from pyspark import TaskContext

        if kind == "driver":
            os.kill(driver, signal.SIGKILL)
            return
        context = TaskContext.get()
        batch = "" if context is None else context.getLocalProperty("streaming.sql.batchId")
        try:
            os.close(os.open(os.path.join(directory, f"{step}-{kind}-{batch}"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if kind == "raise":
            raise RuntimeError(f"injected: the first cause, at {step}")
        if kind == "exit":
            os._exit(1)
        # The worker's parent is a daemon of Spark's, whose parent is the executor.
        with open(f"/proc/{os.getppid()}/stat") as stat:
            executor = int(stat.read().rpartition(")")[2].split()[1])
        os.kill(executor, signal.SIGKILL)
        time.sleep(60)

    return fail


def failing_task(write: Any, step: str, kind: str, directory: str, driver: int) -> Any:
    """The task, failing at a step of its writing."""
    fail_once = _failing_once()

    def failing(batches: Iterator[Any]) -> Iterator[Any]:
        from headrace.client.transactions import TransactionalWriter as Writer

        def fail(at: str) -> None:
            if at == step:
                fail_once(step, kind, directory, driver)

        def passed_on() -> Iterator[Any]:
            for batch in batches:
                yield batch
                fail("rows")

        plain_submit, plain_finish = Writer._submit, Writer.finish

        def submit(self: Any, lane: Any, records: Any) -> Any:
            fail("before send")
            call = plain_submit(self, lane, records)
            fail("sent")
            return call

        def finish(self: Any) -> None:
            sent = bool(self._lanes)
            plain_finish(self)
            if sent:
                fail("acknowledged")

        fail("begun")
        # Of this task only: the process runs others after it.
        setattr(Writer, "_submit", submit)  # noqa: B010
        setattr(Writer, "finish", finish)  # noqa: B010
        try:
            yield from write(passed_on())
        finally:
            setattr(Writer, "_submit", plain_submit)  # noqa: B010
            setattr(Writer, "finish", plain_finish)  # noqa: B010
        fail("result")

    return failing


def failing_route(route: Any, kind: str, directory: str, driver: int) -> Any:
    """The task that finds each row's partition, failing after its first rows."""
    fail_once = _failing_once()

    def failing(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in route(batches):
            yield batch
            fail_once("route", kind, directory, driver)

    return failing


def shuffled() -> Any:
    """For `mapInArrow`: the rows of each batch in another order every time that they are computed."""

    def shuffle(batches: Iterator[Any]) -> Iterator[Any]:
        import random

        import pyarrow

        rng = random.SystemRandom()
        for batch in batches:
            order = list(range(batch.num_rows))
            rng.shuffle(order)
            mixed = batch.take(pyarrow.array(order, pyarrow.int64()))
            # In pieces, so that something is under way before the last rows come.
            for start in range(0, mixed.num_rows, 50):
                yield mixed.slice(start, 50)

    return shuffle
