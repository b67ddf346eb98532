"""`headrace.Consumer`: the blocking consumer. Everything runs on the caller's thread, but for heartbeats."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from threading import get_ident
from typing import Any, Generic, TypeVar, Unpack

from headrace.assignors import settle
from headrace.client.cluster.drivers import BlockingClient
from headrace.client.consumer import _operations
from headrace.client.consumer._base import (
    CLOSE_TIMEOUT_S,
    ITERATION_POLL_S,
    ConsumerBase,
    ConsumerSetup,
    IterationProgress,
    deadline_of,
    exclusive,
    to_arrow,
)
from headrace.client.consumer._core import ConsumerCore
from headrace.client.consumer._heartbeat_thread import HeartbeatThread
from headrace.client.consumer._operations import ConsumerOperation
from headrace.client.consumer.keywords import ConsumerKeywords
from headrace.client.consumer.records import EMPTY, ConsumerRecord, ConsumerRecords, PartitionColumns
from headrace.client.flows import Flow, Task, UserCode, drive, method
from headrace.client.forks import ignore_forks, watch_forks
from headrace.client.typed import K, V
from headrace.client.unclosed import Watch, weakly
from headrace.records.arrow import need_arrow
from headrace.runtime import Clock
from headrace.runtime.real import RealClock

T = TypeVar("T")


class Consumer(ConsumerBase, Generic[K, V]):
    """Reads records from a Kafka cluster, alone or as a member of a group. For one thread at a time.

    Configuration by Kafka's names, in a mapping or as keywords with underscores:

        with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "billing"}) as consumer:
            consumer.subscribe(["orders"])
            for record in consumer:
                print(record.offset, record.value)

    All time-outs are in seconds. `poll` does the work on the caller's thread; only heartbeats have a thread of their
    own, which starts when the consumer first joins a group. Leaving the `with` block commits (if that is automatic) and
    leaves the group at once. After a fork, a consumer that was in use belongs to the parent: the child makes its own.
    """

    _identify = staticmethod(get_ident)
    _kind = "thread"
    _forked = (
        "this consumer was in use in process {pid} before the fork; its connections and its place in the group belong "
        "there. Make a new Consumer in this process"
    )

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        /,
        *,
        clock: Clock | None = None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None:
        self._setup = ConsumerSetup(config, keywords)
        self._clock = clock or RealClock()
        self._user: int | None = None
        self._client: BlockingClient | None = None
        self._core: ConsumerCore | None = None
        self._heartbeat_thread: HeartbeatThread | None = None
        self._watch: Watch | None = None
        self._wakeup_asked = False
        self._changed = False
        self._closed = False
        self._pid = os.getpid()
        self._progress: IterationProgress | None = None
        watch_forks(self)

    # --- reading ----------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> ConsumerRecords[K, V]:
        rows_max = self._setup.settings.max_poll_records if max_records is None else max_records
        intercept = self._setup.on_consume if self._setup.interceptors else None
        records = self._polled(timeout, lambda core: core.collector.collect(rows_max), EMPTY, intercept)
        # Now they count as handed out. No call stands between this and the caller, so nothing that could raise.
        self._fetcher.marks = None
        return records

    def poll_columns(self, timeout: float = 1.0, max_records: int | None = None) -> list[PartitionColumns]:
        pieces: list[PartitionColumns] = self._polled(timeout, self._columns(max_records), [])
        self._fetcher.marks = None
        return pieces

    def poll_arrow(self, timeout: float = 1.0, max_records: int | None = None, *, headers: bool = False) -> Any:
        need_arrow()
        made = to_arrow(self._polled(timeout, self._columns(max_records), []), headers=headers, setup=self._setup)
        self._fetcher.marks = None
        return made

    def _polled(
        self,
        timeout: float,
        collect: Callable[[ConsumerCore], T],
        nothing: T,
        intercept: Callable[[T], T] | None = None,
    ) -> T:
        """What a poll found; the caller says when it is handed out (see `Fetcher.marks`)."""
        # `exclusive`, but written out: this is done for every poll, also for those that hand out one record.
        me = get_ident()
        user = self._user
        if user is not None and user != me:
            raise self._refusal()
        self._user = me
        try:
            found = self._poll(self._enter_poll(user), timeout, collect, nothing)
            return intercept(found) if found and intercept is not None else found
        finally:
            self._user = user

    def _poll(self, core: ConsumerCore, timeout: float, collect: Callable[[ConsumerCore], T], nothing: T) -> T:
        # A poll that hands out what was fetched before moves no bytes. If the last one was such, and no other method
        # was called since (they all go through `_use`), there is nothing to move on, unless its time has come.
        is_quiet, self._is_quiet = self._is_quiet, False
        client = self._client
        assert client is not None
        deadline = deadline_of(timeout, self._clock.monotonic())
        core.polled()
        is_first = True
        while True:
            self._check_wakeup()
            if not (is_quiet and core.is_at_rest()):
                self._advance(core)
                if core.awaits_answers and not core.is_closed:
                    # Records that were fetched before must not keep the group waiting until they are used up.
                    client.poll_for_news(0.0)
                    self._advance(core)
                if core.is_closed:
                    return nothing
            is_quiet = False
            found = collect(core)
            if found:
                # The next fetch is on its way while the application works on these.
                self._is_quiet = not core.prefetch()
                return found
            left = deadline - self._clock.monotonic()
            if left <= 0 and not is_first:
                return nothing
            is_first = False
            self._wait(core, client, min(left, core.due_s()))
            core.is_alive()

    def _wait(self, core: ConsumerCore, client: BlockingClient, seconds: float) -> None:
        """Move bytes until something has changed: a large answer arrives in many pieces, and only its end is news."""
        self._changed = False
        if core.heartbeats is not None and core.heartbeats.has_news:
            # Their thread may have brought it, and said so, since the core last looked.
            return
        until = self._clock.monotonic() + max(0.0, seconds)
        client.poll_for_news(max(0.0, seconds))
        while not self._changed and not self._wakeup_asked:
            left = until - self._clock.monotonic()
            if left <= 0:
                return
            client.poll_for_news(left)

    def _notify(self) -> None:
        self._changed = True

    def _heartbeat_news(self) -> None:
        """From the heartbeat thread."""
        self._changed = True
        client = self._client
        if client is not None:
            client.wakeup()

    def _advance(self, core: ConsumerCore) -> None:
        while (pending := core.advance()) is not None:
            self._run_user_code(*pending)

    def _run_user_code(self, task: Task[Any], code: UserCode) -> None:
        was_in_listener, self._is_in_listener = self._is_in_listener, True
        try:
            # Called from here, and with nothing around it that is entered first: an interruption just before would
            # otherwise count as one of the user's code.
            result = code.function(*code.arguments)
            if inspect.isawaitable(result):
                result = asyncio.run(settle(result))
        except BaseException as error:  # noqa: BLE001 - the flow decides what becomes of it
            self._failed(task, code, error)
        else:
            task.resume(result)
        finally:
            self._is_in_listener = was_in_listener

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        """Records one by one, without end (until close). A record counts as read when it is handed out, so a commit in
        the loop never covers records that have not been seen."""
        while not self._closed:
            found = self._next_records()
            if found is None:
                continue
            progress, records, version = found
            core = self._core
            assert core is not None
            subscriptions = core.subscriptions
            for record in records:
                # Counted when the application comes in again (see `_settle`).
                progress.taken += 1
                yield record
                if self._progress is not progress or subscriptions.version != version:
                    # A poll, a seek or a rebalance in the loop's body: what is left of these is not ours any more.
                    break

    @exclusive
    def _next_records(self) -> tuple[IterationProgress, list[ConsumerRecord], int] | None:
        core = self._enter_poll(self._user)
        found = self._poll(core, ITERATION_POLL_S, lambda core: core.collector.next_for_iteration(), None)
        return None if found is None else self._begin_iteration(found)

    # --- flows ------------------------------------------------------------------------------------------------------

    commit_sync = method(_operations.commit_sync)
    committed = method(_operations.committed)
    position = method(_operations.position)
    offsets_for_times = method(_operations.offsets_for_times)
    beginning_offsets = method(_operations.beginning_offsets)
    end_offsets = method(_operations.end_offsets)
    partitions_for = method(_operations.partitions_for)
    list_topics = method(_operations.list_topics)
    unsubscribe = method(_operations.unsubscribe)

    @exclusive
    def _run_flow(self, operation: Callable[[ConsumerOperation], Flow[Any]], /) -> Any:
        limit = self._operation()
        return self._drive(operation(limit), limit)

    def _drive(self, flow: Flow[T], limit: ConsumerOperation) -> T:
        """Run a flow to its end, on this thread."""
        client = self._client
        assert client is not None
        return drive(flow, self._clock.monotonic, limit, client.poll, self._run_user_code)

    # --- waking, ending ---------------------------------------------------------------------------------------------

    def wakeup(self) -> None:
        self._wakeup_asked = True
        client = self._client
        if client is not None:
            client.wakeup()

    @exclusive
    def close(self, timeout: float = CLOSE_TIMEOUT_S, *, leave_group: bool | None = None) -> None:
        if self._pid != os.getpid():
            self._closed = True
            return
        # No call between this and the `try`: who is interrupted there could not close it any more.
        if not self._begin_closing():
            return
        core, client = self._core, self._client
        try:
            if core is not None:
                with self._last_flow(core, timeout, leave_group) as (flow, limit):
                    self._drive(flow, limit)
        finally:
            self._closed = True
            if self._watch is not None:
                self._watch.end()
            if self._heartbeat_thread is not None:
                self._heartbeat_thread.stop()
            if client is not None:
                client.close()
            self._setup.close()
            ignore_forks(self)

    def _leave_in_a_hurry(self, core: ConsumerCore) -> None:
        super()._leave_in_a_hurry(core)
        client = self._client
        assert client is not None
        client.poll(0)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.close()

    # --- the core ---------------------------------------------------------------------------------------------------

    def _connect(self) -> BlockingClient:
        return BlockingClient(self._setup.connection, clock=self._clock)

    def _begin_heartbeats(self) -> None:
        thread, core, client = self._heartbeat_thread, self._core, self._client
        if core is None or core.heartbeats is None or client is None:
            return
        if thread is None:
            news = weakly(self._heartbeat_news)
            thread = HeartbeatThread(core.heartbeats, self._setup.connection, self._clock, news, client)
            self._heartbeat_thread = thread
            self._watch = Watch(self, thread, f"the consumer {self._setup.connection.client_id}")
        thread.start()

    def _after_fork(self) -> None:
        """In a child: nothing that was in use is ours. What was not used yet is."""
        if self._client is None:
            self._pid = os.getpid()
            self._user = None
            return
        self._client.abandon()
        if self._heartbeat_thread is not None:
            self._heartbeat_thread.abandon()
        if self._watch is not None:
            self._watch.end()
        self._user = None
