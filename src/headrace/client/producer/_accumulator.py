"""From what `send` appended to batches per partition: everything per record that can be done per column is done here.

`pending` is the one list that callers append to, from any thread; everything else belongs to the sender's thread.
Draining takes the list apart into columns, chooses partitions, and cuts the columns into batches.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, cast

from headrace.client.cluster.view import ClusterView, TopicView
from headrace.client.producer._batch import Handles, ProducerBatch, cut, slice_columns, tell_batch
from headrace.client.producer._errors import unknown_partition, unknown_topic
from headrace.client.producer._flushes import FlushWait, leave
from headrace.client.producer._queues import (
    Held,
    PartitionQueue,
    by_topic,
    fatal_topic_error,
    size_of,
)
from headrace.client.producer._rows import RECORD_OVERHEAD_BYTES, ColumnRows, Rows, is_text, row_sizes
from headrace.client.producer._unpacked import Unpacked
from headrace.client.producer.config import ProducerSettings
from headrace.client.producer.delivery import (
    CALLBACK,
    HEADERS,
    KEY,
    OWNER,
    PLACE,
    TIMESTAMP,
    TOPIC,
    VALUE,
    BatchDelivery,
    Callbacks,
    Delivery,
)
from headrace.client.producer.partitioners import Partitioner, StickyState, ask_each
from headrace.errors import (
    HeadraceError,
    InvalidTopicError,
    KafkaError,
    MessageTooLargeError,
)
from headrace.records import kernels
from headrace.records.batch import HEADER_BYTES
from headrace.records.columns import Columns, bytes_column
from headrace.records.cpython import is_held_elsewhere
from headrace.records.murmur2 import partition_for_key

log = logging.getLogger("headrace.client.producer")

_COLUMN_HASH_FROM_ROWS = 32
_VALUE, _KEY, _PLACE = itemgetter(VALUE), itemgetter(KEY), itemgetter(PLACE)
_TIMESTAMP, _HEADERS, _CALLBACK = itemgetter(TIMESTAMP), itemgetter(HEADERS), itemgetter(CALLBACK)


class Accumulator:
    """See the module."""

    def __init__(
        self,
        settings: ProducerSettings,
        view: ClusterView,
        rng: random.Random,
        partitioner: Partitioner | None,
        sender: Any,
    ) -> None:
        self.settings = settings
        self.view = view
        self.rng = rng
        self.partitioner = partitioner
        self.sender = sender
        self.pending: list[Delivery | Rows | ColumnRows] = []
        self.taking: AbstractContextManager[Any] = nullcontext()
        """Held while records are taken out of `pending`: a lock where several threads may do so."""
        self.taken: list[Delivery | Rows | ColumnRows] = []
        """What a drain has taken out, and is at: a child that is forked off meanwhile looks for it here."""
        self.queues: dict[tuple[str, int], PartitionQueue] = {}
        self.active: dict[tuple[str, int], PartitionQueue] = {}
        """The queues that have batches waiting."""
        self.held: dict[str, list[Held]] = {}
        self.buffered_bytes = 0
        self.incomplete: set[ProducerBatch] = set()
        self.used_topics: dict[str, float] = {}
        """When records were last sent to each topic that `wants_topic` was told of and that is not forgotten since."""
        self.wants_topic: Callable[[str], None] = lambda _: None
        self.wants_metadata: Callable[[], None] = lambda: None
        self.trouble: Callable[[], HeadraceError | None] = lambda: None
        """What keeps the client from the cluster just now."""
        self.failed_records = 0
        self.on_failed_rows: Callable[[HeadraceError], None] = lambda _: None
        """Told of every error that kept records from getting into a batch."""
        self.refusal: HeadraceError | None = None
        """Why nothing more is taken, if so: what came too late for its transaction must not get into another."""
        self.interruption: BaseException | None = None
        """What a callback raised that was no error but an end; whoever drives this raises it when all is told."""
        self._filling: list[FlushWait] = []
        """Flushes that wait for the rows which are being put into batches."""
        self._trying: Held | None = None
        """What these rows are, if they were held before."""
        self._transactional = settings.transactional_id is not None
        self._sticky: dict[str, StickyState] = {}

    def drain(self, now: float, now_ms: int, created: float, rows_max: int | None = None) -> None:
        """Move everything pending (or the first of it) into batches. `created` is when their linger began."""
        count = len(self.pending) if rows_max is None else min(len(self.pending), rows_max)
        if not count:
            return
        # Appends by other threads only touch the end; only `compact` has to stay away.
        with self.taking:
            count = min(count, len(self.pending))
            self.taken = taken = self.pending[:count]
            del self.pending[:count]
        try:
            self._take_all(taken, now, now_ms, created)
        finally:
            self.taken = []

    def _take_all(self, taken: list[Delivery | Rows | ColumnRows], now: float, now_ms: int, created: float) -> None:
        kinds = set(map(type, taken))
        if kinds == {Delivery}:
            self._take_deliveries(cast("list[Delivery]", taken), now, now_ms, created)
            return
        for kind, group in groupby(taken, type):
            if kind is Delivery:
                self._take_deliveries(cast("list[Delivery]", list(group)), now, now_ms, created)
                continue
            for rows in group:
                self._take(cast("Rows | ColumnRows", rows), now, now_ms, created)

    def compact(self) -> int:
        """Make columns of the deliveries that are pending and that nobody else holds; how many those were.

        Only for who holds `taking`. It has to be done once anyway; done early, before the garbage collector has found
        the deliveries old, it does not get to walk over everything that lives (as it does whenever enough has aged).
        """
        kinds = list(map(type, self.pending))
        start, end = kinds.count(Rows), len(kinds)
        if start == end or kinds.count(Delivery) != end - start or kinds[start] is not Delivery:
            return 0
        taken = cast("list[Delivery]", self.pending[start:end])
        # `pending` and `taken` hold them.
        if is_held_elsewhere(taken, 2):
            return 0
        made = [self._columns_of(group, is_held=False) for group in by_topic(taken)]
        before = self.pending[start - 1] if start else None
        if not isinstance(before, Rows):
            # At once: other threads may append meanwhile, behind it.
            self.pending[start:end] = made
            return len(taken)
        rows = len(before)
        try:
            self.pending[start:end] = made[1:] if before.extend(made[0]) else made
        except BaseException:
            # Ctrl-C in between: the records are still there as they were given, and must not be there twice.
            if len(self.pending) > start and self.pending[start] is taken[0]:
                before.truncate(rows)
            raise
        return len(taken)

    def _take_deliveries(self, taken: list[Delivery], now: float, now_ms: int, created: float) -> None:
        for group in by_topic(taken):
            # Handles that nobody kept die here, young: alive, they are what the garbage collector walks over.
            is_held = is_held_elsewhere(group, 1 if group is taken else 2)
            self._take(self._columns_of(group, is_held=is_held), now, now_ms, created)

    def _columns_of(self, taken: list[Delivery], *, is_held: bool) -> Rows:
        # A column at a time: zip(*taken) would make an iterator per record, and wake the garbage collector for them.
        handles: Handles = taken if is_held else Callbacks(list(map(_CALLBACK, taken)))
        nothing: list[None] = [None] * len(taken)
        keys = list(map(_KEY, taken)) if getattr(self.sender, "may_have_keys", True) else nothing.copy()
        rows = Rows(handles, taken[0][TOPIC], list(map(_VALUE, taken)), keys, None, nothing, None)
        if getattr(self.sender, "may_have_extras", True):
            headers, places = list(map(_HEADERS, taken)), list(map(_PLACE, taken))
            rows.partitions = None if places.count(None) == len(places) else places
            rows.timestamps = list(map(_TIMESTAMP, taken))
            rows.headers = None if headers.count(None) == len(headers) else headers
        return rows

    def _take(self, rows: Rows | ColumnRows, now: float, now_ms: int, created: float) -> None:
        topic = rows.topic
        if self.refusal is not None:
            self.refuse_rows(rows, self.refusal)
            return
        view = self.view.topics.get(topic)
        if view is None and not is_text(topic):
            self.fail_rows(rows, InvalidTopicError(f"the name of topic {topic!r} cannot be written as UTF-8"))
            return
        self.use(topic, now)
        if view is None or not view.partitions:
            self._hold(rows, None, now)
            return
        if topic in self.held:
            # Whatever is held goes first, so that order is kept.
            self._release(topic, now, now_ms)
        self._distribute(rows, view, now, now_ms, created)

    def use(self, topic: str, now: float) -> None:
        """A topic is used: its metadata is kept from now on, until it was not for `metadata.max.idle.ms`."""
        if topic not in self.used_topics:
            # Also where it is in the view: forgotten since it was last used, it is not kept up to date there any more.
            self.wants_topic(topic)
        self.used_topics[topic] = now

    def _hold(self, rows: Rows | ColumnRows, partition: int | None, now: float) -> None:
        """Until metadata come that have the topic, or the partition; rows that were held before, no longer for that."""
        before = self._trying
        deadline = now + self.settings.max_block_ms / 1000 if before is None else before.deadline
        held = Held(rows, partition, deadline, self.view.version, size_of(rows))
        self.buffered_bytes += held.size
        for wait in self._filling:
            wait.join(held.flushes)
        self.held.setdefault(rows.topic, []).append(held)
        if partition is not None:
            self.wants_metadata()

    def release(self, now: float, now_ms: int) -> float:
        """Try again what is held, now that there may be new metadata; when the next of it times out."""
        return min([self._release(topic, now, now_ms) for topic in list(self.held)], default=float("inf"))

    def _release(self, topic: str, now: float, now_ms: int) -> float:
        view = self.view.topics.get(topic)
        if view is not None and view.partitions:
            waiting = self.held.pop(topic)
            for entry in waiting:
                if entry.view_version < self.view.version:
                    self._try_again(entry, view, now, now_ms)
                else:
                    self.held.setdefault(topic, []).append(entry)
        fatal = None if view is None else fatal_topic_error(view)
        due = float("inf")
        for entry in list(self.held.get(topic, ())):
            if fatal is None and entry.deadline > now:
                due = min(due, entry.deadline)
                continue
            self.held[topic].remove(entry)
            self.fail_held(entry, fatal or self._not_known(entry, topic, view))
        if not self.held.get(topic, True):
            del self.held[topic]
        return due

    def _try_again(self, entry: Held, view: TopicView, now: float, now_ms: int) -> None:
        self.buffered_bytes -= entry.size
        self._trying, self._filling = entry, entry.flushes
        self._distribute(entry.rows, view, now, now_ms, now)
        self._trying, self._filling = None, []
        leave(entry.flushes)

    def _not_known(self, entry: Held, topic: str, view: TopicView | None) -> HeadraceError:
        waited_ms = self.settings.max_block_ms
        if entry.partition is None or view is None or not view.partitions:
            return unknown_topic(topic, view, waited_ms, self.trouble())
        return unknown_partition(topic, entry.partition, len(view.partitions), waited_ms)

    # --- partitions ---------------------------------------------------------------------------------------------------

    def _distribute(self, rows: Rows | ColumnRows, view: TopicView, now: float, now_ms: int, created: float) -> None:
        try:
            self._place(rows, view, now, now_ms, created)
        except BaseException as error:
            # Whatever it is, these rows are the only ones to fail of it; those that are in a batch go on with that.
            log.exception("records for %s could not be put into batches", rows.topic)
            if not isinstance(error, Exception):
                self.interruption = error
            if isinstance(rows, Rows) and isinstance(rows.handles, list):
                rows = rows.take([row for row, delivery in enumerate(rows.handles) if delivery[OWNER] is self.sender])
            if len(rows):
                self.fail_rows(rows, KafkaError(f"a record for {rows.topic} could not be put into a batch: {error!r}"))

    def _place(self, rows: Rows | ColumnRows, view: TopicView, now: float, now_ms: int, created: float) -> None:
        if isinstance(rows, ColumnRows):
            self._distribute_columns(rows, view, now, created)
            return
        keyless = self.settings.ignore_keys or rows.keys.count(None) == len(rows)
        if self.partitioner is None and rows.partitions is None and keyless:
            self._append_sticky(rows, view, now_ms, created)
            return
        by_partition: dict[int, list[int]] = {}
        if self.partitioner is None:
            chosen = list(self._choose(rows, view))
        else:
            chosen, failures = ask_each(self.partitioner, rows.topic, rows.keys, rows.values, rows.partitions, view)
            for row, error in failures.items():
                what = f"the partitioner failed on a record for {rows.topic}: {error!r}"
                self.fail_rows(rows.take([row]), KafkaError(what))
            if failures:
                rows = rows.take([row for row in range(len(rows)) if row not in failures])
        if None in chosen:
            self._stick(chosen, rows, view)
        for row, partition in enumerate(cast("list[int]", chosen)):
            by_partition.setdefault(partition, []).append(row)
        for partition, picked in by_partition.items():
            chunk = rows if len(picked) == len(rows) else rows.take(picked)
            if 0 <= partition < len(view.partitions):
                self._append(self.queue(rows.topic, partition), chunk, now_ms, created)
            elif partition < 0:
                self.fail_rows(chunk, unknown_partition(rows.topic, partition, len(view.partitions)))
            else:
                # It may have been added since the metadata came.
                self._hold(chunk, partition, now)

    def _stick(self, chosen: list[int | None], rows: Rows, view: TopicView) -> None:
        """Fill in where keyless rows among keyed ones go, row by row: those of one partition keep their order."""
        state = self._sticky.setdefault(rows.topic, StickyState())
        limit, adaptive = max(1, self.settings.batch_size), self.settings.adaptive
        lengths = self._queue_length(rows.topic)
        sizes = row_sizes(rows)
        for row, partition in enumerate(chosen):
            if partition is None:
                chosen[row] = state.current(view, lengths, self.rng, adaptive)
                state.took(sizes[row], limit, view, lengths, self.rng, adaptive)

    def _choose(self, rows: Rows, view: TopicView) -> Iterable[int | None]:
        """The partition of each row, without a partitioner of the user's; None for those that stick."""
        count, given = len(view.partitions), rows.partitions
        if self.settings.ignore_keys:
            assert given is not None
            return given
        hashed = self._hash(rows.keys, count)
        return hashed if given is None else [h if place is None else place for h, place in zip(hashed, given)]

    @staticmethod
    def _hash(keys: Sequence[bytes | None], count: int) -> list[int | None]:
        if len(keys) >= _COLUMN_HASH_FROM_ROWS:
            hashes = kernels.choose(len(keys)).murmur2_column(bytes_column(keys)).tolist()
            if None not in keys:
                return [(h & 0x7FFFFFFF) % count for h in hashes]
            return [None if key is None else (h & 0x7FFFFFFF) % count for h, key in zip(hashes, keys)]
        return [None if key is None else partition_for_key(key, count) for key in keys]

    def queue(self, topic: str, partition: int) -> PartitionQueue:
        found = self.queues.get((topic, partition))
        if found is None:
            found = self.queues[(topic, partition)] = PartitionQueue(topic, partition)
        return found

    def _queue_length(self, topic: str) -> Callable[[int], int]:
        def length(partition: int) -> int:
            found = self.queues.get((topic, partition))
            return 0 if found is None else len(found.batches)

        return length

    # --- rows into batches --------------------------------------------------------------------------------------------

    def _append_sticky(self, rows: Rows, view: TopicView, now_ms: int, created: float) -> None:
        limit = max(1, self.settings.batch_size)
        state = self._sticky.setdefault(rows.topic, StickyState())
        lengths, adaptive = self._queue_length(rows.topic), self.settings.adaptive
        ends = self._measured(rows)
        if ends is None:
            return
        start = 0
        while start < len(rows):
            partition = state.current(view, lengths, self.rng, adaptive)
            before = ends[start - 1] if start else 0
            # One row at least, and the row that crosses the limit is still sticky to this partition.
            end = min(cut(ends, start, limit - state.produced_bytes) + 1, len(rows))
            self._fill(self.queue(rows.topic, partition), rows, start, end, ends, now_ms, created)
            state.took(ends[end - 1] - before, limit, view, lengths, self.rng, adaptive)
            start = end

    def sticky_partition(self, view: TopicView) -> int:
        """Where the next record without a key goes; `sticky_took`: it went there, and has so many bytes."""
        state = self._sticky.setdefault(view.name, StickyState())
        return state.current(view, self._queue_length(view.name), self.rng, self.settings.adaptive)

    def sticky_took(self, view: TopicView, size: int) -> None:
        limit = max(1, self.settings.batch_size)
        lengths = self._queue_length(view.name)
        self._sticky[view.name].took(size, limit, view, lengths, self.rng, self.settings.adaptive)

    def take_first(self, delivery: Delivery) -> bool:
        """Take this record out of `pending`, if it is the first one there."""
        with self.taking:
            if not self.pending or self.pending[0] is not delivery:
                return False
            del self.pending[0]
            return True

    def began(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """A batch that was never in a queue is in flight."""
        queue.in_flight.append(batch)
        batch.in_flight = True
        self.incomplete.add(batch)
        self.buffered_bytes += batch.size

    def _append(self, queue: PartitionQueue, rows: Rows, now_ms: int, created: float) -> None:
        ends = self._measured(rows)
        if ends is not None:
            self._fill(queue, rows, 0, len(rows), ends, now_ms, created)

    def _measured(self, rows: Rows) -> Sequence[int] | None:
        """Where each row ends, in bytes. Rows too large for any request are failed here, and taken out."""
        limit = self.settings.max_request_size - HEADER_BYTES
        if rows.headers is None:
            keys = None if rows.keys.count(None) == len(rows) else rows.keys
            ends, largest = kernels.choose(len(rows)).running_sizes(keys, rows.values, RECORD_OVERHEAD_BYTES)
            if largest <= limit:
                return ends
        sizes = row_sizes(rows)
        if max(sizes) > limit:
            good = [i for i, size in enumerate(sizes) if size <= limit]
            bad = [i for i, size in enumerate(sizes) if size > limit]
            largest = max(sizes)
            self.fail_rows(
                rows.take(bad),
                MessageTooLargeError(
                    f"a record of about {largest} bytes for {rows.topic} is larger than max.request.size="
                    f"{self.settings.max_request_size}; raise it (and max.message.bytes of the topic) or send less"
                ),
            )
            if not good:
                return None
            kept = rows.take(good)
            rows.handles, rows.values, rows.keys = kept.handles, kept.values, kept.keys
            rows.partitions, rows.timestamps, rows.headers = kept.partitions, kept.timestamps, kept.headers
            sizes = [sizes[i] for i in good]
        return list(accumulate(sizes))

    def _fill(
        self, queue: PartitionQueue, rows: Rows, start: int, end: int, ends: Sequence[int], now_ms: int, created: float
    ) -> None:
        """Rows start..end into the queue's open batch, and new ones after it."""
        limit = self.settings.batch_size
        while start < end:
            batch = queue.batches[-1] if queue.batches else None
            if batch is None or batch.is_closed or batch.columns is not None:
                batch = self._open(queue, created)
            stop = min(cut(ends, start, limit - batch.size), end)
            if stop == start:
                if batch.count:
                    self.close_batch(batch)
                    continue
                stop = start + 1
            size = ends[stop - 1] - (ends[start - 1] if start else 0)
            stamps = rows.timestamps[start:stop]
            nones = stamps.count(None)
            if nones == len(stamps):
                stamps = [now_ms] * nones
            elif nones:
                stamps = [now_ms if stamp is None else stamp for stamp in stamps]
            handles = rows.handles if isinstance(rows.handles, BatchDelivery) else rows.handles[start:stop]
            headers = None if rows.headers is None else rows.headers[start:stop]
            batch.append_rows(
                handles, rows.keys[start:stop], rows.values[start:stop], cast("Sequence[int]", stamps), headers, size
            )
            self.buffered_bytes += size
            for wait in self._filling:
                wait.join(batch.flushes)
            if stop < end or batch.size >= limit:
                self.close_batch(batch)
            start = stop

    def _open(self, queue: PartitionQueue, created: float) -> ProducerBatch:
        batch = ProducerBatch(self.sender, queue.topic, queue.partition, created, transactional=self._transactional)
        queue.batches.append(batch)
        self.active[(queue.topic, queue.partition)] = queue
        self.incomplete.add(batch)
        self.buffered_bytes += batch.size
        return batch

    def close_batch(self, batch: ProducerBatch) -> None:
        """Nothing more goes into it; a sticky partitioner may move on."""
        if batch.is_closed:
            return
        batch.is_closed = True
        on_new_batch = getattr(self.partitioner, "on_new_batch", None)
        if on_new_batch is not None:
            try:
                on_new_batch(batch.topic, batch.partition)
            except Exception:
                log.exception("the partitioner's on_new_batch raised for %s-%d", batch.topic, batch.partition)

    # --- columns into batches -----------------------------------------------------------------------------------------

    def _distribute_columns(self, rows: ColumnRows, view: TopicView, now: float, created: float) -> None:
        limit = max(1, self.settings.batch_size)
        state = self._sticky.setdefault(rows.topic, StickyState())
        lengths, adaptive = self._queue_length(rows.topic), self.settings.adaptive
        for fixed, columns, ends in rows.plan(len(view.partitions)):
            if fixed is not None and fixed >= len(view.partitions):
                self._hold(rows.planned(fixed, columns, ends), fixed, now)
                continue
            start = 0
            while start < len(columns):
                partition = state.current(view, lengths, self.rng, adaptive) if fixed is None else fixed
                stop = max(cut(ends, start, limit - HEADER_BYTES), start + 1)
                size = int(ends[stop - 1] - (ends[start - 1] if start else 0))
                if size > self.settings.max_request_size - HEADER_BYTES:
                    error = MessageTooLargeError(
                        f"row {start} of the columns for {rows.topic} has about {size} bytes, and max.request.size is "
                        f"{self.settings.max_request_size}"
                    )
                    self._fail_columns(rows, stop - start, error)
                else:
                    self._add_columns(rows, partition, slice_columns(columns, start, stop), size, created)
                if fixed is None:
                    state.took(max(size, limit), limit, view, lengths, self.rng, adaptive)
                start = stop

    def _fail_columns(self, rows: ColumnRows, count: int, error: HeadraceError) -> None:
        self.failed_records += count
        self.on_failed_rows(error)
        self.interruption = tell_batch(rows.delivery, count, None, error) or self.interruption

    def _add_columns(
        self, rows: ColumnRows, partition: int, columns: Columns | Unpacked, size: int, created: float
    ) -> None:
        queue = self.queue(rows.topic, partition)
        if queue.batches:
            self.close_batch(queue.batches[-1])
        batch = self._open(queue, created)
        batch.take_columns(columns, rows.delivery, size)
        batch.is_closed = True
        self.buffered_bytes += size
        for wait in self._filling:
            wait.join(batch.flushes)

    # --- the end of batches and rows ----------------------------------------------------------------------------------

    def done(self, batch: ProducerBatch) -> None:
        """A batch is finished, whichever way: its memory is free."""
        self.buffered_bytes -= batch.size
        self.incomplete.discard(batch)

    def fail_rows(self, rows: Rows | ColumnRows, error: HeadraceError) -> None:
        """Rows that never got into a batch."""
        self.on_failed_rows(error)
        self.refuse_rows(rows, error)

    def fail_held(self, entry: Held, error: HeadraceError) -> None:
        """Rows whose topic did not become known."""
        self.buffered_bytes -= entry.size
        leave(entry.flushes)
        self.fail_rows(entry.rows, error)

    def refuse_rows(self, rows: Rows | ColumnRows, error: HeadraceError) -> None:
        """Rows that were not taken at all: nothing but they is the worse for it."""
        self.failed_records += len(rows)
        if isinstance(rows, Rows) and not isinstance(rows.handles, BatchDelivery):
            failed = ProducerBatch(self.sender, rows.topic, -1, 0.0)
            stamps = [-1 if stamp is None else stamp for stamp in rows.timestamps]
            failed.append_rows(rows.handles, rows.keys, rows.values, stamps, None, 0)
            ended = failed.finish(-1, -1, error)
        else:
            delivery = rows.delivery if isinstance(rows, ColumnRows) else cast(BatchDelivery, rows.handles)
            ended = tell_batch(delivery, len(rows), None, error)
        self.interruption = ended or self.interruption

    def requeue(self, batches: Iterable[ProducerBatch]) -> None:
        """Put batches that are to be sent again back, before everything that was not sent yet, in their order."""
        for batch in batches:
            queue = self.queue(batch.topic, batch.partition)
            position = 0
            for position, other in enumerate(queue.batches):  # noqa: B007 - the position is what is looked for
                if other.place > batch.place:
                    break
            else:
                position = len(queue.batches)
            queue.batches.insert(position, batch)
            self.active[(queue.topic, queue.partition)] = queue

    def waiting(self) -> Iterator[ProducerBatch]:
        for queue in self.active.values():
            yield from queue.batches

    def forget_idle_topics(self, now: float) -> list[str]:
        """Topics that nothing was sent to for `metadata.max.idle.ms`, with nothing under way."""
        busy = {topic for topic, _ in self.active} | self.held.keys()
        busy |= {queue.topic for queue in self.queues.values() if queue.in_flight}
        limit = self.settings.metadata_idle_s
        idle = [topic for topic, used in self.used_topics.items() if used + limit <= now and topic not in busy]
        for topic in idle:
            del self.used_topics[topic]
            self._sticky.pop(topic, None)
        return idle

    def unused_queues(self) -> dict[tuple[str, int], PartitionQueue]:
        """The queues of partitions that nothing is under way to, of topics that are not used any more."""
        return {key: queue for key, queue in self.queues.items() if key[0] not in self.used_topics and queue.is_empty}
