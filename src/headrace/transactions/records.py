"""Records of `__transaction_state` in Kafka's own format, and what they say when they are read back."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.coordination import CoordinatorRecord
from headrace.protocol.stored.transaction_state import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
    encode_record,
)
from headrace.topics import TopicPartition
from headrace.transactions.state import TransactionSnapshot, TransactionState

# The first version of transactions (`transaction.version`) with which records may have tagged fields.
TAGGED_FIELDS_VERSION = 1


def snapshot_record(
    partition: int, transactional_id: str, snapshot: TransactionSnapshot, transaction_version: int
) -> CoordinatorRecord:
    value = TransactionLogValue(
        producer_id=snapshot.producer_id,
        producer_epoch=snapshot.producer_epoch,
        transaction_timeout_ms=snapshot.timeout_ms,
        transaction_status=snapshot.state.value,
        transaction_partitions=None
        if snapshot.state is TransactionState.EMPTY
        else [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in by_topic(snapshot.partitions).items()],
        transaction_last_update_timestamp_ms=snapshot.update_ms,
        transaction_start_timestamp_ms=snapshot.start_ms,
    )
    version = 1 if transaction_version >= TAGGED_FIELDS_VERSION else 0
    if version >= 1:
        value.previous_producer_id = snapshot.previous_producer_id
        value.next_producer_id = snapshot.next_producer_id
        value.client_transaction_version = snapshot.client_version
    key = TransactionLogKey(transactional_id=transactional_id)
    return CoordinatorRecord(partition, *encode_record(key, value, version))


def tombstone(partition: int, transactional_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(partition, *encode_record(TransactionLogKey(transactional_id=transactional_id), None, 0))


def snapshot_of(value: TransactionLogValue) -> TransactionSnapshot:
    """Raises ValueError for a status that is never recorded."""
    state = TransactionState(value.transaction_status)
    stored = [] if state is TransactionState.EMPTY else value.transaction_partitions or []
    return TransactionSnapshot(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        update_ms=value.transaction_last_update_timestamp_ms,
        state=state,
        partitions=frozenset(TopicPartition(topic.topic, index) for topic in stored for index in topic.partition_ids),
        start_ms=value.transaction_start_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
    )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Topic → partitions, in order: the same set always gives the same record."""
    found: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return found
