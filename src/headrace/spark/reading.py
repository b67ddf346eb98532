"""What a task of the source does: fetch a range of offsets, decode it into columns, hand Arrow batches to Spark.

No thread, and no Python object per record. The next fetch is sent before the last one is decoded, so the broker works
meanwhile.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.client.cluster.drivers import BlockingClient
from headrace.client.consumer._chunks import Chunk
from headrace.client.consumer.config import CONSUMER_CONFIGS
from headrace.client.consumer.errors import RecordDeserializationError
from headrace.client.consumer.records import PartitionColumns, slice_columns
from headrace.errors import ErrorCode, HeadraceError, RequestTimedOutError, RetriableError, error_for
from headrace.net.connection import Call
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from headrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.protocol.schema import ZERO_UUID
from headrace.records import Batch, BatchHeader, split
from headrace.records.arrow import columns_to_arrow
from headrace.records.columns import Columns
from headrace.spark.connections import expect_rows, forget, shared_client
from headrace.spark.planning import DataLoss, Range

log = logging.getLogger("headrace.spark")

ROWS_MAX = 1 << 20
_FETCH_BYTES = 4 * 1024 * 1024
_FETCH_WAIT_MS = 500
_RETRY_S = 0.1
_NO_SESSION_EPOCH = -1
_CONSUMER = -1
_EARLIEST, _LATEST = -2, -1
_REPLICA_S = 300.0
"""So long a replica is read from before its leader is asked again, as `metadata.max.age.ms` is by default."""
_LOOKS_FIRST, _LOOK_WAIT_MS = 3, 50
_LEADER_S = 5.0
"""So long the leader is asked for itself after a replica failed."""
_VERSION_WITHOUT_TOPIC_IDS = 12


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What every task of a read is told."""

    kafka: Mapping[str, str]
    read_committed: bool
    include_headers: bool
    fail_on_data_loss: bool
    timeout_ms: int
    fetch: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        kafka: Mapping[str, str],
        *,
        read_committed: bool,
        include_headers: bool = False,
        fail_on_data_loss: bool = True,
        timeout_ms: int = 120_000,
    ) -> ReadPlan:
        names = ("max.partition.fetch.bytes", "fetch.max.bytes", "fetch.min.bytes", "fetch.max.wait.ms", "check.crcs")
        fetch = CONSUMER_CONFIGS.parse_given({name: kafka[name] for name in (*names, "client.rack") if name in kafka})
        return cls(dict(kafka), read_committed, include_headers, fail_on_data_loss, timeout_ms, fetch)


class RangeFetcher:
    """Reads one range, in order. Bounded by the range's end and by a time without progress."""

    def __init__(self, client: BlockingClient, plan: ReadPlan, wanted: Range) -> None:
        self._client = client
        self._plan = plan
        self._wanted = wanted
        self._clock = client.core.clock
        self._progress_at = self._clock.monotonic()
        self._position = wanted.start
        self._last_trouble: HeadraceError | None = None
        self._replica: int | None = None
        self._replica_until = 0.0
        self._leader_until = 0.0
        self._looks = 0

    def pieces(self) -> Iterator[PartitionColumns]:
        """Columns in order of offsets, each with at least one row, all inside the range."""
        end = self._wanted.end
        call: Call | None = None
        while self._position < end:
            if call is None:
                call = self._submit(self._position)
            chunk = self._answer(call)
            call = None
            if chunk is None:
                continue
            if chunk.next_offset < end:
                call = self._submit(chunk.next_offset)
            yield from self._decoded(chunk, end)
            self._position = chunk.next_offset
            self._progress_at = self._clock.monotonic()
        # Nothing is left in flight: the last chunk reached the end, so no further fetch was sent.

    def batches(self) -> Iterator[tuple[Batch, BatchHeader]]:
        """The range as batches, as they lie in the log: each that reaches into it, in order."""
        while self._position < self._wanted.end:
            data = self._data(self._submit(self._position))
            if data is None:
                continue
            assert data.records is not None
            before = self._position
            for batch in split(data.records):
                header = batch.header()
                if header.next_offset <= self._position:
                    continue
                if header.base_offset >= self._wanted.end:
                    return
                yield batch, header
                self._position = header.next_offset
            if self._position > before:
                self._progress_at = self._clock.monotonic()
            else:
                self._trouble(RequestTimedOutError(f"{self._wanted.partition} gave nothing at offset {before}"))

    def _decoded(self, chunk: Chunk, end: int) -> Iterator[PartitionColumns]:
        while True:
            try:
                piece = chunk.peek(ROWS_MAX)
            except RecordDeserializationError as error:
                if error.offset >= end:
                    # What is damaged lies behind the range, and is somebody else's to report.
                    return
                raise
            if piece is None:
                return
            count = len(piece)
            if piece.columns.offsets[count - 1] >= end:
                inside = bisect_left(piece.columns.offsets, end)
                if inside:
                    piece.columns = slice_columns(piece.columns, 0, inside)
                    yield piece
                return
            yield piece
            chunk.advance(count)

    # --- asking -------------------------------------------------------------------------------------------------------

    def _submit(self, offset: int) -> Call | None:
        """Ask the leader, or the replica that it named; None when there is none to ask (then `_answer` waits)."""
        core = self._client.core
        topic, partition = self._wanted.partition
        leader = core.view.leader_of(topic, partition)
        if leader is None:
            return None
        now = self._clock.monotonic()
        if self._replica is not None and (now >= self._replica_until or self._replica not in core.view.nodes):
            self._replica = None
        view = core.view.topics[topic]
        fetch = self._plan.fetch
        request = FetchRequest(
            max_wait_ms=fetch.get("fetch.max.wait.ms", _FETCH_WAIT_MS) if not self._looks else _LOOK_WAIT_MS,
            min_bytes=fetch.get("fetch.min.bytes", 1),
            max_bytes=fetch.get("fetch.max.bytes", 16 * _FETCH_BYTES),
            isolation_level=int(self._plan.read_committed),
            session_id=0,
            session_epoch=_NO_SESSION_EPOCH,
            topics=[
                FetchTopic(
                    topic=topic,
                    topic_id=view.topic_id,
                    partitions=[
                        FetchPartition(
                            partition=partition,
                            fetch_offset=offset,
                            partition_max_bytes=fetch.get("max.partition.fetch.bytes", _FETCH_BYTES),
                        )
                    ],
                )
            ],
            forgotten_topics_data=[],
            # Without a rack the leader answers itself.
            rack_id=fetch.get("client.rack", "") if now >= self._leader_until else "",
        )
        version_max = _VERSION_WITHOUT_TOPIC_IDS if view.topic_id == ZERO_UUID else None
        node = leader.id if self._replica is None else self._replica
        return self._client.submit(node, request, version_max=version_max)

    def _data(self, call: Call | None) -> PartitionData | None:
        """What a fetch brought, with at least one batch; None to ask again."""
        if call is None:
            self._wait_for_leader()
            return None
        self._client.wait(call, timeout_ms=2 * self._client.core.config.request_timeout_ms)
        if call.error is not None:
            self._trouble(call.error)
            return None
        if call.response.error_code:
            self._trouble(error_for(call.response.error_code))
            return None
        data: PartitionData = call.response.responses[0].partitions[0]
        if data.error_code:
            self._refused(data)
            return None
        if not data.records:
            if data.preferred_read_replica >= 0:
                self._follow(data.preferred_read_replica)
            else:
                self._nothing_came(data)
            return None
        return data

    def _follow(self, replica: int) -> None:
        """The leader leaves the answer to a replica that is nearer."""
        self._replica = replica
        self._replica_until = self._clock.monotonic() + _REPLICA_S
        if replica not in self._client.core.view.nodes:
            self._trouble(RequestTimedOutError(f"the broker {replica}, which is to be read from, is not known"))
        self._check_time(f"its leader leaves it to the replica {replica}")

    def _leave_replica(self) -> bool:
        """Whether a replica was asked, which is asked no more for a while: only the leader knows what there is."""
        if self._replica is None:
            return False
        self._replica = None
        self._leader_until = self._clock.monotonic() + _LEADER_S
        return True

    def _answer(self, call: Call | None) -> Chunk | None:
        """The records that a fetch brought; None to ask again."""
        data = self._data(call)
        if data is None:
            return None
        assert data.records is not None
        chunk = Chunk(
            self._wanted.partition,
            self._position,
            data.records,
            data.aborted_transactions,
            read_committed=self._plan.read_committed,
            check_crcs=self._plan.fetch.get("check.crcs", True),
        )
        if chunk.next_offset <= self._position:
            # A bad batch stands at the very position: looking at it raises what is wrong with it.
            try:
                chunk.peek(1)
            except RecordDeserializationError as error:
                if error.offset < self._wanted.end:
                    raise
                self._position = self._wanted.end
                return None
            self._trouble(RequestTimedOutError(f"{self._wanted.partition} gave nothing at offset {self._position}"))
            return None
        self._last_trouble = None
        self._looks = 0
        return chunk

    # --- trouble ------------------------------------------------------------------------------------------------------

    def _refused(self, data: PartitionData) -> None:
        if self._leave_replica():
            self._check_time(str(error_for(data.error_code)))
        elif data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range()
        else:
            self._trouble(error_for(data.error_code))

    def _out_of_range(self) -> None:
        partition = self._wanted.partition
        earliest = self._earliest()
        if earliest is None:
            return
        if self._position < earliest:
            lost = min(earliest, self._wanted.end)
            self._lost(f"offsets {self._position} to {lost - 1} of {partition} were deleted before they were read")
            self._position = lost
        else:
            self._at_end()

    def _at_end(self) -> None:
        """The leader gives nothing at the position: has the log lost it, or is it only not readable yet?

        A new leader's high watermark may lag behind the old one's, and a leader may not know of its successor. Its log
        alone says what there is.
        """
        self._looks += 1
        if self._looks <= _LOOKS_FIRST:
            # Mostly it is there a moment later.
            self._wait(f"nothing is readable at offset {self._position}")
            return
        end = self._log_end()
        if end is None:
            return
        if end > self._position:
            self._wait(f"the log has offset {self._position}, but not all replicas do: its leader is new")
            return
        self._lost(f"{self._wanted.partition} ends at offset {end}; the range goes to {self._wanted.end}")
        self._position = self._wanted.end

    def _log_end(self) -> int | None:
        """Where the leader's log ends, whatever is readable of it; None to ask again."""
        topic, partition = self._wanted.partition
        view = self._client.core.view
        leader = view.leader_of(topic, partition)
        if leader is None:
            self._wait_for_leader()
            return None
        epoch = view.topics[topic].partitions[partition].leader_epoch
        if epoch < 0:
            # Brokers before 2.1 do not say. Since 2.2 one whose watermark lags refuses to tell where it ends.
            return self._listed(_LATEST)
        asked = OffsetForLeaderPartition(partition=partition, current_leader_epoch=epoch, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(
            replica_id=_CONSUMER, topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])]
        )
        try:
            answer = self._client.request(leader.id, request).topics[0].partitions[0]
        except RetriableError as error:
            self._trouble(error)
            return None
        if answer.error_code:
            self._trouble(error_for(answer.error_code))
            return None
        end: int = answer.end_offset
        # A leader that has no books of epochs (records of an old format) does not know.
        return end if end >= 0 else self._listed(_LATEST)

    def _earliest(self) -> int | None:
        return self._listed(_EARLIEST)

    def _listed(self, which: int) -> int | None:
        topic, partition = self._wanted.partition
        leader = self._client.core.view.leader_of(topic, partition)
        if leader is None:
            self._wait_for_leader()
            return None
        asked = ListOffsetsPartition(partition_index=partition, timestamp=which)
        request = ListOffsetsRequest(
            replica_id=_CONSUMER, isolation_level=0, topics=[ListOffsetsTopic(name=topic, partitions=[asked])]
        )
        try:
            answer = self._client.request(leader.id, request).topics[0].partitions[0]
        except RetriableError as error:
            self._trouble(error)
            return None
        if answer.error_code:
            self._trouble(error_for(answer.error_code))
            return None
        offset: int = answer.offset
        return offset

    def _nothing_came(self, data: PartitionData) -> None:
        """At the end of the log, or of what is committed: either the range goes beyond, or a transaction is open."""
        if self._leave_replica():
            self._check_time("the replica that was asked has nothing there yet")
            return
        if self._position >= data.high_watermark:
            self._at_end()
            return
        self._check_time(
            f"offset {self._position} of {self._wanted.partition} is not readable yet: a transaction is open before "
            f"it (last stable offset {data.last_stable_offset}, high watermark {data.high_watermark})"
        )

    def _lost(self, what: str) -> None:
        if self._plan.fail_on_data_loss:
            raise DataLoss(
                f"{what}. Retention deleted it, or the topic was deleted and made anew. To go on with what is there, "
                "set failOnDataLoss to false"
            )
        log.warning("%s (failOnDataLoss=false: reading goes on)", what)

    def _trouble(self, error: HeadraceError) -> None:
        if not isinstance(error, RetriableError):
            raise error
        self._leave_replica()
        self._last_trouble = error
        self._wait(str(error))

    def _wait(self, why: str) -> None:
        self._client.core.refresh_metadata()
        self._client.poll_until(lambda: False, self._clock.monotonic() + _RETRY_S)
        self._check_time(why)

    def _wait_for_leader(self) -> None:
        core = self._client.core
        topic, partition = self._wanted.partition
        core.add_topic(topic)
        try:
            self._client.ensure_metadata(self._clock.monotonic() + core.config.request_timeout_ms / 1000)
        except RequestTimedOutError as error:
            self._last_trouble = error
        if core.view.leader_of(topic, partition) is not None:
            return
        self._client.poll_until(lambda: False, self._clock.monotonic() + _RETRY_S)
        self._check_time(f"{self._wanted.partition} has no leader, or does not exist")

    def _check_time(self, why: str) -> None:
        if (self._clock.monotonic() - self._progress_at) * 1000 >= self._plan.timeout_ms:
            raise RequestTimedOutError(
                f"nothing came for {self._plan.timeout_ms} ms (kafkaConsumer.pollTimeoutMs) while reading "
                f"{self._wanted.partition} at offset {self._position}: {why}"
            ) from self._last_trouble


def read_arrow(plan: ReadPlan, wanted: Range, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records of a range as Arrow batches with Spark's columns."""
    client = shared_client(plan.kafka, [wanted.partition.topic])
    expect_rows(len(wanted))
    finished = False
    try:
        for piece in RangeFetcher(client, plan, wanted).pieces():
            yield to_spark(piece, schema)
        finished = True
    finally:
        if not finished:
            # An answer may still be on its way: nobody is to take it for an answer to a later question.
            forget(client)


def to_spark(piece: PartitionColumns, schema: pa.Schema) -> pa.RecordBatch:
    """Spark's columns: key, value, topic, partition, offset, timestamp, timestampType and, if wanted, headers."""
    columns = piece.columns
    count = len(columns)
    offsets, _, keys, values = columns_to_arrow(columns).columns
    # Spark counts microseconds.
    stamps = np.asarray(columns.timestamps) * 1000
    arrays = {
        "key": keys,
        "value": values,
        "topic": _repeated(piece.topic, count),
        "partition": pa.array(np.full(count, piece.partition, np.int32)),
        "offset": offsets,
        "timestamp": pa.Array.from_buffers(schema.field("timestamp").type, count, [None, pa.py_buffer(stamps)]),
        "timestampType": pa.array(np.full(count, int(piece.timestamp_type), np.int32)),
    }
    if "headers" in schema.names:
        arrays["headers"] = _headers(columns, schema.field("headers").type)
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


def _repeated(text: str, count: int) -> pa.Array:
    """One text in every row, laid out at once."""
    data = text.encode()
    ends = np.arange(0, (count + 1) * len(data), len(data), dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(data * count)])


def _headers(columns: Columns, kind: pa.DataType) -> pa.Array:
    """Headers as Spark has them: null for a record without any. Only rows that have some cost Python objects."""
    lengths = [1] * len(columns) if columns.headers is None else columns.headers.lengths.tolist()
    rows = [
        [{"key": name, "value": value} for name, value in columns.headers_of(row)] if length > 1 else None
        for row, length in enumerate(lengths)
    ]
    return pa.array(rows, kind)
