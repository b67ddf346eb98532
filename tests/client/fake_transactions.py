"""The cluster in memory, with a transaction coordinator: what a broker must refuse, it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from headrace.protocol.messages.api_versions import ApiVersionsResponse, FinalizedFeatureKey
from headrace.protocol.messages.end_txn import EndTxnResponse
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdResponse
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from headrace.records import Batch
from headrace.records.read import read_records

from .fake import FakeCluster, VirtualClock

MORE_SERVED = {
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
}


@dataclass
class Transaction:
    """A transactional id."""

    producer_id: int
    epoch: int
    partitions: set[tuple[str, int]] = field(default_factory=set)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    pending: list[bytes | None] = field(default_factory=list)
    is_open: bool = False
    last_end: bool | None = None
    """Whether the last one was committed."""


class TransactionalCluster(FakeCluster):
    """`committed` are values in the order of their transactions, `offsets` what was committed with them."""

    def __init__(self, clock: VirtualClock, version: int, **rest: Any) -> None:
        super().__init__(clock, **rest)
        self.version = version
        self.served |= MORE_SERVED
        self.transactions: dict[str, Transaction] = {}
        self.committed: list[bytes | None] = []
        self.aborted: list[bytes | None] = []
        self.offsets: dict[tuple[str, int], int] = {}
        self.ends = 0

    def _work(self, node: int, name: str, request: Any, version: int) -> Any:
        if name == "ApiVersions":
            feature = FinalizedFeatureKey(
                name="transaction.version", max_version_level=self.version, min_version_level=self.version
            )
            return ApiVersionsResponse(api_keys=self._versions(), finalized_features=[feature])
        if name == "FindCoordinator":
            broker = self.brokers[-1]
            found = Coordinator(key=request.coordinator_keys[0], node_id=broker, host="fake", port=9000 + broker)
            return FindCoordinatorResponse(coordinators=[found])
        if name == "InitProducerId" and request.transactional_id is not None:
            return self._init(request)
        if name == "AddPartitionsToTxn":
            return self._add_partitions(request)
        if name == "AddOffsetsToTxn":
            transaction, code = self._known(request.transactional_id, request)
            if not code:
                transaction.is_open = True
            return AddOffsetsToTxnResponse(error_code=code)
        if name == "TxnOffsetCommit":
            return self._commit_offsets(request, version)
        if name == "EndTxn":
            return self._end(request, version)
        if name == "Produce" and request.transactional_id is not None:
            self._producing = (request.transactional_id, version)
        return super()._work(node, name, request, version)

    def _known(self, transactional_id: str, request: Any) -> tuple[Transaction, int]:
        transaction = self.transactions[transactional_id]
        if request.producer_id != transaction.producer_id:
            return transaction, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if request.producer_epoch != transaction.epoch:
            return transaction, ErrorCode.PRODUCER_FENCED
        return transaction, 0

    def _init(self, request: Any) -> InitProducerIdResponse:
        transaction = self.transactions.get(request.transactional_id)
        if transaction is None:
            self.next_producer_id += 1
            transaction = self.transactions[request.transactional_id] = Transaction(self.next_producer_id, -1)
        elif request.producer_id >= 0 and request.producer_epoch not in (transaction.epoch, transaction.epoch - 1):
            return InitProducerIdResponse(error_code=ErrorCode.PRODUCER_FENCED, producer_id=-1, producer_epoch=-1)
        if transaction.is_open:
            self._finish(transaction, is_commit=False)
        if request.producer_epoch < 0 or request.producer_epoch == transaction.epoch:
            transaction.epoch += 1
        transaction.last_end = None
        return InitProducerIdResponse(producer_id=transaction.producer_id, producer_epoch=transaction.epoch)

    def _add_partitions(self, request: Any) -> AddPartitionsToTxnResponse:
        transaction = self.transactions[request.v3_and_below_transactional_id]
        code = 0
        if request.v3_and_below_producer_epoch != transaction.epoch:
            code = ErrorCode.PRODUCER_FENCED
        results = []
        for topic in request.v3_and_below_topics:
            answers = []
            for index in topic.partitions:
                answers.append(AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code))
                if not code:
                    transaction.partitions.add((topic.name, index))
                    transaction.is_open = True
            results.append(AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=answers))
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)

    def _commit_offsets(self, request: Any, version: int) -> TxnOffsetCommitResponse:
        transaction, code = self._known(request.transactional_id, request)
        if not code and version >= 5:
            transaction.is_open = True
        if not code and not transaction.is_open:
            code = ErrorCode.INVALID_TXN_STATE
        topics = []
        for topic in request.topics:
            partitions = []
            for one in topic.partitions:
                partitions.append(
                    TxnOffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code)
                )
                if not code:
                    transaction.offsets[topic.name, one.partition_index] = one.committed_offset
            topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions))
        return TxnOffsetCommitResponse(topics=topics)

    def _append(self, node: int, name: str, data: Any) -> tuple[ErrorCode, int]:
        batch = Batch(bytes(data.records))
        if not batch.header().is_transactional:
            return super()._append(node, name, data)
        transactional_id, version = self._producing
        transaction = self.transactions[transactional_id]
        header = batch.header()
        if self.leaders[(name, data.index)][0] != node:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        if (header.producer_id, header.producer_epoch) != (transaction.producer_id, transaction.epoch):
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if version >= 12:
            transaction.partitions.add((name, data.index))
            transaction.is_open = True
        if (name, data.index) not in transaction.partitions:
            return ErrorCode.INVALID_TXN_STATE, -1
        before = len(self.logs[(name, data.index)].records)
        code, base = super()._append(node, name, data)
        if not code and base == before:
            transaction.pending += [record.value for record in read_records(batch)]
        return code, base

    def _end(self, request: Any, version: int) -> EndTxnResponse:
        transaction = self.transactions[request.transactional_id]
        is_retry = not transaction.is_open and transaction.last_end is request.committed
        if version >= 5:
            if is_retry and request.producer_epoch == transaction.epoch - 1:
                return EndTxnResponse(producer_id=transaction.producer_id, producer_epoch=transaction.epoch)
            if request.producer_epoch != transaction.epoch:
                return EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)
            if not transaction.is_open and request.committed:
                return EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE)
            self._finish(transaction, request.committed)
            transaction.epoch += 1
            return EndTxnResponse(producer_id=transaction.producer_id, producer_epoch=transaction.epoch)
        if request.producer_epoch != transaction.epoch:
            return EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)
        if not transaction.is_open:
            return EndTxnResponse(error_code=0 if is_retry else ErrorCode.INVALID_TXN_STATE)
        self._finish(transaction, request.committed)
        return EndTxnResponse()

    def _finish(self, transaction: Transaction, is_commit: bool) -> None:
        self.ends += 1
        if is_commit:
            self.committed += transaction.pending
            self.offsets |= transaction.offsets
        else:
            self.aborted += transaction.pending
        transaction.pending, transaction.offsets, transaction.partitions = [], {}, set()
        transaction.is_open, transaction.last_end = False, is_commit
