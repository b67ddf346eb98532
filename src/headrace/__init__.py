"""Headrace: Kafka in Python, with its data pipeline on Spark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace._version import __version__

if TYPE_CHECKING:
    from headrace.client.admin import Admin, NewTopic
    from headrace.client.cluster.view import PartitionView
    from headrace.client.consumer._subscription import RebalanceListener, SubscriptionPattern
    from headrace.client.consumer.blocking import Consumer
    from headrace.client.consumer.errors import (
        CallbackInterruptedError,
        CommitFailedError,
        ConcurrentAccessError,
        ConsumerForkedError,
        IllegalStateError,
        LogTruncationError,
        NoOffsetForPartitionError,
        RebalanceListenerError,
        RecordDeserializationError,
        RetriableCommitFailedError,
        WakeupError,
    )
    from headrace.client.consumer.records import (
        ConsumerGroupMetadata,
        ConsumerRecord,
        ConsumerRecords,
        OffsetAndTimestamp,
        PartitionColumns,
    )
    from headrace.client.errors import (
        AbortableTransactionError,
        BufferExhaustedError,
        ClientClosedError,
        DeliveryTimeoutError,
        FatalTransactionError,
        ProducerFencedError,
        SerializationError,
        TransactionError,
        TransactionOutcomeUnknownError,
        TransactionStateError,
        TransactionTimeoutError,
        UndeliveredError,
    )
    from headrace.client.offsets import OffsetAndMetadata, OffsetSpec
    from headrace.client.producer._failures import FailedDeliveries
    from headrace.client.producer.blocking import Producer
    from headrace.client.producer.delivery import BatchDelivery, DeliveredRange, Delivery, RecordMetadata
    from headrace.client.ranges import Loss, LostOffsetsError, RangeReader
    from headrace.client.share.blocking import ShareConsumer
    from headrace.client.share.records import AcknowledgeType, ShareRecord
    from headrace.client.transactions.exactly_once import exactly_once
    from headrace.config import ConfigError
    from headrace.errors import (
        ErrorCode,
        HeadraceError,
        IllegalSaslStateError,
        KafkaError,
        MessageTooLargeError,
        OffsetOutOfRangeError,
        RequestTimedOutError,
        RetriableError,
        SaslAuthenticationFailedError,
    )
    from headrace.net.tls import TlsRefusedError
    from headrace.records import TimestampType
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
    "AcknowledgeType": "headrace.client.share.records",
    "Admin": "headrace.client.admin",
    "BatchDelivery": "headrace.client.producer.delivery",
    "BufferExhaustedError": "headrace.client.errors",
    "CallbackInterruptedError": "headrace.client.consumer.errors",
    "ClientClosedError": "headrace.client.errors",
    "CommitFailedError": "headrace.client.consumer.errors",
    "ConcurrentAccessError": "headrace.client.consumer.errors",
    "ConfigError": "headrace.config",
    "Consumer": "headrace.client.consumer.blocking",
    "ConsumerForkedError": "headrace.client.consumer.errors",
    "ConsumerGroupMetadata": "headrace.client.consumer.records",
    "ConsumerRecord": "headrace.client.consumer.records",
    "ConsumerRecords": "headrace.client.consumer.records",
    "DeliveredRange": "headrace.client.producer.delivery",
    "Delivery": "headrace.client.producer.delivery",
    "DeliveryTimeoutError": "headrace.client.errors",
    "UndeliveredError": "headrace.client.errors",
    "FailedDeliveries": "headrace.client.producer._failures",
    "ErrorCode": "headrace.errors",
    "FatalTransactionError": "headrace.client.errors",
    "HeadraceError": "headrace.errors",
    "IllegalSaslStateError": "headrace.errors",
    "IllegalStateError": "headrace.client.consumer.errors",
    "KafkaError": "headrace.errors",
    "LogTruncationError": "headrace.client.consumer.errors",
    "Loss": "headrace.client.ranges",
    "LostOffsetsError": "headrace.client.ranges",
    "MessageTooLargeError": "headrace.errors",
    "NewTopic": "headrace.client.admin",
    "NoOffsetForPartitionError": "headrace.client.consumer.errors",
    "OffsetAndMetadata": "headrace.client.offsets",
    "OffsetAndTimestamp": "headrace.client.consumer.records",
    "OffsetOutOfRangeError": "headrace.errors",
    "OffsetSpec": "headrace.client.offsets",
    "PartitionColumns": "headrace.client.consumer.records",
    "PartitionView": "headrace.client.cluster.view",
    "Producer": "headrace.client.producer.blocking",
    "ProducerFencedError": "headrace.client.errors",
    "RangeReader": "headrace.client.ranges",
    "RebalanceListener": "headrace.client.consumer._subscription",
    "RebalanceListenerError": "headrace.client.consumer.errors",
    "RecordDeserializationError": "headrace.client.consumer.errors",
    "RecordMetadata": "headrace.client.producer.delivery",
    "RequestTimedOutError": "headrace.errors",
    "RetriableCommitFailedError": "headrace.client.consumer.errors",
    "RetriableError": "headrace.errors",
    "SaslAuthenticationFailedError": "headrace.errors",
    "SerializationError": "headrace.client.errors",
    "SubscriptionPattern": "headrace.client.consumer._subscription",
    "ShareConsumer": "headrace.client.share.blocking",
    "ShareRecord": "headrace.client.share.records",
    "TimestampType": "headrace.records",
    "TlsRefusedError": "headrace.net.tls",
    "TopicPartition": "headrace.topics",
    "TransactionError": "headrace.client.errors",
    "TransactionOutcomeUnknownError": "headrace.client.errors",
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
    "AcknowledgeType",
    "Admin",
    "BatchDelivery",
    "BufferExhausted",
    "BufferExhaustedError",
    "CallbackInterruptedError",
    "ClientClosed",
    "ClientClosedError",
    "CommitFailedError",
    "ConcurrentAccessError",
    "ConfigError",
    "Consumer",
    "ConsumerForkedError",
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "ConsumerRecords",
    "DeliveredRange",
    "Delivery",
    "DeliveryTimeout",
    "DeliveryTimeoutError",
    "ErrorCode",
    "FailedDeliveries",
    "FatalTransactionError",
    "HeadraceError",
    "IllegalSaslStateError",
    "IllegalStateError",
    "KafkaError",
    "LogTruncationError",
    "Loss",
    "LostOffsetsError",
    "MessageTooLargeError",
    "NewTopic",
    "NoOffsetForPartitionError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetOutOfRangeError",
    "OffsetSpec",
    "OffsetsOutOfRangeError",
    "PartitionColumns",
    "PartitionView",
    "Producer",
    "ProducerFenced",
    "ProducerFencedError",
    "RangeReader",
    "RebalanceListener",
    "RebalanceListenerError",
    "Record",
    "RecordDeserializationError",
    "RecordMetadata",
    "RequestTimedOutError",
    "RetriableCommitFailedError",
    "RetriableError",
    "SaslAuthenticationFailedError",
    "SerializationError",
    "ShareConsumer",
    "ShareRecord",
    "SubscriptionPattern",
    "TimestampType",
    "TlsRefusedError",
    "TopicPartition",
    "TransactionError",
    "TransactionOutcomeUnknownError",
    "TransactionStateError",
    "TransactionTimeout",
    "TransactionTimeoutError",
    "UndeliveredError",
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
