"""The requests of a transactional producer: how each is made, where it goes, and the error codes of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from headrace.client.cluster.coordinator import CoordinatorKind, found_coordinator
from headrace.client.cluster.coordinator import find_coordinator as coordinator_question
from headrace.client.offsets import OffsetAndMetadata
from headrace.errors import KafkaError
from headrace.net.node import Node
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.topics import TopicPartition

if TYPE_CHECKING:
    from headrace.client.consumer.records import ConsumerGroupMetadata

_ADD_PARTITIONS_MAX = 3
_END_MAX_1, _OFFSETS_MAX_1 = 4, 4


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer id and one epoch of it, as a value: what whoever fences is given, and other processes are told."""

    producer_id: int = -1
    epoch: int = -1


class HasProducerIdentity(Protocol):
    """Who a request is from: such a value, or what a producer keeps of itself, which changes."""

    @property
    def producer_id(self) -> int: ...

    @property
    def epoch(self) -> int: ...


class RequestKind(Enum):
    FIND_COORDINATOR = "FindCoordinator"
    INIT = "InitProducerId"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    ADD_OFFSETS = "AddOffsetsToTxn"
    COMMIT_OFFSETS = "TxnOffsetCommit"
    END = "EndTxn"


@dataclass(slots=True, eq=False)
class TransactionRequest:
    """One request. `node` None: any broker. `group_id`: it is about that group's coordinator, not the transaction's."""

    kind: RequestKind
    request: Any
    node: Node | None = None
    group_id: str | None = None
    version_max: int | None = None
    partitions: tuple[TopicPartition, ...] = ()
    added_group: str | None = None


def find_coordinator(key: str, *, is_group: bool) -> TransactionRequest:
    request = coordinator_question(CoordinatorKind.GROUP if is_group else CoordinatorKind.TRANSACTION, key)
    return TransactionRequest(RequestKind.FIND_COORDINATOR, request, group_id=key if is_group else None)


def init_producer(transactional_id: str, timeout_ms: int, identity: HasProducerIdentity) -> TransactionRequest:
    """A first id, or (with the current one) the next epoch of it."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
    )
    return TransactionRequest(RequestKind.INIT, request)


def add_partitions(
    transactional_id: str, identity: HasProducerIdentity, partitions: list[TopicPartition]
) -> TransactionRequest:
    by_topic: dict[str, list[int]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition.partition)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=t, partitions=p) for t, p in by_topic.items()],
    )
    return TransactionRequest(
        RequestKind.ADD_PARTITIONS, request, version_max=_ADD_PARTITIONS_MAX, partitions=tuple(partitions)
    )


def add_offsets(transactional_id: str, identity: HasProducerIdentity, group_id: str) -> TransactionRequest:
    request = AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        group_id=group_id,
    )
    return TransactionRequest(RequestKind.ADD_OFFSETS, request, added_group=group_id)


def commit_offsets(
    transactional_id: str,
    identity: HasProducerIdentity,
    group: ConsumerGroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    protocol: int,
) -> TransactionRequest:
    by_topic: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
    for partition, offset in offsets.items():
        by_topic.setdefault(partition.topic, []).append(
            TxnOffsetCommitRequestPartition(
                partition_index=partition.partition,
                committed_offset=offset.offset,
                committed_leader_epoch=-1 if offset.leader_epoch is None else offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    request = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[TxnOffsetCommitRequestTopic(name=t, partitions=p) for t, p in by_topic.items()],
    )
    version_max = _OFFSETS_MAX_1 if protocol == 1 else None
    return TransactionRequest(RequestKind.COMMIT_OFFSETS, request, group_id=group.group_id, version_max=version_max)


def end_transaction(
    transactional_id: str, identity: HasProducerIdentity, is_commit: bool, protocol: int
) -> TransactionRequest:
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        committed=is_commit,
    )
    return TransactionRequest(RequestKind.END, request, version_max=_END_MAX_1 if protocol == 1 else None)


def read_codes(step: TransactionRequest, response: Any) -> dict[TopicPartition | None, int]:
    """The errors of an answer, by partition (None: of the whole); empty when all is well."""
    if step.kind is RequestKind.FIND_COORDINATOR:
        found = found_coordinator(response)
        return {None: found.code} if isinstance(found, KafkaError) else {}
    if step.kind is RequestKind.ADD_PARTITIONS:
        return {
            TopicPartition(topic.name, result.partition_index): result.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for result in topic.results_by_partition
            if result.partition_error_code
        }
    if step.kind is RequestKind.COMMIT_OFFSETS:
        return {
            TopicPartition(topic.name, result.partition_index): result.error_code
            for topic in response.topics
            for result in topic.partitions
            if result.error_code
        }
    return {None: response.error_code} if response.error_code else {}
