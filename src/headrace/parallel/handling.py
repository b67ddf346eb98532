"""Calling the user's handler: of what kind it is, with deserialised records, and which record its errors are about."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from headrace.client.consumer.records import ConsumerRecord
from headrace.client.serializers import Deserializer, make_deserializer
from headrace.config import ConfigError
from headrace.functions import check_has_run, is_async, is_generator, name_of
from headrace.parallel.errors import BatchFailedError, UnreadableRecordError
from headrace.parallel.work import Entry, Run, WorkChunk
from headrace.topics import TopicPartition

DESERIALIZERS = ("key.deserializer", "value.deserializer")
HANDLER = "the handler"


class Kind(Enum):
    """Where handlers run."""

    THREADS = "threads"
    ASYNC = "async"
    PROCESSES = "processes"


def kind_of(handler: Callable[..., Any], asked: Kind | str | None) -> Kind:
    """Where a handler runs: where it was asked to, or as it is written."""
    if is_generator(handler):
        raise ConfigError(
            {
                "handler": f"the handler {name_of(handler)} is a generator function (it has a `yield`): calling it "
                "would run nothing in it. Give a function that handles the record, or an `async def`"
            }
        )
    awaited = is_async(handler)
    if asked is None:
        return Kind.ASYNC if awaited else Kind.THREADS
    try:
        kind = Kind(asked)
    except ValueError:
        raise ConfigError({"on": f"on is threads, async or processes, not {asked!r}"}) from None
    if awaited and kind is not Kind.ASYNC:
        raise ConfigError({"on": f"the handler is async, so it cannot run on {kind.value}"})
    if not awaited and kind is Kind.ASYNC:
        raise ConfigError({"on": "on='async' needs an async def handler; this one is a plain function"})
    return kind


def is_at_work(task: asyncio.Task[Any]) -> bool:
    """Whether this is the task that runs now. It is not, where its coroutine is closed since its loop was."""
    try:
        return asyncio.current_task() is task
    except RuntimeError:
        return False


async def forget_cancelling(task: asyncio.Task[Any]) -> None:
    """The task was cancelled by what it did last: what it awaits next is not concerned."""
    while task.cancelling():
        task.uncancel()
    # If nothing was awaited since, the next wait is what ends.
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


@dataclass(slots=True)
class Handling:
    """A handler and how it is called. Can be sent to another process, where it makes its deserializers again."""

    handler: Callable[..., Any]
    is_batch: bool
    stops_at_failure: bool
    """Whether a run ends at its first failure: where order counts, what follows has to wait."""
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _key: Deserializer | None = None
    _value: Deserializer | None = None
    _is_ready: bool = False

    def prepare(self) -> Handling:
        """Make the deserializers."""
        if not self._is_ready:
            self._key = make_deserializer(self.config.get(DESERIALIZERS[0]), self.config, True)
            self._value = make_deserializer(self.config.get(DESERIALIZERS[1]), self.config, False)
            self._is_ready = True
        return self

    @property
    def is_plain(self) -> bool:
        """Whether records are handed over as they are: bytes."""
        return self._key is None and self._value is None

    def deserialised(self, record: ConsumerRecord) -> ConsumerRecord:
        """The record with what the deserializers make of it. `UnreadableRecordError` when they cannot."""
        part = "key"
        key, value = record.key, record.value
        try:
            if key is not None and self._key is not None:
                key = self._key.deserialize(record.topic, key)
            part = "value"
            if value is not None and self._value is not None:
                value = self._value.deserialize(record.topic, value)
        except BaseException as error:
            # Also SystemExit and the like: it is a record's failure, not the worker's end.
            raise UnreadableRecordError(
                TopicPartition(record.topic, record.partition), record.offset, part, error
            ) from error
        return record._replace(key=key, value=value)

    # --- plain functions --------------------------------------------------------------------------------------------

    def work(self, chunk: WorkChunk) -> None:
        """Do a chunk, on this thread. Ends early when the chunk was given up meanwhile."""
        do = self.do_batch if self.is_batch else self.do_records
        while (run := chunk.next_run()) is not None:
            do(chunk, run)
            if chunk.abandoned:
                return
            chunk.finished.append(run)

    def do_records(self, chunk: WorkChunk, run: Run) -> None:
        handler, is_plain = self.handler, self.is_plain
        for entry in run.entries:
            try:
                result = handler(entry.record if is_plain else self.deserialised(entry.record))
                if result is not None:
                    check_has_run(result, HANDLER)
            except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its record's failure
                if chunk.abandoned:
                    return
                run.failed(entry, error)
                run.done += 1
                if self.stops_at_failure:
                    return
            else:
                if chunk.abandoned:
                    return
                run.done += 1
            if run.cancelled:
                return

    def do_batch(self, chunk: WorkChunk, run: Run) -> None:
        entries, records = self.readable(run)
        error: BaseException | None = None
        if records:
            try:
                check_has_run(self.handler(records), HANDLER)
            except BaseException as raised:  # noqa: BLE001 - whatever a handler raises is its records' failure
                error = raised
        if not chunk.abandoned:
            self.batch_done(run, entries, records, error)

    # --- coroutines -------------------------------------------------------------------------------------------------

    async def work_async(self, chunk: WorkChunk) -> None:
        """Do a chunk, on the running loop."""
        task = asyncio.current_task()
        assert task is not None
        do = self._do_batch_async if self.is_batch else self._do_records_async
        while (run := chunk.next_run()) is not None:
            await do(chunk, run, task)
            if chunk.abandoned:
                return
            chunk.finished.append(run)

    async def _do_records_async(self, chunk: WorkChunk, run: Run, task: asyncio.Task[Any]) -> None:
        handler, is_plain = self.handler, self.is_plain
        for entry in run.entries:
            try:
                result = await handler(entry.record if is_plain else self.deserialised(entry.record))
                if result is not None:
                    check_has_run(result, HANDLER)
            except BaseException as error:
                # CancelledError too: something that the handler awaited was cancelled, or it cancelled itself.
                if isinstance(error, GeneratorExit) and not is_at_work(task):
                    # Not the handler's: the loop was closed under us, and nothing may be awaited any more.
                    raise
                if chunk.abandoned:
                    return
                run.failed(entry, error)
                run.done += 1
                if task.cancelling():
                    await forget_cancelling(task)
                if self.stops_at_failure:
                    return
            else:
                if chunk.abandoned:
                    return
                run.done += 1
                if task.cancelling():
                    await forget_cancelling(task)
            if run.cancelled:
                return

    async def _do_batch_async(self, chunk: WorkChunk, run: Run, task: asyncio.Task[Any]) -> None:
        entries, records = self.readable(run)
        error: BaseException | None = None
        if records:
            try:
                check_has_run(await self.handler(records), HANDLER)
            except BaseException as raised:
                if isinstance(raised, GeneratorExit) and not is_at_work(task):
                    raise
                error = raised
        if not chunk.abandoned:
            self.batch_done(run, entries, records, error)
            if task.cancelling():
                await forget_cancelling(task)

    # --- batches ----------------------------------------------------------------------------------------------------

    def readable(self, run: Run) -> tuple[list[Entry], list[ConsumerRecord]]:
        """The entries that can be deserialised, with their records; the others fail here."""
        if self.is_plain:
            return run.entries, [entry.record for entry in run.entries]
        entries: list[Entry] = []
        records: list[ConsumerRecord] = []
        for entry in run.entries:
            try:
                records.append(self.deserialised(entry.record))
            except UnreadableRecordError as error:
                run.failed(entry, error)
            else:
                entries.append(entry)
        return entries, records

    def batch_done(
        self, run: Run, entries: list[Entry], records: list[ConsumerRecord], error: BaseException | None
    ) -> None:
        """Write down how a call with many records went."""
        if isinstance(error, BatchFailedError):
            for index in sorted(error.indexes(records)):
                run.failed(entries[index], error)
        elif error is not None:
            for entry in entries:
                run.failed(entry, error)
        run.done = len(run.entries)
