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
        RecordDeserializationError,
        WakeupError,
    )
    from headrace.client.consumer.records import ConsumerRecord, ConsumerRecords, OffsetAndTimestamp
    from headrace.client.errors import (
        AbortableTransactionError,
        BufferExhaustedError,
        ClientClosedError,
        DeliveryTimeoutError,
        FatalTransactionError,
        ProducerFencedError,
        SerializationError,
        TransactionError,
        TransactionStateError,
        TransactionTimeoutError,
    )
    from headrace.client.offsets import OffsetAndMetadata, OffsetSpec
    from headrace.client.producer.blocking import Producer
    from headrace.client.producer.delivery import Delivery, RecordMetadata
    from headrace.client.ranges import RangeReader
    from headrace.client.transactions.exactly_once import exactly_once
    from headrace.config import ConfigError
    from headrace.errors import ErrorCode, HeadraceError, KafkaError, OffsetOutOfRangeError, RetriableError
    from headrace.topics import TopicPartition

    Record = ConsumerRecord
    BufferExhausted = BufferExhaustedError
    ClientClosed = ClientClosedError
    DeliveryTimeout = DeliveryTimeoutError
    OffsetsOutOfRangeError = OffsetOutOfRangeError
    ProducerFenced = ProducerFencedError
    TransactionTimeout = TransactionTimeoutError

# Loaded when first used, so that `import headrace` costs next to nothing.
_LAZY = {
    "AbortableTransactionError": "headrace.client.errors",
    "Admin": "headrace.client.admin",
    "BufferExhaustedError": "headrace.client.errors",
    "ClientClosedError": "headrace.client.errors",
    "CommitFailedError": "headrace.client.consumer.errors",
    "ConcurrentAccessError": "headrace.client.consumer.errors",
    "ConfigError": "headrace.config",
    "Consumer": "headrace.client.consumer.blocking",
    "ConsumerForkedError": "headrace.client.consumer.errors",
    "ConsumerRecord": "headrace.client.consumer.records",
    "ConsumerRecords": "headrace.client.consumer.records",
    "Delivery": "headrace.client.producer.delivery",
    "DeliveryTimeoutError": "headrace.client.errors",
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
    "OffsetOutOfRangeError": "headrace.errors",
    "Producer": "headrace.client.producer.blocking",
    "ProducerFencedError": "headrace.client.errors",
    "RangeReader": "headrace.client.ranges",
    "RebalanceListener": "headrace.client.consumer._subscription",
    "RecordDeserializationError": "headrace.client.consumer.errors",
    "RecordMetadata": "headrace.client.producer.delivery",
    "RetriableError": "headrace.errors",
    "SerializationError": "headrace.client.errors",
    "TopicPartition": "headrace.topics",
    "TransactionError": "headrace.client.errors",
    "TransactionStateError": "headrace.client.errors",
    "TransactionTimeoutError": "headrace.client.errors",
    "WakeupError": "headrace.client.consumer.errors",
    "exactly_once": "headrace.client.transactions.exactly_once",
}
# Short names, and those that errors had before, for programs that use them.
_ALIASES = {
    "BufferExhausted": "BufferExhaustedError",
    "ClientClosed": "ClientClosedError",
    "DeliveryTimeout": "DeliveryTimeoutError",
    "OffsetsOutOfRangeError": "OffsetOutOfRangeError",
    "ProducerFenced": "ProducerFencedError",
    "Record": "ConsumerRecord",
    "TransactionTimeout": "TransactionTimeoutError",
}

__all__ = [
    "AbortableTransactionError",
    "Admin",
    "BufferExhausted",
    "BufferExhaustedError",
    "ClientClosed",
    "ClientClosedError",
    "CommitFailedError",
    "ConcurrentAccessError",
    "ConfigError",
    "Consumer",
    "ConsumerForkedError",
    "ConsumerRecord",
    "ConsumerRecords",
    "Delivery",
    "DeliveryTimeout",
    "DeliveryTimeoutError",
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
    "OffsetOutOfRangeError",
    "OffsetSpec",
    "OffsetsOutOfRangeError",
    "Producer",
    "ProducerFenced",
    "ProducerFencedError",
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
    "TransactionTimeoutError",
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
