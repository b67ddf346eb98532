"""Headrace: Kafka in Python, with its data pipeline on Spark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace._version import __version__

if TYPE_CHECKING:
    from headrace.client.admin import Admin, NewTopic
    from headrace.client.consumer._subscription import RebalanceListener
    from headrace.client.consumer.blocking import Consumer
    from headrace.client.consumer.errors import (
        CommitFailedError,
        ConcurrentAccessError,
        ConsumerForkedError,
        IllegalStateError,
        LogTruncationError,
        NoOffsetForPartitionError,
        OffsetsOutOfRangeError,
        RecordDeserializationError,
        WakeupError,
    )
    from headrace.client.consumer.records import ConsumerRecord, ConsumerRecords, OffsetAndTimestamp
    from headrace.client.errors import (
        AbortableTransactionError,
        BufferExhausted,
        ClientClosed,
        DeliveryTimeout,
        FatalTransactionError,
        ProducerFenced,
        SerializationError,
        TransactionError,
        TransactionStateError,
        TransactionTimeout,
    )
    from headrace.client.offsets import OffsetAndMetadata, OffsetSpec
    from headrace.client.producer.blocking import Producer
    from headrace.client.producer.delivery import Delivery, RecordMetadata
    from headrace.client.ranges import RangeReader
    from headrace.client.transactions.exactly_once import exactly_once
    from headrace.config import ConfigError
    from headrace.errors import ErrorCode, HeadraceError, KafkaError, RetriableError
    from headrace.topics import TopicPartition

    Record = ConsumerRecord

# Loaded when first used, so that `import headrace` costs next to nothing.
_LAZY = {
    "AbortableTransactionError": "headrace.client.errors",
    "Admin": "headrace.client.admin",
    "BufferExhausted": "headrace.client.errors",
    "ClientClosed": "headrace.client.errors",
    "CommitFailedError": "headrace.client.consumer.errors",
    "ConcurrentAccessError": "headrace.client.consumer.errors",
    "ConfigError": "headrace.config",
    "Consumer": "headrace.client.consumer.blocking",
    "ConsumerForkedError": "headrace.client.consumer.errors",
    "ConsumerRecord": "headrace.client.consumer.records",
    "ConsumerRecords": "headrace.client.consumer.records",
    "Delivery": "headrace.client.producer.delivery",
    "DeliveryTimeout": "headrace.client.errors",
    "ErrorCode": "headrace.errors",
    "FatalTransactionError": "headrace.client.errors",
    "HeadraceError": "headrace.errors",
    "IllegalStateError": "headrace.client.consumer.errors",
    "KafkaError": "headrace.errors",
    "LogTruncationError": "headrace.client.consumer.errors",
    "NewTopic": "headrace.client.admin",
    "NoOffsetForPartitionError": "headrace.client.consumer.errors",
    "OffsetAndMetadata": "headrace.client.offsets",
    "OffsetAndTimestamp": "headrace.client.consumer.records",
    "OffsetSpec": "headrace.client.offsets",
    "OffsetsOutOfRangeError": "headrace.client.consumer.errors",
    "Producer": "headrace.client.producer.blocking",
    "ProducerFenced": "headrace.client.errors",
    "RangeReader": "headrace.client.ranges",
    "RebalanceListener": "headrace.client.consumer._subscription",
    "RecordDeserializationError": "headrace.client.consumer.errors",
    "RecordMetadata": "headrace.client.producer.delivery",
    "RetriableError": "headrace.errors",
    "SerializationError": "headrace.client.errors",
    "TopicPartition": "headrace.topics",
    "TransactionError": "headrace.client.errors",
    "TransactionStateError": "headrace.client.errors",
    "TransactionTimeout": "headrace.client.errors",
    "WakeupError": "headrace.client.consumer.errors",
    "exactly_once": "headrace.client.transactions.exactly_once",
}
_ALIASES = {"Record": "ConsumerRecord"}

__all__ = [
    "AbortableTransactionError",
    "Admin",
    "BufferExhausted",
    "ClientClosed",
    "CommitFailedError",
    "ConcurrentAccessError",
    "ConfigError",
    "Consumer",
    "ConsumerForkedError",
    "ConsumerRecord",
    "ConsumerRecords",
    "Delivery",
    "DeliveryTimeout",
    "ErrorCode",
    "FatalTransactionError",
    "HeadraceError",
    "IllegalStateError",
    "KafkaError",
    "LogTruncationError",
    "NewTopic",
    "NoOffsetForPartitionError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetSpec",
    "OffsetsOutOfRangeError",
    "Producer",
    "ProducerFenced",
    "RangeReader",
    "RebalanceListener",
    "Record",
    "RecordDeserializationError",
    "RecordMetadata",
    "RetriableError",
    "SerializationError",
    "TopicPartition",
    "TransactionError",
    "TransactionStateError",
    "TransactionTimeout",
    "WakeupError",
    "__version__",
    "exactly_once",
]


def __getattr__(name: str) -> Any:
    if name in _ALIASES:
        return __getattr__(_ALIASES[name])
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_ALIASES})
