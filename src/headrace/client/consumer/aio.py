"""`headrace.aio.Consumer`: the consumer on an event loop. Heartbeats are a task on the same loop."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar, Unpack

from headrace.client.cluster.drivers import AsyncClient
from headrace.client.consumer import _operations
from headrace.client.consumer._base import (
    CLOSE_TIMEOUT_S,
    ITERATION_POLL_S,
    ConsumerBase,
    ConsumerSetup,
    IterationProgress,
    deadline_of,
    exclusive_async,
    to_arrow,
)
from headrace.client.consumer._core import ConsumerCore
from headrace.client.consumer._heartbeat_task import LoopWorker
from headrace.client.consumer._operations import ConsumerOperation
from headrace.client.consumer.keywords import ConsumerKeywords
from headrace.client.consumer.records import EMPTY, ConsumerRecord, ConsumerRecords, PartitionColumns
from headrace.client.flows import Flow, Task, UserCode, async_method, drive_async
from headrace.client.typed import K, V
from headrace.client.unclosed import Watch, weakly
from headrace.records.arrow import need_arrow
from headrace.runtime import Runtime, real_runtime

T = TypeVar("T")

_WAIT_S_MAX = 60.0
_LEAVE_S_MAX = 5.0
_LEAVE_LOOK_S = 0.01
_TURNS_AT_ONCE = 10
"""A cancelled task has left with the loop's next turn or so, unless a listener of its has something to end."""


class Consumer(ConsumerBase, Generic[K, V]):
    """Reads records from a Kafka cluster on asyncio, alone or as a member of a group. For one task at a time.

        async with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "billing"}) as consumer:
            consumer.subscribe(["orders"])
            async for record in consumer:
                print(record.offset, record.value)

    The same as `headrace.Consumer`, with `await` where it may take time. Listeners and assignors may be coroutines.
    """

    _identify = staticmethod(asyncio.current_task)
    _kind = "task"
    _forked = "this consumer was made in process {pid}, before the fork: make a new one in this process"

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        /,
        *,
        runtime: Runtime | None = None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None:
        self._setup = ConsumerSetup(config, keywords)
        self._own_runtime = runtime is None
        self._runtime = runtime or real_runtime(io_threads=1)
        self._user: asyncio.Task[Any] | None = None
        self._client: AsyncClient | None = None
        self._core: ConsumerCore | None = None
        self._changed: asyncio.Event | None = None
        self._worker: LoopWorker | None = None
        self._watch: Watch | None = None
        self._wakeup_asked = False
        self._closed = False
        self._pid = os.getpid()
        self._progress: IterationProgress | None = None

    # --- reading ------------------------------------------------------------------------------------------------------

    async def poll(self, timeout: float = 1.0, max_records: int | None = None) -> ConsumerRecords[K, V]:
        rows_max = self._setup.settings.max_poll_records if max_records is None else max_records
        intercept = self._setup.on_consume if self._setup.interceptors else None
        records = await self._polled(timeout, lambda core: core.collector.collect(rows_max), EMPTY, intercept)
        # Now they count as handed out: nothing that could raise, or wait, stands between this and the caller.
        self._fetcher.marks = None
        return records

    async def poll_columns(self, timeout: float = 1.0, max_records: int | None = None) -> list[PartitionColumns]:
        pieces: list[PartitionColumns] = await self._polled(timeout, self._columns(max_records), [])
        self._fetcher.marks = None
        return pieces

    async def poll_arrow(self, timeout: float = 1.0, max_records: int | None = None, *, headers: bool = False) -> Any:
        need_arrow()
        made = to_arrow(await self._polled(timeout, self._columns(max_records), []), headers=headers, setup=self._setup)
        self._fetcher.marks = None
        return made

    async def _polled(
        self,
        timeout: float,
        collect: Callable[[ConsumerCore], T],
        nothing: T,
        intercept: Callable[[T], T] | None = None,
    ) -> T:
        """What a poll found; the caller says when it is handed out (see `Fetcher.marks`)."""
        # `exclusive`, but written out: this is done for every poll, also for those that hand out one record.
        me = asyncio.current_task()
        user = self._user
        if user is not None and user != me:
            user = await self._left_by_the_cancelled(me)
        self._user = me
        try:
            found = await self._poll(self._enter_poll(user), timeout, collect, nothing)
            return intercept(found) if found and intercept is not None else found
        finally:
            self._user = user

    async def _poll(self, core: ConsumerCore, timeout: float, collect: Callable[[ConsumerCore], T], nothing: T) -> T:
        now = self._runtime.clock.monotonic
        deadline = deadline_of(timeout, now())
        core.polled()
        # Others on the loop have their turn, however fast records come. Here, and not when there are records: a poll
        # that is cancelled while it waits has taken none.
        await asyncio.sleep(0)
        is_first = True
        while True:
            self._check_wakeup()
            while (pending := core.advance()) is not None:
                await self._run_user_code(*pending)
            if core.is_closed:
                return nothing
            found = collect(core)
            if found:
                core.prefetch()
                self._schedule()
                return found
            left = deadline - now()
            if left <= 0 and not is_first:
                return nothing
            is_first = False
            await self._wait(max(0.0, min(left, core.due_s())))
            core.is_alive()

    async def _wait(self, seconds: float) -> None:
        """Until something changes, or the time is over."""
        changed = self._changed
        assert changed is not None
        self._schedule()
        if self._wakeup_asked and not self._is_closing:
            # Since it was last looked for, by another thread that may not have known of a loop yet.
            return
        if not changed.is_set():
            try:
                async with asyncio.timeout(min(seconds, _WAIT_S_MAX)):
                    await changed.wait()
            except TimeoutError:
                pass
        changed.clear()

    def _schedule(self) -> None:
        assert self._client is not None
        self._client.schedule()

    async def _run_user_code(self, task: Task[Any], code: UserCode) -> None:
        was_in_listener, self._is_in_listener = self._is_in_listener, True
        try:
            # Called from here, and with nothing around it that is entered first: an interruption just before would
            # otherwise count as one of the user's code.
            result = code.function(*code.arguments)
            if inspect.isawaitable(result):
                result = await result
        except BaseException as error:  # noqa: BLE001 - the flow decides what becomes of it
            self._failed(task, code, error)
        else:
            task.resume(result)
        finally:
            self._is_in_listener = was_in_listener

    def __aiter__(self) -> AsyncIterator[ConsumerRecord[K, V]]:
        """Records one by one, without end (until close); a record counts as read when it is handed out."""
        return _Iteration(self)

    @exclusive_async
    async def _next_records(self) -> tuple[IterationProgress, list[ConsumerRecord], int] | None:
        core = self._enter_poll(self._user)
        found = await self._poll(core, ITERATION_POLL_S, lambda core: core.collector.next_for_iteration(), None)
        return None if found is None else self._begin_iteration(found)

    async def _left_by_the_cancelled(self, me: asyncio.Task[Any] | None) -> asyncio.Task[Any] | None:
        """A task that was cancelled is about to leave: whoever comes in next waits for that, and for no other task."""
        until = self._runtime.clock.monotonic() + _LEAVE_S_MAX
        pauses = itertools.chain(itertools.repeat(0.0, _TURNS_AT_ONCE), itertools.repeat(_LEAVE_LOOK_S))
        while (user := self._user) is not None and user is not me:
            if not user.cancelling() or self._runtime.clock.monotonic() >= until:
                raise self._refusal()
            await asyncio.sleep(next(pauses))
        return user

    # --- flows --------------------------------------------------------------------------------------------------------

    commit_sync = async_method(_operations.commit_sync)
    committed = async_method(_operations.committed)
    position = async_method(_operations.position)
    offsets_for_times = async_method(_operations.offsets_for_times)
    beginning_offsets = async_method(_operations.beginning_offsets)
    end_offsets = async_method(_operations.end_offsets)
    partitions_for = async_method(_operations.partitions_for)
    list_topics = async_method(_operations.list_topics)
    unsubscribe = async_method(_operations.unsubscribe)

    @exclusive_async
    async def _run_flow(self, operation: Callable[[ConsumerOperation], Flow[Any]], /) -> Any:
        limit = self._operation()
        return await self._drive(operation(limit), limit)

    async def _drive(self, flow: Flow[T], limit: ConsumerOperation) -> T:
        """Run a flow to its end, on this task."""
        return await drive_async(flow, self._runtime.clock.monotonic, limit, self._wait, self._run_user_code)

    # --- waking, ending -----------------------------------------------------------------------------------------------

    def wakeup(self) -> None:
        self._wakeup_asked = True
        client = self._client
        if client is not None:
            client.call_from_anywhere(self._notify)

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()

    @exclusive_async
    async def close(self, timeout: float = CLOSE_TIMEOUT_S, *, leave_group: bool | None = None) -> None:
        if not self._begin_closing():
            return
        core, client = self._core, self._client
        try:
            if core is not None:
                with self._last_flow(core, timeout, leave_group) as (flow, limit):
                    await self._drive(flow, limit)
        except asyncio.CancelledError:
            # As when its time is over (`asyncio.timeout` ends it so): the group is not to wait for the session's end.
            if core is not None and leave_group is not False:
                self._leave_in_a_hurry(core)
            raise
        finally:
            self._closed = True
            if self._watch is not None:
                self._watch.end()
            beating = None if self._worker is None else self._worker.beating
            try:
                if beating is not None:
                    beating.cancel()
                # Before anything is waited for: should this be cancelled once more, nobody closes them any more.
                if client is not None:
                    await client.close()
                if beating is not None:
                    await asyncio.gather(beating, return_exceptions=True)
            finally:
                self._setup.close()
                if self._own_runtime:
                    await self._runtime.close()

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        await self.close()

    # --- the core -----------------------------------------------------------------------------------------------------

    def _connect(self) -> AsyncClient:
        self._changed = asyncio.Event()
        client = AsyncClient(self._setup.connection, self._runtime)
        name = self._setup.connection.client_id
        if self._watch is not None:  # of a call that was interrupted
            self._watch.end()
        self._worker = LoopWorker(client, self._runtime.clock, weakly(self._notify), name)
        self._watch = Watch(self, self._worker, f"the consumer {name}")
        if not self._own_runtime:
            self._watch.end()  # a simulated process that is killed drops its clients, as they are
        return client

    def _begin_heartbeats(self) -> None:
        worker, core = self._worker, self._core
        if worker is not None and core is not None and core.heartbeats is not None:
            worker.begin(core.heartbeats)


class _Iteration(AsyncIterator[ConsumerRecord]):
    """What `async for` takes records from. No generator: one ends with the first time-out around a wait."""

    __slots__ = ("_consumer", "_left", "_progress", "_version")

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._progress: IterationProgress | None = None
        self._left: Iterator[ConsumerRecord] = iter(())
        self._version = -1
        """Of the subscriptions that the records belong to."""

    async def __anext__(self) -> ConsumerRecord:
        consumer = self._consumer
        while True:
            progress, core = self._progress, consumer._core
            # A poll, a seek or a rebalance in the loop's body: what is left of these is not ours any more.
            if progress is not None and core is not None and consumer._progress is progress:
                record = next(self._left, None) if core.subscriptions.version == self._version else None
                if record is not None:
                    # Counted when the application comes in again (see `_settle`).
                    progress.taken += 1
                    return record
            self._progress = None
            if consumer._closed:
                raise StopAsyncIteration
            found = await consumer._next_records()
            if found is not None:
                self._progress, records, self._version = found
                self._left = iter(records)
