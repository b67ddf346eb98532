"""A cluster in memory for the model of the exactly-once sink: logs, transactions and groups as Kafka has them.

It is as old as the sink allows: a leader does not ask the coordinator whether a transaction is open, takes any sequence
of a producer that it does not know, and learns of new epochs by batches and by the markers that end transactions.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from headrace.errors import ErrorCode
from headrace.protocol.messages.fetch import AbortedTransaction, PartitionData
from headrace.records import Batch, read_records
from headrace.records.build import ControlType, control_batch
from headrace.topics import TopicPartition

REMEMBERED = 5


@dataclass
class Producer:
    """What a partition knows of a producer."""

    epoch: int
    batches: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    open_from: int | None = None


@dataclass
class Log:
    """One partition."""

    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    end: int = 0
    producers: dict[int, Producer] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def stable(self) -> int:
        return min([one.open_from for one in self.producers.values() if one.open_from is not None], default=self.end)

    def append(self, records: bytearray) -> int:
        """The error code."""
        header = Batch(memoryview(records)).header()
        known = self.producers.get(header.producer_id)
        if known is not None and header.producer_epoch < known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        last = header.base_sequence + header.count - 1
        if known is None:
            known = self.producers[header.producer_id] = Producer(header.producer_epoch)
        elif header.producer_epoch > known.epoch:
            if header.base_sequence != 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            known.epoch = header.producer_epoch
            known.batches.clear()
        elif (header.base_sequence, last) in known.batches:
            return ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        elif header.base_sequence != (known.batches[-1][1] + 1 if known.batches else 0):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        known.batches.append((header.base_sequence, last))
        if known.open_from is None:
            known.open_from = self.end
        self._add(records, header.count)
        return ErrorCode.NONE

    def end_transaction(self, producer_id: int, epoch: int, *, commit: bool) -> None:
        known = self.producers.setdefault(producer_id, Producer(epoch))
        if epoch < known.epoch:
            return
        if epoch > known.epoch:
            known.epoch = epoch
            known.batches.clear()
        if known.open_from is not None and not commit:
            self.aborted.append((producer_id, known.open_from, self.end))
        known.open_from = None
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        made = control_batch(kind, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0, timestamp=1)
        self._add(made, 1)

    def _add(self, records: bytearray, count: int) -> None:
        struct.pack_into(">q", records, 0, self.end)
        self.batches.append((self.end, self.end + count, bytes(records)))
        self.end += count

    def fetched(self, offset: int, *, committed: bool, watermark: int) -> PartitionData:
        if offset > self.end:
            return PartitionData(partition_index=0, error_code=int(ErrorCode.OFFSET_OUT_OF_RANGE))
        limit = min(watermark, self.stable) if committed else watermark
        parts = [data for first, last, data in self.batches if last > offset and last <= limit]
        aborted = [
            AbortedTransaction(producer_id=producer, first_offset=first)
            for producer, first, last in self.aborted
            if last >= offset
        ]
        return PartitionData(
            partition_index=0,
            error_code=0,
            high_watermark=watermark,
            last_stable_offset=min(watermark, self.stable),
            aborted_transactions=aborted if committed else None,
            preferred_read_replica=-1,
            records=b"".join(parts),
        )

    def committed_values(self) -> Iterator[bytes]:
        """What a reader of committed records sees; an independent look at the log."""
        stable = self.stable
        for first, last, data in self.batches:
            header = Batch(data).header()
            if header.is_control or last > stable:
                continue
            if any(one == header.producer_id and begin <= first < end for one, begin, end in self.aborted):
                continue
            for record in read_records(Batch(data)):
                assert record.value is not None
                yield bytes(record.value)


@dataclass
class Transaction:
    """What the coordinator knows of a transactional id."""

    producer_id: int
    epoch: int = 0
    state: str = "Empty"
    partitions: set[TopicPartition] = field(default_factory=set)
    offsets: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)


class ModelBroker:
    """All of the cluster. `slow`: decides that the ends of a transaction reach its partitions only later."""

    def __init__(self, slow: Any) -> None:
        self.logs: dict[TopicPartition, Log] = {}
        self.transactions: dict[str, Transaction] = {}
        self.groups: dict[str, dict[TopicPartition, int]] = {}
        self._slow = slow

    def create(self, topic: str, partitions: int) -> None:
        for index in range(partitions):
            self.logs.setdefault(TopicPartition(topic, index), Log())

    def partitions(self, topic: str) -> int:
        return sum(one.topic == topic for one in self.logs)

    def settle(self) -> None:
        """Have every transaction that is decided be known to its partitions."""
        for name in self.transactions:
            self._complete(name)

    def expire(self, name: str) -> None:
        """A transaction took longer than its time-out."""
        one = self.transactions[name]
        if one.state == "Ongoing":
            one.epoch += 1
            one.state = "PrepareAbort"
            self._maybe_complete(name)

    def handle(self, request: Any, watermark_of: Any) -> Any:
        return getattr(self, f"_{type(request).__name__.removesuffix('Request')}")(request, watermark_of)

    # --- transactions -------------------------------------------------------------------------------------------------

    def _FindCoordinator(self, request: Any, _: Any) -> Any:
        return SimpleNamespace(coordinators=[], error_code=0, error_message=None, node_id=1, host="h", port=1)

    def _InitProducerId(self, request: Any, _: Any) -> Any:
        name = request.transactional_id
        one = self.transactions.get(name)
        if one is None:
            one = self.transactions[name] = Transaction(len(self.transactions) + 1, -1)
        if one.state == "Ongoing":
            one.epoch += 1
            one.state = "PrepareAbort"
            self._maybe_complete(name)
            return SimpleNamespace(error_code=int(ErrorCode.CONCURRENT_TRANSACTIONS))
        if one.state.startswith("Prepare"):
            self._maybe_complete(name)
            return SimpleNamespace(error_code=int(ErrorCode.CONCURRENT_TRANSACTIONS))
        one.epoch += 1
        one.state = "Empty"
        return SimpleNamespace(error_code=0, producer_id=one.producer_id, producer_epoch=one.epoch)

    def _checked(self, name: str, producer_id: int, epoch: int) -> tuple[Transaction | None, int]:
        one = self.transactions.get(name)
        if one is None or one.producer_id != producer_id:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return one, ErrorCode.NONE if one.epoch == epoch else ErrorCode.INVALID_PRODUCER_EPOCH

    def _opened(self, name: str, producer_id: int, epoch: int) -> tuple[Transaction | None, int]:
        one, code = self._checked(name, producer_id, epoch)
        if one is not None and not code and one.state.startswith("Prepare"):
            self._maybe_complete(name)
            return one, ErrorCode.CONCURRENT_TRANSACTIONS
        return one, code

    def _AddPartitionsToTxn(self, request: Any, _: Any) -> Any:
        name = request.v3_and_below_transactional_id
        one, code = self._opened(name, request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        if one is not None and not code:
            one.state = "Ongoing"
            one.partitions |= {
                TopicPartition(topic.name, index) for topic in request.v3_and_below_topics for index in topic.partitions
            }
        results = [
            SimpleNamespace(
                name=topic.name,
                results_by_partition=[
                    SimpleNamespace(partition_index=index, partition_error_code=int(code)) for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
        return SimpleNamespace(results_by_topic_v3_and_below=results)

    def _AddOffsetsToTxn(self, request: Any, _: Any) -> Any:
        one, code = self._opened(request.transactional_id, request.producer_id, request.producer_epoch)
        if one is not None and not code:
            one.state = "Ongoing"
        return SimpleNamespace(error_code=int(code))

    def _TxnOffsetCommit(self, request: Any, _: Any) -> Any:
        one, code = self._checked(request.transactional_id, request.producer_id, request.producer_epoch)
        if one is not None and not code:
            if one.state != "Ongoing":
                code = ErrorCode.INVALID_TXN_STATE
            else:
                one.offsets[request.group_id] = {
                    TopicPartition(topic.name, part.partition_index): part.committed_offset
                    for topic in request.topics
                    for part in topic.partitions
                }
        topics = [
            SimpleNamespace(
                name=topic.name,
                partitions=[
                    SimpleNamespace(partition_index=part.partition_index, error_code=int(code))
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return SimpleNamespace(topics=topics)

    def _EndTxn(self, request: Any, _: Any) -> Any:
        one, code = self._checked(request.transactional_id, request.producer_id, request.producer_epoch)
        if one is None or code:
            return SimpleNamespace(error_code=int(code))
        wanted = "Commit" if request.committed else "Abort"
        if one.state == "Ongoing":
            one.state = f"Prepare{wanted}"
            self._maybe_complete(request.transactional_id)
        elif one.state.startswith("Prepare"):
            self._maybe_complete(request.transactional_id)
            code = ErrorCode.CONCURRENT_TRANSACTIONS
        elif one.state != f"Complete{wanted}":
            code = ErrorCode.INVALID_TXN_STATE
        return SimpleNamespace(error_code=int(code))

    def _maybe_complete(self, name: str) -> None:
        if not self._slow():
            self._complete(name)

    def _complete(self, name: str) -> None:
        one = self.transactions[name]
        if not one.state.startswith("Prepare"):
            return
        commit = one.state == "PrepareCommit"
        for partition in sorted(one.partitions):
            self.logs[partition].end_transaction(one.producer_id, one.epoch, commit=commit)
        if commit:
            for group, offsets in one.offsets.items():
                self.groups.setdefault(group, {}).update(offsets)
        one.partitions, one.offsets = set(), {}
        one.state = "CompleteCommit" if commit else "CompleteAbort"

    # --- logs ---------------------------------------------------------------------------------------------------------

    def _Produce(self, request: Any, _: Any) -> Any:
        topic = request.topic_data[0]
        part = topic.partition_data[0]
        code = self.logs[TopicPartition(topic.name, part.index)].append(bytearray(part.records))
        answer = SimpleNamespace(error_code=int(code), error_message=None)
        return SimpleNamespace(responses=[SimpleNamespace(partition_responses=[answer])])

    def _Fetch(self, request: Any, watermark_of: Any) -> Any:
        topic = request.topics[0]
        wanted = topic.partitions[0]
        log = self.logs[TopicPartition(topic.topic, wanted.partition)]
        data = log.fetched(
            wanted.fetch_offset, committed=request.isolation_level == 1, watermark=watermark_of(log, wanted)
        )
        return SimpleNamespace(error_code=0, responses=[SimpleNamespace(partitions=[data])])

    def _OffsetForLeaderEpoch(self, request: Any, _: Any) -> Any:
        topic = request.topics[0]
        partition = topic.partitions[0].partition
        log = self.logs[TopicPartition(topic.topic, partition)]
        answer = SimpleNamespace(error_code=0, partition=partition, end_offset=log.end)
        return SimpleNamespace(topics=[SimpleNamespace(topic=topic.topic, partitions=[answer])])

    def _ListOffsets(self, request: Any, _: Any) -> Any:
        answer = SimpleNamespace(error_code=0, offset=0, timestamp=-1, leader_epoch=-1)
        return SimpleNamespace(topics=[SimpleNamespace(partitions=[answer])])
